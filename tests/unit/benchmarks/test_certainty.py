"""The benchmark of prediction sets, intervals and calibration: its tables, and its figures."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import certainty


@pytest.mark.parametrize("table", certainty.TABLES, ids=lambda table: table.name)
def test_a_table_has_a_target_and_is_the_same_for_a_seed(table):
    rows = table.load(np.random.default_rng(1))
    pd.testing.assert_frame_equal(rows, table.load(np.random.default_rng(1)))
    assert list(rows.columns)[-1] == "y" and rows["y"].notna().all() and len(rows) >= 150
    assert (rows["y"].nunique() <= 10) == (table.task == "classification")


def test_the_rare_class_is_rare():
    (rare,) = (table for table in certainty.TABLES if table.name == "rare class")
    assert 0.03 < rare.load(np.random.default_rng(1))["y"].mean() < 0.06


def test_the_calibration_error_is_that_of_the_predicted_class():
    rows = [certainty._predicted("a", {"a": 0.8, "b": 0.2}), certainty._predicted("b", {"a": 0.75, "b": 0.25})]
    assert rows == [(0.8, True), (0.75, False)]
    assert certainty._error(rows) == pytest.approx((0.8 + 0.75) / 2 - 0.5)


def test_true_probabilities_of_few_rows_have_an_error_by_chance():
    rng = np.random.default_rng(1)
    few, many = ([(0.9, True)] * n for n in (50, 20_000))
    expected = (2 / np.pi * 0.9 * 0.1 / 20_000) ** 0.5  # of a normal distribution
    assert certainty._chance(few, rng) == pytest.approx(0.034, rel=0.3)
    assert certainty._chance(many, rng) == pytest.approx(expected, rel=0.3)
