"""The section "learn": its report, and which scores are compared."""

import numpy as np
import pytest
from quality.learned import LEARN, LINEAR, REGRESSION, TABLES, _value, report
from quality.scores import BOOSTING, Score
from quality.tables import TABLES as OF_QUALITY


def scores(table, **values):
    return [
        Score(table, "AUC", seed, contestant, value + seed / 1000, 1.0)
        for contestant, value in values.items()
        for seed in (1, 2)
    ]


def test_the_table_has_means_and_differences_and_says_which_table_is_worst():
    text = report(
        [
            *scores("small", **{LEARN: 0.90, LINEAR: 0.88, REGRESSION: 0.89, BOOSTING: 0.87}),
            *scores("large", **{LEARN: 0.80, REGRESSION: 0.83, BOOSTING: 0.80}),
        ]
    )
    small, large = (next(line for line in text.splitlines() if line.startswith(name)) for name in ("small", "large"))
    assert "90.15" in small and small.split()[-2:] == ["+1.00", "+3.00"]
    assert large.split()[-2:] == ["-3.00", "+0.00"] and " - " in large
    assert "learn - regression: on average -1.00 points, worst large, -3.00" in text
    assert "learn - gradient boosting: on average +1.50 points, worst large, +0.00" in text


def test_there_are_twelve_tables_of_which_two_have_texts_alone_and_six_at_least_are_new():
    names = {table.name for table in TABLES}
    assert len(names) == 12 and {"comedies", "docstrings"} < names
    assert len(names - {table.name for table in OF_QUALITY}) >= 6


@pytest.mark.parametrize(
    ("task", "expected", "told", "value"),
    [
        ("regression", [1.0, 2.0, 3.0], [("1", None), ("2", None), ("3", None)], 1.0),
        ("binary", [True, False], [("false", 0.4), ("false", 0.1)], 1.0),
        ("binary", ["yes", "no"], [("no", 0.1), ("no", 0.4)], 0.0),
        ("classes", ["a", "b", "c", "a"], [("a", 0.9), ("b", 0.5), ("a", 0.5), ("a", 0.5)], 0.75),
    ],
)
def test_predictions_are_compared_with_the_classes_as_the_database_writes_them(task, expected, told, value):
    assert _value(task, np.array(expected, object if task != "regression" else float), told) == pytest.approx(value)
