"""Records of held-out rows in exported files: read as they were written, and refused if they are damaged."""

import dataclasses
import json

import numpy as np
import pytest

from madlib_mop.certainty.scores import of_classes
from madlib_mop.errors import InvalidParameter, UnreadableText
from madlib_mop.exports.signature import ModelInput, ModelOutput, Signature
from madlib_mop.imports.signatures import check_meaning, read_signature

RECORD = of_classes("kind", "t", np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([1, 0]), "temperature")
OUTPUT = ModelOutput("kind", "dense", "kind", "text", ("a", "b"), held_out=RECORD)
SIGNATURE = Signature("m@1", "1.1.0", "0" * 64, None, (ModelInput("x", "x", "float32", (None, 3), None),), (OUTPUT,))


def test_a_signature_has_the_record():
    assert read_signature(SIGNATURE.to_json()) == SIGNATURE
    check_meaning(SIGNATURE)


def test_a_signature_without_one_is_that_of_earlier_versions():
    bare = dataclasses.replace(SIGNATURE, outputs=(dataclasses.replace(OUTPUT, held_out=None),))
    assert "held_out" not in bare.to_json() and read_signature(bare.to_json()) == bare


@pytest.mark.parametrize("fields", [{"ranks": [2, 1]}, {"output": "other"}, {"temperature": None}, {"scores": [1]}])
def test_a_signature_with_a_damaged_record_is_refused(fields):
    document = json.loads(SIGNATURE.to_json())
    document["outputs"][0]["held_out"] |= fields
    with pytest.raises(InvalidParameter, match="record of the held-out rows of 'kind' is damaged"):
        check_meaning(read_signature(json.dumps(document)))


def test_a_record_of_other_types_is_refused():
    document = json.loads(SIGNATURE.to_json())
    document["outputs"][0]["held_out"]["scores"] = ["high"]
    with pytest.raises(UnreadableText, match="signature is damaged"):
        read_signature(json.dumps(document))
