"""What register finds about held-out rows and columns: the same as the functions of measuring.py, small, and checked
when it is read, because the owner of a version can write any."""

import copy
import json

import numpy as np
import pytest

from madlib_mop.catalog.facts.findings import MAX_CLASSES, MAX_CURVES, MAX_POINTS, Findings, findings_of
from madlib_mop.certainty.measures import calibration_error, confusion, most_probable, reliability
from madlib_mop.certainty.scores import of_classes
from madlib_mop.columns.preprocessors.canonical import plain
from madlib_mop.driver.inference.measured import ClassOutput
from madlib_mop.driver.registry.findings import _dependences, _importances, of_output
from tests.helpers.reports import some_findings
from tests.helpers.unit.explained import preprocessor_of, some_rows


def an_output(n_classes: int, n_rows: int = 600, labels=None) -> ClassOutput:
    random = np.random.default_rng(n_classes)
    truth = np.minimum(random.geometric(0.3, n_rows) - 1, n_classes - 1)
    scores = random.normal(size=(n_rows, n_classes)) + 2 * np.eye(n_classes)[truth]
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return ClassOutput("y", labels or [f"c{i}" for i in range(n_classes)], probabilities, truth.astype(np.int64))


def found(output: ClassOutput, calibration: str = "temperature"):
    return of_output(output, of_classes(output.name, "t", output.probabilities, output.truth, calibration))


def test_two_classes_have_a_curve_of_the_second_one_and_all_their_numbers():
    output = an_output(2, labels=["no", None])
    one = found(output)
    assert one.confusion.classes == ("no", None) and one.confusion.n_others == 0
    counts = confusion(output.truth, most_probable(output.probabilities), 2)
    assert one.confusion.counts == tuple(map(tuple, counts.tolist()))
    (curve,) = one.curves
    assert curve.of_class is None and curve.n_rows == (output.truth == 1).sum() and len(curve.points) == MAX_POINTS
    middle = curve.points[50]
    predicted = output.probabilities[:, 1] >= middle.threshold
    assert middle.n_predicted == predicted.sum()
    assert middle.precision == pytest.approx((output.truth[predicted] == 1).mean())
    assert middle.recall == pytest.approx(predicted[output.truth == 1].mean())
    assert middle.false_positive_rate == pytest.approx(predicted[output.truth == 0].mean())


def test_reliability_is_that_of_the_predicted_class_raw_and_calibrated():
    output = an_output(3)
    raw, calibrated = found(output).reliability
    best = most_probable(output.probabilities)
    bins = reliability(output.probabilities[np.arange(len(best)), best], best == output.truth, 10)
    assert raw.error == pytest.approx(calibration_error(bins)) and len(raw.bins) == len(bins)
    assert (raw.calibration, calibrated.calibration) == (None, "temperature")
    assert sum(one.n_rows for one in calibrated.bins) == 600


def test_many_classes_are_few_in_the_record_and_no_row_is_lost():
    output = an_output(40, 3000)
    one = found(output)
    n_shown = len(one.confusion.classes)
    assert n_shown == MAX_CLASSES and one.confusion.n_others == 40 - MAX_CLASSES
    assert {len(one.confusion.counts), *map(len, one.confusion.counts)} == {n_shown + 1}
    assert sum(map(sum, one.confusion.counts)) == 3000
    by_rows = np.bincount(output.truth, minlength=40)
    assert sorted((curve.n_rows for curve in one.curves), reverse=True) == sorted(by_rows, reverse=True)[:MAX_CURVES]
    assert len(json.dumps(plain(Findings("t", (one,))))) < 200_000


def test_very_many_classes_need_no_table_of_all_pairs():
    output = an_output(3, 50)
    wide = np.zeros((50, 20_000), np.float32)
    wide[:, :3] = output.probabilities
    found_of = of_output(
        ClassOutput("y", [str(i) for i in range(20_000)], wide, output.truth),
        of_classes("y", "t", output.probabilities, output.truth, "isotonic"),
    )
    assert sum(map(sum, found_of.confusion.counts)) == 50 and found_of.confusion.n_others == 20_000 - MAX_CLASSES


@pytest.mark.parametrize("outputs", [np.nan, 1.5, -0.5])
def test_outputs_that_are_no_probabilities_have_no_reliability(outputs):
    output = an_output(2)
    output.probabilities[3, 0] = outputs
    one = found(output)
    assert one.reliability == () and sum(map(sum, one.confusion.counts)) == 600
    assert (one.curves == ()) == bool(np.isnan(outputs))


def test_numbers_that_are_not_finite_are_left_out():
    row = {"output": "y", "metric": "log_loss", "loss": 0.5, "n_rows": 9}
    rows = [{**row, "feature": name, "importance": value, "lower": value, "upper": value}
            for name, value in (("a", 0.5), ("b", "nan"))]  # fmt: skip
    (one,) = _importances(rows)
    assert [column.feature for column in one.columns] == ["a"] and one.n_columns == 2
    assert list(_importances([{**rows[0], "loss": "inf"}])) == []


def test_of_two_classes_the_second_is_kept_and_a_long_value_is_cut():
    preprocessor = preprocessor_of(some_rows())
    (target,) = preprocessor.targets
    tier = next(column for column in preprocessor.inputs if column.name == "tier")
    rows = [{"output": "y", "class": of_class, "value": value, "prediction": 0.5, "lower": None, "upper": None}
            for of_class in target.fit.classes for value in ("x" * 1000, None)]  # fmt: skip
    (one,) = _dependences(preprocessor, tier, rows)
    assert one.of_class == target.fit.classes[1] and not one.is_number
    assert len(one.points[0].value) == 100 and one.points[1].value is None


FOUND = some_findings().findings


def test_what_is_recorded_is_read_again():
    assert findings_of(json.dumps(plain(FOUND))) == FOUND
    assert findings_of(json.dumps(plain(Findings()))) == Findings()


def changed(path: str, value) -> str:
    document = copy.deepcopy(plain(FOUND))
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place = document
    for part in way:
        place = place[part]
    place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(("path", "value"), [
    ("outputs", None), ("outputs", 7), ("held_out", []), ("more", 1), ("outputs.0.n_rows", 1.5),
    ("outputs.0.n_rows", 10**400), ("outputs.0.confusion.counts.0", [1]), ("outputs.0.confusion.counts", []),
    ("outputs.0.confusion.n_others", 3), ("outputs.0.confusion.counts.0.1", -1), ("outputs.0.n_rows", 0),
    ("outputs.0.curves.0.points", []), ("outputs.0.curves.0.points.0.recall", 2), ("importances.0.columns", []),
    ("outputs.0.curves.0.points.0.threshold", -5), ("outputs.0.reliability.0.bins", []), ("outputs.0.curves", 1),
    ("outputs.0.reliability.0.bins.0.share", float("nan")), ("dependences.0.points", []),
    ("dependences.0.points.0.prediction", "high"),
])  # fmt: skip
def test_findings_by_hand_that_no_figure_can_show_are_not_read(path, value):
    assert findings_of(changed(path, value)) is None


@pytest.mark.parametrize("text", ["null", "[]", "{}", "7", "{", "[" * 100_000, "[" * 1_100_000])
def test_neither_is_what_is_no_record(text):
    assert findings_of(text) is None
