"""What is kept of held-out rows: intervals and sets cover new rows as often as asked for; calibration calibrates."""

import dataclasses
import json
import math

import numpy as np
import pytest
from mop_backend.held_out import (
    ISOTONIC,
    TEMPERATURE,
    HeldOut,
    HeldOutError,
    calibrated,
    check_coverage,
    covered,
    interval,
    threshold,
)

from madlib_mop.certainty import scores
from madlib_mop.certainty.measures import calibration_error, reliability
from madlib_mop.certainty.scores import (
    calibrate,
    coverage_error,
    fit_isotonic,
    fit_temperature,
    kept_ranks,
    of_classes,
    of_numbers,
)
from madlib_mop.columns.preprocessors.canonical import build, plain
from madlib_mop.errors import Unsupported

RANDOM = np.random.default_rng(7)


def numbers_of(n_rows: int, with_logarithm: bool = False) -> tuple[HeldOut, np.ndarray, np.ndarray]:
    """Return a record, and predictions and truth of new rows."""
    predicted = RANDOM.gamma(2.0, 50.0, 4000 + n_rows)
    noise = RANDOM.standard_t(3, len(predicted))
    truth = np.expm1(np.log1p(predicted) + 0.3 * noise) if with_logarithm else predicted + 10 * noise
    record = of_numbers("price", "t", predicted[:n_rows], truth[:n_rows], with_logarithm)
    return record, predicted[n_rows:], truth[n_rows:]


def classes_of(n_rows: int, n_classes: int, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities and classes that are drawn by them; with ``sharpness`` above 1, the former are too sure."""
    logits = RANDOM.normal(0, 2, (n_rows, n_classes))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = np.array([RANDOM.choice(n_classes, p=row) for row in true])
    sharp = np.exp(logits * sharpness)
    return sharp / sharp.sum(axis=1, keepdims=True), truth


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.99])
@pytest.mark.parametrize("with_logarithm", [False, True])
def test_intervals_cover_new_rows_as_often_as_asked_for(coverage, with_logarithm):
    shares = []
    for _ in range(20):
        record, predicted, truth = numbers_of(1500, with_logarithm)
        limit = threshold(record, coverage)
        bounds = [interval(value, record, limit) for value in predicted.tolist()]
        shares.append(np.mean([low <= value <= high for (low, high), value in zip(bounds, truth, strict=True)]))
    assert np.mean(shares) == pytest.approx(coverage, abs=0.01)


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("coverage", [0.6, 0.9, 0.95])
def test_sets_cover_new_rows_as_often_as_asked_for(n_classes, coverage):
    probabilities, truth = classes_of(12_000, n_classes, sharpness=2.0)
    record = of_classes("kind", "t", probabilities[:4000], truth[:4000], TEMPERATURE)
    limit = threshold(record, coverage)
    sets = [covered(row, limit) for row in probabilities[4000:].tolist()]
    assert np.mean([code in one for one, code in zip(sets, truth[4000:], strict=True)]) == pytest.approx(
        coverage, abs=0.02
    )
    for one, row in zip(sets[:100], probabilities[4000:], strict=False):
        assert [row[number] for number in one] == sorted((row[number] for number in one), reverse=True)


def test_the_rank_has_the_correction_for_few_rows():
    """Of 9 rows, coverage 0.9 needs the worst one, and 0.8 the eighth: ceil((9 + 1) * coverage)."""
    record = of_numbers("y", "t", np.zeros(9), np.arange(1.0, 10.0), False)
    assert [threshold(record, coverage) for coverage in (0.1, 0.11, 0.8, 0.9)] == [1, 2, 8, 9]
    for coverage, needed in ((0.91, 11), (0.99, 99)):
        with pytest.raises(HeldOutError, match=f"at least {needed} held-out rows.* registered with 9") as caught:
            threshold(record, coverage)
        assert "highest coverage of these rows is 0.9." in caught.value.hint


@pytest.mark.parametrize("coverage", [None, 0.0, 1.0, -1.0, math.nan, math.inf])
def test_a_coverage_that_is_none_is_refused(coverage):
    with pytest.raises(HeldOutError, match="above 0 and below 1"):
        check_coverage(coverage)


def test_of_many_rows_a_bounded_number_of_scores_is_kept_and_no_coverage_is_less_than_asked_for():
    n_rows = 200_000
    distances = RANDOM.exponential(1.0, n_rows)
    record = of_numbers("y", "t", np.zeros(n_rows), distances, False)
    assert len(record.scores) <= 1000 and len(json.dumps(plain(record))) < 40_000
    ordered = np.sort(distances)
    for coverage in (0.5, 0.9, 0.95, 0.999, 0.99999):
        share = np.searchsorted(ordered, threshold(record, coverage), side="right") / n_rows
        assert coverage <= share <= coverage + 0.0013
    assert threshold(record, 0.9995) == ordered[math.ceil((n_rows + 1) * 0.9995) - 1]
    assert kept_ranks(1000).tolist() == list(range(1, 1001))


def test_predictions_that_are_no_number_count_as_the_worst():
    record = of_numbers("y", "t", np.array([0.0] * 8 + [math.nan, math.inf]), np.ones(10), False)
    assert record.n_rows == 10 and threshold(record, 0.7) == 1.0
    with pytest.raises(HeldOutError):
        threshold(record, 0.8)


def test_temperature_is_found_and_improves_new_rows():
    probabilities, truth = classes_of(8000, 4, sharpness=2.5)
    temperature, uniform = fit_temperature(probabilities[:4000], truth[:4000])
    assert temperature == pytest.approx(2.5, rel=0.1) and uniform < 0.02
    record = of_classes("kind", "t", probabilities[:4000], truth[:4000], TEMPERATURE)
    after = np.array([calibrated(row, record) for row in probabilities[4000:].tolist()])
    assert after.sum(axis=1) == pytest.approx(1.0) and (after.argmax(1) == probabilities[4000:].argmax(1)).all()
    assert log_loss(after, truth[4000:]) < 0.9 * log_loss(probabilities[4000:], truth[4000:])


def test_classes_that_are_wrong_at_random_bound_the_probabilities(monkeypatch):
    """No temperature does that: the likely classes of all rows stay too probable, or the others too improbable."""
    probabilities, truth = classes_of(8000, 4, sharpness=2.5)
    truth = np.where(RANDOM.random(8000) < 0.4, RANDOM.integers(0, 4, 8000), truth)
    temperature, uniform = fit_temperature(probabilities[:4000], truth[:4000])
    assert temperature == pytest.approx(2.5, rel=0.2) and uniform == pytest.approx(0.4, abs=0.06)
    record = of_classes("kind", "t", probabilities[:4000], truth[:4000], TEMPERATURE)
    monkeypatch.setattr(scores, "_share", lambda of_truth, n_classes: 0.0)
    other = of_classes("kind", "t", probabilities[:4000], truth[:4000], TEMPERATURE)
    assert other.uniform == 0
    after, without = (
        np.array([calibrated(row, one) for row in probabilities[4000:].tolist()]) for one in (record, other)
    )
    assert after.sum(axis=1) == pytest.approx(1.0) and (after.argmax(1) == probabilities[4000:].argmax(1)).all()
    assert log_loss(after, truth[4000:]) < log_loss(without, truth[4000:])
    assert expected_error(after, truth[4000:]) < 0.5 * expected_error(without, truth[4000:])


def test_few_rows_hardly_change_probabilities():
    """Else 30 rows that are easy by chance would make all probabilities far too sure."""
    easy, truth = np.array([[0.8, 0.1, 0.1]] * 29 + [[0.41, 0.4, 0.19]]), np.array([0] * 29 + [1])
    temperature, uniform = fit_temperature(easy, truth)
    assert 0.4 < temperature < 1 and uniform == 0
    harm = []
    for _ in range(100):
        probabilities, truth = classes_of(530, 3)  # they are true
        record = of_classes("kind", "t", probabilities[:30], truth[:30], TEMPERATURE)
        rows, codes = probabilities[30:], truth[30:]
        harm.append(log_loss(calibrate(rows, record), codes) - log_loss(rows, codes))
    assert np.mean(harm) < 0.015


def test_few_rows_do_not_suffice_for_a_share_of_wrong_ones():
    shares = [fit_temperature(*classes_of(30, 3))[1] for _ in range(50)]
    assert np.mean([share > 0 for share in shares]) < 0.2


@pytest.mark.parametrize("n_classes", [2, 4])
def test_isotonic_curves_improve_new_rows(n_classes):
    probabilities, truth = classes_of(8000, n_classes, sharpness=2.5)
    record = of_classes("kind", "t", probabilities[:4000], truth[:4000], ISOTONIC)
    assert len(record.curves) == (1 if n_classes == 2 else n_classes) and record.temperature is None
    after = np.array([calibrated(row, record) for row in probabilities[4000:].tolist()])
    assert after.sum(axis=1) == pytest.approx(1.0) and after.min() >= 0
    assert brier_score(after, truth[4000:]) < brier_score(probabilities[4000:], truth[4000:])
    sklearn = pytest.importorskip("sklearn.isotonic")
    fitted = sklearn.IsotonicRegression(out_of_bounds="clip").fit(probabilities[:4000, 1], truth[:4000] == 1)
    points = np.linspace(0, 1, 101)
    curve = record.curves[0 if n_classes == 2 else 1]
    assert [curve.at(x) for x in points.tolist()] == pytest.approx(fitted.predict(points).tolist(), abs=0.05)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_isotonic_curves_make_no_class_certain(n_classes):
    """Of the rows below the first one of a class, none has it: new rows have."""
    probabilities, truth = classes_of(5000, n_classes)
    record = of_classes("kind", "t", probabilities[:1000], truth[:1000], ISOTONIC)
    assert all(list(curve.y) == sorted(curve.y) and min(curve.y) > 0 and max(curve.y) < 1 for curve in record.curves)
    rows, codes = probabilities[1000:], truth[1000:]
    assert log_loss(calibrate(rows, record), codes) < 1.05 * log_loss(rows, codes)


def test_the_curve_of_few_rows_is_that_of_its_blocks_and_one_row_more_in_each():
    rows, truth = np.array([0.1, 0.2, 0.4, 0.8]), np.array([0, 1, 0, 1])
    (curve,) = fit_isotonic(np.stack([1 - rows, rows], axis=1), truth)
    assert curve.x == (0.1, 0.2, 0.4, 0.8)
    assert curve.y == pytest.approx((0.1 / 2, (1 + 0.3) / 3, (1 + 0.3) / 3, 1.8 / 2))


def test_rows_that_have_no_best_temperature_keep_theirs():
    sure = np.array([[1.0, 0.0], [0.0, 1.0]])
    for rows, truth in ((sure, np.array([0, 1])), (np.empty((0, 2)), np.empty(0, np.int64))):
        assert fit_temperature(rows, truth) == (pytest.approx(1.0), 0.0)
    record = of_classes("kind", "t", sure, np.array([0, 1]), TEMPERATURE)
    assert calibrated([0.0, 1.0], record) == [0.0, 1.0] and calibrated([0.0, 0.0], record) == [0.5, 0.5]
    assert all(map(math.isnan, calibrated([math.nan, 1.0], record)))


def test_a_record_travels_as_json_and_one_by_hand_is_found_out():
    probabilities, truth = classes_of(50, 3)
    for record in (
        numbers_of(20)[0], of_classes("kind", "t", probabilities, truth, TEMPERATURE),
        of_classes("kind", "t", probabilities, truth, ISOTONIC),
    ):  # fmt: skip
        fields = json.loads(json.dumps(plain(record)))
        assert HeldOut.of(fields) == record == build(HeldOut, fields, "held_out") and record.problem() is None
        for name, value in (
            ("score", "other"), ("ranks", [3, 2, 1]), ("scores", [5.0, *fields["scores"][1:], 7.0]),
            ("calibration", "other"), ("temperature", -1.0), ("uniform", 1.0), ("n_rows", 1),
            ("curves", [{"x": [2.0, 1.0], "y": [0.0]}]),
        ):  # fmt: skip
            assert build(HeldOut, {**fields, name: value}, "held_out").problem(), name


def test_the_error_of_a_coverage_is_that_of_a_beta_distribution():
    shares = RANDOM.beta(90, 11, 200_000)  # of 100 rows: rank 91 of 101
    assert coverage_error(100, 0.9) == pytest.approx(RANDOM.beta(91, 10, 200_000).std(), rel=0.02)
    assert shares.std() == pytest.approx(coverage_error(100, 0.9), rel=0.1)


def brier_score(probabilities: np.ndarray, truth: np.ndarray) -> float:
    return float(((probabilities - np.eye(probabilities.shape[1])[truth]) ** 2).sum(axis=1).mean())


def expected_error(probabilities: np.ndarray, truth: np.ndarray) -> float:
    return calibration_error(reliability(probabilities.max(axis=1), probabilities.argmax(axis=1) == truth, 10))


def log_loss(probabilities: np.ndarray, truth: np.ndarray) -> float:
    return float(-np.log(np.clip(probabilities[np.arange(len(truth)), truth], 1e-12, 1)).mean())


@pytest.mark.parametrize("calibration", [TEMPERATURE, ISOTONIC])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_many_rows_are_calibrated_as_each_of_them_alone(calibration, n_classes):
    probabilities, truth = classes_of(300, n_classes, 3.0)
    record = of_classes("y", "t", probabilities, truth, calibration)
    rows = np.vstack([probabilities[:20], np.full((1, n_classes), np.nan)])
    found = calibrate(rows, record)
    assert np.array_equal(found, [calibrated(row.tolist(), record) for row in rows], equal_nan=True)
    assert np.isnan(found[-1]).all() and np.abs(found[:20] - rows[:20]).max() > 1e-3
    assert calibrate(rows[:0], record).shape == (0, n_classes)
    with pytest.raises(Unsupported, match="^calibrated: outputs of the model are below 0 or above 1"):
        calibrate(rows, dataclasses.replace(record, calibration=None, temperature=None, curves=()))
