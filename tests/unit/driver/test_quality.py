"""Measures of held-out rows: by hand, and as scikit-learn computes them."""

import numpy as np
import pytest

from madlib_mop.certainty.measures import area_under_curve, codes_of, of_classes, of_numbers, of_scaled_numbers
from madlib_mop.columns.encoding.targets import Predictions
from madlib_mop.driver.inference.measured import ClassOutput
from madlib_mop.driver.learning.quality import of_threshold, rows_of


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


RARE = np.arange(1000) % 50 == 0
#: 20 of 1,000 rows have the second class. Its probability is higher for them, and never above one half.
SCORES = np.where(RARE, 0.2, 0.05) + np.arange(1000) % 7 / 50


def test_unbalanced_classes_are_measured_by_the_rarest_first_and_by_accuracy_last():
    metrics = pytest.importorskip("sklearn.metrics")
    measures = of_classes(predicted(np.stack([1 - SCORES, SCORES], axis=1)), RARE.astype(np.int64))
    assert [one.name for one in measures] == [
        "average precision of the rarest class", "recall of the rarest class", "precision of the rarest class",
        "balanced accuracy", "log loss", "AUC", "accuracy",
    ]  # fmt: skip
    average, recall, precision, balanced, *_, accuracy = measures
    assert average.value == pytest.approx(metrics.average_precision_score(RARE, SCORES)) and average.baseline == 0.02
    assert (recall.value, recall.baseline, precision.value, precision.baseline) == (0.0, 0.0, 0.0, 0.02)
    assert balanced.value == 0.5 and accuracy.value == accuracy.baseline == 0.98
    assert "20 of 1,000 held-out rows have 'b'" in average.note and "0 rows predicted as 'b'" in precision.note


def test_recall_and_precision_of_the_rarest_class_count_what_is_predicted():
    probabilities = np.stack([1 - 3 * SCORES, 3 * SCORES], axis=1)
    found = probabilities[:, 1] > 0.5
    measures = {one.name: one.value for one in of_classes(predicted(probabilities), RARE.astype(np.int64))}
    assert found.any() and measures["recall of the rarest class"] == found[RARE].mean()
    assert measures["precision of the rarest class"] == RARE[found].mean()


def test_the_training_rows_say_which_class_is_the_rarest():
    """All slices, and rows in which the classes happen to be balanced, have one measure."""
    few = predicted([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    assert of_classes(few, np.array([0, 1, 1]), (980, 20))[0].name == "average precision of the rarest class"
    assert of_classes(few, np.array([0, 0, 0]), (980, 20))[0].name == "balanced accuracy", "no row has it"
    assert of_classes(few, np.array([0, 1, 1]), (500, 500))[0].name == "accuracy"


def test_a_threshold_is_chosen_on_validation_rows_and_measured_on_held_out_ones():
    chosen = ClassOutput("left", ["no", "yes"], np.stack([1 - SCORES, SCORES], axis=1), RARE.astype(np.int64))
    scores = np.array([0.9, 0.3, 0.25, 0.1])
    measured = ClassOutput("left", ["no", "yes"], np.stack([1 - scores, scores], axis=1), np.array([1, 1, 0, 1]))
    row = of_threshold(None, chosen, measured, 1, "SELECT 1;")
    assert row["item"] == "threshold" and 0.17 < float(row["value"]) < 0.2, "all rare rows, and no other"
    assert "SELECT 1; Of the 3 held-out rows with 'yes', it finds 2; it predicts 3" in row["note"]
    none = ClassOutput("left", ["no", "yes"], chosen.probabilities, np.zeros(1000, np.int64))
    row = of_threshold("left", none, measured, 1, "SELECT 1;")
    assert (row["item"], row["value"]) == ("left: threshold", None) and "no validation row has 'yes'" in row["note"]


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


def test_measures_of_scaled_numbers_are_the_loss_and_the_metric_of_networks():
    truth = np.array([-1.0, 0.0, 1.0, 4.0])
    squared, absolute = of_scaled_numbers(truth + [1.0, -1.0, 1.0, -3.0], truth)
    assert (squared.name, squared.value, squared.baseline) == ("scaled MSE", 3.0, pytest.approx(truth.var()))
    assert (absolute.name, absolute.value, absolute.baseline) == ("scaled MAE", 1.5, 1.5)


def test_equal_numbers_have_no_variance_to_explain():
    assert [one.name for one in of_numbers(np.zeros(3), np.ones(3))] == ["RMSE", "MAE"]


def test_labels_are_one_hot_or_numbers():
    assert codes_of(np.array([[0, 1], [1, 0]], np.int16)).tolist() == [1, 0]
    assert codes_of(np.array([[2], [0]], np.int16)).tolist() == [2, 0]
