"""Splits: they depend on the rows' content, sizes are correct, and nothing is wrongly on both sides."""

import math
import random as randoms

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from madlib_mop.columns.splits import (
    SplitRule,
    by_column,
    by_group,
    by_hash,
    by_time,
    checked_test,
    read_split,
    split_by_share,
    stratified,
)
from madlib_mop.errors import InvalidParameter, UnreadableText
from tests.helpers.unit.columns import error_text, moments, numbers

RANDOM = np.random.default_rng(2)
HASHES = RANDOM.integers(0, 2**64, 1000, np.uint64)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0.2", SplitRule("hash", 0.2, stratified=True)),
        (" 20 % ", SplitRule("hash", 0.2, stratified=True)),
        (".25 Not Stratified", SplitRule("hash", 0.25)),
        ("is_test", SplitRule("column", None, "is_test")),
        ("Is_Test", SplitRule("column", None, "is_test")),
        ('"Is ""Test"', SplitRule("column", None, 'Is "Test')),
        ("last 20% by created_at", SplitRule("time", 0.2, "created_at")),
        ('LAST 0.1 BY "Created At"', SplitRule("time", 0.1, "Created At")),
        ("20 percent by group customer_id", SplitRule("group", 0.2, "customer_id")),
        ("last 20% by ÄnderungsTag", SplitRule("time", 0.2, "Änderungstag")),
    ],
)
def test_the_argument_is_read(text, rule):
    assert read_split(text) == rule


@pytest.mark.parametrize("text", ["", "first 20% by x", "last 20%", "20% by x", "a b", "0.2.1", "-0.1", "by group x"])
def test_other_texts_are_one_clear_error(text):
    with pytest.raises(UnreadableText) as caught:
        read_split(text)
    assert repr(text) in caught.value.message and "last 20% by created_at" in caught.value.hint


@pytest.mark.parametrize("text", ["0", "1", "20", "100%", "last 0% by x", "150% by group x"])
def test_a_share_is_above_0_and_below_1(text):
    with pytest.raises(InvalidParameter, match="above 0 and below 1"):
        read_split(text)


def test_a_number_is_a_share_of_each_class():
    assert split_by_share(0.00005) == SplitRule("hash", 0.00005, stratified=True)
    for share in (0.0, 1.0, -0.2, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match=f"above 0 and below 1. Received: {share!r}"):
            split_by_share(share)


@given(st.integers(2, 300), st.floats(0.05, 0.95), st.randoms(use_true_random=False))
def test_the_share_is_kept_and_the_order_of_rows_changes_nothing(n_rows, fraction, random):
    hashes = HASHES[:n_rows]
    wanted = int(np.floor(fraction * n_rows + 0.5))
    if not 0 < wanted < n_rows:
        return
    chosen = by_hash(hashes, fraction)
    assert chosen.sum() == wanted
    order = np.array(random.sample(range(n_rows), n_rows))
    assert (by_hash(hashes[order], fraction) == chosen[order]).all()


@given(hnp.arrays(np.uint64, st.integers(2, 60), elements=st.integers(0, 9)), st.floats(0.1, 0.9))
def test_equal_rows_are_on_one_side(hashes, fraction):
    try:
        chosen = by_hash(hashes, fraction)
    except InvalidParameter:
        return
    for value in np.unique(hashes):
        assert len(set(chosen[hashes == value].tolist())) == 1


def test_each_class_has_its_share_and_none_loses_all_of_its_training_rows():
    codes = np.repeat(np.array([0, 1, 2, 3], np.int32), [900, 90, 9, 1])
    order = RANDOM.permutation(1000)
    chosen = stratified(HASHES, codes[order], 0.2)
    assert [int(chosen[codes[order] == code].sum()) for code in range(4)] == [180, 18, 2, 0]
    chosen = stratified(HASHES, codes[order], 0.95)
    assert all((~chosen)[codes[order] == code].any() for code in range(4))
    again = RANDOM.permutation(1000)
    assert (stratified(HASHES[again], codes[order][again], 0.95) == chosen[again]).all()


def test_no_group_is_on_both_sides_and_the_share_is_near():
    groups = RANDOM.integers(0, 50, 1000)
    hashes = HASHES[groups]
    chosen = by_group(hashes, 0.2)
    assert not set(groups[chosen]) & set(groups[~chosen])
    assert 0.15 < chosen.mean() < 0.25
    assert (by_group(hashes[::-1], 0.2) == chosen[::-1]).all()


def test_a_group_too_large_for_the_share_is_left_out():
    for seed in range(20):
        hashes = np.random.default_rng(seed).integers(0, 2**63, 3).astype(np.uint64)
        assert by_group(np.repeat(hashes, [800, 100, 100]), 0.2).tolist() == [False] * 800 + [True] * 200
        assert by_group(np.repeat(hashes, [800, 100, 100]), 0.8).sum() in (800, 900)
        assert by_group(np.repeat(hashes[:2], [9, 1]), 0.1).sum() == 1
        assert by_group(np.repeat(hashes[:2], [9, 1]), 0.9).sum() == 9
        assert by_group(np.repeat(hashes[:2], [60, 40]), 0.01).sum() == 40
        assert by_group(np.repeat(hashes[:2], [60, 40]), 0.99).sum() == 60


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.floats(0.05, 0.95))
def test_any_groups_are_on_two_sides_and_the_share_is_as_near_as_the_groups_allow(sizes, fraction):
    chosen = by_group(np.repeat(HASHES[: len(sizes)], sizes), fraction)
    assert 0 < chosen.sum() < len(chosen)
    off = abs(int(chosen.sum()) - fraction * sum(sizes))
    assert off <= max(sizes)


@given(st.integers(2, 60), st.integers(1, 5), st.floats(0.05, 0.95))
def test_of_groups_of_one_size_the_first_ones_by_their_hashes_are_for_validation(n_groups, size, fraction):
    hashes = np.repeat(HASHES[:n_groups], size)
    n_chosen = by_group(hashes, fraction).sum()
    near = np.abs(np.arange(1, n_groups) * size - fraction * len(hashes))
    assert n_chosen == size * (1 + np.argmin(near))
    assert (by_group(hashes, fraction) == by_hash(hashes, n_chosen / len(hashes))).all()


def test_the_last_rows_by_time_are_later_than_all_others():
    times = RANDOM.integers(0, 200, 1000)
    chosen = by_time(moments(times.tolist()), 0.2, "t")
    assert times[chosen].min() > times[~chosen].max()
    assert 0.17 < chosen.mean() < 0.23
    assert by_time(moments([1, 2]), 0.001, "t").tolist() == [False, True]


def test_a_boolean_column_decides():
    assert by_column(numbers([1, 0, 0], "boolean"), "v").tolist() == [True, False, False]


@example(10, 0.45, 0.45, randoms.Random(0))
@given(st.integers(10, 300), st.floats(0.1, 0.45), st.floats(0.1, 0.45), st.randoms(use_true_random=False))
def test_test_rows_are_others_and_change_nothing_for_validation(n_rows, fraction, share, random):
    hashes = HASHES[:n_rows]
    validation = by_hash(hashes, fraction)
    test = by_hash(hashes, share, ~validation)
    wanted, most = int(np.floor(share * n_rows + 0.5)), int((~validation).sum()) - 1  # one row is left for training
    assert not (validation & test).any() and test.sum() == min(wanted, most)
    if wanted <= most:
        assert (by_hash(hashes, share, ~by_hash(hashes, 0.1)) == test).all(), "another share for validation"
    order = np.array(random.sample(range(n_rows), n_rows))
    assert (by_hash(hashes[order], share, ~validation[order]) == test[order]).all()


@given(hnp.arrays(np.uint64, st.integers(3, 60), elements=st.integers(0, 9)), st.floats(0.1, 0.5), st.floats(0.1, 0.5))
def test_equal_rows_are_in_one_of_three_parts(hashes, fraction, share):
    try:
        validation = by_hash(hashes, fraction)
        test = by_hash(hashes, share, ~validation)
    except InvalidParameter:
        return
    parts = np.where(validation, 1, np.where(test, 2, 0))
    assert set(parts.tolist()) == {0, 1, 2}
    for value in np.unique(hashes):
        assert len(set(parts[hashes == value].tolist())) == 1


def test_each_class_has_its_share_of_test_rows_and_none_loses_all_of_its_training_rows():
    codes = np.repeat(np.array([0, 1, 2, 3], np.int32), [900, 90, 9, 1])[RANDOM.permutation(1000)]
    validation = stratified(HASHES, codes, 0.2)
    test = stratified(HASHES, codes, 0.1, ~validation)
    assert [int(test[codes == code].sum()) for code in range(4)] == [90, 9, 1, 0] and not (test & validation).any()
    validation = stratified(HASHES, codes, 0.5)
    test = stratified(HASHES, codes, 0.49, ~validation)
    assert all((~validation & ~test)[codes == code].any() for code in range(4))


@given(st.lists(st.integers(1, 40), min_size=3, max_size=30), st.floats(0.05, 0.45), st.floats(0.05, 0.45))
def test_groups_are_in_one_of_three_parts(sizes, fraction, share):
    hashes = np.repeat(HASHES[: len(sizes)], sizes)
    validation = by_group(hashes, fraction)
    if len(np.unique(hashes[~validation])) < 2:
        return
    test = by_group(hashes, share, ~validation)
    parts = np.where(validation, 1, np.where(test, 2, 0))
    assert set(parts.tolist()) == {0, 1, 2} and not (validation & test).any()
    for value in np.unique(hashes):
        assert len(set(parts[hashes == value].tolist())) == 1
    assert abs(int(test.sum()) - share * sum(sizes)) <= max(sizes)


def test_by_time_training_rows_come_before_validation_rows_and_these_before_test_rows():
    times = RANDOM.integers(0, 200, 1000)
    column = moments(times.tolist())
    test = by_time(column, 0.1, "t", what="test")
    validation = by_time(column, 0.2, "t", ~test)
    assert times[~test & ~validation].max() < times[validation].min()
    assert times[validation].max() < times[test].min()
    assert 0.07 < test.mean() < 0.13 and 0.17 < validation.mean() < 0.23


@pytest.mark.parametrize("rule", [None, SplitRule("column", None, "v"), SplitRule("hash", 0.2)])
def test_the_share_of_a_test(rule):
    assert checked_test(0.25, rule) == 0.25
    for share in (0.0, 1.0, -0.2, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match=f"test must be a share above 0 and below 1. Received: {share!r}"):
            checked_test(share, rule)
    with pytest.raises(InvalidParameter, match="leave no rows for training. Received: shares 0.6 and 0.4"):
        checked_test(0.4, SplitRule("time", 0.6, "t"))


ALL = np.ones(3, np.bool_)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: by_hash(HASHES[:3], 0.1, ALL), "test would have 0 of 3 rows"),
        (lambda: by_hash(HASHES[[1, 1, 1]], 0.5, ALL), "test would have 0 of 3 rows"),
        (lambda: stratified(HASHES[:3], np.arange(3, dtype=np.int32), 0.2, ALL), "test would have 0 of 3 rows: the"),
        (lambda: by_group(HASHES[[1, 1, 2]], 0.2, np.array([True, True, False])),
         "test by group needs two groups or more besides those for validation. Received: 1"),
        (lambda: by_time(moments([5, 5]), 0.2, "t", what="test"), "test would have 0 of 2 rows"),
        (lambda: by_time(moments([1, 1, 2]), 0.2, "t", np.array([True, True, False])), "validation would have 0 of 3"),
        (lambda: by_hash(HASHES[:3], 0.1), "0 of 3 rows"),
        (lambda: by_hash(HASHES[:0], 0.1), "0 of 0 rows"),
        (lambda: stratified(HASHES[:2], np.array([0, 1], np.int32), 0.2), "0 of 2 rows: the share is that of each"),
        (lambda: stratified(HASHES[:600], np.arange(600, dtype=np.int32), 0.2), "and the target has 600 classes"),
        (lambda: stratified(HASHES[:0], np.zeros(0, np.int32), 0.2), "0 of 0 rows"),
        (lambda: by_group(HASHES[[1, 1, 1]], 0.2), "two groups or more. Received: 1"),
        (lambda: by_time(moments([5, 5]), 0.2, "t"), "0 of 2 rows"),
        (lambda: by_time(moments([]), 0.2, "t"), "0 of 0 rows"),
        (lambda: by_time(moments([1, None]), 0.2, "t"), "'t', which is NULL in 1 rows"),
        (lambda: by_column(numbers([1, 1], "boolean"), "v"), "2 of 2 rows"),
        (lambda: by_column(numbers([1, None], "boolean"), "v"), "'v' is NULL in 1 rows"),
        (lambda: by_column(numbers([1, 0]), "v"), "'v' is not boolean"),
    ],
)
def test_a_side_without_rows_and_columns_that_cannot_decide_are_errors(call, words):
    with pytest.raises(InvalidParameter) as caught:
        call()
    assert words in caught.value.message and caught.value.hint, error_text(caught)
