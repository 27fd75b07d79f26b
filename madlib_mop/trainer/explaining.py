"""Explains predictions of a loaded model: Shapley values of a row of an ordinary table; called by ``server.py``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mop_backend.frames import Blob

from madlib_mop.columns.preprocessors.fits import ClassFit
from madlib_mop.errors import no_such_class
from madlib_mop.explaining.columns import ColumnElements, Inputs
from madlib_mop.explaining.shapley import Explanation, Floats, shapley_values, usual_orders
from madlib_mop.trainer.graphs.predict import Predictor
from madlib_mop.trainer.process.failures import INPUT, MODEL, RequestFailure, blaming, invalid_input


@dataclass(frozen=True, eq=False)
class ExplainedRow:
    """A row's explanation.

    Attributes
    ----------
    columns : tuple of str
        The inputs.
    outputs : list of (str, str or None)
        What is explained: a target, and the class whose probability it is; None for a number.
    explanation : Explanation
    """

    columns: tuple[str, ...]
    outputs: list[tuple[str, str | None]]
    explanation: Explanation


def explain_row(
    predictor: Predictor,
    record: tuple[Blob, Sequence[Sequence[Any]], str],
    background: Inputs,
    of_class: str | None,
    n_orders: int | None,
    seed: int,
) -> ExplainedRow:
    """Explain the prediction of one record.

    Parameters
    ----------
    predictor : Predictor
    record : tuple of (bytes-like, sequence of sequence, str)
        The record with its fields and its encoding, as `RowEncoder.tensors` takes them.
    background : sequence of numpy.ndarray
        Encoded rows of the table, (n_rows, ...) each.
    of_class : str or None
        The class to explain; None: the one that is predicted.
    n_orders : int or None
        Pairs of orders of the columns for each row of the background; None: as many as take little time.
    seed : int

    Raises
    ------
    RequestFailure
        input: if the record or the class cannot be used; model: if the network cannot be.
    """
    rows = predictor.row_encoder
    data, fields, encoding = record
    with blaming(INPUT):
        row, _ = rows.all_tensors(data, [len(data)], [tuple(field) for field in fields], encoding)
    shapes = [values.shape[1:] for values in background]
    if shapes != [values.shape[1:] for values in row] or not len(background[0]):
        raise invalid_input(f"the background has rows of the shapes {shapes}, but the model takes others")
    columns = ColumnElements(rows.preprocessor)
    with blaming(MODEL):
        chosen = _choose(predictor, row, of_class)

        def predict(inputs: Inputs) -> Floats:
            values, _ = rows.values(predictor.predict(tuple(inputs)))
            return np.stack([values[:, one.place] if not one.is_other else 1.0 - values[:, one.place]
                             for one in chosen], axis=1)  # fmt: skip

        n_orders = n_orders or usual_orders(len(background[0]), len(columns.names))
        explanation = shapley_values(predict, columns, row, background, n_orders, seed)
    return ExplainedRow(columns.names, [(one.output, one.of_class) for one in chosen], explanation)


@dataclass(frozen=True)
class _Chosen:
    """One value of a prediction; ``is_other``: it is 1 minus the number at this place, the first of two classes."""

    output: str
    of_class: str | None
    place: int
    is_other: bool = False


def _choose(predictor: Predictor, row: Inputs, of_class: str | None) -> list[_Chosen]:
    """Return what is explained: of each target the number, or the probability of a class."""
    rows = predictor.row_encoder
    values, widths = rows.values(predictor.predict(tuple(row)))
    chosen: list[_Chosen] = []
    known: list[str] = []
    start = 0
    for column, width in zip(rows.preprocessor.targets, widths, strict=True):
        if not isinstance(column.fit, ClassFit):
            chosen.append(_Chosen(column.name, None, start))
        else:
            classes = column.fit.classes
            known += classes
            scores = values[0, start : start + width]
            is_one = width == 1 and len(classes) == 2
            if is_one:
                scores = np.array([1.0 - scores[0], scores[0]])
            number = classes.index(of_class) if of_class in classes else int(scores.argmax())
            chosen.append(
                _Chosen(column.name, classes[number], start + (0 if is_one else number), is_one and number == 0)
            )
        start += width
    if of_class is not None and of_class not in known:
        raise RequestFailure(INPUT, no_such_class(known, of_class))
    return chosen
