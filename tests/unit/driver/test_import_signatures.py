"""A signature in an imported file could have been written by anybody: it is checked as a whole."""

import hashlib
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from madlib_mop.driver.imports.reading import ImportedFile
from madlib_mop.driver.imports.signed import meaning_of
from madlib_mop.driver.inference.described import DescribedModel
from madlib_mop.errors import InvalidParameter, MopError, UnreadableText
from madlib_mop.exports.signature import ModelInput, ModelOutput, Signature
from madlib_mop.imports.signatures import check_signature, read_signature
from madlib_mop.models.architecture import check_architecture
from tests.helpers.unit.documents import dense, keras_3

WEIGHTS = bytes(60)
ARCH = check_architecture(keras_3(dense(3, name="out"), input_shape=(4,)))
SIGNATURE = Signature(
    "churn@3", "1.1.0", hashlib.sha256(WEIGHTS).hexdigest(), None,
    (ModelInput("x", "input_layer", "float32", (None, 4), None, 255.0),),
    (ModelOutput("out", "out", "kind", "text", (None, "a", "b")),),
)  # fmt: skip
NONE = {"class_values": None, "normalizing_const": None}


def session():
    """Return a session that writes arrays as PostgreSQL does, for plain values."""
    def execute(query, params, types):
        return [{"value": "{" + ",".join("NULL" if one is None else one for one in params[0]) + "}"}]

    return SimpleNamespace(execute=execute)


def meaning(signature, given=NONE, **additions):
    texts = {} if signature is None else {"signature.json": signature.to_json()}
    file = ImportedFile(DescribedModel("{}", ()), WEIGHTS, (), (), (), {**texts, **additions})
    return meaning_of(session(), file, ARCH, given)


def test_a_signature_says_what_inputs_and_outputs_mean():
    found = meaning(SIGNATURE)
    (output,) = found.outputs
    assert (output.name, output.vartype, output.values) == ("kind", "text", (None, "a", "b"))
    assert output.values_text == "{NULL,a,b}"
    assert found.normalizing_const == 255.0 and found.signature == SIGNATURE and found.preprocessor is None


def test_the_call_may_say_otherwise():
    found = meaning(SIGNATURE, {"class_values": ["x", "y", "z"], "normalizing_const": 2.0})
    assert found.outputs[0].values == ("x", "y", "z") and found.outputs[0].name == "kind"
    assert found.normalizing_const == 2.0


def test_a_model_of_others_has_what_the_call_says():
    found = meaning(None, {"class_values": ["x", "y", "z"], "normalizing_const": None})
    assert (found.outputs[0].name, found.outputs[0].vartype) == ("out", "text")
    assert (found.outputs[0].values, found.normalizing_const) == (("x", "y", "z"), 1.0)
    assert meaning(None).outputs[0].values is None
    with pytest.raises(InvalidParameter, match="class_values has 2 values for"):
        meaning(None, {"class_values": ["x", "y"], "normalizing_const": None})


def changed(**fields) -> str:
    return json.dumps(json.loads(SIGNATURE.to_json()) | fields)


OUTPUT = json.loads(SIGNATURE.to_json())["outputs"][0]
INPUT = json.loads(SIGNATURE.to_json())["inputs"][0]


@pytest.mark.parametrize("text", [
    "", "7", "[" * 99_999, changed(model="\ud800"),
    changed(format=2), changed(more=1), changed(model=7), changed(weights_digest=None),
    changed(inputs=[INPUT | {"shape": [None, "4"]}]), changed(inputs=[INPUT | {"divide_by": "x"}]),
    changed(inputs=[INPUT | {"shape": []}]), changed(inputs=[INPUT | {"shape": [-1]}]),
    changed(inputs=[INPUT | {"divide_by": 10**400}]),
    changed(inputs=[INPUT | {"divide_by": True}]), changed(inputs=[INPUT | {"shape": [True]}]),
    changed(outputs=[OUTPUT | {"classes": [1]}]), changed(outputs=[OUTPUT | {"classes": "abc"}]),
    changed(outputs=[OUTPUT | {"sql_type": None}]), changed(outputs=[OUTPUT | {"target": "x" * 2000}]),
    changed(outputs=[OUTPUT | {"target": "a\0b"}]), changed(outputs=[OUTPUT | {"more": 1}]),
])  # fmt: skip
def test_a_damaged_signature_is_one_clear_error(text):
    with pytest.raises(UnreadableText, match="signature"):
        read_signature(text)


def with_input(**fields):
    return replace(SIGNATURE, inputs=(replace(SIGNATURE.inputs[0], **fields),))


def with_output(**fields):
    return replace(SIGNATURE, outputs=(replace(SIGNATURE.outputs[0], **fields),))


@pytest.mark.parametrize("signature, text", [
    (replace(SIGNATURE, weights_digest="00" * 32), "its signature is of other weights"),
    (with_input(layer="other"), "its signature has other inputs than the model"),
    (with_output(layer="other"), "its signature has other outputs than the model"),
    (replace(SIGNATURE, inputs=SIGNATURE.inputs * 2), "its signature has other inputs"),
    (replace(SIGNATURE, outputs=()), "its signature has other outputs"),
    (with_input(dtype="int32"), "another type or shape of input"),
    (with_input(shape=(None, 5)), "another type or shape of input"),
    (with_input(divide_by=0.0), "its signature divides input 'input_layer' by 0.0"),
    (with_input(divide_by=-1.0), "its signature divides input"),
    (with_output(classes=("a", "b")), "has 2 classes for 'kind', and the model 3 outputs"),
    (with_output(target=""), "names two outputs alike"),
])  # fmt: skip
def test_a_signature_of_another_model_is_refused(signature, text):
    with pytest.raises(InvalidParameter, match=f"the file contradicts itself: .*{text}"):
        check_signature(signature, ARCH, hashlib.sha256(WEIGHTS).hexdigest())


def test_a_signature_is_checked_before_it_is_used():
    with pytest.raises(InvalidParameter, match="its signature is of other weights"):
        meaning(replace(SIGNATURE, weights_digest="00" * 32))


def test_a_preprocessor_must_be_the_one_that_the_signature_names():
    with pytest.raises(MopError, match="the preprocessor is damaged"):
        meaning(SIGNATURE, **{"preprocessor.json": "{}"})
    with pytest.raises(InvalidParameter, match="its signature is of another preprocessor"):
        meaning(replace(SIGNATURE, preprocessor_digest="00" * 32))
    with pytest.raises(InvalidParameter, match="a preprocessor, but no signature"):
        meaning(None, **{"preprocessor.json": "{}"})
