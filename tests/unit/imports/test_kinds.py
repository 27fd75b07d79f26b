"""The kind of a file is read from its beginning; what is no file of a model is named, and not opened."""

import gzip
import pickle

import pytest

from madlib_mop.errors import InvalidParameter, UnreadableText, Unsupported
from madlib_mop.exports.formats import MAX_BYTES
from madlib_mop.imports.kinds import FileKind, kind_of


@pytest.mark.parametrize("data, kind", [
    (b"PK\x03\x04" + bytes(30), FileKind.KERAS),
    (b"\x89HDF\r\n\x1a\n" + bytes(30), FileKind.HDF5),
    (b"\x08" + bytes(7) + b"{      }", FileKind.SAFETENSORS),
])  # fmt: skip
def test_files_of_models_are_known(data, kind):
    assert kind_of(data) is kind and kind_of(memoryview(data)) is kind


@pytest.mark.parametrize("beginning", [b"\x80\x02", b"\x80\x03", b"\x80\x05", b"\x1f\x8b", b"MZ"])
def test_the_length_of_a_header_of_safetensors_is_not_taken_for_another_kind(beginning):
    length = int.from_bytes(beginning, "little")
    assert kind_of(beginning + bytes(6) + b"{}".ljust(length)) is FileKind.SAFETENSORS


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_named_and_not_opened(protocol):
    with pytest.raises(Unsupported, match="is a pickle, which can run any code; it was not opened"):
        kind_of(pickle.dumps({"weights": [1.0]}, protocol))


@pytest.mark.parametrize("data, text", [
    (b"", "the file is empty"),
    (gzip.compress(b"PK\x03\x04", mtime=0), "compressed by gzip"),
    (b"\x93NUMPY\x01\x00", "an array of NumPy"),
    (b"\x7fELF\x02\x01\x01", "a program"),
    (b"\x1c\x00\x00\x00TFL3", "a TFLite model"),
    (b"MZ\x90\x00", "a program"),
    (pickle.dumps({"a": 1}, 0), "neither a Keras archive"),
    (b"PK\x05\x06" + bytes(18), "neither a Keras archive"),
    (b"hello, this is a text", "neither a Keras archive"),
    (b"\xff" * 8 + b"{}", "neither a Keras archive"),
])  # fmt: skip
def test_other_files_are_one_clear_error(data, text):
    with pytest.raises((UnreadableText, Unsupported), match=text):
        kind_of(data)


def test_what_no_value_of_postgresql_holds_is_refused():
    class Large(bytes):
        def __len__(self):
            return MAX_BYTES + 1

    with pytest.raises(InvalidParameter, match="the file has 1,073,741,761 bytes, and a value of PostgreSQL at most"):
        kind_of(Large(b"PK\x03\x04"))
