"""The policy of a run between its events: when it is evaluated, and that it cannot keep a run from its end."""

import json

import pytest

from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.driver.running.policy import Policy
from madlib_mop.driver.running.segments import PolicyAnswered, PolicyFailed
from madlib_mop.errors import Cancelled, InvalidParameter

PLAN = PolicyPlan("SELECT 1", None, 10)


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
    """A policy, its evaluations, its commands and what it told; the test says how each evaluation ends."""

    class World:
        def __init__(self):
            self.asked, self.told, self.commands = [], [], FakeCommands()
            self.policy = Policy(PLAN, 7, self.commands, self, self.told.append)

        def ask_policy(self, plan, query):
            assert plan is PLAN and "SELECT 1" in query and "json_agg" in query
            self.asked.append(query)

        def answers(self, *rows) -> bool:
            return self.policy.evaluated(PolicyAnswered(json.dumps(rows)))

        def fails(self, sqlstate, message, lost=False) -> bool:
            return self.policy.evaluated(PolicyFailed(sqlstate, message, lost))

    return World()


def test_it_is_evaluated_after_metrics_and_once_more_if_others_came_meanwhile(world):
    assert not world.policy.is_at_work()
    world.policy.metrics_came()
    assert world.policy.is_at_work() and len(world.asked) == 1
    world.policy.metrics_came()
    world.policy.metrics_came()
    assert world.answers({"mst_key": 1, "action": "stop_model"})
    assert len(world.asked) == 2 and world.policy.is_at_work()
    assert not world.answers() and not world.policy.is_at_work()
    assert world.commands.rows == [{"mst_key": 1, "action": "stop_model"}]


def test_an_evaluation_that_ended_its_session_is_not_repeated(world):
    """The query may end it each time; the next metrics open another one."""
    world.policy.metrics_came()
    world.policy.metrics_came()
    assert not world.fails("57P01", "terminated", lost=True)
    assert not world.policy.is_at_work() and len(world.asked) == 1
    world.policy.metrics_came()
    assert len(world.asked) == 2


def test_a_failed_evaluation_is_repeated_if_metrics_came_meanwhile(world):
    world.policy.metrics_came()
    world.policy.metrics_came()
    assert not world.fails("22012", "division by zero")
    assert world.policy.is_at_work() and len(world.asked) == 2


def test_a_session_that_cannot_be_opened_does_not_hold_the_run(world):
    for _ in range(2):
        world.policy.metrics_came()
        assert not world.fails("53300", "too many connections", lost=True)
        assert not world.policy.is_at_work()
    assert world.told == ["the policy failed: too many connections"], "an error is told once"


def test_an_evaluation_that_takes_too_long_says_what_to_set(world):
    world.policy.metrics_came()
    world.fails("57014", "canceling statement due to statement timeout")
    assert world.told == ["the policy took too long: SET madlib_mop.policy_timeout_s allows more than 10 seconds"]


def test_a_wrong_row_is_told_and_the_others_are_issued(world):
    world.policy.metrics_came()
    assert world.answers({"action": "wrong"}, {"action": "extend"})
    assert world.told == ["no such action"] and world.commands.rows == [{"action": "extend"}]


def test_a_cancel_of_the_call_is_no_error_of_a_command(world):
    world.policy.metrics_came()
    with pytest.raises(Cancelled):
        world.answers({"mst_key": 1, "action": "cancelled"})
    assert not world.told
