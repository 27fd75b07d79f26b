"""The signature of an exported model is read as it was written; names fit all file formats."""

import json

import pytest

from madlib_mop.errors import UnreadableText
from madlib_mop.exports.signature import ModelInput, ModelOutput, Signature, file_names
from madlib_mop.imports.signatures import read_signature

SIGNATURE = Signature(
    "churn@3", "1.1.0", "ab" * 32, None,
    (ModelInput("numbers", "numbers", "float32", (None, 4), None, 255.0),),
    (ModelOutput("churned", "dense", "churned", "text", (None, "yes", "nö")), ModelOutput("y", "y", "y", "real", None)),
)  # fmt: skip


def test_a_signature_is_read_as_it_was_written():
    assert read_signature(SIGNATURE.to_json()) == SIGNATURE


def changed(**fields) -> str:
    return json.dumps(json.loads(SIGNATURE.to_json()) | fields)


@pytest.mark.parametrize("text", [
    "", "[]", "{}", "7", changed(inputs=None), changed(inputs=[{}]), changed(more=1), changed(outputs=[[]]),
    "[" * 99_999,
])  # fmt: skip
def test_a_damaged_signature_is_one_clear_error(text):
    with pytest.raises(UnreadableText, match="the signature is damaged"):
        read_signature(text)


@pytest.mark.parametrize(
    "version",
    ["1.1.0\nevil", "1.1.0 @ https://evil.example/x", "", "x", "1.1; os_name > ''", "-r x", "1" * 100, 7, None, [1]],
)
def test_a_signature_names_a_version_and_nothing_else(version):
    """MLflow installs this version of the library: a hostile database must not add a line to what it installs."""
    with pytest.raises(UnreadableText, match="damaged"):
        read_signature(changed(library=version))
    assert read_signature(changed(library="1.2.0rc1+local")).library == "1.2.0rc1+local"


def test_a_newer_format_says_so():
    with pytest.raises(UnreadableText, match="has format 2; this version reads 1"):
        read_signature(changed(format=2))


def test_names_are_plain_and_none_is_twice_there():
    assert file_names(["a b", "a-b", "A_b", "", "7", "é"]) == ("a_b", "a_b_2", "A_b_3", "x", "x7", "x_")
    assert file_names(["x"], taken=("X",)) == ("x_2",)
