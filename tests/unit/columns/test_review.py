"""Columns to check before training: those that nearly give the target away, and identifiers; nothing else is named."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import r2_score, roc_auc_score

from madlib_mop.columns import raw
from madlib_mop.columns.proposals.proposal import propose
from madlib_mop.columns.proposals.review import columns_to_check, score_alone
from tests.helpers.unit.columns import counted, moments, numbers, texts, vectors

N = 2_000
DAY = 86_400_000_000
RANDOM = np.random.default_rng(3)
LEFT = RANDOM.random(N) < 0.3
PRICE = RANDOM.lognormal(10, 1, N)
CLASSES = RANDOM.integers(0, 3, N)
TARGETS = {
    "left": texts(np.where(LEFT, "yes", "no").tolist()),
    "price": numbers(PRICE.tolist()),
    "kind": texts([f"kind {one}" for one in CLASSES]),
}
NOISE = RANDOM.normal(size=N)


def checked(columns, target="left", grouped_by=None):
    """Return the problem of each column to check, of a table with these columns and a target."""
    named = {**columns, "noise": numbers(NOISE.tolist()), target: TARGETS[target]}
    known = [counted(name, column) for name, column in named.items()]
    specs = propose(known, [target])
    statistics = {one.name: one.statistics for one in known}
    order = np.random.default_rng(5).permutation(N)
    return {one.name: one.problem for one in columns_to_check(specs, statistics, named, order, grouped_by)}


@pytest.mark.parametrize(
    ("target", "column", "words"),
    [
        ("left", numbers([5.0 + i % 7 if left else None for i, left in enumerate(LEFT)]), "AUC of 1.00"),
        ("left", texts([f"boat {i % 20}" if left else None for i, left in enumerate(LEFT)]), "AUC of 1.00"),
        ("left", moments([i * DAY if left else raw.END for i, left in enumerate(LEFT)]), "AUC of 1.00"),
        ("left", numbers(LEFT.tolist(), "boolean"), "AUC of 1.00"),
        ("left", numbers((LEFT + RANDOM.normal(0, 0.3, N)).tolist()), "AUC of 0.9"),
        ("left", numbers((np.abs(NOISE) * 100 * LEFT).round(9).tolist()), "AUC of 1.00"),
        ("price", numbers((PRICE * 1.19).tolist()), "R2 of 0.99"),
        ("price", numbers((-np.log(PRICE) + RANDOM.normal(0, 0.01, N)).tolist()), "R2 of 0.99"),
        ("kind", texts([f"code {(one * 7) % 3}" for one in CLASSES]), "AUC of 1.00"),
    ],
)
def test_a_column_that_nearly_decides_the_target_is_named_with_its_score(target, column, words):
    if isinstance(column, raw.Moments):  # infinity counts as missing
        column = moments([None if value == raw.END else value for value in column.values.tolist()])
    found = checked({"later": column}, target)
    assert found.keys() == {"later"}
    assert f"alone, it predicts {target} with an {words}" in found["later"] and "known in time?" in found["later"]


@pytest.mark.parametrize(
    "columns",
    [
        {"x": numbers((LEFT + RANDOM.normal(0, 1, N)).tolist())},
        {"tier": texts([f"tier {i % 3}" if i % 4 else None for i in range(N)])},
        {"day": moments([i % 365 * DAY for i in range(N)])},
        {"v": vectors([[float(left), 1.0 + i % 3] for i, left in enumerate(LEFT)], 2)},
        {"income": numbers(RANDOM.lognormal(10, 1, N).tolist())},
        {"city": texts([f"city {i % 60}" for i in range(N)])},
        {"review": texts([f"I bought the number {i} and it was not good at all" for i in range(N)])},
    ],
)
def test_ordinary_columns_are_not_named(columns):
    assert checked(columns) == {}


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("account", numbers(RANDOM.choice(10**9, N, replace=False).tolist()), "2,000 rows: an identifier?"),
        ("name", texts([f"Smith, Ann {i}" for i in range(N)]), "2,000 distinct values in 2,000 rows: an identifier?"),
        ("customer_id", numbers([i % 400 for i in range(N)]), "name of a key: are whole groups to be held out"),
        ("agent", texts([f"agent {i % 380}" for i in range(N)]), "380 distinct values in 2,000 rows: many levels"),
    ],
)
def test_identifiers_that_are_inputs_are_named(name, column, words):
    found = checked({name: column})
    assert found.keys() == {name} and words in found[name] and "alone" not in found[name]


def test_the_column_of_a_split_by_group_is_no_identifier_but_can_give_the_target_away():
    groups = [i % 400 for i in range(N)]
    assert checked({"customer_id": numbers(groups)}, grouped_by="customer_id") == {}
    leak = numbers([i % 400 + 400 * left for i, left in enumerate(LEFT)])
    assert "alone" in checked({"customer_id": leak}, grouped_by="customer_id")["customer_id"]


def test_columns_that_are_ignored_are_not_named():
    assert checked({"id": numbers(range(N)), "empty": numbers([None] * N)}) == {}


def test_two_problems_of_a_column_are_one_text():
    codes = RANDOM.permutation(N) + np.where(LEFT, 10**7, 0)
    assert checked({"number": numbers(codes.tolist())})["number"] == (
        "alone, it predicts left with an AUC of 1.00: is it known in time?; 2,000 distinct values in 2,000 rows: an"
        " identifier?"
    )


def levels_alone(levels, target, score):
    """Return the score of the means of each level, as a person would compute it."""
    half, found = len(levels) // 2, []
    for fitted, held_out in itertools.permutations([range(half), range(half, len(levels))]):
        overall = np.mean([target[i] for i in fitted])
        predicted = []
        for i in held_out:
            same = [target[j] for j in fitted if levels[j] == levels[i]]
            predicted.append((sum(same) + overall) / (len(same) + 1))
        found.append(score([target[i] for i in held_out], predicted))
    return np.mean(found)


@pytest.mark.parametrize("n_levels", [2, 9, 90])
def test_the_score_of_levels_is_that_of_scikit_learn_for_their_means(n_levels):
    rng = np.random.default_rng(n_levels)
    levels = rng.integers(0, n_levels, 301)
    left = levels % 3 + rng.normal(0, 1, 301) > 1
    column = texts([None if level == 0 else f"l{level}" for level in levels])
    expected = levels_alone(levels, left.astype(float), roc_auc_score)
    assert score_alone(column, numbers(left.tolist(), "boolean"), False) == pytest.approx(expected)
    ranks = np.argsort(np.argsort(left * 100 + levels, kind="stable"), kind="stable").astype(float)
    expected = levels_alone(levels, ranks / 301, r2_score)
    assert score_alone(column, numbers(ranks.tolist()), True) == pytest.approx(expected)


def test_the_score_of_several_classes_is_the_mean_of_each_against_the_others():
    codes = np.resize([0, 1, 2, 3], 400)
    column = texts(["first" if code == 0 else "other" for code in codes])
    # the first class is told apart; of each other, the rows of two more have the same score
    expected = (1 + 3 * (200 / 300 * 0.5 + 100 / 300)) / 4
    assert score_alone(column, texts([f"c{code}" for code in codes]), False) == pytest.approx(expected)


def test_a_score_needs_rows_of_both_halves():
    few = [i % 50 == 0 for i in range(900)]  # 9 rows of the class in each half
    assert score_alone(numbers(few, "boolean"), numbers(few, "boolean"), False) is None
    enough = [i % 50 == 0 for i in range(1_000)]
    assert score_alone(numbers(enough, "boolean"), numbers(enough, "boolean"), False) == 1
    assert score_alone(numbers(range(39)), numbers(range(39)), True) is None
    mixed = numbers([i * 7 % 40 for i in range(40)])
    assert score_alone(mixed, mixed, True) > 0.5


def test_chance_decides_nothing_in_a_table_of_many_columns_and_few_rows():
    rng = np.random.default_rng(7)
    target = numbers((np.arange(60) % 3 == 0).tolist(), "boolean")
    scores = [score_alone(numbers(rng.normal(size=60).tolist()), target, False) for _ in range(1_000)]
    assert max(scores) < 0.95


def test_the_sample_is_the_first_rows_of_the_order():
    """Beyond, the column says the opposite."""
    n = 50_000
    left = np.arange(n) % 2 == 0
    same = np.where(np.arange(n) < 20_000, left, ~left)
    columns = {"same": numbers(same.tolist(), "boolean"), "left": numbers(left.tolist(), "boolean")}
    known = [counted(name, column) for name, column in columns.items()]
    specs, statistics = propose(known, ["left"]), {one.name: one.statistics for one in known}
    (found,) = columns_to_check(specs, statistics, columns, np.arange(n))
    assert found.text == "same (alone, it predicts left with an AUC of 1.00: is it known in time?)"
    assert columns_to_check(specs, statistics, columns, np.arange(n)[::-1][:0]) == []


CELL = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324]))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(CELL, min_size=40, max_size=120),
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=120, max_size=120),
    st.integers(0, 2**32),
)
def test_no_values_make_it_raise_and_scores_are_numbers(values, words, seed):
    n = len(values)
    columns = [numbers(values), texts(words[:n]), moments([raw.BEGIN if value == 0 else n for value in values])]
    order = np.random.default_rng(seed).permutation(n)
    columns = [column.take(order) for column in columns]
    for column, target, is_number in itertools.product(columns, columns, (False, True)):
        score = score_alone(column, target, is_number)
        assert score is None or (np.isfinite(score) and score <= 1 and (is_number or score >= 0))
