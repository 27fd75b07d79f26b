"""Metrics with an array of values, and weights of classes that there are not, are refused when a run is planned."""

import re
from types import SimpleNamespace

import pytest

from madlib_mop.driver.planning.data_fit import check_compile_params, weights_of_classes
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params
from madlib_mop.models.shapes import describe
from tests.helpers.unit.documents import dense, keras_3

CLASSES = ["a", "b", "c"]


def packed(row=(3,), classes=CLASSES, dependent=("y",), counts=(5, 3, 2)):
    """Return a packed table of one input and a dependent column of classes, or of values as they are."""
    return SimpleNamespace(
        relation="flowers_packed", independent=["x"], dependent=list(dependent),
        shapes=[[4], *([list(row)] * len(dependent))],
        num_classes=[len(classes) if classes else None] * len(dependent),
        class_values=[("y", classes)] * len(dependent), class_counts=[list(counts)] * len(dependent),
    )  # fmt: skip


def check(metrics, units=3, key="metrics", **table):
    params = parse_compile_params(f"loss='mse', optimizer='sgd', {key}=[{metrics}]")
    shape = describe(check_architecture(keras_3(dense(units, name="out"), input_shape=(4,))))
    check_compile_params(params, shape, packed(**table))


@pytest.mark.parametrize("key", ["metrics", "weighted_metrics"])
@pytest.mark.parametrize("metric, several, hint", [
    ("F1Score()", "class or output", r"Write F1Score\(average='macro'\)"),
    ("'f1_score'", "class or output", r"Write F1Score\(average='macro'\)"),
    ("FBetaScore(beta=0.5)", "class or output", r"Write FBetaScore\(average='macro'\)"),
    ("F1Score(average=None, threshold=0.5)", "class or output", r"Write F1Score"),
    ("R2Score(class_aggregation=None)", "class or output", r"Write R2Score\(class_aggregation='uniform_average'\)"),
    ("TruePositives(thresholds=[0.3, 0.6])", "threshold",
     r"TruePositives\(thresholds=0.3, name='true_positives_at_0.3'\), TruePositives\(thresholds=0.6"),
    ("Precision(thresholds=[0.3, 0.6, 0.9])", "threshold", r"name='precision_at_0.6'\), \.\.\."),
])  # fmt: skip
def test_a_metric_with_several_values_is_refused_with_the_way_out(key, metric, several, hint):
    with pytest.raises(InvalidParameter, match=f"{key}: .* has a value for each {several}.* Received: ") as caught:
        check(metric, key=key)
    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize("metric", [
    "F1Score(average='macro')", "FBetaScore('weighted', beta=2.0)", "AUC(thresholds=[0.2, 0.5])", "Precision()",
    "Precision(thresholds=0.4)", "Recall(thresholds=[0.4])", "R2Score()", "'accuracy'",
])  # fmt: skip
def test_metrics_with_one_value_pass(metric):
    check(metric)
    check(metric, row=(3,), classes=None)


def test_a_single_output_has_one_score():
    check("F1Score(threshold=0.5)", units=1, row=(1,), classes=None)
    with pytest.raises(InvalidParameter, match="Precision has a value for each threshold"):
        check("Precision(thresholds=[0.3, 0.6])", units=1, row=(1,), classes=None)


def weights_of(texts, packed_table):
    return weights_of_classes(map(parse_fit_params, texts), packed_table)


@pytest.mark.parametrize("table", [{}, {"row": (1,)}, {"classes": None}], ids=["one-hot", "index", "arrays"])
def test_weights_of_classes_that_there_are_not_are_refused(table):
    assert weights_of(["class_weight={0: 1.0, 2: 5.0}", ""], packed(**table)) is None
    with pytest.raises(InvalidParameter, match="a weight of class 3, and flowers_packed has the classes 0 to 2"):
        weights_of(["", "class_weight={0: 1.0, 3: 5.0, 7: 1.0}"], packed(**table))


def test_balanced_weights_are_computed_and_targets_of_numbers_have_no_limit():
    assert weights_of(["class_weight='balanced'", "class_weight={2: 1.0}"], packed()).keys() == {0, 1, 2}
    assert weights_of(["class_weight={9: 1.0}"], packed(row=(1,), classes=None)) is None


@pytest.mark.parametrize("weights", ["'balanced'", "{0: 1.0}"])
def test_several_outputs_have_no_class_weights(weights):
    with pytest.raises(InvalidParameter, match="class_weight cannot be used with 2 outputs"):
        weights_of([f"class_weight={weights}"], packed(dependent=("y", "z")))
