"""Sums are exact: equal to those of fractions, for any magnitudes, order and division into parts."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from madlib_mop.columns import exact
from madlib_mop.columns.exact import ExactMoments, _square_root

FINITE = st.floats(allow_nan=False, allow_infinity=False)
INT64 = st.integers(-(2**63), 2**63 - 1)
EXTREMES = [1e300, -1e300, 1e-300, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, -0.0, 1.0]


def moments_of(values, dtype=np.float64):
    moments = ExactMoments()
    moments.add(np.array(values, dtype))
    return moments


def variance_of(values):
    """Return the variance of the population as a fraction."""
    fractions = [Fraction(value) for value in values]
    mean = sum(fractions) / len(fractions)
    return sum((value - mean) ** 2 for value in fractions) / len(fractions)


def rounded(variance):
    """Return the float64 nearest to a fraction; infinity beyond float64."""
    return float(variance) if variance < Fraction(2) ** 1024 else math.inf


def assert_nearest_root(root, square):
    """Assert that no other float64 is nearer to the square root: the square is between those of the midpoints."""
    if root == sys.float_info.max:
        above = Fraction(2) ** 1024  # the next number, if the exponent had no limit
    else:
        above = Fraction(math.nextafter(root, math.inf))
    below, middle = Fraction(math.nextafter(root, -math.inf)), Fraction(root)
    assert square <= ((middle + above) / 2) ** 2
    assert ((below + middle) / 2) ** 2 <= square or root == 0  # half of the least positive number is rounded to 0


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
@example([2.0**-149, -(2.0**-149), 1.0, 0.0])
@example([float(np.finfo(np.float32).max), 2.0**-149, -3.0])
@example([-1.0, 2.0**-19])
@example([float(np.finfo(np.float32).max)] * 20)
def test_moments_of_float32_are_those_of_the_same_numbers_as_float64(values):
    moments = ExactMoments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_BLOCK_VALUES", 16)
        moments.add(np.array(values, np.float32))
    assert moments == moments_of(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_as_many_values_as_are_summed_at_once_are_exact(dtype):
    largest = np.full(exact._BLOCK_VALUES, np.nextafter(dtype(2.0), dtype(0.0)))
    moments = moments_of(np.concatenate([largest, -largest, largest * dtype(2.0**-9)]), dtype)
    one = Fraction(float(largest[0]))
    assert moments.total() == len(largest) * one / 2**9
    assert moments.variance() == float(one**2 * (2 + Fraction(1, 2**18)) / 3 - (one / 2**9 / 3) ** 2)


MAGNITUDES = [1.0, -3.0, 0.0, 2.0**499, 2.0**501, 2.0**900, 2.0**-299, 2.0**-301, 0.1, 1e-40]


@given(st.lists(st.sampled_from(MAGNITUDES), max_size=20), st.integers(1, 20))
def test_values_that_differ_too_much_to_be_cut_at_the_same_places_are_exact_too(values, n_at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_BLOCK_VALUES", n_at_once)
        moments = moments_of(values)
    assert moments.total() == sum(map(Fraction, values))
    assert not values or moments.variance() == rounded(variance_of(values))


@given(st.lists(FINITE | st.sampled_from(EXTREMES), min_size=1, max_size=40))
@example([0.0, 5e-324])
@example([sys.float_info.max, -sys.float_info.max])
def test_moments_are_those_of_fractions_rounded_once(values):
    moments = moments_of(values)
    assert moments.count == len(values)
    assert moments.total() == sum(map(Fraction, values))
    assert moments.mean() == float(sum(map(Fraction, values)) / len(values))
    variance = variance_of(values)
    assert moments.variance() == rounded(variance)
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


COUNTS = st.integers(1, 1000) | st.sampled_from([exact._BLOCK_ROWS, 2**40])


@given(st.lists(st.tuples(FINITE | st.sampled_from(EXTREMES), COUNTS), max_size=20))
def test_values_with_counts_are_those_of_fractions(pairs):
    moments = ExactMoments()
    moments.add(np.array([v for v, _ in pairs], float), np.array([c for _, c in pairs], np.int64))
    count = sum(c for _, c in pairs)
    assert moments.count == count and moments.total() == sum(c * Fraction(v) for v, c in pairs)
    if count:
        mean = moments.total() / count
        variance = sum(c * (Fraction(v) - mean) ** 2 for v, c in pairs) / count
        assert moments.variance() == rounded(variance)


@given(st.lists(st.tuples(INT64, COUNTS), min_size=1, max_size=20))
def test_integers_with_counts_are_exact(pairs):
    moments = ExactMoments()
    moments.add(np.array([v for v, _ in pairs], np.int64), np.array([c for _, c in pairs], np.int64))
    count = sum(c for _, c in pairs)
    mean = Fraction(sum(c * v for v, c in pairs), count)
    assert moments.mean() == float(mean)
    assert moments.variance() == float(sum(c * (v - mean) ** 2 for v, c in pairs) / count)


def test_ten_million_rows_of_a_tenth():
    n_rows = 10_000_000
    moments = moments_of(np.full(n_rows, 0.1))
    assert moments.total() == n_rows * Fraction(0.1)
    assert moments.mean() == 0.1 and moments.std() == 0.0


def test_the_largest_and_the_smallest_in_one_column():
    values = np.tile([1e300, 1e-300, -1e300, 1e-300], 50_000)
    assert moments_of(values).total() == 100_000 * Fraction(1e-300)


@pytest.mark.parametrize("value", [2**53 - 1, -(2.0**53 - 1) * 2.0**970, 2**52 + 1])
def test_full_blocks_of_the_largest_mantissas_do_not_overflow(value):
    n_values = exact._BLOCK_ROWS
    moments, counted = moments_of(np.full(n_values, value, float)), ExactMoments()
    assert moments.total() == n_values * Fraction(float(value))
    assert moments.variance() == 0.0 and moments.mean() == float(value)
    assert moments._squares == n_values * (int(Fraction(float(value)) * 2**1074)) ** 2
    counted.add(np.array([value], float), np.array([n_values]))
    assert counted == moments
    integers = moments_of(np.full(n_values, -(2**63), np.int64), np.int64)
    assert integers.variance() == 0.0
    assert integers._squares == n_values * (2**63 << 1074) ** 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(value):
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
    assert moments.total() == 0
