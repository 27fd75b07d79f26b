"""Sums are exact: equal to those of fractions, for any magnitudes, order and division into parts."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from madlib_mop.columns import exact
from madlib_mop.columns.exact import CHUNK_ROWS, ExactMoments, ExactSum, _square_root

FINITE = st.floats(allow_nan=False, allow_infinity=False)
INT64 = st.integers(-(2**63), 2**63 - 1)
EXTREMES = [1e300, -1e300, 1e-300, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, -0.0, 1.0]


def sum_of(values):
    total = ExactSum()
    total.add(values)
    return total.total()


def moments_of(values, dtype=np.float64):
    moments = ExactMoments()
    moments.add(np.array(values, dtype))
    return moments


def variance_of(values):
    """Return the variance of the population as a fraction."""
    fractions = [Fraction(value) for value in values]
    mean = sum(fractions) / len(fractions)
    return sum((value - mean) ** 2 for value in fractions) / len(fractions)


def assert_nearest_root(root, square):
    """Assert that no other float64 is nearer to the square root: the square is between those of the midpoints."""
    if root == sys.float_info.max:
        above = Fraction(2) ** 1024  # the next number, if the exponent had no limit
    else:
        above = Fraction(math.nextafter(root, math.inf))
    below, middle = Fraction(math.nextafter(root, -math.inf)), Fraction(root)
    assert square <= ((middle + above) / 2) ** 2
    assert ((below + middle) / 2) ** 2 <= square or root == 0  # half of the least positive number is rounded to 0


@given(st.lists(FINITE | st.sampled_from(EXTREMES), max_size=60))
def test_a_sum_is_that_of_fractions(values):
    assert sum_of(values) == sum(map(Fraction, values))
    if sum(map(Fraction, map(abs, values))) < 10**300:  # fsum overflows in intermediate sums of larger ones
        assert float(sum_of(values)) == math.fsum(values)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
@example([2.0**-149, -(2.0**-149), 1.0, 0.0])
@example([float(np.finfo(np.float32).max), 2.0**-149, -3.0])
@example([-1.0, 2.0**-19])
@example([float(np.finfo(np.float32).max)] * 20)
def test_moments_of_float32_are_those_of_the_same_numbers_as_float64(values):
    moments = ExactMoments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_FEW_VALUES", 16)
        moments.add(np.array(values, np.float32))
    assert moments == moments_of(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_as_many_values_as_are_summed_at_once_are_exact(dtype):
    largest = np.full(exact._FEW_VALUES, np.nextafter(dtype(2.0), dtype(0.0)))
    values = np.concatenate([largest, -largest, largest * dtype(2.0**-9)])
    moments, in_order = ExactMoments(), ExactMoments()
    moments.add(values)
    for start in range(0, len(values), CHUNK_ROWS):
        in_order.add_sorted(np.sort(values[start : start + CHUNK_ROWS].astype(np.float64)))
    assert moments == in_order


MAGNITUDES = [1.0, -3.0, 0.0, 2.0**499, 2.0**501, 2.0**900, 2.0**-299, 2.0**-301, 0.1, 1e-40]


@given(st.lists(st.sampled_from(MAGNITUDES), max_size=20))
def test_values_in_any_order_have_the_moments_of_sorted_ones(values):
    in_order = ExactMoments()
    in_order.add_sorted(np.sort(np.array(values, float)))
    assert moments_of(values) == in_order


@given(st.lists(FINITE | st.sampled_from(EXTREMES), min_size=1, max_size=40))
@example([0.0, 5e-324])
@example([sys.float_info.max, -sys.float_info.max])
def test_moments_are_those_of_fractions_rounded_once(values):
    moments = moments_of(values)
    assert moments.count == len(values)
    assert moments.total() == sum(map(Fraction, values))
    assert moments.mean() == float(sum(map(Fraction, values)) / len(values))
    variance = variance_of(values)
    assert moments.variance() == (float(variance) if variance < Fraction(2) ** 1024 else math.inf)
    assert_nearest_root(moments.std(), variance)


@given(st.lists(INT64 | st.sampled_from([-(2**63), 2**63 - 1, 0]), min_size=1, max_size=40))
def test_moments_of_integers_are_exact(values):
    moments = moments_of(values, np.int64)
    assert moments.total() == sum(values)
    assert moments.mean() == float(Fraction(sum(values), len(values)))
    assert moments.variance() == float(variance_of(values))
    assert_nearest_root(moments.std(), variance_of(values))


@given(st.lists(FINITE, min_size=1, max_size=40), st.randoms(use_true_random=False), st.integers(0, 40))
def test_the_order_and_the_parts_of_rows_change_nothing(values, random, cut):
    shuffled = list(values)
    random.shuffle(shuffled)
    first, second = moments_of(shuffled[:cut]), moments_of(shuffled[cut:])
    second.merge(first)
    assert second == moments_of(values) != ExactMoments()


@given(st.lists(st.tuples(st.sampled_from(EXTREMES), st.integers(1, 1000)), max_size=20))
def test_values_with_counts_are_as_good_as_repeated_ones(pairs):
    pairs = sorted(dict(pairs).items())
    counted = ExactMoments()
    counted.add_sorted(np.array([v for v, _ in pairs], float), np.array([c for _, c in pairs], np.int64))
    assert counted == moments_of([value for value, count in pairs for _ in range(count)])


def test_ten_million_rows_of_a_tenth():
    n_rows = 10_000_000
    values = np.full(n_rows, 0.1)
    assert sum_of(values) == n_rows * Fraction(0.1)
    moments = moments_of(values[: n_rows // 4])
    assert moments.mean() == 0.1 and moments.std() == 0.0


def test_the_largest_and_the_smallest_in_one_column():
    values = np.tile([1e300, 1e-300, -1e300, 1e-300], 50_000)
    assert sum_of(values) == 100_000 * Fraction(1e-300)
    assert moments_of(values).total() == 100_000 * Fraction(1e-300)


@pytest.mark.parametrize("value", [2**53 - 1, -(2.0**53 - 1) * 2.0**970, 2**52 + 1])
def test_full_chunks_of_the_largest_mantissas_do_not_overflow(value):
    values = np.full(CHUNK_ROWS, value, float)
    moments = moments_of(values)
    assert moments.total() == CHUNK_ROWS * Fraction(float(value))
    assert moments.variance() == 0.0 and moments.mean() == float(value)
    assert moments._squares == CHUNK_ROWS * (int(Fraction(float(value)) * 2**1074)) ** 2
    integers = np.full(CHUNK_ROWS, -(2**63), np.int64)
    assert moments_of(integers, np.int64).variance() == 0.0
    assert moments_of(integers, np.int64)._squares == CHUNK_ROWS * (2**63 << 1074) ** 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match="only finite values"):
        sum_of([1.0, value])
    with pytest.raises(ValueError, match="only finite values"):
        moments_of([1.0, value])


def test_a_root_beside_the_middle_of_two_floats_is_rounded_to_its_side():
    middle, tiny = 2**53 + 1, 10**60
    square = middle**2 * tiny
    roots = [_square_root(square + difference, tiny) for difference in (-1, 0, 1)]
    assert roots == [2.0**53, 2.0**53, 2.0**53 + 2]
    assert _square_root(1, 2**2148) == 5e-324


def test_no_values_have_no_moments():
    moments = ExactMoments()
    moments.add(np.array([]))
    assert (moments.count, moments.mean(), moments.variance(), moments.std()) == (0, None, None, None)
    assert sum_of([]) == 0
