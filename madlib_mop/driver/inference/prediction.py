"""Predicts a table with one model: rows flow from the caller's session through the trainer into a new table."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from mop_backend.frames import Frame
from mop_backend.weights import ModelWeights

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.data.copied import quoted
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.inference.results import ResultTable, ScoredTable
from madlib_mop.driver.inference.rows import RowBatch, RowReader
from madlib_mop.driver.inference.scored import ScoreColumns
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.inference.wanted import PredType, all_of, by_class, choose
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, Unsupported

_AHEAD_BYTES = 64 << 20


class Batches(Protocol):
    """Rows to predict, in batches.

    Attributes
    ----------
    index_inputs : sequence of int
        Which inputs, by number, hold int32 indices.
    """

    @property
    def index_inputs(self) -> Sequence[int]: ...
    def __iter__(self) -> Iterator[RowBatch]: ...


def predict_table(
    session: CallerSession,
    model: TrainedModel,
    reader: RowReader,
    output: Relation,
    wanted: PredType,
    gpus: Sequence[int] = (),
) -> int:
    """Create the output table and fill it; return the number of predicted rows.

    Parameters
    ----------
    session : CallerSession
    model : TrainedModel
    reader : RowReader
        Of the rows to predict.
    output : Relation
    wanted : PredType
    gpus : sequence of int

    Raises
    ------
    MopError
        If a row cannot be used, or the model cannot be built.
    """
    assert reader.id_column is not None, "rows to predict have an id"
    results = ResultTable(session, output, reader.relation, reader.id_column, wanted.has_rank)
    with LocalTrainer(session, gpus) as trainer, reader:
        results.create()
        n_rows = 0
        for rows, scores in predicted(trainer, model, read_weights(session, model), reader):
            n_rows += len(rows.ids)
            ids = quoted(rows.ids)
            for one, values in zip(model.outputs, scores, strict=True):
                _add(results, one, ids, reader.in_units(one.name, values), wanted)
        return n_rows


def score_table(
    session: CallerSession,
    model: TrainedModel,
    reader: RowReader,
    output: Relation,
    columns: Sequence[ScoreColumns],
    gpus: Sequence[int] = (),
) -> int:
    """Create a table with a row for each row of another one, and fill it; return the number of rows.

    Parameters
    ----------
    session : CallerSession
    model : TrainedModel
    reader : RowReader
        Of the rows; it keeps at least one column.
    output : Relation
    columns : sequence of ScoreColumns
        One for each output of the model.
    gpus : sequence of int

    Raises
    ------
    MopError
        If a row cannot be used, or the model cannot be built.
    """
    names = [name for one in columns for name in one.names]
    results = ScoredTable(session, output, reader.relation, reader.kept, names)
    with LocalTrainer(session, gpus) as trainer, reader:
        results.create()
        n_rows = 0
        for rows, scores in predicted(trainer, model, read_weights(session, model), reader):
            n_rows += len(rows.ids)
            values = [
                elements
                for one, outputs, of_output in zip(model.outputs, scores, columns, strict=True)
                for elements in of_output.elements(reader.in_units(one.name, outputs))
            ]
            results.add(rows.kept, values)
        return n_rows


def _add(results: ResultTable, output: DependentOutput, ids: np.ndarray, values: np.ndarray, wanted: PredType) -> None:
    if output.is_number(values.shape[1]):
        choice = all_of(values)
    else:
        values = by_class(values, len(output.values or ()))
        choice = choose(values, wanted)
    labels = quoted([*output.labels(values.shape[1]), None])  # the last one, -1, is that of NO_CLASS
    results.add(output.name, ids, labels, choice)


def predicted(
    trainer: LocalTrainer, model: TrainedModel, weights: ModelWeights, reader: Batches
) -> Iterator[tuple[RowBatch, list[np.ndarray]]]:
    """Yield each batch with its outputs; the trainer processes one batch while the previous one is written."""
    waiting = None
    for rows in _ahead(trainer, reader):
        if waiting is None:
            request = {"op": "predict_load", "model": model.request(compiled=False), "has_weights": True}
            trainer.ask({**request, "normalizing_const": model.normalizing_const}, weights)
            scores = None
        else:
            scores = _scores(trainer.collect(), model, waiting)
        shapes = [list(x.shape) for x in rows.inputs]
        request = {"op": "predict", "shapes": shapes, "index_inputs": list(reader.index_inputs)}
        trainer.post(request, [np.ascontiguousarray(x).data for x in rows.inputs])
        if waiting is not None:
            yield waiting, scores
        waiting = rows
    if waiting is not None:
        yield waiting, _scores(trainer.collect(), model, waiting)


def _ahead(trainer: LocalTrainer, reader: Batches) -> Iterator[RowBatch]:
    """Yield all batches; while the trainer loads TensorFlow, further batches are read ahead."""
    ahead: deque[RowBatch] = deque()
    batches, n_bytes = iter(reader), 0
    while n_bytes < _AHEAD_BYTES and not trainer.is_ready:
        rows = next(batches, None)
        if rows is None:
            break
        ahead.append(rows)
        n_bytes += sum(x.nbytes for x in rows.inputs)
    while ahead:
        yield ahead.popleft()
    yield from batches


def _scores(answer: Frame, model: TrainedModel, rows: RowBatch) -> list[np.ndarray]:
    """Return each output as float32 (n_rows, n_units)."""
    header, blobs = answer
    if len(blobs) != len(model.outputs):
        raise InvalidParameter(
            f"{model.label} has {len(blobs)} outputs, but there are {len(model.outputs)} dependent columns"
        )
    scores = []
    for output, shape, blob in zip(model.outputs, header["shapes"], blobs, strict=True):
        if len(shape) > 2:
            raise Unsupported(
                f"{model.label} returns an array of the shape {shape[1:]} a row for {output.name!r};"
                " predict writes one value for each class",
                hint="Flatten the output with a last layer Flatten().",
            )
        scores.append(np.frombuffer(blob, np.float32).reshape(len(rows.ids), -1))
    return scores
