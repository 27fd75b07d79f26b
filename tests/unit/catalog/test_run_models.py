"""Copies of another model's state: whether the copy begins with a new optimizer."""

import dataclasses

import pytest

from madlib_mop.catalog.rows.model import ClonedFrom, ModelRow, TakenOver
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.models.configuration import Configuration
from tests.helpers.unit.rows import a_model

OF_ADAM = Configuration(1, "loss='mse', optimizer='Adam()'", "batch_size=8", {})


class Record:
    """A record in memory, of what `RunModels` writes here."""

    def __init__(self, *models: ModelRow):
        self.rows = {model.mst_key: model for model in models}

    def models(self, run_id):
        return list(self.rows.values())

    def lock_model(self, run_id, mst_key):
        return self.rows[mst_key]

    def add_models(self, run_id, models):
        self.rows |= {model.mst_key: model for model in models}

    def set_model(self, run_id, mst_key, waits=True, **columns):
        self.rows[mst_key] = dataclasses.replace(self.rows[mst_key], **columns)

    def copy_state(self, *_):
        pass

    def delete_state(self, _):
        pass


# The original's state is its own, or a copy (with its optimizer or without it) that it has not trained yet, or has.
OWN, KEPT, NEW = None, TakenOver(9, 1, 4, True), TakenOver(9, 1, 4, False)
TRAINED = TakenOver(9, 1, 3, False)


@pytest.mark.parametrize(
    "origin, keep, expected",
    [
        (OWN, None, None), (OWN, True, True), (OWN, False, False),
        (TRAINED, None, None), (TRAINED, True, True), (TRAINED, False, False),
        (KEPT, None, True), (KEPT, True, True), (KEPT, False, False),
        (NEW, None, False), (NEW, True, False), (NEW, False, False),
    ],
)  # fmt: skip
def test_a_clone_begins_as_its_original_would(origin, keep, expected):
    """With the same parameters (None), it takes nothing over unless its original does."""
    source = a_model(1, epoch=1, position=2, state_version=4, taken_over=origin)
    models = RunModels(Record(source), 7)
    models.cloned(a_model(2), source, 0, ClonedFrom(1, 1, 2, (), 0, False), keep)
    takes = models[2].taken_over
    assert (takes and takes.optimizer) == expected
    assert takes is None or models[2].is_just_taken_over and takes.mst_key == 1
    assert models[2].has_new_optimizer == (expected is False)


@pytest.mark.parametrize(
    "origin, keep, expected",
    [(OWN, True, True), (OWN, False, False), (TRAINED, True, True), (KEPT, True, True), (NEW, True, False)],
)
def test_a_model_that_continues_with_a_copy_has_no_optimizer_that_its_original_has_not(origin, keep, expected):
    source = a_model(1, epoch=1, position=2, state_version=4, taken_over=origin)
    models = RunModels(Record(source, a_model(2, epoch=1, position=2, state_version=6)), 7)
    models.crossed(2, 1, 0, OF_ADAM, 3, keep)
    assert models[2].taken_over.optimizer is expected and models[2].is_just_taken_over


@pytest.mark.parametrize("version, state", [(0, ModelState.WAITING), (1, ModelState.TRAINING)])
def test_a_model_is_resumed_after_a_first_visit_that_is_not_known_here(version, state):
    """It was stopped during the visit; a worker has committed it, and its answer was not read yet."""
    record = Record(a_model(1, state=ModelState.STOPPED))
    models = RunModels(record, 7)
    record.set_model(7, 1, state_version=version)
    models.resumed(1)
    assert record.rows[1].state is models[1].state is state
