"""The importance of columns: zero without influence, the known increase with one, and intervals that cover."""

import numpy as np
import pytest

from madlib_mop.explaining.importance import importances
from tests.helpers.unit.explained import encoded, some_rows


@pytest.fixture(scope="module")
def table():
    _, columns, arrays = encoded(some_rows(400))
    return columns, arrays


def of_age(inputs):
    return inputs[0][:, 0].astype(np.float64)


def test_only_the_column_that_decides_is_important(table):
    columns, arrays = table
    true = of_age(arrays)
    found = importances(lambda rows: ((of_age(rows) - true) ** 2)[:, np.newaxis], columns, arrays, 5, 0)
    age = columns.names.index("age")
    assert found.losses[0] == 0.0 and not np.delete(found.increases, age, axis=0).any()
    expected = 2 * true.var()  # of two independent rows
    assert abs(found.increases[age, 0] - expected) < 3 * found.standard_errors[age, 0] < expected


def test_a_seed_gives_the_same_bits(table):
    columns, arrays = table

    def losses(rows):
        return np.abs(of_age(rows) - of_age(arrays) - 0.5)[:, np.newaxis]

    first, again, other = (importances(losses, columns, arrays, 2, seed) for seed in (1, 1, 2))
    assert first.increases.tobytes() == again.increases.tobytes() != other.increases.tobytes()


def test_the_interval_covers_the_importance_in_all_rows():
    """Of 100 samples of 60 rows, about 95 % of the intervals have the importance that the population has."""
    _, columns, arrays = encoded(some_rows(3000))
    noise = np.random.default_rng(3).normal(size=3000)
    true = of_age(arrays) + noise
    age, random, covered = columns.names.index("age"), np.random.default_rng(4), []
    expected = 2 * of_age(arrays).var()
    for seed in range(100):
        chosen = random.integers(0, 3000, 60)
        rows, of_rows = [v[chosen] for v in arrays], true[chosen]
        found = importances(
            lambda some, of_rows=of_rows: ((of_age(some) - of_rows) ** 2)[:, np.newaxis], columns, rows, 5, seed
        )
        covered.append(abs(found.increases[age, 0] - expected) < 1.96 * found.standard_errors[age, 0])
    assert 0.87 <= np.mean(covered) <= 1.0
