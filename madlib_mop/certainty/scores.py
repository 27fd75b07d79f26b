"""Scores of held-out rows: what a version keeps of them, so that mop_backend/held_out.py can return intervals, sets and
calibrated probabilities; called by driver/registry/held_out.py. Calibrated probabilities of many rows.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from mop_backend.held_out import (
    ISOTONIC,
    LOG_RESIDUAL,
    PROBABILITY,
    RESIDUAL,
    TEMPERATURE,
    Curve,
    HeldOut,
    HeldOutError,
    calibrated,
)

from madlib_mop.columns.transforms.logarithm import signed_log1p
from madlib_mop.errors import Unsupported

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

#: Of so many rows every score is kept; of more, so many evenly spaced ones, and those of the worst rows.
MOST_SCORES = 1000
_WORST = 200
#: Isotonic calibration needs a curve for each class.
MOST_CURVES = 20
#: Before any row is seen, 95 of 100 temperatures are between 1/2 and 2: the standard deviation of their logarithms.
_USUAL = math.log(2) / 2
#: The searches of a temperature: the most that logarithms are multiplied by or divided by, how many times more for a
#: share of uniform probabilities, and steps.
_SHARPEST, _SHARPER, _SECTIONS, _GOLDEN = math.log(1000), math.log(16), 32, (5**0.5 - 1) / 2
_MOST_UNIFORM, _STEPS_OF_SHARE, _TINY = 0.99, 40, 1e-30


def kept_ranks(n_rows: int) -> npt.NDArray[np.int64]:
    """Return the ranks whose scores are kept, increasing, from 1 to ``n_rows``.

    Between two of them are less than n_rows / 799 + 1 others, so a coverage is at most 0.13 points higher than asked
    for. Coverages above 1 - 200 / n_rows are exact.
    """
    if n_rows <= MOST_SCORES:
        return np.arange(1, n_rows + 1)
    even = np.ceil(np.linspace(1, n_rows, MOST_SCORES - _WORST)).astype(np.int64)
    return np.union1d(even, np.arange(n_rows - _WORST + 1, n_rows + 1))


def calibrate(probabilities: Floats, held_out: HeldOut) -> Floats:
    """Return the calibrated probabilities of rows, float64 (n_rows, n_classes); NaN for rows with NaN.

    Raises
    ------
    Unsupported
        If the held-out rows calibrate no probabilities, or those of another number of classes.
    """
    try:
        found = [calibrated(row, held_out) for row in probabilities.tolist()]
    except HeldOutError as error:
        raise Unsupported(f"calibrated: {error}", hint=error.hint) from None
    return np.array(found, np.float64).reshape(probabilities.shape)


def of_numbers(output: str, table: str, predicted: Floats, truth: Floats, with_logarithm: bool) -> HeldOut:
    """Return what is kept of a regression.

    Parameters
    ----------
    output, table : str
    predicted, truth : numpy.ndarray
        float64 (n_rows,), in the units of the table.
    with_logarithm : bool
        Whether the distance is that of logarithms, so that intervals are wider where predictions are larger.
    """
    n_rows, usable = len(truth), np.isfinite(predicted) & np.isfinite(truth)
    predicted, truth = predicted[usable], truth[usable]
    if with_logarithm:
        predicted, truth = signed_log1p(predicted), signed_log1p(truth)
    with np.errstate(over="ignore"):
        distances = np.abs(truth - predicted)
    ranks, scores = _kept(np.sort(distances[np.isfinite(distances)]), n_rows)
    return HeldOut(output, table, n_rows, LOG_RESIDUAL if with_logarithm else RESIDUAL, ranks, scores)


def of_classes(output: str, table: str, probabilities: Floats, truth: Codes, calibration: str) -> HeldOut:
    """Return what is kept of a classification; without a calibration, if the outputs are no probabilities.

    Parameters
    ----------
    output, table : str
    probabilities : numpy.ndarray
        float64 (n_rows, n_classes).
    truth : numpy.ndarray
        int64 (n_rows,): the class of each row.
    calibration : str
        `TEMPERATURE` or `ISOTONIC`.
    """
    of_truth = probabilities[np.arange(len(truth)), truth]
    ranks, scores = _kept(-np.sort(-of_truth[np.isfinite(of_truth)]), len(truth))
    usable = np.isfinite(probabilities).all(axis=1)
    rows, codes = probabilities[usable], truth[usable]
    if rows.size and not (0 <= rows.min() and rows.max() <= 1):
        return HeldOut(output, table, len(truth), PROBABILITY, ranks, scores)
    temperature, uniform = fit_temperature(rows, codes) if calibration == TEMPERATURE else (None, 0.0)
    curves = fit_isotonic(rows, codes) if calibration == ISOTONIC else ()
    return HeldOut(output, table, len(truth), PROBABILITY, ranks, scores, calibration, temperature, curves, uniform)


def fit_temperature(probabilities: Floats, truth: Codes) -> tuple[float, float]:
    """Return the temperature and the share of uniform probabilities with the least log loss.

    They are temperature scaling (Guo et al., On Calibration of Modern Neural Networks, 2017) and two of the three parts
    of ensemble temperature scaling (Zhang, Kailkhura, Han, Mix-n-Match, 2020). The share is for rows whose class is
    wrong: they bound how probable any class can be, which no temperature does. It is 0 unless it lowers the log loss of
    all rows together by more than ln(n_rows) / 2, the criterion of Schwarz. Few rows say little of the temperature, so
    the logarithm of it has a normal prior around 0.
    """
    logs, n_classes = np.log(np.clip(probabilities, _TINY, None)), probabilities.shape[1]

    def without(sharpness: float) -> float:
        return _log_loss(_of_truth(logs, truth, math.exp(sharpness))) + (sharpness / _USUAL) ** 2 / 2

    def with_share(sharpness: float) -> tuple[float, float]:
        of_truth = _of_truth(logs, truth, math.exp(sharpness))
        share = _share(of_truth, n_classes)
        return _log_loss((1.0 - share) * of_truth + share / n_classes) + (sharpness / _USUAL) ** 2 / 2, share

    sharpness = _least(without, -_SHARPEST, _SHARPEST)
    # without the rows that the share is for, the others are sharper
    sharper = _least(lambda tried: with_share(tried)[0], sharpness, sharpness + _SHARPER)
    loss, share = with_share(sharper)
    if loss < without(sharpness) - math.log(max(len(truth), 1)) / 2:
        return math.exp(-sharper), share
    return math.exp(-sharpness), 0.0


def _least(loss: Callable[[float], float], low: float, high: float) -> float:
    """Return where a loss is least, by a golden-section search."""
    for _ in range(_SECTIONS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return (low + high) / 2


def _of_truth(logs: Floats, truth: Codes, inverse: float) -> Floats:
    """Return the probability of the true class at a temperature, float64 (n_rows,)."""
    scaled = inverse * logs
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    found: Floats = weights[np.arange(len(truth)), truth] / weights.sum(axis=1)
    return found


def _share(of_truth: Floats, n_classes: int) -> float:
    """Return the share of uniform probabilities with the least log loss; the log loss is convex in it."""
    rises = 1.0 / n_classes - of_truth
    low, high = 0.0, _MOST_UNIFORM
    if not (rises / np.maximum(of_truth, _TINY)).sum() > 0:
        return 0.0
    for _ in range(_STEPS_OF_SHARE):
        middle = (low + high) / 2
        slope = (rises / (of_truth + middle * rises)).sum()
        low, high = (middle, high) if slope > 0 else (low, middle)
    return (low + high) / 2


def _log_loss(of_truth: Floats) -> float:
    """Return the log loss of all rows together."""
    return -float(np.log(np.maximum(of_truth, _TINY)).sum())


def fit_isotonic(probabilities: Floats, truth: Codes) -> tuple[Curve, ...]:
    """Return an increasing curve from probabilities to shares for each class, of two classes for the second (Zadrozny
    and Elkan, Transforming Classifier Scores into Accurate Multiclass Probability Estimates, 2002)."""
    n_classes = probabilities.shape[1]
    classes = [1] if n_classes == 2 else range(n_classes)
    return tuple(_isotonic(probabilities[:, number], truth == number) for number in classes)


def _isotonic(probabilities: Floats, is_class: npt.NDArray[np.bool_]) -> Curve:
    """Return the curve of a class. Each block of rows with one share has one row more, of which the network's
    probability is true: else the first share would be 0 and the last 1, and new rows would make the log loss infinite.
    """
    from sklearn.isotonic import IsotonicRegression  # a package of the server; only here

    fitted = IsotonicRegression(y_min=0.0, y_max=1.0).fit(probabilities, is_class)
    x, first = np.unique(fitted.X_thresholds_, return_index=True)
    shares, starts, place = np.unique(fitted.y_thresholds_[first], return_index=True, return_inverse=True)
    block = np.searchsorted(x[starts], probabilities, side="right") - 1
    n_rows, total = np.bincount(block), np.bincount(block, probabilities)
    smoothed = np.maximum.accumulate((n_rows * shares + total / n_rows) / (n_rows + 1))
    return Curve(tuple(x.tolist()), tuple(smoothed[place].tolist()))


def coverage_error(n_rows: int, coverage: float) -> float:
    """Return the standard deviation of the coverage of new rows over draws of the held-out rows.

    It is that of a beta distribution (Vovk, Conditional Validity of Inductive Conformal Predictors, 2012).
    """
    rank = min(np.ceil((n_rows + 1) * coverage), n_rows)
    return float((rank * (n_rows + 1 - rank) / ((n_rows + 1) ** 2 * (n_rows + 2))) ** 0.5)


def _kept(ordered: Floats, n_rows: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return ranks and scores to keep; ``ordered`` are the scores, the best first, without those that are no number."""
    ranks: Sequence[int] = [rank for rank in kept_ranks(n_rows).tolist() if rank <= len(ordered)]
    return tuple(ranks), tuple((ordered[np.array(ranks, np.int64) - 1] + 0.0).tolist())
