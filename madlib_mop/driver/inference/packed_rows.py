"""Predicts labelled rows: all at once, for `make_ensemble` and `learn`, or buffer by buffer, for `register`."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from mop_backend.frames import Blob, Frame

from madlib_mop.driver.inference.fits import is_split
from madlib_mop.driver.inference.labelled_rows import LabelledRows
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, NotReady, OutOfResources, Unsupported
from madlib_mop.trainer.data.shards import buffer_array
from madlib_mop.trainer.process.failures import RequestFailure

#: The most memory that predictions of all rows may take.
MAX_BYTES = 1 << 30
#: The shapes and the bytes of a buffer's columns, and what is predicted for its rows: float32 (n_rows, n_units) each.
PredictedBuffer = tuple[list[list[int]], list[Blob], list[np.ndarray]]
_MIB = 1 << 20


@dataclass(frozen=True)
class PredictedTable:
    """The predictions of a model for all rows of a table.

    Attributes
    ----------
    outputs : list of numpy.ndarray
        One array an output, float32 ``(n_rows, n_units)``.
    labels : list of numpy.ndarray
        The packed values of each dependent column, ``(n_rows, ...)``; empty if they were not requested.
    """

    outputs: list[np.ndarray]
    labels: list[np.ndarray]


def predicted_rows(
    session: CallerSession,
    trainer: LocalTrainer,
    model: TrainedModel,
    packed: LabelledRows,
    what: str,
    max_bytes: int = MAX_BYTES,
    *,
    with_labels: bool = True,
    hint: str = "Use a smaller table.",
) -> PredictedTable:
    """Predict all rows with a model.

    Parameters
    ----------
    session : CallerSession
    trainer : LocalTrainer
    model : TrainedModel
    packed : LabelledRows
        Checked to fit the model.
    what : str
        The argument that named the table, for messages.
    max_bytes : int
        The most memory that the outputs may take.
    with_labels : bool
        Whether the labels are wanted.
    hint : str
        What to do if they would take more memory.

    Raises
    ------
    OutOfResources
        If the outputs would take more than ``max_bytes``.
    MopError
        If the model or a buffer cannot be used, or the table has changed.
    """
    buffers = predicted_buffers(session, trainer, model, packed, what)
    return collect_predictions(buffers, packed, model.label, what, max_bytes, with_labels=with_labels, hint=hint)


def collect_predictions(
    buffers: Iterable[PredictedBuffer],
    packed: LabelledRows,
    label: str,
    what: str,
    max_bytes: int = MAX_BYTES,
    *,
    with_labels: bool = True,
    hint: str = "Use a smaller table.",
) -> PredictedTable:
    """Return the predictions of all buffers of a table as arrays; as `predicted_rows`, ``label`` names the model."""
    n_inputs = len(packed.independent)
    outputs: list[np.ndarray] = []
    labels: list[list[np.ndarray]] = [[] for _ in packed.dependent] if with_labels else []
    start = 0
    for shapes, blobs, found in buffers:
        n_rows = len(found[0])
        if outputs and [one.shape[1] for one in found] != [output.shape[1] for output in outputs]:
            raise ragged(f"{packed.relation} has rows for which {label} has outputs of another shape", what)
        if not outputs:
            check_memory(packed.n_rows * sum(one[:1].nbytes for one in found), max_bytes, packed, hint)
            outputs = [np.empty((packed.n_rows, one.shape[1]), np.float32) for one in found]
        if start + n_rows <= packed.n_rows:
            for output, one in zip(outputs, found, strict=True):
                output[start : start + n_rows] = one
        start += n_rows
        for number, rows in enumerate(labels):
            rows.append(array_of(packed, n_inputs + number, shapes, blobs, what, n_rows))
            if rows[0].shape[1:] != rows[-1].shape[1:]:  # defence: width-of-labels
                raise two_shapes(packed, packed.dependent[number], what)
    if start != packed.n_rows:
        raise NotReady(
            f"{what}: {packed.relation} had {packed.n_rows} rows, and now has {start}",
            hint="Call again when nobody changes it; COMMIT first if it was packed in this transaction.",
        )
    return PredictedTable(outputs, list(map(np.concatenate, labels)))


def check_memory(n_bytes: int, max_bytes: int, packed: LabelledRows, hint: str) -> None:
    """Raise OutOfResources if the predictions of a model take more memory than there is for them."""
    if n_bytes > max_bytes:
        raise OutOfResources(
            f"the predictions of one model for the {packed.n_rows:,} rows of {packed.relation} take"
            f" {n_bytes / _MIB:,.1f} MiB, but there is room for {max_bytes / _MIB:,.1f} MiB for each model",
            hint=hint,
        )


def predicted_buffers(
    session: CallerSession, trainer: LocalTrainer, model: TrainedModel, packed: LabelledRows, what: str
) -> Iterator[PredictedBuffer]:
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
        trainer.ask({**request, "normalizing_const": packed.normalizing_const}, read_weights(session, model))
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
