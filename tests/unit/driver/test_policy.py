"""The policy of a run between its events: when it is evaluated, and that it cannot keep a run from its end."""

import json

import pytest

from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.driver.running.policy import Policy
from madlib_mop.engines.sessions.session import Opened, Returned, SessionState, StatementFailure
from madlib_mop.errors import Cancelled, InvalidParameter


class FakeSession:
    """A session whose events the test gives."""

    def __init__(self):
        self.state = SessionState.CONNECTING
        self.statements = []
        self.event = None

    def begin(self, statement, params):
        assert self.state is SessionState.IDLE
        self.state = SessionState.BUSY
        self.statements.append(statement)

    def advance(self):
        lost = isinstance(self.event, StatementFailure) and self.event.lost
        self.state = SessionState.BROKEN if lost else SessionState.IDLE
        return self.event


class FakeCommands:
    """Commands that are recorded here; an action "wrong" is refused, and "cancelled" finds the call cancelled."""

    def __init__(self):
        self.rows = []

    def issue(self, row):
        if row["action"] == "wrong":
            raise InvalidParameter("no such action")
        if row["action"] == "cancelled":
            raise Cancelled("canceling statement due to user request")
        self.rows.append(row)
        return True


@pytest.fixture
def world():
    """A policy, its sessions, its commands and what it told."""

    class World:
        def __init__(self):
            self.sessions, self.told, self.commands = [], [], FakeCommands()
            self.policy = Policy(PolicyPlan("SELECT", None, 10), 7, self.commands, self, self.told.append)

        def open_policy_session(self, plan, query):
            self.sessions.append(FakeSession())
            return self.sessions[-1]

        def event(self, event) -> bool:
            self.sessions[-1].event = event
            return self.policy.advance()

    return World()


def test_it_is_evaluated_after_metrics_and_once_more_if_others_came_meanwhile(world):
    assert not world.policy.is_at_work()
    world.policy.metrics_came()
    assert world.policy.is_at_work() and not world.event(Opened())
    (session,) = world.sessions
    assert session.statements == ["EXECUTE policy (7)"]
    world.policy.metrics_came()
    world.policy.metrics_came()
    assert world.event(Returned(json.dumps([{"mst_key": 1, "action": "stop_model"}])))
    assert len(session.statements) == 2 and world.policy.is_at_work()
    assert not world.event(Returned("[]")) and not world.policy.is_at_work()
    assert world.commands.rows == [{"mst_key": 1, "action": "stop_model"}]


def test_a_pause_in_the_middle_of_it_lets_it_begin_again(world):
    """The pause ends the session; without another one, the run would wait for it for ever."""
    world.policy.metrics_came()
    world.sessions[0].state = SessionState.BROKEN
    assert world.policy.is_at_work() and len(world.sessions) == 2
    world.event(Opened())
    world.event(Returned("[]"))
    assert not world.policy.is_at_work()


def test_a_pause_during_the_query_lets_it_run_again(world):
    """These may be the last metrics of the run."""
    world.policy.metrics_came()
    world.event(Opened())
    world.sessions[0].state = SessionState.BROKEN
    assert world.policy.is_at_work() and len(world.sessions) == 2
    world.event(Opened())
    assert world.event(Returned(json.dumps([{"mst_key": 1, "action": "stop_model"}])))
    assert not world.policy.is_at_work() and len(world.sessions) == 2


def test_a_query_that_ended_its_session_is_not_run_again(world):
    world.policy.metrics_came()
    world.event(Opened())
    world.event(StatementFailure("57P01", "terminated", lost=True))
    assert not world.policy.is_at_work() and len(world.sessions) == 1


def test_a_session_that_cannot_be_opened_does_not_hold_the_run(world):
    world.policy.metrics_came()
    assert not world.event(StatementFailure("53300", "too many connections", lost=True))
    assert not world.policy.is_at_work() and world.told == ["the policy failed: too many connections"]
    world.policy.metrics_came()
    world.event(StatementFailure("53300", "too many connections", lost=True))
    assert len(world.told) == 1, "an error is told once"


def test_a_wrong_row_is_told_and_the_others_are_issued(world):
    world.policy.metrics_came()
    world.event(Opened())
    assert world.event(Returned(json.dumps([{"action": "wrong"}, {"action": "extend"}])))
    assert world.told == ["no such action"] and world.commands.rows == [{"action": "extend"}]


def test_a_cancel_of_the_call_is_no_error_of_a_command(world):
    world.policy.metrics_came()
    world.event(Opened())
    with pytest.raises(Cancelled):
        world.event(Returned(json.dumps([{"mst_key": 1, "action": "cancelled"}])))
    assert not world.told
