"""States that hosts hold, as a driver sees them: models that wait for a host, and states that are made again.

Random histories of whole runs: `test_hopping_histories`.
"""

from dataclasses import replace
from datetime import UTC, datetime
from unittest import mock

import pytest
from mop_backend.messages import StateAway, StateGone

from madlib_mop.catalog.rows.model import StateCopyRow
from madlib_mop.catalog.rows.plan import HopPlan, ShardAccess
from madlib_mop.catalog.rows.run import VisitRow
from madlib_mop.driver.running.states_at_hosts import StatesAtHosts
from madlib_mop.errors import NotReady
from madlib_mop.schedule import ModelWork, make_scheduler
from tests.helpers.unit.rows import a_model, a_plan, a_run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNIT = (1,)
AWAY, GONE = StateAway("host1", "the connection was refused"), StateGone("host1", (1,))


class Running:
    """A run of one model with two segments at hosts; it has made two visits, and host 1 has its state."""

    def __init__(self, monkeypatch):
        plan = a_plan([(0, 10), (1, 10)], direct_hops=HopPlan())
        shards = [replace(s, place=ShardAccess("SELECT", f"host{s.segment_id}")) for s in plan.training.segments]
        run = a_run(replace(plan, training=replace(plan.training, segments=tuple(shards))))
        state = {"state_version": 2, "digest": "d2", "state_server": "host1", "state_bytes": 4}
        self.model = a_model(1, run_id=1, epoch=1, position=2, **state)
        self.copies = [self.copy(version) for version in (1, 2)]
        self.record, self.segments, self.slots, self.told = mock.Mock(), mock.Mock(), mock.Mock(), []
        self.record.models.side_effect = lambda run_id: [self.model]
        self.record.state_copies.side_effect = lambda run_id: list(self.copies)
        self.record.copy_lost.side_effect = self._lost
        self.record.visits.return_value = [self.visit(version) for version in (1, 2)]
        self.scheduler = make_scheduler("rotation", [ModelWork(UNIT, 0, 2, 2)], {0: 10, 1: 10})
        unit_of = {1: UNIT}.__getitem__
        self.states = StatesAtHosts(
            self.record, run, self.scheduler, self.slots, unit_of, self.segments, self.told.append
        )
        self.now = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def copy(self, version):
        return StateCopyRow(
            run_id=1, mst_key=1, version=version, server=f"host{version - 1}", epoch=1, position=version,
            segment_id=version - 1, state_bytes=4, forward_parts=1, digest=f"d{version}", weights_digest="w",
        )  # fmt: skip

    def visit(self, version):
        return VisitRow(
            visit_id=version, run_id=1, mst_key=1, epoch=1, position=version, segment_id=version - 1, started_at=NOW,
            ended_at=NOW, n_rows=10, state_bytes=4, digest_in=f"d{version - 1}", digest_out=f"d{version}", attempt=1,
            loss=0.5, timing={},
        )  # fmt: skip

    def _lost(self, run_id, mst_key, version, server):
        before = self.copies
        self.copies = [c for c in before if (c.version, c.server) != (version, server)]
        return len(self.copies) < len(before)

    @property
    def starts(self):
        """Whether the model's next visit can start; it starts then."""
        return bool(self.scheduler.next_tasks())

    def next_again(self):
        """Return version and base of the visits to make again that idle segments begin."""
        return [(segment, a.version, a.from_version) for segment, a in self.states.next_again({0, 1})]


@pytest.fixture
def running(monkeypatch):
    return Running(monkeypatch)


def test_a_model_waits_for_its_host_and_is_tried_from_time_to_time(running):
    running.states.away(UNIT, AWAY)
    running.states.tick()
    assert not running.starts and "waits for host host1" in running.told[0]
    running.now += 1.0
    running.states.tick()
    assert running.starts


def test_a_model_goes_on_at_once_when_a_segment_of_its_host_is_ready(running):
    running.states.away(UNIT, AWAY)
    running.states.ready(0)
    running.states.tick()
    assert not running.starts
    running.states.ready(1)
    running.states.tick()
    assert running.starts


def test_a_host_is_not_waited_for_without_end(running):
    with pytest.raises(NotReady, match=r"host host1, .* was not available within 600 s"):
        for _ in range(100):
            running.states.away(UNIT, AWAY)
            running.now += 10
    assert len(running.told) == 1


def test_a_model_that_waits_goes_on_when_something_else_has_got_its_state(running):
    """Another evaluation, or the fetch for a clone, whose host is back before the next try."""
    running.states.away(UNIT, AWAY)
    running.states.reached(UNIT)
    assert running.starts


def test_a_model_that_waits_goes_on_when_its_state_was_fetched(running):
    running.states.away(UNIT, AWAY)
    running.segments.fetch.return_value = [b"state"]
    assert running.states.bring_home(1)
    running.states.tick()
    assert running.starts


def test_a_lost_state_is_made_again_from_the_newest_one_that_is_left(running):
    running.states.gone(GONE)
    assert not running.starts and running.next_again() == [(1, 2, 1)]
    assert running.next_again() == [], "it is in flight"


def test_without_any_copy_a_model_makes_all_its_visits_again(running):
    running.copies = [running.copy(2)]
    running.states.gone(GONE)
    ((segment, first),) = running.states.next_again({0, 1})
    assert (segment, first.version, first.from_version) == (0, 1, 0)
    running.copies = [running.copy(1)]
    running.states.made(first)
    ((segment, second),) = running.states.next_again({0, 1})
    assert (segment, second.version, second.from_version) == (1, 2, 1) and not running.starts
    running.copies.append(running.copy(2))
    running.states.made(second)
    assert running.next_again() == [] and running.starts


def test_a_host_that_loses_the_same_state_again_and_again_ends_the_run(running):
    with pytest.raises(NotReady, match=r"host1 does not keep .* version 2 of mst_key 1 was lost 21 times") as refused:
        for _ in range(30):
            running.states.gone(GONE)
            ((_, again),) = running.states.next_again({0, 1})
            running.copies.append(running.copy(2))
            running.states.made(again)
    assert "resume(1)" in refused.value.hint


def test_tasks_that_miss_a_state_at_the_same_time_have_lost_it_once(running):
    for _ in range(100):
        running.states.gone(GONE)
    assert running.next_again() == [(1, 2, 1)]


def test_a_state_that_is_on_its_way_is_asked_for_again(running):
    running.segments.fetch.return_value = None
    assert not running.states.bring_home(1) and not running.states.all_home()
    assert not running.slots.begin_write.called and running.starts


def test_a_state_that_two_evaluations_have_missed_is_made_again_once(running):
    running.states.gone(GONE)
    running.states.gone(GONE)
    assert running.next_again() == [(1, 2, 1)] and running.next_again() == []


def test_a_state_whose_base_is_lost_too_is_made_from_the_one_before(running):
    running.states.gone(GONE)
    ((_, again),) = running.states.next_again({0, 1})
    running.states.base_gone(again, StateGone("host0", (1,)))
    assert running.next_again() == [(0, 1, 0)]


def test_a_state_that_is_made_again_is_not_looked_for_at_its_host(running):
    """The host may have come back with it: it would be recorded in two ways."""
    running.states.gone(GONE)
    assert not running.states.bring_home(1) and not running.states.all_home()
    assert not running.segments.fetch.called


def test_what_a_host_has_said_before_is_not_about_a_state_that_is_made_again(running):
    running.states.gone(GONE)
    running.segments.forget_fetch.assert_called_once_with(1)


def test_no_state_of_a_model_that_has_failed_is_made_again(running):
    running.states.gone(GONE)
    ((_, again),) = running.states.next_again({0, 1})
    running.segments.forget_fetch.reset_mock()
    running.states.forget(1)
    running.segments.forget_fetch.assert_called_once_with(1)
    running.states.not_made(again)
    assert running.next_again() == []


def test_a_fetched_state_is_the_models_newest_one_or_leaves_its_slot(running):
    running.segments.fetch.return_value = [b"state"]
    running.slots.begin_write.return_value = 5
    running.record.bring_home.return_value = False  # a visit was committed meanwhile
    assert not running.states.bring_home(1) and not running.slots.rename.called
    assert running.slots.end_write.call_args.args == (5, ("fetched", 1), None)
    running.record.bring_home.return_value = True
    assert running.states.bring_home(1) and running.slots.rename.called
