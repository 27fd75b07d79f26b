"""Statistics of columns: the same as in SQL, with the same bits for rows in any order and division into parts."""

import math
from copy import deepcopy
from statistics import pstdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.columns import exact, raw
from madlib_mop.columns import statistics as counting
from madlib_mop.columns.blobs import BLOB
from madlib_mop.columns.hashing import mixed
from madlib_mop.columns.numbers import bigints
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.errors import InvalidParameter

QUANTILES = [0.0, 0.1, 0.25, 0.5, 0.77, 1.0]
DAY_US = 86_400_000_000


def column_of(family, values):
    """Return a raw column of Python values, None where missing."""
    missing = np.array([value is None for value in values], bool)
    if family == raw.INT8:
        return bigints(np.array([value or 0 for value in values], np.int64), missing)
    if family == raw.NUMERIC:
        numbers, digits = zip(*[value or (0.0, 0) for value in values], strict=True) if values else ((), ())
        return raw.Numbers(np.array(numbers, float), missing, raw.NUMBER, raw.NUMERIC, np.array(digits, np.int16))
    if family in (raw.NUMBER, raw.BOOLEAN):
        return raw.Numbers(np.array([value or 0 for value in values], float), missing, family)
    if family in (raw.MOMENT, raw.TIME, raw.SPAN):
        return raw.Moments(np.array([value or 0 for value in values], np.int64), missing, family)
    if family == raw.TEXT:
        levels = raw.dictionary_of(["never used", *dict.fromkeys(v for v in values if v is not None)])
        return raw.Levels(np.array([-1 if v is None else levels.find(v.encode()) for v in values], np.int32), levels)
    if family == raw.VECTOR:
        if missing.all():
            return raw.Vectors(np.zeros((len(values), 0), np.float32), missing, "v")
        return raw.Vectors(np.array([value or [0, 0] for value in values], np.float32), missing, "v")
    return raw.Blobs(values)


def of(family, *values):
    return ColumnStatistics.of(column_of(family, values))


def facts(statistics):
    """Return all properties of statistics; repr keeps the bits of floats."""
    names = (
        "family", "n_rows", "n_missing", "n_distinct", "distinct_is_exact", "minimum", "maximum", "mean", "std",
        "level_counts", "examples", "width", "is_integral", "special",
    )  # fmt: skip
    found = {name: repr(getattr(deepcopy(statistics), name)) for name in names}  # each one is computed first, on a copy
    return found | {f"quantile {q}": repr(statistics.quantile(q)) for q in QUANTILES}


VALUES = {
    raw.NUMBER: st.floats() | st.integers(-5, 40).map(float) | st.sampled_from([0.0, -0.0, 1e300, 1e-300]),
    raw.BOOLEAN: st.sampled_from([0.0, 1.0]),
    raw.MOMENT: st.integers(raw.BEGIN, raw.END) | st.sampled_from([raw.BEGIN, raw.END]) | st.integers(0, 30),
    raw.TIME: st.integers(0, DAY_US),
    raw.SPAN: st.integers(-(2**50), 2**50),
    raw.TEXT: st.text(max_size=2) | st.sampled_from("abc"),
    raw.VECTOR: st.lists(st.floats(width=32), min_size=2, max_size=2),
    BLOB: st.binary(max_size=2),
    raw.INT8: st.integers(-(2**63), 2**63 - 1) | st.integers(2**53, 2**53 + 20) | st.integers(2**63 - 9, 2**63 - 1),
    raw.NUMERIC: st.tuples(st.integers(-9, 9).map(lambda tenths: tenths / 10), st.integers(1, 4)),
}
#: The families of those that are a form of numbers.
FAMILIES = {raw.INT8: raw.NUMBER, raw.NUMERIC: raw.NUMBER}


@pytest.mark.one_case
@pytest.mark.parametrize("family", VALUES)
@settings(max_examples=30)
@given(data=st.data())
def test_any_parts_in_any_order_give_the_same_bits(family, data):
    parts = data.draw(st.lists(st.lists(st.none() | VALUES[family], max_size=15), min_size=1, max_size=4))
    random = data.draw(st.randoms(use_true_random=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "RUN_ROWS", 7)
        patch.setattr(exact, "_BLOCK_VALUES", 3)
        patch.setattr(counting, "MAX_EXACT", 16)
        patch.setattr(counting, "N_HASHES", 8)
        rows = [value for part in parts for value in part]
        whole = facts(ColumnStatistics.of(column_of(family, rows)))
        random.shuffle(rows)
        added = ColumnStatistics(FAMILIES.get(family, family))
        cut = random.randint(0, len(rows))
        for part in (rows[cut:], rows[:cut]):
            added.add(column_of(family, part))
        assert facts(added) == whole
        several = [ColumnStatistics.of(column_of(family, part)) for part in parts]
        random.shuffle(several)
        merged = ColumnStatistics(FAMILIES.get(family, family))
        for other in several:
            before = facts(other), facts(merged)
            merged, old = other.merge(merged) if random.random() < 0.5 else merged.merge(other), merged
            assert (facts(other), facts(old)) == before
        assert facts(merged) == whole


@pytest.mark.parametrize("n_more", [0, 700])
def test_equal_values_with_other_bytes_are_equal(n_more, monkeypatch):
    """With few distinct values, and with more than are counted one by one."""
    monkeypatch.setattr(counting, "MAX_EXACT", 500)
    more = np.arange(1.0, n_more + 1)
    zeros = ColumnStatistics.of(column_of(raw.NUMBER, [0.0, -0.0, *more, 0.0]))
    other = ColumnStatistics.of(column_of(raw.NUMBER, [-0.0, *more, -0.0, -0.0]))
    assert facts(zeros) == facts(other) and zeros.minimum == 0.0 and math.copysign(1.0, zeros.minimum) == 1.0
    payloads = np.array([0x7FF8_0000_0000_0000, 0xFFF8_0000_0000_0123, 0x7FF0_0000_0000_0001], np.uint64)
    values = np.concatenate([payloads.view(np.float64), more])
    nans = ColumnStatistics.of(raw.Numbers(values, np.zeros(len(values), bool)))
    assert nans.special == {"NaN": 3}
    assert facts(nans) == facts(ColumnStatistics.of(column_of(raw.NUMBER, [*more, np.nan, np.nan, np.nan])))
    numerics = [(value, 0) for value in more.tolist()]
    first = ColumnStatistics.of(column_of(raw.NUMERIC, [(2.0, 0), (2.0, 2), *numerics]))
    second = ColumnStatistics.of(column_of(raw.NUMERIC, [*numerics, (2.0, 2), (2.0, 0)]))
    assert facts(first) == facts(second)


def test_numbers_are_counted_as_sql_counts():
    statistics = of(raw.NUMBER, 1.0, None, 2.5, 2.5, -0.0, 0.0, 7.0)
    assert (statistics.n_rows, statistics.n_missing, statistics.n_present) == (7, 1, 6)
    assert (statistics.n_distinct, statistics.distinct_is_exact) == (4, True)
    assert (statistics.minimum, statistics.maximum) == (0.0, 7.0)
    assert statistics.mean == 13.0 / 6 and statistics.std == pstdev([1, 2.5, 2.5, 0, 0, 7])
    values = [1.0, 2.5, 2.5, 0.0, 0.0, 7.0]
    assert [statistics.quantile(q) for q in QUANTILES] == pytest.approx([np.quantile(values, q) for q in QUANTILES])
    assert statistics.level_counts == {"0": 2, "2.5": 2, "1": 1, "7": 1}
    assert statistics.examples == ["0", "2.5", "1", "7"]
    assert not statistics.is_integral and statistics.special == {} and statistics.width is None


def test_whole_numbers_and_booleans_have_levels():
    statistics = of(raw.NUMBER, 3.0, None, -1.0, 3.0)
    assert statistics.is_integral and statistics.level_counts == {"3": 2, "-1": 1}
    booleans = of(raw.BOOLEAN, 1.0, 1.0, 0.0, None)
    assert booleans.level_counts == {"true": 2, "false": 1} and booleans.examples == ["true", "false"]
    assert booleans.mean == 2 / 3 and booleans.is_integral


def test_levels_of_numbers_are_those_of_numbers_as_levels():
    column = column_of(raw.NUMBER, [3.0, 2.5, None, -0.0, 1e15, 1e22, -7.0])
    assert set(ColumnStatistics.of(column).level_counts) == set(column.as_levels().levels.texts())


def test_bigints_are_counted_one_by_one_and_numerics_have_their_fewest_digits():
    large = of(raw.INT8, 2**53, 2**53 + 1, 2**63 - 1, 2**63 - 2, None, 2**53)
    assert large.level_counts == {str(2**53): 2, str(2**53 + 1): 1, str(2**63 - 2): 1, str(2**63 - 1): 1}
    assert (large.minimum, large.maximum, large.n_distinct) == (2**53, 2**63 - 1, 4) and large.is_integral
    prices = of(raw.NUMERIC, (1.5, 2), (1.5, 4), (2.0, 2), (2.0, 0), (0.0, 2), None)
    assert prices.level_counts == {"1.50": 2, "2": 2, "0.00": 1}
    assert not prices.is_integral and of(raw.NUMERIC, (3.0, 2)).is_integral


def test_many_bigints_have_bins_as_narrow_as_those_of_floats():
    """Most are small beside the greatest: bins of one width had nearly all of them in one."""
    values = np.unique(np.exp2(62 * np.random.default_rng(5).random(300_000)).astype(np.int64))
    statistics = ColumnStatistics.of(bigints(values, np.zeros(len(values), bool)))
    assert not statistics.distinct_is_exact and set(statistics.examples) <= set(map(str, values.tolist()))
    for q in (0.01, 0.1, 0.25, 0.5, 0.75, 0.99):
        expected = np.quantile(values.astype(float), q)
        assert abs(statistics.quantile(q) - expected) <= 2**-10 * expected
    edges, counts = statistics.histogram(10)
    assert np.bincount(np.searchsorted(edges, values.astype(float))).tolist() == counts and len(counts) == 10


@pytest.mark.parametrize("n_values", [4, 40, 70_000])
def test_bigints_that_one_float64_stands_for_are_in_one_bin_of_a_histogram(n_values):
    values = 2**60 + np.arange(n_values)
    edges, counts = ColumnStatistics.of(bigints(values, np.zeros(n_values, bool))).histogram(10)
    assert edges == sorted(set(edges))
    assert np.bincount(np.searchsorted(edges, values.astype(float))).tolist() == counts


def test_moments_that_one_float64_stands_for_are_in_one_bin_of_a_histogram():
    """Microseconds after the year 2285."""
    assert of(raw.MOMENT, *range(2**60, 2**60 + 6), 2**61).histogram(10) == ([2.0**60], [6, 1])


def test_special_values_are_counted_apart():
    statistics = of(raw.NUMBER, np.nan, 1.0, np.inf, np.nan, 3.0, -np.inf)
    assert statistics.special == {"-Infinity": 1, "Infinity": 1, "NaN": 2}
    assert (statistics.minimum, statistics.maximum, statistics.mean) == (1.0, 3.0, 2.0)
    assert statistics.n_distinct == 5 and not statistics.is_integral
    moments = of(raw.MOMENT, raw.BEGIN, 5, raw.END, raw.END, None)
    assert moments.special == {"-infinity": 1, "infinity": 2} and moments.mean == 5.0 and moments.n_distinct == 3
    vectors = of(raw.VECTOR, [1.0, np.nan], [np.inf, np.inf], [2.0, 3.0], None)
    assert vectors.special == {"Infinity": 1, "NaN": 1}
    assert (vectors.minimum, vectors.maximum, vectors.n_distinct) == (1.0, 3.0, 3)
    assert (vectors.mean, vectors.std) == (2.0, pstdev([1, 2, 3]))


def test_moments_stay_integers():
    day = 8_888 * DAY_US
    statistics = of(raw.MOMENT, day, day + 1, None, day - DAY_US)
    assert (statistics.minimum, statistics.maximum) == (day - DAY_US, day + 1)
    assert isinstance(statistics.minimum, int) and isinstance(statistics.mean, float)
    assert statistics.quantile(0.5) == day and statistics.level_counts is None
    assert statistics.examples == ["2024-05-01", "2024-05-02", "2024-05-02 00:00:00.000001"]
    assert of(raw.TIME, 3_661_000_000, DAY_US).examples == ["01:01:01", "24:00:00"]
    assert of(raw.SPAN, DAY_US + 1, -DAY_US, 0).examples == ["-1 days 00:00:00", "00:00:00", "1 days 00:00:00.000001"]
    assert of(raw.MOMENT, 2**62).examples == ["4611686018427387904 microseconds since 2000-01-01"]


def test_texts_are_counted():
    statistics = of(raw.TEXT, "b", "a", None, "b", "c", "x" * 200)
    assert statistics.level_counts == {"b": 2, "a": 1, "c": 1, "x" * 200: 1}
    assert statistics.examples == ["b", "a", "c", "x" * 59 + "…"]
    assert statistics.n_distinct == 4 and statistics.minimum is None and statistics.mean is None
    assert statistics.quantile(0.5) is None and not statistics.is_integral


def test_more_levels_than_the_cap_are_an_estimate():
    texts = [b"user %d" % number for number in range(100_000)]
    statistics = ColumnStatistics(raw.TEXT)
    for start in range(0, 100_000, 10_000):
        codes = np.arange(10_000, dtype=np.int32)
        statistics.add(raw.Levels(codes, raw.dictionary_of(texts[start : start + 10_000])))
    assert statistics.level_counts is None and not statistics.distinct_is_exact
    assert 95_000 < statistics.n_distinct <= 100_000
    assert len(statistics.examples) == 5 and {text.encode() for text in statistics.examples} <= set(texts)
    numbers = of(raw.NUMBER, *range(100_000))
    assert numbers.level_counts is None and 95_000 < numbers.n_distinct <= 100_000 and numbers.is_integral
    assert set(numbers.examples) <= set(map(str, range(100_000)))
    assert abs(numbers.quantile(0.5) - 49_999.5) < 2


def numbers(values):
    return raw.Numbers(values, np.zeros(len(values), bool))


@pytest.mark.parametrize("spread", [0.1, 20.0])
def test_quantiles_of_many_values_are_within_a_relative_error_of_a_thousandth(spread):
    values = np.exp(np.random.default_rng(2).normal(size=200_001) * spread) * 3.0
    statistics = ColumnStatistics.of(numbers(values))
    assert not statistics.distinct_is_exact
    ordered = np.sort(values)
    for place in (0, 1, 50, 1000, 100_000, 150_000, 200_000):
        assert abs(statistics.quantile(place / 200_000) - ordered[place]) <= 2**-10 * ordered[place]


def test_values_that_lie_close_together_have_narrow_bins():
    values = 1e9 + np.random.default_rng(3).random(300_000)
    assert abs(ColumnStatistics.of(numbers(values)).quantile(0.5) - np.median(values)) < 1e-4


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=17, max_size=60, unique=True))
def test_as_few_bits_are_left_out_as_leave_few_enough_bins(values):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "MAX_EXACT", 16)
        patch.setattr(counting, "RUN_ROWS", 7)
        ordered = ColumnStatistics.of(numbers(np.array(values)))._counted
        distinct = np.unique(np.array(values) + 0.0)
        keys = counting._keys_of_floats(distinct)
        assert (keys[1:] > keys[:-1]).all() and counting._floats_of_keys(keys).tobytes() == distinct.tobytes()
        assert ordered.is_exact == (len(keys) <= 16)
        if 0 < ordered._shift < counting.MAX_FLOAT_SHIFT:
            assert ordered._run.keys.tolist() == np.unique(keys >> ordered._shift).tolist()
            assert len(ordered._run.keys) <= 16 < len(np.unique(keys >> ordered._shift - 1))


def held_bytes(state):
    """Return the bytes of all arrays that a state holds."""
    if isinstance(state, np.ndarray):
        return state.nbytes
    if isinstance(state, list | tuple):
        return sum(map(held_bytes, state))
    return sum(map(held_bytes, vars(state).values())) if hasattr(state, "__dict__") else 0


@pytest.mark.parametrize("family", [raw.NUMBER, raw.INT8, raw.MOMENT])
def test_what_is_held_does_not_grow_with_the_rows(family):
    """Keys and counts of bins, and hashes; while rows are added, also a run of rows and the runs that wait."""
    random = np.random.default_rng(4)
    statistics, most = ColumnStatistics(FAMILIES.get(family, family)), 0
    for _ in range(100):
        integers, missing = random.integers(-(2**62), 2**62, 10_000), np.zeros(10_000, bool)
        if family == raw.NUMBER:
            statistics.add(numbers(integers * 2.0**-20))
        else:
            statistics.add(bigints(integers, missing) if family == raw.INT8 else raw.Moments(integers, missing))
        most = max(most, held_bytes(statistics))
    statistics.flush()
    assert held_bytes(statistics) <= 2 * 8 * counting.MAX_EXACT + 8 * counting.N_HASHES
    assert most <= 6 * 8 * (counting.MAX_EXACT + counting.RUN_ROWS) < 100 * 10_000 * 16
    assert abs(statistics.n_distinct / 1_000_000 - 1) < 0.05


def test_texts_and_bytes_beyond_the_cap_are_held_as_hashes():
    texts, blobs = ColumnStatistics(raw.TEXT), ColumnStatistics(BLOB)
    for start in range(0, 100_000, 10_000):
        values = [b"%d" % number for number in range(start, start + 10_000)]
        texts.add(raw.Levels(np.arange(10_000, dtype=np.int32), raw.dictionary_of(values)))
        blobs.add(raw.Blobs(values))
    assert texts._counted._counts is None
    assert held_bytes(texts) == held_bytes(blobs) == 8 * counting.N_HASHES
    assert texts.n_distinct == blobs.n_distinct and abs(blobs.n_distinct / 100_000 - 1) < 0.05


def test_a_sample_counts_all_values_while_they_are_few():
    sample = counting.DistinctSample()
    for start in (0, 500, 100):
        sample.add(mixed(np.arange(start, start + 600)), np.arange(start, start + 600))
    assert sample.estimate() == 1100
    hashes = mixed(np.arange(1100)).tolist()
    assert sample.examples() == sorted(sorted(range(1100), key=hashes.__getitem__)[:5])


def test_a_text_has_the_same_hash_for_ever():
    """It chooses the examples, and counts distinct texts beyond the cap."""
    assert len(np.unique(counting._hashes_of([b"%d" % number for number in range(10_000)]))) == 10_000
    assert counting._hashes_of([b"", b"a"]).tolist() == mixed(np.array([0, 0xE8B7BE43 | 1 << 32])).tolist()


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(0, 80))
def test_values_that_occur_several_times_are_one_in_a_sample(values, cut):
    def sample_of(*parts):
        sample = counting.DistinctSample()
        for part in parts:
            sample.add(mixed(np.array(part, np.int64)), np.array(part, np.int64))
        return sample

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "N_HASHES", 8)
        once, often = sample_of(sorted(set(values))), sample_of(values[:cut], values[cut:], values)
        assert often.examples() == once.examples() and often.estimate() == once.estimate()


def test_vectors_have_one_width():
    statistics = of(raw.VECTOR, [1.0, 2.0], None, [1.0, 2.0], [-0.0, 2.0], [0.0, 2.0])
    assert statistics.width == 2 and statistics.n_distinct == 2 and not statistics.distinct_is_exact
    assert of(raw.VECTOR, None).width is None
    assert of(raw.VECTOR, None).merge(statistics).width == 2
    other = raw.Vectors(np.zeros((1, 3), np.float32), np.zeros(1, bool), "v")
    with pytest.raises(InvalidParameter, match="3 elements, where 2"):
        statistics.add(other)
    with pytest.raises(InvalidParameter, match="3 elements, where 2"):
        statistics.merge(ColumnStatistics.of(other))


@pytest.mark.parametrize("family", VALUES)
def test_no_rows_and_only_nulls_have_no_values(family):
    for statistics in (ColumnStatistics(family), of(family), of(family, None, None)):
        assert statistics.n_missing == statistics.n_rows and statistics.n_distinct == 0
        assert statistics.minimum is statistics.maximum is statistics.mean is statistics.std is None
        assert statistics.quantile(0.5) is None and statistics.examples == [] and not statistics.is_integral
        assert statistics.special == {} and not statistics.level_counts


def test_a_quantile_out_of_range_is_refused():
    with pytest.raises(ValueError, match="Received: 1.5"):
        of(raw.NUMBER, 1.0).quantile(1.5)
