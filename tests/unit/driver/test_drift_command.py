"""Drift's predictions: outputs of every kind as columns, and the recorded ones of a version, checked."""

import dataclasses
import json

import numpy as np
import pytest

from madlib_mop.columns.drift.observed import ObservedColumn
from madlib_mop.columns.drift.profiler import Profiler
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.profiles import ColumnProfile, LevelProfile
from madlib_mop.columns.proposals.kinds import CATEGORY, TARGET, ColumnSpec
from madlib_mop.driver.drift.command import _observed
from madlib_mop.driver.drift.outputs import CountedOutputs
from madlib_mop.driver.inference.output import DependentOutput, PredictionProfile
from madlib_mop.driver.inference.registered import document_of, find_model
from madlib_mop.errors import InvalidParameter
from tests.unit.driver.test_registered import MODEL, session_with

CLASSES = FittedColumn(ColumnSpec("y", "text", role=TARGET, kind=CATEGORY), ClassFit(("a", "b"), "one_hot"))
PROFILE = ColumnProfile(10, 0, 0, (), LevelProfile((7, 3), 0, (), True))


def model_with(*outputs):
    return dataclasses.replace(MODEL, outputs=outputs, preprocessor=None)


def counted(model, *batches) -> dict:
    outputs = CountedOutputs(model, Profiler)
    for batch in batches:
        outputs.add([np.array(values, np.float32) for values in batch])
    return {name: profiler.profile() for name, profiler in outputs.counters.items()}


def test_outputs_of_every_kind_are_counted():
    model = model_with(
        DependentOutput("c", "text", ("a", "b", "c"), "{a,b,c}", None),
        DependentOutput("two", "boolean", ("f", "t"), "{f,t}", None),
        DependentOutput("n", "real", None, None, "mse"), DependentOutput("many", "real[]", None, None, "mse"),
        DependentOutput("hot", "integer[]", None, None, "categorical_crossentropy"),
    )  # fmt: skip
    first = ([[0.1, 0.8, 0.1], [0.5, 0.5, 0.0]], [[0.9], [0.2]], [[5.0], [np.nan]], [[1.0, 2.0], [3.0, 4.0]],
             [[0.0, 1.0], [0.2, 0.1]])  # fmt: skip
    second = ([[0.0, 0.1, 0.9]], [[0.6]], [[7.0]], [[5.0, 6.0]], [[np.nan, 0.1]])
    found = counted(model, first, second)
    assert found["c"].levels.counts == (1, 1, 1) and found["two"].levels.counts == (1, 2)
    assert (found["n"].n_rows, found["n"].n_special, found["n"].numbers[0].maximum) == (3, 1, 7.0)
    assert [(one.name, one.maximum) for one in found["many"].numbers] == [("element 1", 5.0), ("element 2", 6.0)]
    assert found["hot"].levels.counts == (1, 2)  # NaN is the worst


def test_a_row_without_a_class_is_null():
    model = model_with(DependentOutput("c", "text", ("a", "b"), "{a,b}", None))
    profile = counted(model, [[[np.nan, np.nan], [0.1, 0.9]]])["c"]
    assert profile.levels.counts == (0, 1) and (profile.n_rows, profile.n_null) == (2, 1)


def test_null_as_a_class_and_units_beyond_the_classes_have_names():
    model = model_with(DependentOutput("c", "text", (None, "NULL", "b"), "{NULL,NULL,b}", None))
    outputs = CountedOutputs(model, Profiler)
    outputs.add([np.eye(5, dtype=np.float32)])
    assert outputs.counters["c"]._column.fit.classes == ("NULL", "NULL (unit 1)", "b", "unit 3", "unit 4")
    assert outputs.counters["c"].profile().levels.counts == (1, 1, 1, 1, 1)


def test_recorded_predictions_are_read_as_they_were_written():
    recorded = (PredictionProfile("y", "public.packed", PROFILE),)
    read = find_model(session_with(document_of(MODEL, recorded)), "drift", "m@1", None)
    assert read.predictions == recorded
    document = json.loads(document_of(MODEL))
    del document["predictions"]  # of versions that were registered before
    assert find_model(session_with(json.dumps(document)), "drift", "m@1", None).predictions == ()


@pytest.mark.parametrize("predictions", [[{}], [7], [{"output": "y", "table": "t", "profile": {}}], "x"])
def test_a_document_with_unreadable_predictions_is_one_clear_error(predictions):
    document = json.dumps(json.loads(document_of(MODEL)) | {"predictions": predictions})
    with pytest.raises(InvalidParameter) as caught:
        find_model(session_with(document), "drift", "m@1", None)
    assert caught.value.message.startswith("m@3: its recorded predictions are damaged")


def test_recorded_predictions_that_do_not_fit_are_one_clear_error():
    assert isinstance(_observed(CLASSES, {"y": PROFILE}), ObservedColumn)
    for wrong in (
        dataclasses.replace(PROFILE, levels=LevelProfile((7,), 0, (), True)),
        dataclasses.replace(PROFILE, levels=None),
        dataclasses.replace(PROFILE, n_null=-1),
    ):
        with pytest.raises(InvalidParameter, match="the recorded predictions of 'y' are damaged"):
            _observed(CLASSES, {"y": wrong})
