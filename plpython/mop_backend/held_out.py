"""How sure a prediction is, by rows that were held out: prediction intervals and sets, and calibrated probabilities.

The driver records their scores in a version of a registered model (driver/registry/held_out.py). The backend reads them
for predict_interval, predict_set and calibrated probabilities, the client for exported models.

Intervals and sets are those of split conformal prediction (Vovk, Gammerman, Shafer, Algorithmic Learning in a Random
World, 2005; Angelopoulos and Bates, A Gentle Introduction to Conformal Prediction, 2021, section 1): if the rows to
predict are like the held-out rows, in any order equally likely, an interval or set has the true value with at least the
probability ``coverage``. A set is that of Sadinle, Lei and Wasserman, Least Ambiguous Set-Valued Classifiers, 2019.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

#: What a score is: the probability of the true class; the distance of prediction and truth, or that of their
#: logarithms, sign(x) ln(1 + abs(x)), for a target that was scaled so.
PROBABILITY, RESIDUAL, LOG_RESIDUAL = "probability", "residual", "log_residual"
TEMPERATURE, ISOTONIC = "temperature", "isotonic"


@dataclass(frozen=True)
class Curve:
    """An increasing function: linear between points, constant beyond them.

    Attributes
    ----------
    x, y : tuple of float
        Probabilities of the network, increasing, and the shares of rows that have the class.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def at(self, value: float) -> float:
        """Return the function's value."""
        place = bisect_left(self.x, value)
        if place == 0 or place == len(self.x):
            return self.y[min(place, len(self.x) - 1)]
        low, high = self.x[place - 1], self.x[place]
        return self.y[place - 1] + (self.y[place] - self.y[place - 1]) * (value - low) / (high - low)


@dataclass(frozen=True)
class HeldOut:
    """The scores of the held-out rows for one output of a model.

    Attributes
    ----------
    output : str
        The target.
    table : str
        Where the rows were.
    n_rows : int
    score : str
        `PROBABILITY`, `RESIDUAL` or `LOG_RESIDUAL`.
    ranks : tuple of int
        Increasing; 1 is the row that the model predicts best.
    scores : tuple of float
        The score of each of these ranks.
    calibration : str or None
        `TEMPERATURE` or `ISOTONIC`; None for numbers.
    temperature : float or None
        Probabilities are raised to 1 / temperature, and divided by their sum.
    curves : tuple of Curve
        Of `ISOTONIC`: one for each class; of two classes, that of the second.
    uniform : float
        Of `TEMPERATURE`: the share of rows, from 0, in which all classes are equally probable.
    """

    output: str
    table: str
    n_rows: int
    score: str
    ranks: tuple[int, ...]
    scores: tuple[float, ...]
    calibration: str | None = None
    temperature: float | None = None
    curves: tuple[Curve, ...] = ()
    uniform: float = 0.0

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> HeldOut:
        """Return the record of JSON that the driver has checked."""
        curves = tuple(Curve(tuple(one["x"]), tuple(one["y"])) for one in fields["curves"])
        lists = {name: tuple(fields[name]) for name in ("ranks", "scores")}
        return cls(**{**fields, **lists, "curves": curves})

    def problem(self) -> str | None:
        """Return why this is no record that the driver wrote; None if it is one. The owner can write any."""
        order = 1 if self.score != PROBABILITY else -1
        ordered = [order * score for score in self.scores]
        if self.score not in (PROBABILITY, RESIDUAL, LOG_RESIDUAL):
            return f"it has an unknown score {self.score!r:.40}"
        if len(self.ranks) != len(self.scores) or not all(a < b for a, b in pairwise((0, *self.ranks))):
            return "its ranks do not increase, or are not as many as its scores"
        if self.ranks and self.ranks[-1] > self.n_rows or ordered != sorted(ordered):
            return "its scores have another order than its ranks"
        if self.calibration not in (None, TEMPERATURE, ISOTONIC):
            return f"it has an unknown calibration {self.calibration!r:.40}"
        heat = self.temperature
        if (self.calibration == TEMPERATURE) != (heat is not None) or (heat is not None and not heat > 0):
            return "its temperature is none"
        if not 0 <= self.uniform < 1 or (self.uniform and heat is None):
            return "its share of uniform probabilities is none"
        points = [(curve.x, curve.y) for curve in self.curves]
        if (self.calibration == ISOTONIC) != bool(points) or not all(
            x and len(x) == len(y) and list(x) == sorted(set(x)) and min(y) >= 0 and max(y) <= 1 for x, y in points
        ):
            return "its curves are none of probabilities"
        return None


class HeldOutError(ValueError):
    """The held-out rows cannot answer a question; ``hint`` says what to do."""

    def __init__(self, message: str, hint: str):
        super().__init__(message)
        self.hint = hint


def check_coverage(coverage: float | None) -> float:
    """Return a coverage. Raises HeldOutError unless it is above 0 and below 1."""
    if coverage is None or not 0 < coverage < 1:
        received = "NULL" if coverage is None else repr(coverage)
        raise HeldOutError(
            f"coverage must be above 0 and below 1. Received: {received}",
            "0.9 covers the true value in 90 of 100 rows.",
        )
    return coverage


def threshold(held_out: HeldOut, coverage: float) -> float:
    """Return the score that a value must reach to be covered.

    It is that of rank ceil((n_rows + 1) coverage), or of the next rank that was recorded.

    Raises
    ------
    HeldOutError
        If the rows are too few for the coverage.
    """
    from fractions import Fraction  # here: it takes memory in each session that predicts

    exact = Fraction(repr(coverage))  # 0.9, not the binary number beside it: else the rank could be one too high
    rank = math.ceil((held_out.n_rows + 1) * exact)
    place = bisect_left(held_out.ranks, rank)
    if place == len(held_out.ranks):
        highest = held_out.ranks[-1] / (held_out.n_rows + 1) if held_out.ranks else 0.0
        needed = math.ceil(exact / (1 - exact))
        raise HeldOutError(
            f"coverage {coverage!r} needs at least {needed:,} held-out rows with finite predictions. The version was"
            f" registered with {held_out.n_rows:,}",
            f"The highest coverage of these rows is {math.floor(highest * 1e4) / 1e4:.4g}. For a higher one, register"
            " the model with more rows in held_out.",
        )
    return held_out.scores[place]


def interval(prediction: float, held_out: HeldOut, limit: float) -> tuple[float, float]:
    """Return the numbers whose score reaches a threshold: the lowest and the highest."""
    if held_out.score == RESIDUAL:
        return prediction - limit, prediction + limit
    middle = _signed_log1p(prediction)
    return _signed_expm1(middle - limit), _signed_expm1(middle + limit)


def covered(probabilities: Sequence[float], limit: float) -> list[int]:
    """Return the classes whose probability reaches a threshold, by number, the most probable one first."""
    reached = [number for number, probability in enumerate(probabilities) if probability >= limit]
    return sorted(reached, key=lambda number: -probabilities[number])


def calibrated(probabilities: Sequence[float], held_out: HeldOut) -> list[float]:
    """Return the calibrated probability of each class; all NaN where the network returned NaN.

    Raises
    ------
    HeldOutError
        If the rows calibrate no probabilities, or those of another number of classes.
    """
    n_classes = len(probabilities)
    if held_out.calibration is None:
        raise HeldOutError(
            "outputs of the model are below 0 or above 1, so they are no probabilities", "Train with a softmax layer."
        )
    if held_out.curves and len(held_out.curves) != (1 if n_classes == 2 else n_classes):
        raise HeldOutError(
            f"there are {len(held_out.curves)} curves for {n_classes} classes", "Register the model again."
        )
    if any(map(math.isnan, probabilities)):
        return [math.nan] * len(probabilities)
    if held_out.temperature is not None:
        logs = [math.log(p) / held_out.temperature if p > 0 else -math.inf for p in probabilities]
        highest = max(logs)
        found = [math.exp(log - highest) if highest > -math.inf else 1.0 for log in logs]
    elif len(held_out.curves) == 1:
        second = held_out.curves[0].at(probabilities[1])
        return [1.0 - second, second]
    else:
        found = [curve.at(p) for curve, p in zip(held_out.curves, probabilities, strict=True)]
        found = found if sum(found) > 0 else [1.0] * len(found)
    total, equal = sum(found), held_out.uniform / n_classes
    return [(1.0 - held_out.uniform) * value / total + equal for value in found]


def _signed_log1p(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)


def _signed_expm1(value: float) -> float:
    if not abs(value) < 709.0:  # beyond the range of a float64; NaN stays
        return value * math.inf
    return math.copysign(math.expm1(abs(value)), value)
