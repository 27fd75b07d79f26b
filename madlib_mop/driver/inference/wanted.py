"""Reads pred_type and selects scores for predict; pure NumPy, no database."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from madlib_mop.errors import InvalidParameter

#: In place of a class, where all values of the row are NaN.
NO_CLASS = -1

_HINT = "Use 'prob', 'response', an integer of at least 1, or a number from 0 to below 1."


class Form(Enum):
    """The forms of pred_type."""

    PROB = "prob"  # all classes
    RESPONSE = "response"  # the best class, without a rank
    RANK = "rank"  # the best k classes
    THRESHOLD = "threshold"  # the classes whose score is above v


@dataclass(frozen=True)
class PredType:
    """A checked pred_type; ``limit`` is k or v if the form has one."""

    form: Form
    limit: float = 0

    @property
    def has_rank(self) -> bool:
        """Whether the output has the column rank."""
        return self.form is not Form.RESPONSE


@dataclass(frozen=True)
class ScoreChoice:
    """The scores to write, in the order of the rows.

    Attributes
    ----------
    rows, units : numpy.ndarray
        int64 (n,): row and class; `NO_CLASS` where there is no best class.
    scores : numpy.ndarray
        float64 (n,).
    ranks : numpy.ndarray
        int64 (n,), 1 for the best of the row.
    """

    rows: np.ndarray
    units: np.ndarray
    scores: np.ndarray
    ranks: np.ndarray


def read_pred_type(arguments: Mapping[str, Any]) -> PredType:
    """Read pred_type.

    Parameters
    ----------
    arguments : dict
        ``pred_type``, and ``pred_kind``: its SQL type, ``text``, ``integer`` or ``float8``. A number
        written as text is treated as the number, because many clients send all parameters as text. NULL is 'prob'.

    Raises
    ------
    InvalidParameter
        If it has none of the forms, or is out of range.
    """
    value, kind = arguments.get("pred_type"), arguments["pred_kind"]
    if value is None:
        return PredType(Form.PROB)
    received = f"Received: {value!r}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidParameter(f"pred_type is invalid. {received}", hint=_HINT)
    if isinstance(value, str):
        word = value.strip().lower()
        if word in (Form.PROB.value, Form.RESPONSE.value):
            return PredType(Form(word))
        kind = "integer" if word.lstrip("+-").isdigit() else "float8"
        try:
            value = float(word)
        except ValueError:
            raise InvalidParameter(f"pred_type is invalid. {received}", hint=_HINT) from None
    if kind == "integer" and math.isfinite(value):
        if value < 1:
            raise InvalidParameter(f"an integer pred_type is a rank and must be at least 1. {received}", hint=_HINT)
        return PredType(Form.RANK, int(value))
    value = float(value)  # JSON has no NaN: the server writes it as text
    if not (math.isfinite(value) and 0 <= value < 1):
        whole = " For a rank write an integer, e.g. 2 or 2::integer." if value >= 1 else ""
        raise InvalidParameter(
            f"a float8 pred_type is a probability and must be from 0 to below 1. {received}", hint=_HINT + whole
        )
    return PredType(Form.THRESHOLD, value)


def choose(scores: np.ndarray, wanted: PredType) -> ScoreChoice:
    """Choose the scores of one output to write.

    Parameters
    ----------
    scores : numpy.ndarray
        float32 (n_rows, n_classes).
    wanted : PredType

    Returns
    -------
    ScoreChoice
        With equal scores, the first one in the class order has the better rank. Classes are in class order for 'prob'
        and a threshold, else by rank. If all scores of a row are NaN, no class is the best one.
    """
    n_rows, n_units = scores.shape
    exact = scores.astype(np.float64)
    if wanted.form in (Form.RESPONSE, Form.RANK):
        n_best = 1 if wanted.form is Form.RESPONSE else min(int(wanted.limit), n_units)
        best = _order(scores, n_best)
        rows = np.repeat(np.arange(n_rows), n_best)
        units = np.where(np.isnan(scores).all(axis=1)[:, np.newaxis], NO_CLASS, best).ravel()
        return ScoreChoice(rows, units, exact[rows, best.ravel()], np.tile(np.arange(1, n_best + 1), n_rows))
    ranks = np.empty((n_rows, n_units), np.int64)
    np.put_along_axis(ranks, _order(scores, n_units), np.arange(1, n_units + 1)[np.newaxis], axis=1)
    if wanted.form is Form.PROB:
        rows, units = np.divmod(np.arange(n_rows * n_units), n_units)
    else:
        rows, units = np.nonzero(exact > wanted.limit)
    return ScoreChoice(rows, units, exact[rows, units], ranks[rows, units])


def by_class(values: np.ndarray, n_classes: int) -> np.ndarray:
    """Return one score for each class, (n_rows, n_classes): one unit for two classes has that of the second."""
    if values.shape[1] == 1 and n_classes == 2:
        return np.concatenate([1 - values, values], axis=1)
    return values


def all_of(values: np.ndarray) -> ScoreChoice:
    """Return all values of an output that is the prediction itself: (n_rows, n_units), each of rank 1."""
    n_rows, n_units = values.shape
    rows, units = np.divmod(np.arange(n_rows * n_units), n_units)
    return ScoreChoice(rows, units, values.astype(np.float64).ravel(), np.ones(n_rows * n_units, np.int64))


def _order(scores: np.ndarray, n_best: int) -> np.ndarray:
    """Return each row's best classes, best first, int64 (n_rows, n_best); NaN is the worst."""
    best: np.ndarray
    if n_best == 1:
        best = np.argmax(np.where(np.isnan(scores), -np.inf, scores), axis=1)
        is_nan = np.isnan(scores[np.arange(len(scores)), best])
        if is_nan.any():  # all other scores are NaN or -inf
            best[is_nan] = np.argsort(-scores[is_nan], axis=1, kind="stable")[:, 0]
        return best[:, np.newaxis]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :n_best]
    return best
