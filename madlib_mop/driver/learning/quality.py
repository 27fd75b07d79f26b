"""How good predictions of held-out rows are, beside the best constant answer for the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.encoding.targets import Predictions

Floats = npt.NDArray[np.float64]
_EPSILON = 1e-7  # Keras' own


@dataclass(frozen=True)
class Measure:
    """One measure of predictions.

    Attributes
    ----------
    name : str
    value : float
        Of the predictions.
    baseline : float
        Of the best constant answer.
    note : str
    """

    name: str
    value: float
    baseline: float
    note: str


def of_classes(predicted: Predictions, truth: npt.NDArray[np.int64]) -> list[Measure]:
    """Return the measures of predicted classes.

    Parameters
    ----------
    predicted : Predictions
        Its ``probabilities`` are float64 (n_rows, n_classes).
    truth : numpy.ndarray
        int64 (n_rows,): the class of each row.

    Returns
    -------
    list of Measure
        Accuracy, balanced accuracy and log loss; AUC, if there are two classes and rows of both.
    """
    probabilities, codes = predicted.probabilities, predicted.codes
    assert probabilities is not None and codes is not None, "they are classes"
    n_rows, n_classes = probabilities.shape
    counts = np.bincount(truth, minlength=n_classes)
    usual = int(counts.argmax())
    right = codes == truth
    recalls = [float(right[truth == code].mean()) for code in np.flatnonzero(counts)]
    shares = counts[counts > 0] / n_rows
    of_truth = probabilities[np.arange(n_rows), truth] / np.maximum(probabilities.sum(axis=1), _EPSILON)
    found = [
        Measure(
            "accuracy",
            float(right.mean()),
            float(counts[usual] / n_rows),
            f"share of {n_rows:,} held-out rows with the right class; baseline: always {predicted.classes[usual]!r}",
        ),
        Measure(
            "balanced accuracy",
            float(np.mean(recalls)),
            1.0 / len(recalls),
            "mean over the classes of the share of their rows that are predicted",
        ),
        Measure(
            "log loss",
            float(-np.log(np.clip(of_truth, _EPSILON, 1.0)).mean()),
            abs(float((shares * np.log(shares)).sum())),
            "of the probabilities; lower is better; baseline: the shares of the classes",
        ),
    ]
    if n_classes == 2 and len(recalls) == 2:
        note = "how often a row of one class gets a higher probability of it than a row of the other"
        found.append(Measure("AUC", area_under_curve(probabilities[:, 1], truth == 1), 0.5, note))
    return found


def of_numbers(predicted: Floats, truth: Floats) -> list[Measure]:
    """Return R2, root mean squared error and mean absolute error of predicted numbers, float64 (n_rows,) each."""
    errors, mean, median = predicted - truth, float(truth.mean()), float(np.median(truth))
    spread = float(((truth - mean) ** 2).mean())
    squared = float((errors**2).mean())
    n_rows = len(truth)
    found = [
        Measure("RMSE", squared**0.5, spread**0.5, f"root mean squared error; baseline: always the mean, {mean:.6g}"),
        Measure(
            "MAE",
            float(np.abs(errors).mean()),
            float(np.abs(truth - median).mean()),
            f"mean absolute error; baseline: always the median, {median:.6g}",
        ),
    ]
    if spread > 0:
        note = f"share of the variance of {n_rows:,} held-out rows that the predictions explain"
        found.insert(0, Measure("R2", 1.0 - squared / spread, 0.0, note))
    return found


def area_under_curve(scores: Floats, is_positive: npt.NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: the share of pairs of both kinds in the right order; equals count half."""
    levels, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    n_positive = int(np.count_nonzero(is_positive))
    n_pairs = n_positive * (len(scores) - n_positive)
    above = ranks[place.ravel()][is_positive].sum() - n_positive * (n_positive + 1) / 2
    assert len(levels) and n_pairs, "there are rows of both kinds"
    return float(above / n_pairs)


def codes_of(labels: np.ndarray) -> npt.NDArray[np.int64]:
    """Return the class of each row: int64 (n_rows,), of one-hot or index labels."""
    rows = labels.reshape(len(labels), -1)
    return rows[:, 0].astype(np.int64) if rows.shape[1] == 1 else rows.argmax(axis=1).astype(np.int64)


def shown(value: float) -> str:
    """Return a figure as text."""
    return f"{value:.4g}"


def rows_of(name: str | None, measures: Sequence[Measure]) -> list[dict[str, str | None]]:
    """Return the measures as rows of the summary; ``name`` is the target, if there are several."""
    prefix = "" if name is None else f"{name}: "
    return [
        {"item": prefix + one.name, "value": shown(one.value), "baseline": shown(one.baseline), "note": one.note}
        for one in measures
    ]
