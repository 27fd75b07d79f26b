"""Promises 1 to 5 and 11: random histories of a run, without a server, keep them, and replays repeat them."""

import math
from collections import Counter

import pytest
from mop_backend.refusals import STATE_DAMAGED

from madlib_mop.catalog.rows.states import ChangeSource, ChangeState, ModelState
from madlib_mop.models.changes import BY_FUNCTION
from madlib_mop.schedule.bulk import AVERAGING
from tests.helpers.unit import histories
from tests.helpers.unit.fake_segments import Fault
from tests.helpers.unit.histories import FAULTS, History, Life, live_and_check
from tests.helpers.unit.history_bugs import BUGS, seed_that_finds
from tests.helpers.unit.memory_record import NO_MEAN
from tests.helpers.unit.memory_runs import Driver

#: The first ones, and for each bug of `history_bugs` that these do not find, one that finds it.
FAST = (*range(110), 194, 223, 332, 363, 613)
N_SLOW = 10_000
THOUSANDS = range(1000, N_SLOW, 1000)


@pytest.fixture(scope="module")
def lives():
    """Return histories that have kept their promises."""
    return [live_and_check(seed) for seed in FAST]


def test_whatever_happens_a_run_keeps_its_promises_and_is_replayed(lives):
    assert all(history.record.the_run.state.is_trained for history in lives)


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in THOUSANDS)])
def test_whatever_happens_a_thousand_runs_keep_their_promises(lives, first):
    for seed in range(first, first + 1000):
        if seed not in FAST:
            live_and_check(seed)


def test_histories_have_commands_of_each_kind_and_changes_of_each_decider(lives):
    commands, sources, kinds, methods = Counter(), Counter(), Counter(), set()
    for history in lives:
        run, changes = history.record.the_run, history.record.changes
        commands.update((row.command, row.state) for row in changes if row.command is not None)
        sources.update(row.source for row in changes)
        kinds[history.kind] += 1
        methods |= {run.search_plan.method} if run.is_search else set()
    assert {command for command, state in commands if state is ChangeState.OBEYED} == set(BY_FUNCTION)
    assert {command for command, state in commands if state is ChangeState.REFUSED} >= {
        "stop_model", "resume_model", "clone_model", "extend", "pause", "unpause"
    }  # fmt: skip
    assert set(sources) == set(ChangeSource) - {ChangeSource.REPLAY}
    assert min(kinds.values()) >= 10 and len(methods) == 4


def test_histories_have_what_a_run_can_have(lives):
    found = Counter()
    for history in lives:
        record = history.record
        models, plan = record.rows.values(), record.the_run.plan
        found["commands that were withdrawn"] += any(row.state is ChangeState.WITHDRAWN for row in record.changes)
        found["commands that a driver found at its beginning"] += history.has_begun_with_commands
        found["commands without a driver"] += bool(history.undriven)
        found["validation data"] += plan.validation is not None
        found["a sample"] += bool(record.visit_metrics)
        found["metrics that are no means"] += any(m.name == NO_MEAN for m in record.all_metrics)
        found["losses that are NaN"] += any(math.isnan(m.value) for m in record.all_metrics)
        found["states of an earlier run"] += bool(record.earlier)
        found["weights of an earlier run"] += any(m.first_epoch > 1 and m.start_weights is not None for m in models)
        found["best states"] += any(m.is_restored and m.state is ModelState.TRAINED for m in models)
        found["damaged states"] += any(STATE_DAMAGED in (m.state_detail or "") for m in models)
        found["best states instead of damaged ones"] += any(m.is_restored and not m.is_alive for m in models)
        found["visits that are refused"] += any("is refused" in line for line in history.world.log)
    assert len(found) == 13 and min(found.values()) > 0, found
    happened = {name.partition(",")[0] for history in lives for name in history.world.happened}
    of_hops = {Fault.ORPHANED, Fault.FORGOTTEN}
    assert {fault.value for fault in set(Fault) - of_hops} <= happened


@pytest.mark.parametrize("seed", range(5))
def test_model_averaging_ends_with_the_same_bits_whatever_is_lost(seed):
    options = {"n_models": 1, "n_epochs": 3, "schedule": AVERAGING}
    plain, life = Driver(1, **options).drive(), Life(seed, n_deaths=4, faults=FAULTS, **options).live()
    assert life.ends() == plain.ends() and len(life.record.visits(1)) == 9


def test_a_seed_has_one_history():
    texts = [History(3).live().text() for _ in range(2)]
    assert texts[0] == texts[1]


def test_a_failure_is_shrunk_to_a_short_history(monkeypatch):
    """Of a history in which a visit is refused, what does not lead to that is left out."""

    def check(history):
        assert not any("is refused" in line for line in history.world.log), "nothing is refused"

    monkeypatch.setattr(histories, "assert_promises", check)
    monkeypatch.setattr(histories, "_MOST_RUNS_TO_SHRINK", 100)
    with pytest.raises(AssertionError, match="nothing is refused") as raised:
        for seed in range(100):
            live_and_check(seed)
    (note,) = raised.value.__notes__
    assert note.startswith("history ") and "is refused" in note and len(note.splitlines()) < 40, note


@pytest.mark.mutation
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_histories_find_a_bug(bug, tmp_path):
    """A copy of the library has the bug; one of the first histories then does not keep a promise."""
    seed = seed_that_finds(bug, tmp_path, [*FAST, *range(N_SLOW)])
    assert seed in FAST, f"add {seed} to FAST: none of these finds the bug, number {seed} does"
