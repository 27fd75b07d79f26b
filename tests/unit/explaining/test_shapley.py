"""Shapley values: exact sums, the same bits for a seed, and the exact values within their standard errors."""

import numpy as np
import pytest

from madlib_mop.explaining.shapley import shapley_values, usual_orders
from tests.helpers.unit.explained import encoded, exact_values, network_of, some_rows


@pytest.fixture(scope="module")
def table():
    _, columns, arrays = encoded(some_rows())
    return columns, arrays, network_of(arrays)


def explain(table, number, n_orders=4, seed=0, n_background=30):
    columns, arrays, predict = table
    row, background = [v[number : number + 1] for v in arrays], [v[-n_background:] for v in arrays]
    return shapley_values(predict, columns, row, background, n_orders, seed), row, background


@pytest.mark.parametrize("n_orders", [1, 7])
def test_contributions_add_up_to_the_prediction_minus_the_mean_of_the_background(table, n_orders):
    found, row, background = explain(table, 2, n_orders)
    predict = table[2]
    assert np.array_equal(found.prediction, predict(row)[0])
    assert found.base == pytest.approx(predict(background).mean(axis=0), abs=1e-12)
    assert found.contributions.sum(axis=0) == pytest.approx(found.prediction - found.base, abs=1e-12)


def test_a_seed_gives_the_same_bits_and_another_seed_others(table):
    first, again, other = (explain(table, 5, seed=seed)[0] for seed in (3, 3, 4))
    assert first.table.tobytes() == again.table.tobytes() != other.table.tobytes()


def test_they_agree_with_the_exact_values_within_their_standard_errors(table):
    """Of 8 rows x 6 columns x 2 outputs, about 5 % may be beyond two errors; for a fixed background, fewer are."""
    columns, _, predict = table
    beyond = []
    for number in range(8):
        found, row, background = explain(table, number, n_orders=2, seed=number)
        difference = np.abs(found.contributions - exact_values(predict, columns, row, background))
        beyond.append(difference > 2 * found.standard_errors)
        assert (difference <= 4 * found.standard_errors + 1e-12).all()
    assert np.mean(beyond) < 0.05


def test_the_standard_error_covers_the_drawing_of_the_background(table):
    """The exact values with all rows as background: within two errors of those with a part of them, nearly always."""
    columns, arrays, predict = table
    row = [v[1:2] for v in arrays]
    truth = exact_values(predict, columns, row, arrays)
    random, beyond = np.random.default_rng(5), []
    for seed in range(60):
        chosen = random.integers(0, 40, 25)  # with replacement: as from a large table with these 40 kinds of rows
        found = shapley_values(predict, columns, row, [v[chosen] for v in arrays], 2, seed)
        beyond.append(np.abs(found.contributions - truth) > 2 * found.standard_errors)
    assert 0.01 < np.mean(beyond) < 0.1


def test_many_orders_come_close_to_the_exact_values(table):
    columns, _, predict = table
    found, row, background = explain(table, 4, n_orders=300, n_background=5)
    exact = exact_values(predict, columns, row, background)
    assert found.contributions == pytest.approx(exact, abs=0.01) and np.abs(exact).max() > 0.2


def test_a_column_without_influence_contributes_nothing_and_an_additive_one_its_difference(table):
    columns, arrays, _ = table

    def predict(inputs):
        return inputs[0][:, :1].astype(np.float64) * 3  # the scaled age

    row, background = [v[1:2] for v in arrays], [v[10:] for v in arrays]
    found = shapley_values(predict, columns, row, background, 1, 0)
    age = columns.names.index("age")
    assert found.contributions[age] == pytest.approx(predict(row)[0] - predict(background).mean(axis=0), abs=1e-12)
    assert not np.delete(found.contributions, age, axis=0).any()
    assert not np.delete(found.standard_errors, age, axis=0).any()


def test_a_background_of_one_row_has_no_standard_error(table):
    found, _, _ = explain(table, 0, n_background=1)
    assert np.isnan(found.standard_errors).all() and np.isfinite(found.contributions).all()


def test_the_parts_in_which_rows_are_predicted_change_nothing(table, monkeypatch):
    whole = explain(table, 6)[0]
    for n_rows in (12, 3):  # fewer than a walk has
        monkeypatch.setattr("madlib_mop.explaining.shapley._CHUNK_ROWS", n_rows)
        columns, arrays, predict = table
        most = []

        def counted(inputs, most=most, predict=predict):
            most.append(len(inputs[0]))
            return predict(inputs)

        found = explain((columns, arrays, counted), 6)[0]
        assert found.contributions == pytest.approx(whole.contributions, abs=1e-12)
        assert max(most[1:]) <= n_rows


@pytest.mark.parametrize(("n_background", "n_columns", "expected"), [(100, 17, 10), (100, 300, 1), (10, 1, 10)])
def test_wide_tables_get_fewer_orders(n_background, n_columns, expected):
    assert usual_orders(n_background, n_columns) == expected
