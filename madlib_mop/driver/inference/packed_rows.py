"""Predicts labelled rows, buffer by buffer; used by `make_ensemble` and by `register` for its baseline."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from mop_backend.frames import Blob, Frame

from madlib_mop.driver.inference.fits import is_split
from madlib_mop.driver.inference.labelled_rows import LabelledRows
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, Unsupported
from madlib_mop.trainer.data.shards import buffer_array
from madlib_mop.trainer.process.failures import RequestFailure


def predicted_buffers(
    session: CallerSession, trainer: LocalTrainer, model: TrainedModel, packed: LabelledRows, what: str
) -> Iterator[tuple[list[list[int]], list[Blob], list[np.ndarray]]]:
    """Yield the shapes and the bytes of each buffer's columns, and each output of the model: float32 (n_rows, n_units).

    Parameters
    ----------
    session : CallerSession
    trainer : LocalTrainer
    model : TrainedModel
    packed : LabelledRows
        Checked to fit the model.
    what : str
        The argument that named the table, for messages.

    Raises
    ------
    MopError
        If the model or a buffer cannot be used.
    """
    n_inputs = len(packed.independent)
    with _naming(model):
        request = {"op": "predict_load", "model": model.request(compiled=False), "has_weights": True}
        trainer.ask({**request, "normalizing_const": packed.normalizing_const}, [read_weights(session, model)])
    buffers = (buffer for part in packed.parts for buffer in packed.buffers(part))
    for shapes, blobs in buffers:
        if shapes[0][:1] == [0]:
            continue
        x = array_of(packed, 0, shapes, blobs, what)
        with _naming(model):
            answer = trainer.ask(*_request(model, packed, x, shapes[:n_inputs], blobs[:n_inputs], what))
            yield shapes, blobs, _outputs(answer, model, len(x))


def _request(
    model: TrainedModel, packed: LabelledRows, x: np.ndarray, shapes: list[list[int]], blobs: list[Blob], what: str
) -> Frame:
    """Return the request to predict a buffer; ``x`` is its first input as an array."""
    header = {"op": "predict", "index_inputs": list(packed.index_inputs)}
    if not is_split(model.shape, packed):
        return {**header, "shapes": shapes}, blobs
    if x.shape[1:] != (model.shape.n_inputs,):
        raise two_shapes(packed, packed.columns[0], what)
    columns = [np.ascontiguousarray(x[:, i], np.float32) for i in range(x.shape[1])]
    return {**header, "shapes": [[len(x), 1]] * len(columns)}, [column.data.cast("B") for column in columns]


def _outputs(answer: Frame, model: TrainedModel, n_rows: int) -> list[np.ndarray]:
    header, blobs = answer
    shapes = header["shapes"]
    if len(blobs) != len(model.outputs) or any(len(shape) > 2 for shape in shapes):
        raise Unsupported(
            f"its outputs have the shapes {[shape[1:] for shape in shapes]} a row; one value for"
            f" each class is needed, for {len(model.outputs)} dependent columns",
            hint="Flatten the output with a last layer Flatten().",
        )
    return [np.frombuffer(blob, np.float32).reshape(n_rows, -1) for blob in blobs]


def array_of(
    packed: LabelledRows,
    number: int,
    shapes: Sequence[list[int]],
    blobs: Sequence[Blob],
    what: str,
    n_rows: int | None = None,
) -> np.ndarray:
    """Return a column of a buffer; the table's owner can write any shape and any bytes into it."""
    column, is_x = packed.columns[number], number < len(packed.independent)
    try:
        is_index = number in packed.index_inputs
        rows = buffer_array(column, shapes[number], blobs[number], is_x=is_x, is_index=is_index)
    except RequestFailure as failure:
        raise failure.error from None
    if n_rows is not None and len(rows) != n_rows:
        raise ragged(f"column {column!r} has {len(rows)} rows in a buffer of {n_rows}", what)
    return rows


def ragged(problem: str, what: str) -> InvalidParameter:
    """Return the error for a packed table that contradicts itself."""
    return InvalidParameter(f"{what}: {problem}", hint="Pack the table again.")


def two_shapes(packed: LabelledRows, column: str, what: str) -> InvalidParameter:
    """Return the error for a column whose buffers have rows of different shapes."""
    return ragged(f"column {column!r} of {packed.relation} has rows of two shapes", what)


@contextmanager
def _naming(model: TrainedModel) -> Iterator[None]:
    """Add the name of a model to errors about it."""
    try:
        yield
    except (InvalidParameter, Unsupported) as error:
        error.message = f"model_table: {model.label}: {error.message}"
        raise
