"""The predictions of the candidates for the rows of a packed table, in memory; used by `make_ensemble`."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
from mop_backend.frames import Blob, Frame

from madlib_mop.driver.data.packed import PackedTable
from madlib_mop.driver.ensembles.candidates import Candidate
from madlib_mop.driver.ensembles.criterion import apply, problem_of
from madlib_mop.driver.inference.fits import is_split
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, NotReady, OutOfResources, Unsupported
from madlib_mop.trainer.data.shards import buffer_array
from madlib_mop.trainer.process.failures import Failure

#: The most memory that the predictions of all candidates may take.
MAX_BYTES = 1 << 30
_MIB = 1 << 20


@dataclass(frozen=True)
class Library:
    """Candidates with their predictions.

    Attributes
    ----------
    candidates : list of Candidate
        Those whose predictions can be averaged.
    predictions : list of list of numpy.ndarray
        For each of them one array an output: float32 ``(n_rows, n_units)``, logits as probabilities.
    labels : list of numpy.ndarray
        The packed values of each dependent column, ``(n_rows, ...)``.
    """

    candidates: list[Candidate]
    predictions: list[list[np.ndarray]]
    labels: list[np.ndarray]


def predict_candidates(
    session: CallerSession,
    trainer: LocalTrainer,
    candidates: Sequence[Candidate],
    packed: PackedTable,
    max_bytes: int = MAX_BYTES,
) -> Library:
    """Predict all rows of a packed table with each candidate, one after the other.

    A candidate whose predictions cannot be averaged is left out, with a warning.

    Raises
    ------
    OutOfResources
        If the predictions of all candidates would take more than ``max_bytes``.
    InvalidParameter
        If a model cannot be used, or none is left.
    """
    kept: list[Candidate] = []
    predictions: list[list[np.ndarray]] = []
    labels: list[np.ndarray] = []
    reasons = []
    for candidate in candidates:
        share = max_bytes // len(candidates)
        found = _predict(session, trainer, candidate, packed, share, labels if candidate is candidates[0] else None)
        values = [apply(one, form) if np.isfinite(one).all() else one
                  for one, form in zip(found, candidate.forms, strict=True)]  # fmt: skip
        problems = filter(None, map(problem_of, values, candidate.forms))
        if problem := next(problems, None):
            reasons.append(f"{candidate.model.label} is left out: {problem}")
            session.warning(f"make_ensemble: {reasons[-1]}")
            continue
        kept.append(candidate)
        predictions.append(values)
    if not kept:
        raise InvalidParameter("model_table: no model can be used", detail="\n".join(reasons))
    return Library(kept, predictions, labels)


def _predict(
    session: CallerSession,
    trainer: LocalTrainer,
    candidate: Candidate,
    packed: PackedTable,
    max_bytes: int,
    labels: list[np.ndarray] | None,
) -> list[np.ndarray]:
    """Return the outputs of one model for all rows; fill the list of labels, if there is one."""
    model, n_inputs = candidate.model, len(packed.independent)
    outputs: list[np.ndarray] = []
    packed_labels: list[list[np.ndarray]] = [[] for _ in packed.dependent]
    with _naming(model):
        request = {"op": "predict_load", "model": model.request(compiled=False), "has_weights": True}
        trainer.ask({**request, "normalizing_const": packed.normalizing_const}, [read_weights(session, model)])
    start = 0
    for shapes, blobs in _buffers(session, packed):
        x = _array(packed, 0, shapes, blobs)
        n_rows = len(x)
        with _naming(model):
            answer = trainer.ask(*_request(model, packed, x, shapes[:n_inputs], blobs[:n_inputs]))
            found = _outputs(answer, model, n_rows)
        if outputs and [one.shape[1] for one in found] != [output.shape[1] for output in outputs]:
            raise _ragged(f"{packed.relation} has rows for which {model.label} has outputs of another shape")
        if not outputs:
            _check_memory(packed.n_rows * sum(one[:1].nbytes for one in found), max_bytes, packed)
            outputs = [np.empty((packed.n_rows, one.shape[1]), np.float32) for one in found]
        if start + n_rows <= packed.n_rows:
            for output, one in zip(outputs, found, strict=True):
                output[start : start + n_rows] = one
        start += n_rows
        if labels is not None:
            for number, rows in enumerate(packed_labels):
                rows.append(_array(packed, n_inputs + number, shapes, blobs, n_rows))
                if rows[0].shape[1:] != rows[-1].shape[1:]:
                    raise _ragged(f"column {packed.dependent[number]!r} of {packed.relation} has rows of two shapes")
    if start != packed.n_rows:
        raise NotReady(
            f"validation_table: {packed.relation} had {packed.n_rows} rows, and now has {start}",
            hint="Call again when nobody changes it; COMMIT first if it was packed in this transaction.",
        )
    if labels is not None:
        labels += map(np.concatenate, packed_labels)
    return outputs


def _buffers(session: CallerSession, packed: PackedTable) -> Iterator[tuple[list[list[int]], list[Blob]]]:
    """Yield the shapes and the bytes of each buffer's columns, in order."""
    n_columns = len(packed.columns)
    for shard in packed.shards:
        with closing(session.stream(packed.query, [shard.key_there], ["integer"], batch_rows=1)) as buffers:
            for buffer in buffers:
                shapes = [buffer.values_of(f"s{i}")[0] for i in range(n_columns)]
                if shapes[0][:1] != [0]:
                    yield shapes, [buffer.bytes_of(f"b{i}").data for i in range(n_columns)]


def _request(
    model: TrainedModel, packed: PackedTable, x: np.ndarray, shapes: list[list[int]], blobs: list[Blob]
) -> Frame:
    """Return the request to predict a buffer; ``x`` is its first input as an array."""
    header = {"op": "predict", "index_inputs": list(packed.index_inputs)}
    if not is_split(model.shape, packed):
        return {**header, "shapes": shapes}, blobs
    if x.shape[1:] != (model.shape.n_inputs,):
        raise _ragged(f"column {packed.columns[0]!r} of {packed.relation} has rows of two shapes")
    columns = [np.ascontiguousarray(x[:, i], np.float32) for i in range(x.shape[1])]
    return {**header, "shapes": [[len(x), 1]] * len(columns)}, [column.data.cast("B") for column in columns]


def _outputs(answer: Frame, model: TrainedModel, n_rows: int) -> list[np.ndarray]:
    header, blobs = answer
    shapes = header["shapes"]
    if len(blobs) != len(model.outputs) or any(len(shape) > 2 for shape in shapes):
        raise Unsupported(
            f"its outputs have the shapes {[shape[1:] for shape in shapes]} a row; make_ensemble needs one value for"
            f" each class, for {len(model.outputs)} dependent columns",
            hint="Flatten the output with a last layer Flatten().",
        )
    return [np.frombuffer(blob, np.float32).reshape(n_rows, -1) for blob in blobs]


def _array(
    packed: PackedTable,
    number: int,
    shapes: Sequence[list[int]],
    blobs: Sequence[Blob],
    n_rows: int | None = None,
) -> np.ndarray:
    """Return a column of a buffer; the table's owner can write any shape and any bytes into it."""
    column, is_x = packed.columns[number], number < len(packed.independent)
    try:
        is_index = number in packed.index_inputs
        rows = buffer_array(column, shapes[number], blobs[number], is_x=is_x, is_index=is_index)
    except Failure as failure:
        raise failure.error from None
    if n_rows is not None and len(rows) != n_rows:
        raise _ragged(f"column {column!r} has {len(rows)} rows in a buffer of {n_rows}")
    return rows


def _ragged(problem: str) -> InvalidParameter:
    return InvalidParameter(f"validation_table: {problem}", hint="Pack the table again.")


def _check_memory(n_bytes: int, max_bytes: int, packed: PackedTable) -> None:
    if n_bytes > max_bytes:
        raise OutOfResources(
            f"the predictions of one model for the {packed.n_rows:,} rows of {packed.relation} take"
            f" {n_bytes / _MIB:,.1f} MiB, but there is room for {max_bytes / _MIB:,.1f} MiB for each model",
            hint="Use a smaller validation table, or fewer models: mst_keys => '{...}'.",
        )


@contextmanager
def _naming(model: TrainedModel) -> Iterator[None]:
    """Add the name of a model to errors about it."""
    try:
        yield
    except (InvalidParameter, Unsupported) as error:
        error.message = f"model_table: {model.label}: {error.message}"
        raise
