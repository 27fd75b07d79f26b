"""Direct hops: random histories of runs whose states stay at hosts keep the promises, and replays repeat them."""

from collections import Counter

import pytest

from tests.helpers.unit.histories import HoppingHistory, live_and_check
from tests.helpers.unit.history_bugs import HOP_BUGS, seed_that_finds

N_FAST = 150
THOUSANDS = range(0, 10_000, 1000)


@pytest.fixture(scope="module")
def lives():
    """Return histories that have kept their promises."""
    return [live_and_check(seed, HoppingHistory) for seed in range(N_FAST)]


def test_whatever_happens_a_run_keeps_its_promises_and_is_replayed(lives):
    assert all(history.record.the_run.state.is_trained for history in lives)


@pytest.mark.slow
@pytest.mark.parametrize("first", THOUSANDS)
def test_whatever_happens_a_thousand_runs_keep_their_promises(first):
    for seed in range(first, first + 1000):
        live_and_check(seed, HoppingHistory)


def test_histories_have_what_can_happen_to_states_at_hosts(lives):
    found = Counter()
    for history in lives:
        log = "\n".join(history.world.log)
        found["states that stay at hosts"] += "is held" in log
        found["states that are lost"] += "has no version" in log
        found["visits that are made again"] += history.record.n_again > 0
        found["orphans"] += "! orphaned" in log
        found["hosts with old states"] += "! forgotten" in log
        segments = history.record.the_run.plan.training.segments
        found["segments on the coordinator"] += any(shard.place is None for shard in segments)
    assert len(found) == 6 and min(found.values()) > 2, found


@pytest.mark.mutation
@pytest.mark.parametrize("bug", HOP_BUGS, ids=lambda bug: bug.name)
def test_histories_find_a_bug(bug, tmp_path):
    """A copy of the library has the bug; one of the first histories then does not keep a promise."""
    assert seed_that_finds(bug, tmp_path, range(10 * N_FAST), "HoppingHistory") < N_FAST
