"""Measures of held-out rows: by hand, and as scikit-learn computes them."""

import numpy as np
import pytest

from madlib_mop.certainty.measures import area_under_curve, codes_of, of_classes, of_numbers
from madlib_mop.columns.encoding.targets import Predictions
from madlib_mop.driver.learning.quality import rows_of


def predicted(probabilities) -> Predictions:
    values = np.array(probabilities, np.float64)
    classes = tuple("abc"[: values.shape[1]])
    return Predictions(classes=classes, codes=values.argmax(axis=1), probabilities=values)


def test_measures_of_two_classes():
    truth = np.array([0, 0, 0, 1])
    measures = {one.name: one for one in of_classes(predicted([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]]), truth)}
    assert (measures["accuracy"].value, measures["accuracy"].baseline) == (0.75, 0.75)
    assert "always 'a'" in measures["accuracy"].note
    assert measures["balanced accuracy"].value == pytest.approx((2 / 3 + 1) / 2)
    assert measures["log loss"].value == pytest.approx(-np.log([0.9, 0.8, 0.3, 0.6]).mean())
    assert measures["log loss"].baseline == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    assert measures["AUC"].value == pytest.approx(2 / 3)


def test_rows_of_one_class_have_no_curve():
    measures = of_classes(predicted([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 0]))
    assert [one.name for one in measures] == ["accuracy", "balanced accuracy", "log loss"]
    assert (measures[0].value, measures[0].baseline, measures[2].baseline) == (0.5, 1.0, 0.0)
    assert rows_of(None, measures)[2]["baseline"] == "0"


def test_a_class_without_rows_does_not_count():
    measures = of_classes(predicted([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]), np.array([0, 1]))
    assert [(one.value, one.baseline) for one in measures[:2]] == [(1.0, 0.5), (1.0, 0.5)]


@pytest.mark.parametrize("n_levels", [3, 1000])
def test_the_area_is_that_of_scikit_learn(n_levels):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    scores, truth = rng.integers(0, n_levels, 500) / n_levels, rng.random(500) < 0.1
    assert area_under_curve(scores, truth) == pytest.approx(metrics.roc_auc_score(truth, scores))


def test_measures_of_numbers():
    truth = np.array([1.0, 2.0, 3.0, 10.0])
    measures = {one.name: one for one in of_numbers(truth + [1.0, -1.0, 1.0, -1.0], truth)}
    assert measures["R2"].value == pytest.approx(1 - 1 / truth.var()) and measures["R2"].baseline == 0.0
    assert (measures["RMSE"].value, measures["RMSE"].baseline) == (1.0, pytest.approx(truth.std()))
    assert (measures["MAE"].value, measures["MAE"].baseline) == (1.0, pytest.approx(np.abs(truth - 2.5).mean()))


def test_equal_numbers_have_no_variance_to_explain():
    assert [one.name for one in of_numbers(np.zeros(3), np.ones(3))] == ["RMSE", "MAE"]


def test_labels_are_one_hot_or_numbers():
    assert codes_of(np.array([[0, 1], [1, 0]], np.int16)).tolist() == [1, 0]
    assert codes_of(np.array([[2], [0]], np.int16)).tolist() == [2, 0]
