"""Measures of predictions for rows with their true values; called by driver/commands/measuring.py and learn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.certainty.balance import label_of, rarest_class
from madlib_mop.columns.encoding.targets import Predictions

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
_EPSILON = 1e-7  # Keras' own
_N_RANGES = 4


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


def of_classes(
    predicted: Predictions, truth: npt.NDArray[np.int64], class_counts: Sequence[int] | None = None
) -> list[Measure]:
    """Return the measures of predicted classes.

    Parameters
    ----------
    predicted : Predictions
        Its ``probabilities`` are float64 (n_rows, n_classes).
    truth : numpy.ndarray
        int64 (n_rows,): the class of each row.
    class_counts : sequence of int, optional
        (n_classes,): the rows of each class, which say whether classes are unbalanced and which is the rarest. Default:
        those of ``truth``.

    Returns
    -------
    list of Measure
        Accuracy, balanced accuracy and log loss; AUC, if there are two classes and rows of both. Of unbalanced classes,
        those of the rarest one (`_of_class`) come first, and accuracy last.
    """
    probabilities, codes = predicted.probabilities, predicted.codes
    assert probabilities is not None and codes is not None, "they are classes"
    n_rows, n_classes = probabilities.shape
    counts = np.bincount(truth, minlength=n_classes)
    rarest = rarest_class(counts.tolist() if class_counts is None else class_counts)
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
    return found if rarest is None else [*_of_class(predicted, truth, rarest), *found[1:], found[0]]


def _of_class(predicted: Predictions, truth: npt.NDArray[np.int64], number: int) -> list[Measure]:
    """Return average precision, recall and precision of a class; nothing if no row has it."""
    probabilities, codes = predicted.probabilities, predicted.codes
    assert probabilities is not None and codes is not None, "they are classes"
    is_one, is_found = truth == number, codes == number
    n_rows, n_found, n_right = len(truth), int(is_found.sum()), int((is_one & is_found).sum())
    n_of_class = int(is_one.sum())
    if not n_of_class:
        return []
    share, label = n_of_class / n_rows, label_of(predicted.classes[number])
    have = f"{n_of_class:,} of {n_rows:,} held-out rows have {label}"
    return [
        Measure(
            "average precision of the rarest class",
            ThresholdCurve.of(probabilities[:, number], is_one).average_precision,
            share,
            f"mean precision over all thresholds of its probability; {have}; baseline: their share",
        ),
        Measure(
            "recall of the rarest class",
            n_right / n_of_class,
            0.0,
            f"share of the rows with {label} that are predicted; baseline: never {label}",
        ),
        Measure(
            "precision of the rarest class",
            n_right / max(n_found, 1),
            share,
            f"share of the {n_found:,} rows predicted as {label} that have it; baseline: always {label}",
        ),
    ]


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


#: The measures of `of_scaled_numbers`.
SCALED_MSE, SCALED_MAE = "scaled MSE", "scaled MAE"


def of_scaled_numbers(predicted: Floats, truth: Floats) -> list[Measure]:
    """Return the mean squared and the mean absolute error of numbers as they are packed, float64 (n_rows,) each.

    They are the loss and the metric of proposed networks.
    """
    errors, deviations = predicted - truth, truth - truth.mean()
    return [
        Measure(
            SCALED_MSE,
            float((errors**2).mean()),
            float((deviations**2).mean()),
            "mean squared error of the scaled numbers; baseline: always the mean",
        ),
        Measure(
            SCALED_MAE,
            float(np.abs(errors).mean()),
            float(np.abs(truth - np.median(truth)).mean()),
            "mean absolute error of the scaled numbers; baseline: always the median",
        ),
    ]


@dataclass(frozen=True)
class Bin:
    """Rows whose probabilities lie in one interval, of `reliability`.

    Attributes
    ----------
    lower, upper : float
        The interval has its upper limit, and 0.
    n_rows : int
    probability : float
        Their mean.
    share : float
        Of the rows for which what was predicted is true.
    """

    lower: float
    upper: float
    n_rows: int
    probability: float
    share: float


def reliability(probabilities: Floats, is_true: npt.NDArray[np.bool_], n_bins: int) -> list[Bin]:
    """Return the rows by their probability, in intervals of one width; those without rows are left out.

    Parameters
    ----------
    probabilities : numpy.ndarray
        float64 (n_rows,), from 0 to 1.
    is_true : numpy.ndarray
        bool (n_rows,).
    n_bins : int
    """
    limits = np.arange(n_bins + 1) / n_bins
    places = np.clip(np.searchsorted(limits, probabilities, side="left") - 1, 0, n_bins - 1)
    found = []
    for place in np.unique(places).tolist():
        rows = places == place
        found.append(
            Bin(
                float(limits[place]), float(limits[place + 1]), int(rows.sum()), float(probabilities[rows].mean()),
                float(is_true[rows].mean()),
            )
        )  # fmt: skip
    return found


def calibration_error(bins: list[Bin]) -> float:
    """Return the expected calibration error: the mean distance of probability and share over all rows (Naeini, Cooper,
    Hauskrecht, Obtaining Well Calibrated Probabilities Using Bayesian Binning, 2015)."""
    n_rows = sum(one.n_rows for one in bins)
    return sum(one.n_rows * abs(one.probability - one.share) for one in bins) / n_rows if n_rows else 0.0


@dataclass(frozen=True)
class ThresholdCurve:
    """How a class is found at each threshold of its probability.

    Attributes
    ----------
    thresholds : numpy.ndarray
        float64 (n,), decreasing: a row is predicted to have the class if its probability is at least so high.
    n_predicted, n_right : numpy.ndarray
        int64 (n,): of the rows that are predicted, all, and those that have the class.
    n_rows, n_positive : int
        Of all rows, and of those that have the class.
    """

    thresholds: Floats
    n_predicted: Codes
    n_right: Codes
    n_rows: int
    n_positive: int

    @classmethod
    def of(cls, probabilities: Floats, is_positive: npt.NDArray[np.bool_]) -> "ThresholdCurve":
        """Return the curve of rows: float64 and bool (n_rows,); one threshold for each distinct probability."""
        order = np.argsort(-probabilities, kind="stable")
        ordered = probabilities[order]
        is_last = np.append(np.diff(ordered) != 0, True)[: len(ordered)]  # of equal ones
        last = np.flatnonzero(is_last).astype(np.int64)
        right = np.cumsum(is_positive[order], dtype=np.int64)
        return cls(ordered[last], last + 1, right[last], len(ordered), int(is_positive.sum()))

    @property
    def limits(self) -> Floats:
        """Numbers between each threshold and the next one: a probability that was rounded is on the same side."""
        if not len(self.thresholds):
            return self.thresholds
        return np.append((self.thresholds[:-1] + self.thresholds[1:]) / 2, min(self.thresholds[-1], 0.0))

    @property
    def recall(self) -> Floats:
        """The share of the rows with the class that are predicted: the true positive rate."""
        return self.n_right / max(self.n_positive, 1)

    @property
    def false_positive_rate(self) -> Floats:
        """The share of the other rows that are predicted."""
        return (self.n_predicted - self.n_right) / max(self.n_rows - self.n_positive, 1)

    @property
    def precision(self) -> Floats:
        """The share of the predicted rows that have the class."""
        return self.n_right / self.n_predicted

    @property
    def area(self) -> float | None:
        """The area under the ROC curve; None unless there are rows with and without the class."""
        if not 0 < self.n_positive < self.n_rows:
            return None
        true, false = np.append(0.0, self.recall), np.append(0.0, self.false_positive_rate)
        return float((np.diff(false) * (true[1:] + true[:-1])).sum() / 2)

    @property
    def average_precision(self) -> float:
        """The mean precision, each weighted with the increase of recall (as in scikit-learn)."""
        return float((np.diff(self.recall, prepend=0.0) * self.precision).sum())

    @property
    def f1(self) -> Floats:
        """The harmonic mean of precision and recall; 0 if no row has the class."""
        return 2 * self.n_right / np.maximum(self.n_predicted + self.n_positive, 1)

    def highest_f1(self) -> int | None:
        """Return the number of the first threshold with the highest F1; None if no row has the class."""
        return int(np.argmax(self.f1)) if self.n_positive else None

    def costs(self, of_false_positive: float, of_false_negative: float) -> Floats:
        """Return the cost of all wrong rows at each threshold."""
        wrong = self.n_predicted - self.n_right
        return of_false_positive * wrong + of_false_negative * (self.n_positive - self.n_right)

    def places(self, most: int) -> Iterator[int]:
        """Yield the thresholds to show, by number: all, or so many evenly spaced ones with the first and the last."""
        n = len(self.thresholds)
        yield from (range(n) if n <= most else np.unique(np.linspace(0, n - 1, most).round().astype(np.int64)).tolist())


def most_probable(probabilities: Floats) -> Codes:
    """Return the most probable class of each row, int64 (n_rows,); NaN is the least probable."""
    found: Codes = np.argmax(np.where(np.isnan(probabilities), -np.inf, probabilities), axis=1).astype(np.int64)
    return found


def confusion(truth: Codes, predicted: Codes, n_classes: int) -> Codes:
    """Return how many rows have each pair of classes: int64 (n_classes, n_classes), the true class first."""
    counts = np.bincount(truth * n_classes + predicted, minlength=n_classes**2)
    return counts.astype(np.int64).reshape(n_classes, n_classes)


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


def slices(
    texts: Sequence[str | None], numbers: Floats | None, most: int
) -> list[tuple[str | None, npt.NDArray[np.intp]]]:
    """Return the rows of each slice, by number, with a name.

    Parameters
    ----------
    texts : sequence of (str or None)
        The value of each row, as SQL shows it.
    numbers : numpy.ndarray or None
        float64 (n_rows,), of a column of numbers or times.
    most : int
        Of more distinct values, those of numbers are divided into four ranges with about as many rows each, and NULL;
        of others, the less frequent ones are together.
    """
    places: dict[str | None, list[int]] = {}
    for row, text in enumerate(texts):
        places.setdefault(text, []).append(row)
    if len(places) <= most:
        names = sorted(text for text in places if text is not None)
        if numbers is not None:
            names.sort(key=lambda text: float(numbers[places[text][0]]))
        every: list[str | None] = [*names, None] if None in places else [*names]
        return [(name, np.array(places[name], np.intp)) for name in every]
    if numbers is None:
        ordered = sorted(places, key=lambda text: -len(places[text]))
        found = [(name, np.array(places[name], np.intp)) for name in ordered[: most - 1]]
        others = sorted(row for name in ordered[most - 1 :] for row in places[name])
        return [*found, (f"{len(ordered) - most + 1} others", np.array(others, np.intp))]
    missing = np.array(places.get(None, []), np.intp)
    rows = np.setdiff1d(np.arange(len(texts)), missing)
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    limits = np.quantile(numbers[rows], np.arange(1, _N_RANGES) / _N_RANGES, method="inverted_cdf")
    groups = np.searchsorted(limits, numbers[rows], side="left")
    ranges = [rows[groups == group] for group in np.unique(groups)]
    named: list[tuple[str | None, npt.NDArray[np.intp]]] = [
        (f"{texts[part[0]]} to {texts[part[-1]]}", part) for part in ranges
    ]
    return [*named, (None, missing)] if len(missing) else named
