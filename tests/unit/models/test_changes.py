"""The vocabulary of changes: each class through the record, and by which SQL functions people and policies ask."""

import json

import pytest

from madlib_mop.calls.steering import FUNCTIONS
from madlib_mop.driver.running.policy import ACTIONS
from madlib_mop.models.changes import (
    BY_FUNCTION,
    CHANGES,
    Add,
    Clone,
    EndAlike,
    Exploit,
    Extend,
    Finish,
    NewModel,
    Pause,
    Pin,
    Proposal,
    Resume,
    Stop,
    Unpause,
    read_change,
)
from madlib_mop.models.configuration import Configuration

_CONFIGURATION = Configuration(1, "loss='mse', optimizer='sgd'", "batch_size=4", {"class_name": "Sequential"})
_RECORDED = Configuration.recorded(**_CONFIGURATION.columns())
EACH = [
    Stop(1, "bad", at_once=True), Stop(1, "not among the best"), Resume(1), Clone(1), Clone(1, repeated=5),
    Clone(1, _RECORDED, from_state=False, keep_optimizer=False, num_iterations=2), Extend(1, 9, 1),
    Extend(num_iterations=2), Add((Proposal(1, 1, "loss='mse'", "batch_size=4", 3, s=1, i=0),)),
    Add((NewModel(_RECORDED, "model_id 1", None), NewModel(_RECORDED, None, {"patience": 1}))), Pause(), Unpause(),
    Pin(1), Pin(1, pinned=False), Exploit(2, 1, "loss='mse'", "", 4, 2), Finish("over"), EndAlike(3),
]  # fmt: skip


@pytest.mark.parametrize("change", EACH, ids=str)
def test_a_change_travels_through_the_record(change):
    assert read_change(change.word, json.loads(json.dumps(change.as_json()))) == change


def test_every_change_travels():
    assert {type(change) for change in EACH} == set(CHANGES.values())


def test_the_functions_that_steer_are_those_of_the_vocabulary():
    assert {function.name for function in FUNCTIONS} == set(BY_FUNCTION)
    assert set(ACTIONS) == {"stop_model", "resume_model", "clone_model", "extend", "pin_model"}


def test_a_decision_of_a_search_is_recorded_as_version_1_0_0_did():
    """A resumed search compares what it decides again with the record."""
    assert Stop(3, "not among the best").as_json() == {"mst_key": 3, "reason": "not among the best"}
    assert Extend(3, 9).as_json() == {"mst_key": 3, "last_epoch": 9}
    proposal = {"mst_key": 1, "model_id": 2, "compile_params": "loss='mse'", "fit_params": "", "last_epoch": 3}
    assert Add((Proposal(1, 2, "loss='mse'", "", 3),)).as_json() == proposal
