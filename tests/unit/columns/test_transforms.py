"""Arithmetic of the encoder: correct to the guaranteed bit, and fixed across versions by reference values."""

import math
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from madlib_mop.columns.transforms.categories import (
    bucket_of,
    frequency_units,
    most_frequent,
    number_of_level,
    ordinal_units,
)
from madlib_mop.columns.transforms.dates import PARTS, cyclic, steps
from madlib_mop.columns.transforms.logarithm import signed_log1p
from madlib_mop.columns.transforms.ngrams import hashed_ngrams
from madlib_mop.columns.transforms.scaling import NumberFit, NumberSummary, Scaling, fit_scale, places, restore

EPOCH = datetime(2000, 1, 1)
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, min_size=1, max_size=50))
@example([3.3092712255231913e-05])
@example([0.017824007599721487])  # 5.9e-16, the most of four million values
def test_the_logarithm_is_that_of_the_c_library_but_for_the_last_bits(values):
    """Up to six roundings of ours and one of the C library add up to at most 8.9e-16."""
    expected = [math.copysign(math.log1p(abs(x)), x) for x in values]
    assert np.allclose(signed_log1p(np.array(values)), expected, rtol=4 * np.finfo(float).eps, atol=0)


def test_the_logarithm_is_exact_at_zero_and_rises():
    x = np.concatenate([[0.0], np.logspace(-320, 308, 20_000)])
    logs = signed_log1p(x)
    assert logs[0] == 0.0 and (np.diff(logs) >= 0).all()
    assert (signed_log1p(-x) == -logs).all()


@given(hnp.arrays(np.float64, st.integers(1, 40), elements=finite))
def test_the_logarithm_of_a_value_depends_on_no_other_value(values):
    together = signed_log1p(values)
    alone = [signed_log1p(values[i : i + 1])[0] for i in range(len(values))]
    every_second = signed_log1p(values[::2])
    assert together.tolist() == alone and every_second.tolist() == together[::2].tolist()


@given(st.integers(-(2**55), 2**55))
def test_parts_of_dates_are_those_of_the_calendar(value):
    moment = EPOCH + timedelta(microseconds=value)
    expected = {"month": moment.month - 1, "weekday": moment.weekday(), "hour": moment.hour * 60 + moment.minute}
    for n in (1, 20):  # a few values are converted one by one
        assert {part: steps(np.full(n, value), part).tolist() for part in PARTS} == {
            part: [step] * n for part, step in expected.items()
        }


@given(st.integers(-(2**63) + 10, 2**63 - 10))
def test_parts_of_dates_beyond_year_9999_do_not_depend_on_how_many_there_are(value):
    for part in PARTS:
        assert steps(np.full(20, value), part).tolist() == [steps(np.array([value]), part).item()] * 20


@pytest.mark.parametrize(("part", "n_steps"), [("month", 12), ("weekday", 7), ("hour", 1440)])
def test_parts_are_on_a_circle(part, n_steps):
    step = {"month": 31, "weekday": 1, "hour": 1}[part] * (60_000_000 if part == "hour" else 86_400_000_000)
    start = {"weekday": 2}.get(part, 0) * step  # the third day of 2000 was a Monday
    circle = cyclic(np.arange(n_steps) * step + start, part)
    angle = 2 * np.pi * np.arange(n_steps) / n_steps
    assert circle.dtype == np.float32
    assert np.abs(circle - [np.sin(angle), np.cos(angle)]).max() < 1e-7
    if n_steps % 4 == 0:
        assert circle[:, n_steps // 4].tolist() == [1.0, 0.0] and circle[:, n_steps // 2].tolist() == [0.0, -1.0]


def test_levels_are_kept_by_count_then_text_and_rare_ones_are_together():
    assert most_frequent({"b": 2, "a": 2, "c": 9}, None, 13) == ("c", "a", "b")
    assert most_frequent({"b": 2, "a": 2, "c": 9}, 1, 13) == ("c",)
    assert most_frequent({"a": 1, "b": 2, "c": 97}, None, 100) == ("c", "b")
    assert most_frequent({"a": 4, "b": 5, "c": 991}, None, 1000) == ("c", "b")
    assert most_frequent({"a": 1, "b": 1}, None, 1000) == ("a", "b")


def test_ordinal_units_are_even_and_others_in_the_middle():
    assert ordinal_units(3) == (0.5, 0.5, 0.0, 0.5, 1.0)
    assert ordinal_units(1) == (0.5, 0.5, 0.0)


def test_frequencies_are_standardised_over_the_rows():
    counts = {"a": 5, "b": 3}
    null, other, a, b = frequency_units(("a", "b"), counts, 2, 10)
    rows = np.array([a] * 5 + [b] * 3 + [null] * 2)
    assert rows.mean() == pytest.approx(0, abs=1e-12) and rows.std() == pytest.approx(1)
    assert other < null < b < a
    rest = frequency_units(("a",), counts, 2, 10)
    rows = np.array([rest[2]] * 5 + [rest[1]] * 3 + [rest[0]] * 2)
    assert rows.mean() == pytest.approx(0, abs=1e-12) and rows.std() == pytest.approx(1)


def test_the_hash_of_a_level_is_pinned():
    assert [bucket_of(text.encode(), 1000) for text in ("", "red", "gruen", "grün")] == [83, 411, 607, 123]
    assert {bucket_of(str(i).encode(), 8) for i in range(100)} == set(range(1, 9))


def test_levels_of_numbers_are_read():
    assert [number_of_level(text) for text in ("17", "-0.5", "true", "f", "x")] == [17.0, -0.5, 1.0, 0.0, None]


PINNED_UNITS = [
    [-89, 0, -89, 0, 0, 0, -179, 0, 89, -179, 89, -89, 89, -89, 179, 89],
    [0, 0, 141, 0, 141, 141, 141, 141, 141, -141, 0, 0, 141, 0, 0, 0],
]  # fmt: skip


def test_the_units_of_a_text_are_pinned():
    units = hashed_ngrams(["Hello, World", "Łódź 東京"], 16)
    assert (units * 100).round().astype(int).tolist() == PINNED_UNITS


def reference_units(words, width):
    """Return the units of words in lower case, computed with Python's integers."""
    mask, factor = 2**64 - 1, 0xBF58476D1CE4E5B9

    def mixed(h):
        h = (h ^ (h >> 30)) * factor & mask
        h = (h ^ (h >> 27)) * 0x94D049BB133111EB & mask
        return h ^ (h >> 31)

    def letter(c):
        return mixed(ord(c) * 0x9E3779B97F4A7C15 & mask)

    hashes = []
    for word in words:
        hashes.append(mixed((sum(letter(c) * factor**i for i, c in enumerate(word)) + 0x9E3779B97F4A7C15) & mask))
        padded = f" {word} "
        for n in (3, 4):
            for start in range(len(padded) - n + 1):
                total = 0
                for c in padded[start : start + n]:
                    total = total * factor + letter(c)
                hashes.append(mixed((total + n * 0x9E3779B97F4A7C15) & mask))
    counts = np.zeros(width)
    for h in hashes:
        counts[(h >> 32) * width >> 32] += 1 - 2 * (h & 1)
    return counts / max(np.sqrt((counts**2).mean()), np.sqrt(1 / width))


@pytest.mark.parametrize("text", ["", "a", "ab", "abc", "the quick  brown fox", "a bc def ghij klmno"])
def test_the_units_of_a_text_are_those_of_whole_numbers(text):
    assert np.allclose(hashed_ngrams([text], 32)[0], reference_units(text.split(), 32), rtol=1e-6)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=12), st.sampled_from([8, 33, 256]))
def test_the_units_of_a_text_depend_on_no_other_text(texts, width):
    together = hashed_ngrams(texts, width)
    assert together.shape == (len(texts), width) and together.dtype == np.float32
    for row, text in zip(together, texts, strict=True):
        assert row.tobytes() == hashed_ngrams([text], width)[0].tobytes()
        square = float((row.astype(float) ** 2).mean())
        assert square == pytest.approx(1, rel=1e-5) or not row.any()


def test_texts_are_told_apart_by_words_not_by_case_or_punctuation():
    one, same, near, far, blank = hashed_ngrams(
        ["The quick brown fox", "the  QUICK, brown-fox!", "the quick brown dog", "zebras yawn at noon", " .,! "], 512
    )
    assert (one == same).all() and not blank.any()
    assert one @ near > 3 * abs(one @ far)


def test_many_and_long_texts_are_the_same_as_single_ones():
    texts = [f"row {i} " * (i % 50) for i in range(3000)] + ["x" * 200_000, "y z " * 30_000]
    together = hashed_ngrams(texts, 64)
    for place in (0, 1, 1499, 2999, 3000, 3001):
        assert together[place].tobytes() == hashed_ngrams([texts[place]], 64)[0].tobytes()


def fit_of(values, scale, **rest):
    values = np.array(values, float)
    summary = NumberSummary(
        values.min(), values.max(), values.mean(), values.std(), lambda q: float(np.quantile(values, q))
    )
    return fit_scale(NumberFit(1.0, 0.0, False, scale, **rest), summary)


def scaled(values, fit):
    values = np.array([values], float)
    return Scaling([fit]).apply(values.copy(), np.zeros(values.shape, bool))[0]


VALUES = np.random.default_rng(3).lognormal(3, 1.5, 2000)


@pytest.mark.parametrize("scale", ["standard", "log1p"])
def test_standardised_values_have_mean_0_and_deviation_1(scale):
    units = scaled(VALUES, fit_of(VALUES, scale))
    assert units.mean() == pytest.approx(0, abs=0.02) and units.std() == pytest.approx(1, rel=0.02)


def test_min_max_is_0_to_1_and_none_is_the_value():
    assert scaled([2.0, 4.0, 3.0, 5.0], fit_of([2.0, 4.0], "min_max")).tolist() == [0.0, 1.0, 0.5, 1.5]
    assert scaled([2.0, 4.0], fit_of([2.0, 4.0], "none")).tolist() == [2.0, 4.0]


def test_robust_is_median_and_quartiles_and_bounded():
    fit = fit_of(VALUES, "robust")
    low, middle, high = np.quantile(VALUES, [0.25, 0.5, 0.75])
    x = (VALUES - middle) / (high - low)
    assert np.allclose(scaled(VALUES, fit), x / np.sqrt(1 + (x / 3) ** 2), rtol=1e-12)
    assert np.abs(scaled([-1e300, 1e300], fit)).tolist() == [3.0, 3.0]


def test_quantile_is_normal_rises_and_stays_within_its_ends():
    fit = fit_of(VALUES, "quantile")
    units = scaled(VALUES, fit)
    assert units.mean() == pytest.approx(0, abs=0.02) and units.std() == pytest.approx(1, rel=0.03)
    assert (np.diff(scaled(np.sort(VALUES), fit)) >= 0).all()
    assert scaled([-1e9, 1e9], fit).tolist() == [fit.outputs[0], fit.outputs[-1]]


@pytest.mark.parametrize("n_rows", [1, 2, 700, 3000])
def test_scales_of_several_columns_together_have_the_bits_that_each_has_alone(n_rows):
    few, wide = [1.0, 2.0, 2.0, 9.0], [-1.7e308, -1.0, 7.0, -1e307]
    of_wide = NumberFit(1.0, 0.0, False, "quantile", knots=(-1.7e308, -1.6e308, 0.0), outputs=(-1.0, 0.0, 2.0))
    high = replace(of_wide, knots=(0.0, 1.0, 1.7e308))
    fits = [
        fit_of(VALUES, "quantile"), fit_of(VALUES, "log1p"), fit_of([4.0, 4.0], "quantile"), fit_of(few, "quantile"),
        fit_of(VALUES, "robust"), fit_of(few, "standard"), fit_of(VALUES[:9], "quantile"), high, of_wide,
    ]  # fmt: skip
    columns = (VALUES, VALUES, few, few, VALUES, few, -VALUES, few, wide)
    values = np.array([np.resize(column, n_rows) for column in columns])
    together = Scaling(fits).apply(values.copy(), np.zeros(values.shape, bool))
    for place, fit in enumerate(fits):
        assert together[place].tobytes() == scaled(values[place], fit).tobytes()
        knots, outputs = map(np.array, (fit.knots, fit.outputs))
        if fit.scale == "quantile" and len(knots) > 1:
            assert np.allclose(together[place], np.interp(values[place], knots, outputs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([], None), ([3], slice(3, 4, 1)), ([0, 1, 2], slice(0, 3, 1)), ([1, 3, 5], slice(1, 6, 2)), ([0, 1, 3], None),
        ([2, 1], None), ([1, 1], None),
    ],
)  # fmt: skip
def test_rows_at_equal_distances_are_a_slice(numbers, found):
    index, rows = places(numbers), np.arange(8)
    assert rows[index].tolist() == numbers
    assert isinstance(index, slice) == (found is not None) and (found is None or index == found)


def test_quantile_of_repeated_values_is_their_middle_rank():
    fit = fit_of([0.0] * 900 + list(range(1, 101)), "quantile")
    assert scaled([0.0], fit)[0] == pytest.approx(-0.126, abs=0.01)  # the value at 45 % of the rows
    assert fit_of([5.0, 5.0], "quantile").knots == (5.0,) and scaled([5.0, 9.0], fit_of([5.0], "quantile")).any() == 0


@pytest.mark.parametrize("scale", ["standard", "min_max", "robust", "log1p", "quantile", "none"])
def test_a_constant_is_finite_whatever_the_scale(scale):
    assert np.isfinite(scaled([5.0, 6.0, -1e308], fit_of([5.0, 5.0], scale))).all()


@pytest.mark.parametrize("scale", ["standard", "min_max", "log1p", "none"])
def test_targets_are_brought_back(scale):
    fit = fit_of(VALUES, scale)
    assert np.allclose(restore(scaled(VALUES, fit), fit), VALUES, rtol=1e-11)
    assert restore(np.array([math.inf]), fit)[0] == math.inf and math.isnan(restore(np.array([math.nan]), fit)[0])
