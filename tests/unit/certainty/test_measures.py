"""Measures of predictions: as scikit-learn computes them, and by hand where a row is at a limit."""

import numpy as np
import pytest

from madlib_mop.certainty.measures import (
    ThresholdCurve,
    area_under_curve,
    calibration_error,
    confusion,
    reliability,
    slices,
)

RANDOM = np.random.default_rng(3)
SCORES = np.round(RANDOM.random(500), 2)  # with equal ones
TRUE = RANDOM.random(500) < SCORES


def test_the_curves_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    curve = ThresholdCurve.of(SCORES, TRUE)
    false, true, thresholds = metrics.roc_curve(TRUE, SCORES, drop_intermediate=False)
    assert curve.false_positive_rate == pytest.approx(false[1:]) and curve.recall == pytest.approx(true[1:])
    assert curve.thresholds == pytest.approx(thresholds[1:])
    assert curve.area == pytest.approx(metrics.roc_auc_score(TRUE, SCORES)) == area_under_curve(SCORES, TRUE)
    precision, recall, _ = metrics.precision_recall_curve(TRUE, SCORES)
    assert curve.precision[::-1] == pytest.approx(precision[:-1]) and curve.recall[::-1] == pytest.approx(recall[:-1])
    assert curve.average_precision == pytest.approx(metrics.average_precision_score(TRUE, SCORES))


def test_a_threshold_counts_and_costs_what_it_predicts():
    curve = ThresholdCurve.of(np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, False, True, True]))
    assert curve.thresholds.tolist() == [0.9, 0.8, 0.1] and curve.n_predicted.tolist() == [1, 3, 4]
    assert curve.precision.tolist() == [1.0, 2 / 3, 0.75] and curve.recall.tolist() == [1 / 3, 2 / 3, 1.0]
    assert curve.costs(1.0, 10.0).tolist() == [20.0, 11.0, 1.0] and curve.costs(10.0, 1.0).tolist() == [2.0, 11.0, 10.0]
    assert curve.limits == pytest.approx([0.85, 0.45, 0.0])
    assert ThresholdCurve.of(np.ones(3), np.zeros(3, bool)).area is None
    assert not len(ThresholdCurve.of(np.empty(0), np.empty(0, bool)).limits)


def test_the_highest_f1_is_that_of_all_thresholds():
    metrics = pytest.importorskip("sklearn.metrics")
    rare = RANDOM.random(2_000) < 0.02
    scores = np.where(rare, RANDOM.random(2_000), RANDOM.random(2_000) ** 4)
    curve = ThresholdCurve.of(scores, rare)
    place = curve.highest_f1()
    found = metrics.f1_score(rare, scores >= curve.limits[place])
    assert found == pytest.approx(curve.f1[place])
    assert found == max(metrics.f1_score(rare, scores >= limit) for limit in np.linspace(0.01, 0.99, 99).tolist() + [
        curve.limits[place]])  # fmt: skip
    assert found > metrics.f1_score(rare, scores >= 0.5)
    assert ThresholdCurve.of(scores, np.zeros(2_000, bool)).highest_f1() is None


def test_of_many_thresholds_some_are_shown_with_the_first_and_the_last():
    curve = ThresholdCurve.of(SCORES, TRUE)
    shown, n = list(curve.places(10)), len(curve.thresholds)
    assert len(shown) == 10 and (shown[0], shown[-1]) == (0, n - 1) and list(curve.places(1000)) == list(range(n))


def test_reliability_divides_all_rows_and_its_error_is_the_mean_distance():
    bins = reliability(SCORES, TRUE, 10)
    assert sum(one.n_rows for one in bins) == len(SCORES)
    for one in bins:
        assert one.lower <= one.probability <= one.upper
    assert calibration_error(bins) < 0.1 < calibration_error(reliability(SCORES, ~TRUE, 10))
    edges = reliability(np.array([0.0, 0.1, 0.10001, 1.0]), np.array([True, False, True, True]), 10)
    assert [(one.lower, one.n_rows, one.share) for one in edges] == [(0.0, 2, 0.5), (0.1, 1, 1.0), (0.9, 1, 1.0)]
    assert calibration_error(edges) == pytest.approx((2 * abs(0.05 - 0.5) + abs(0.10001 - 1)) / 4)


def test_a_confusion_matrix_has_the_true_classes_first():
    found = confusion(np.array([0, 0, 2]), np.array([1, 0, 2]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_slices_are_the_values_of_a_column_or_ranges_or_the_most_frequent():
    texts = ["b", "a", None, "b"]
    assert {name: rows.tolist() for name, rows in slices(texts, None, 20)} == {"a": [1], "b": [0, 3], None: [2]}
    assert [name for name, _ in slices(["10", "9", None], np.array([10.0, 9.0, 0.0]), 20)] == ["9", "10", None]
    many = [*"aaabbcde", None]
    assert {name: len(rows) for name, rows in slices(many, None, 3)} == {"a": 3, "b": 2, "4 others": 4}
    numbers = RANDOM.permutation(100).astype(np.float64)
    found = slices([*(f"{value:.0f}" for value in numbers), None], np.append(numbers, np.nan), 20)
    assert [name for name, _ in found] == ["0 to 24", "25 to 49", "50 to 74", "75 to 99", None]
    assert [len(rows) for _, rows in found] == [25, 25, 25, 25, 1]
    assert sorted(row for _, rows in found for row in rows.tolist()) == list(range(101))
