"""Limits of exports: models and files that are too large, and weights that were changed meanwhile, are refused."""

import dataclasses
from contextlib import contextmanager
from hashlib import sha256
from types import SimpleNamespace

import pytest
from mop_backend.weights import ModelWeights, WeightErrors

from madlib_mop.driver.exports import exporting
from madlib_mop.driver.exports.origin import ExportSource
from madlib_mop.driver.session.messages import was_changed
from madlib_mop.errors import NotReady, Unsupported
from madlib_mop.exports.formats import MAX_BYTES, Format
from tests.unit.driver.test_registered import MODEL

ONE_OUTPUT = dataclasses.replace(MODEL, preprocessor=None, outputs=MODEL.outputs[:1])
#: The largest weights that are tried; a file has more than weights.
LARGEST = MAX_BYTES - 1024
ERRORS = WeightErrors(AssertionError, lambda: was_changed(ONE_OUTPUT.label))
WEIGHTS = ModelWeights([0], lambda _: b"", None, ERRORS)


class FileOf:
    """A file of any size that takes no memory."""

    def __init__(self, n_bytes: int):
        self._n_bytes = n_bytes

    def __len__(self) -> int:
        return self._n_bytes

    def __bytes__(self) -> bytes:
        return b"the file"


@pytest.fixture
def export(monkeypatch):
    """Return a function that exports a model with weights of a size, whose file gets a size; it notes its work."""

    def export(form: Format, n_weight_bytes: int, n_file_bytes: int) -> bytes:
        source = ExportSource(export.digest, n_weight_bytes, None, None)

        @contextmanager
        def trainer(session, backend):
            assert backend == "tensorflow", "it has all formats"
            export.work.append("a trainer")
            yield SimpleNamespace(ask=lambda request, blobs: (list(blobs), [FileOf(n_file_bytes)]))

        monkeypatch.setattr(exporting, "find_model", lambda *_: ONE_OUTPUT)
        monkeypatch.setattr(exporting, "read_source", lambda *_: source)
        monkeypatch.setattr(exporting, "read_weights", lambda *_: export.work.append("the weights") or WEIGHTS)
        monkeypatch.setattr(exporting, "LocalTrainer", trainer)
        arguments = {"model_table": "models", "mst_key": 1, "format": form.value}
        call = SimpleNamespace(function="export_model", arguments=arguments, session=None)
        return exporting.export_model(call)

    export.work, export.digest = [], sha256(b"").hexdigest()
    return export


@pytest.mark.parametrize("form", Format)
def test_a_model_that_is_too_large_is_refused_before_any_work(export, form):
    with pytest.raises(Unsupported) as raised:
        export(form, LARGEST + 1, 1)
    assert raised.value.message == (
        f"export_model: the model in format {form.value} has at least 1,073,741,761 bytes, and a value of PostgreSQL at"
        " most 1,073,741,760"
    )
    assert "export_parts" in raised.value.hint and export.work == []


def test_the_largest_weights_are_tried(export):
    assert export(Format.KERAS, LARGEST, MAX_BYTES) == b"the file"
    assert export.work == ["a trainer", "the weights"]


def test_a_file_that_became_too_large_is_refused_before_it_is_copied(export):
    with pytest.raises(Unsupported, match="in format onnx has 1,073,741,761 bytes, and a value of PostgreSQL at most"):
        export(Format.ONNX, 4, MAX_BYTES + 1)


def test_weights_that_were_changed_after_the_signature_was_made_are_refused(export):
    export.digest = sha256(b"the weights before").hexdigest()
    with pytest.raises(NotReady, match="mst_key 1 of public.models was changed while it was being read"):
        export(Format.KERAS, 4, 4)
