"""What we add to a model's file: it comes back, other programs do not see it, and damage is one clear error."""

import io
import zipfile

import pytest

from madlib_mop.errors import UnreadableText
from madlib_mop.exports.formats import archive, onnx_with, read_additions

ADDITIONS = {"signature.json": '{"é": 1}', "preprocessor.json": "x" * 300, "README.md": "# Card\n"}


def test_additions_of_an_archive_come_back_and_its_members_stay():
    data = archive({"config.json": b"{}", "model.weights.h5": memoryview(b"weights")}, ADDITIONS)
    assert read_additions("model.keras", data) == ADDITIONS
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert file.read("model.weights.h5") == b"weights" and file.testzip() is None


def test_the_same_model_gives_the_same_bytes():
    assert archive({"a": b"1"}, ADDITIONS) == archive({"a": b"1"}, ADDITIONS)


def test_additions_of_onnx_are_fields_of_its_message():
    start = bytes([0x08, 10, 0x12, 3]) + b"us!"  # field 1: the number 10; field 2: three bytes
    data = onnx_with(start, ADDITIONS)
    assert data.startswith(start) and read_additions("model.onnx", data) == ADDITIONS


@pytest.mark.parametrize("name", ["model.onnx", "model.keras", "model.safetensors"])
@pytest.mark.parametrize("data", [b"", b"\x00" * 40, b"PK\x05\x06", b"\xff" * 300, b"\x12\xff\x01ab"])
def test_damage_is_one_clear_error(name, data):
    with pytest.raises(UnreadableText, match=name):
        read_additions(name, data)


def test_a_file_of_others_is_told_from_a_damaged_one():
    with pytest.raises(UnreadableText, match="model.keras has no signature: it was not exported by madlib_mop"):
        read_additions("model.keras", archive({"config.json": b"{}"}, {}))
    with pytest.raises(UnreadableText, match="has no signature"):
        read_additions("model.onnx", bytes([0x08, 10]))
