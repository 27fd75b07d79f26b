"""A model's file on the caller's machine: a path, bytes or a model; what is no file of a model is not sent."""

import pickle
from types import SimpleNamespace

import pytest

from madlib_mop.client.exported.incoming import bytes_of
from madlib_mop.errors import InvalidParameter, MopError, Unsupported
from madlib_mop.imports import sources
from tests.helpers.archives import keras_archive

FILE = keras_archive()


def test_a_path_bytes_and_a_model_are_the_same_file(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(FILE)
    model = SimpleNamespace(save=lambda path, include_optimizer: path.write_bytes(FILE), to_json=lambda: "{}")
    for source in (path, str(path), FILE, bytearray(FILE), memoryview(FILE), model):
        assert bytes_of(source) == FILE


def test_what_is_no_file_of_a_model_is_not_sent(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(pickle.dumps([1]))
    for source in (path, pickle.dumps([1])):
        with pytest.raises(Unsupported, match="the file is a pickle, which can run any code"):
            bytes_of(source)
    for source, text in ((tmp_path / "none", "cannot be read"), (tmp_path, "is a directory"), (7, "Received: int")):
        with pytest.raises(InvalidParameter, match=text):
            bytes_of(source)
    with pytest.raises(MopError, match="the file is empty"):
        bytes_of(b"")


def test_what_no_statement_holds_is_one_clear_error(tmp_path, monkeypatch):
    path = tmp_path / "model.keras"
    path.write_bytes(FILE)
    monkeypatch.setattr(sources, "MAX_SENT_BYTES", 100)
    for source in (path, FILE):
        with pytest.raises(InvalidParameter, match="bytes, and a statement holds a file of at most 100") as caught:
            bytes_of(source)
        assert "pg_read_binary_file" in caught.value.hint
