"""The registry's document of a model: read back as it was written, and checked like an output table."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.certainty.scores import of_numbers
from madlib_mop.columns.preprocessors.canonical import plain
from madlib_mop.driver.commands.scoring import describe_outputs
from madlib_mop.driver.inference.model import ModelLocation, RegisteredVersion, TrainedModel
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.inference.registered import document_of, find_model
from madlib_mop.driver.registry.registering import check_registry
from madlib_mop.driver.session.caller import RegisteredContent
from madlib_mop.errors import InvalidParameter, MopError, Unsupported
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from tests.helpers.unit.documents import dense, keras_3

RELATION = Relation("public", "models", 77)
MODEL = TrainedModel(
    "mst_key 1 of public.models", ModelLocation(RELATION, "mst_key", 1),
    Configuration.recorded(
        0, "loss='mse', optimizer='sgd'", "batch_size=1", check_architecture(json.dumps(keras_3(dense(3))))
    ),
    ["accuracy", "mae"], "mse", 1,
    (
        DependentOutput("y", "text", (None, "a", "é"), "{NULL,a,é}", "mse"),
        DependentOutput("z", "real", None, None, None),
    ),
    2.5, "mine",
    preprocessor='{"a": 1}', inputs=("pixels",),
)  # fmt: skip


def session_with(document: str):
    """Return a session whose registry has one version with this document."""
    content = RegisteredContent("m", 3, document)
    return SimpleNamespace(registered=lambda function, name, right="PREDICT": content)


def test_a_model_is_read_as_it_was_written():
    read = find_model(session_with(document_of(MODEL)), "predict", "m@champion", None)
    assert read.label == "m@3" and read.place == RegisteredVersion("predict", "m@3", Relation("public", "models"))
    same = dataclasses.replace(read, label=MODEL.label, place=MODEL.place)
    assert same == MODEL


def changed(**fields) -> str:
    return json.dumps(json.loads(document_of(MODEL)) | fields)


def test_held_out_rows_are_read_as_they_were_written():
    record = of_numbers("z", "public.test", np.zeros(20), np.arange(20.0), False)
    read = find_model(session_with(document_of(MODEL, held_out=[record])), "predict", "m@champion", None)
    assert read.held_out == (record,) and MODEL.held_out == ()
    assert [one["held_out"] is None for one in describe_outputs(read)] == [True, False]
    assert find_model(session_with(changed(held_out=[])), "predict", "m@3", None).held_out == ()


@pytest.mark.parametrize("fields", [{"ranks": [2, 1]}, {"scores": []}, {"score": "?"}, {"n_rows": "many"}, {"more": 1}])
def test_a_record_of_held_out_rows_by_hand_is_one_clear_error(fields):
    record = plain(of_numbers("z", "public.test", np.zeros(2), np.arange(2.0), False))
    with pytest.raises(InvalidParameter) as caught:
        find_model(session_with(changed(held_out=[{**record, **fields}])), "predict", "m@champion", None)
    assert caught.value.message.startswith("m@3: its recorded held-out rows") and "damaged" in caught.value.message
    assert "Register the model again" in caught.value.hint


@pytest.mark.parametrize("document", [
    "", "null", "7", "[]", "{}", changed(outputs=None), changed(outputs=[{}]), changed(outputs=[[]]),
    changed(normalizing_const="x"), changed(n_inputs=None), changed(inputs=[1]), changed(metrics_type=[1]),
    changed(preprocessor={}),
    changed(arch=None), changed(arch={"class_name": "Lambda"}), changed(table_name=None), "[" * 100_000,
])  # fmt: skip
def test_a_document_that_is_none_is_one_clear_error(document):
    with pytest.raises(MopError) as caught:
        find_model(session_with(document), "predict", "m@champion", None)
    assert "m@3" in caught.value.message


def test_without_a_registry_its_functions_say_so():
    session = SimpleNamespace(execute=lambda *_: [{"there": False}])
    with pytest.raises(Unsupported, match="there is no registry of models on Greenplum and Cloudberry"):
        check_registry(session)


def test_a_key_is_for_tables():
    with pytest.raises(InvalidParameter, match="mst_key is for tables; m@champion names one model. Received: 4"):
        find_model(session_with(""), "predict", "m@champion", 4)
