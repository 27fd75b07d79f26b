"""Counts of distinct values: exact if few, approximate if many, and the same for any order and division into parts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.columns import sketch
from madlib_mop.columns.sketch import (
    DistinctSample,
    LevelCounts,
    ValueCounts,
    floats_of_keys,
    hashes_of,
    keys_of_floats,
    mixed,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture
def few_exact(monkeypatch):
    """Reduce the limits, so that small tests exceed them."""
    monkeypatch.setattr(sketch, "MAX_EXACT", 16)
    monkeypatch.setattr(sketch, "N_HASHES", 8)


def counted(values, max_shift=sketch.MAX_FLOAT_SHIFT):
    """Return the counts of float64 values, added as one part."""
    counts = ValueCounts(max_shift)
    distinct, numbers = np.unique(np.asarray(values, float) + 0.0, return_counts=True)
    counts.add(keys_of_floats(distinct), numbers)
    return counts


def state_of(counts):
    keys, numbers = counts.items()
    return counts.shift, keys.tolist(), numbers.tolist(), counts.sample._hashes.tolist(), counts.sample._examples


@given(st.lists(FINITE, min_size=2))
def test_keys_have_the_order_of_their_floats(values):
    values = np.sort(np.array(values) + 0.0)
    keys = keys_of_floats(values)
    assert (np.diff(values) > 0).tolist() == (keys[1:] > keys[:-1]).tolist()
    assert floats_of_keys(keys).tobytes() == values.tobytes()


def test_a_mixed_key_is_different_for_each_key_and_the_same_for_ever():
    assert mixed(np.array([0, 1, -1])).tolist() == [
        16294208416658607535, 10451216379200822465, 16490336266968443936,
    ]  # fmt: skip
    assert len(np.unique(mixed(np.arange(100_000)))) == 100_000
    assert len(np.unique(hashes_of([b"%d" % number for number in range(10_000)]))) == 10_000
    assert hashes_of([b"", b"a"]).tolist() == mixed(np.array([0, 0xE8B7BE43 | 1 << 32])).tolist()


parts_of_values = st.lists(st.lists(FINITE | st.integers(0, 30).map(float), max_size=30), min_size=1, max_size=5)


@given(parts_of_values, st.randoms(use_true_random=False))
def test_the_order_and_the_parts_change_nothing(parts, random):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch, "MAX_EXACT", 16)
        patch.setattr(sketch, "N_HASHES", 8)
        whole = counted([value for part in parts for value in part])
        shuffled = [counted(part) for part in random.sample(parts, len(parts))]
        merged = shuffled.pop()
        for other in shuffled:
            left, right = random.sample([merged, other], 2)
            left.merge(right)
            merged = left
        assert state_of(merged) == state_of(whole)
        assert merged.n_distinct == whole.n_distinct
        distinct = {value + 0.0 for part in parts for value in part}
        assert whole.is_exact == (len(distinct) <= 16)
        if whole.is_exact:
            assert whole.n_distinct == len(distinct)
        elif whole.shift < sketch.MAX_FLOAT_SHIFT:
            keys = keys_of_floats(np.array(sorted(distinct)))
            assert len(whole.items()[0]) == len(np.unique(keys >> whole.shift)) <= 16
            assert len(np.unique(keys >> whole.shift - 1)) > 16


def test_parts_that_are_added_are_the_same_as_parts_that_are_merged(few_exact):
    values = np.random.default_rng(1).normal(size=500)
    added = ValueCounts(sketch.MAX_FLOAT_SHIFT)
    for part in np.array_split(values, 23):
        added.add(keys_of_floats(np.sort(part)), np.ones(len(part), np.int64))
    assert state_of(added) == state_of(counted(values))


@pytest.mark.parametrize("spread", [0.1, 20.0])
def test_quantiles_are_within_a_relative_error_of_a_thousandth(spread):
    values = np.exp(np.random.default_rng(2).normal(size=200_001) * spread) * 3.0
    counts = counted(values)
    assert not counts.is_exact
    ordered = np.sort(values)
    for place in (0, 1, 50, 1000, 100_000, 150_000, 200_000):
        low, _, weight = counts.quantile(place / 200_000)
        found = float(floats_of_keys(np.array([low]))[0])
        assert min(weight, 1 - weight) < 1e-6
        assert abs(found - ordered[place]) <= 2**-10 * ordered[place]


def test_values_that_lie_close_together_have_narrow_bins():
    values = 1e9 + np.random.default_rng(3).random(300_000)
    low, _, _ = counted(values).quantile(0.5)
    assert abs(float(floats_of_keys(np.array([low]))[0]) - np.median(values)) < 1e-4


def test_the_estimate_of_distinct_values_is_near():
    keys = np.arange(1_000_000)
    counts = ValueCounts()
    for part in np.array_split(keys, 17):
        counts.add(part, np.ones(len(part), np.int64))
    assert abs(counts.n_distinct / 1_000_000 - 1) < 0.05
    assert len(counts.items()[0]) <= sketch.MAX_EXACT and not counts.is_exact


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1), st.randoms(use_true_random=False))
def test_texts_in_any_order_and_parts_end_in_one_state(parts, random):
    def levels(numbers):
        counts = LevelCounts()
        for number in numbers:
            counts.add([b"level %d" % number], [1])
        return counts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch, "MAX_EXACT", 16)
        patch.setattr(sketch, "N_HASHES", 8)
        whole = levels([number for part in parts for number in part])
        merged = LevelCounts()
        for part in random.sample(parts, len(parts)):
            merged.merge(levels(part))
        assert merged.counts == whole.counts and merged.n_distinct == whole.n_distinct
        assert vars(merged.sample).keys() == vars(whole.sample).keys()
        assert merged.sample.examples() == whole.sample.examples()
        n_distinct = len({number for part in parts for number in part})
        assert (whole.counts is None) == (n_distinct > 16)
        if whole.counts is not None:
            assert whole.n_distinct == n_distinct and sum(whole.counts.values()) == sum(map(len, parts))


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(0, 80))
def test_values_that_occur_several_times_are_one_in_a_sample(values, cut):
    def sample_of(*parts):
        sample = DistinctSample()
        for part in parts:
            sample.add(mixed(np.array(part, np.int64)), np.array(part, np.int64))
        return sample

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch, "N_HASHES", 8)
        once, often = sample_of(sorted(set(values))), sample_of(values[:cut], values[cut:], values)
        assert often._examples == once._examples and often._hashes.tolist() == once._hashes.tolist()


@given(st.lists(FINITE, min_size=30, max_size=60, unique=True), st.lists(FINITE, min_size=1, max_size=40))
def test_keys_in_any_order_are_added_to_bins_as_distinct_ascending_ones_are(first, more):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch, "MAX_EXACT", 16)
        patch.setattr(sketch, "N_HASHES", 8)
        counts = counted(first)
        assert not counts.is_exact
        keys = keys_of_floats(np.array(more * 2) + 0.0)
        spread = int(keys.max() >> counts.shift) - int(keys.min() >> counts.shift)
        assert counts.add_to_bins(keys) == (spread < sketch._MOST_BINS)
        if spread < sketch._MOST_BINS:
            assert state_of(counts) == state_of(counted([*first, *more, *more]))


def test_exact_counts_take_no_keys_in_any_order():
    counts = counted([1.0, 2.0])
    assert not counts.add_to_bins(keys_of_floats(np.array([3.0]))) and counts.n_distinct == 2


def test_a_sample_counts_all_values_while_they_are_few():
    sample = DistinctSample()
    for start in (0, 500, 100):
        sample.add(mixed(np.arange(start, start + 600)), np.arange(start, start + 600))
    assert sample.estimate() == 1100
    hashes = mixed(np.arange(1100)).tolist()
    assert sample.examples() == sorted(sorted(range(1100), key=hashes.__getitem__)[:5])


def test_quantiles_of_few_values_are_exact():
    counts = counted([1.0, 2.0, 3.0, 4.0] * 3)
    low, high, weight = counts.quantile(0.25)
    assert floats_of_keys(np.array([low, high])).tolist() == [1.0, 2.0] and math.isclose(weight, 0.75)
    assert ValueCounts().quantile(0.5) is None
