"""Profiles of training rows, the stability index and its verdicts, against computations with NumPy alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.columns import raw
from madlib_mop.columns.drift.measures import MAX_ELEMENTS, numbers_of
from madlib_mop.columns.drift.observed import ObservedColumn
from madlib_mop.columns.drift.profiler import Profiler, profiled
from madlib_mop.columns.drift.stability import index_by_chance, stability_index
from madlib_mop.columns.drift.verdicts import Verdict, judge
from madlib_mop.columns.numbers import bigints
from madlib_mop.columns.preprocessors.fits import VectorFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.preprocessors.profiles import MAX_OTHERS
from madlib_mop.columns.records import Field
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.driver.drift.readers import _is_alike
from madlib_mop.errors import InvalidParameter, UnreadableText
from tests.helpers.drift import psi_of
from tests.helpers.unit.columns import fitted, moments, numbers, spec, target, texts, vectors

DAY = 86_400_000_000
NO_LEVELS = {"counts": [], "n_other": 0, "others": [], "knows_others": True}


def profiled_column(one, column):
    """Return a fitted column with the profile of its training rows."""
    preprocessor = fitted([(one, column), (target("y"), texts(["a", "b"] * (column.n_rows // 2)))])
    found = profiled(preprocessor, {one.name: ColumnStatistics.of(column),
                                    "y": ColumnStatistics.of(texts(["a", "b"]))}, lambda c: [column])  # fmt: skip
    return found.columns[0]


@pytest.mark.parametrize(
    ("kind", "family", "sql_type", "now", "is_alike"),
    [
        ("number", "span", "interval", "interval", True),
        ("number", "span", "interval", "time", False),
        ("number", "span", "a_domain", "time", False),
        ("number", "time", "time without time zone", "timetz", True),
        ("number", "time", "time without time zone", "interval", False),
        ("datetime", "moment", "date", "timestamptz", True),
        ("datetime", "moment", "date", "time", False),
    ],
)
def test_a_type_is_compared_only_with_types_of_its_family(kind, family, sql_type, now, is_alike):
    column = fitted([(spec("s", kind, sql_type=sql_type), moments([0, DAY], family)), (target("y"), texts(["a", "b"]))])
    assert _is_alike(column.columns[0], Field("s", now, 0, now)) == is_alike


def differences(column, *batches):
    observed = ObservedColumn(column)
    for batch in batches:
        observed.add(batch)
    return observed.differences()


def plain_psi(e, a):
    e, a = np.array(e, float), np.array(a, float)
    e, a = e / e.sum(), a / a.sum()
    return ((a - e) * np.log(a / e)).sum()


def test_the_index_is_the_sum_that_the_textbook_has():
    e, a = [100_000, 200_000, 700_000], [150_000, 250_000, 600_000]
    assert stability_index(e, a) == pytest.approx(plain_psi(e, a), rel=1e-4)
    assert stability_index(e, e) == 0.0 == stability_index([7, 0], [3, 0])
    assert stability_index(e, a) == pytest.approx(stability_index(a, e), rel=1e-9)


def test_known_distributions_have_the_divergence_of_their_densities():
    """Jeffreys' divergence of two normal distributions a deviation apart is 1; deciles see most of it."""
    draw = np.random.default_rng(1)
    before, now = draw.normal(0, 1, 60_000), draw.normal(1, 1, 60_000)
    column = profiled_column(spec("x"), numbers(before))
    (found,) = differences(column, numbers(now))
    psi = judge(found).psi
    assert psi == pytest.approx(psi_of(before, now), rel=1e-9) and 0.85 < psi < 1.0


@pytest.mark.parametrize("n_null", [0, 1, 500])
@pytest.mark.parametrize("shape", ["normal", "skewed", "few values", "many zeros", "one value more"])
def test_numbers_are_compared_as_numpy_compares_them(shape, n_null):
    draw = np.random.default_rng(7)
    draws = {
        "normal": lambda n: draw.normal(size=n),
        "skewed": lambda n: np.exp(3 * draw.normal(size=n)),
        "few values": lambda n: draw.integers(1, 30, n).astype(float),
        "many zeros": lambda n: np.where(draw.random(n) < 0.6, 0.0, draw.normal(size=n)),
        "one value more": lambda n: np.append(np.zeros(n - 1), 1.0),
    }
    before, now = draws[shape](5_000).tolist(), (draws[shape](3_000) + 0.25).tolist()
    now[:n_null] = [None] * n_null
    column = profiled_column(spec("x"), numbers(before))
    parts = [numbers(now[start : start + 1_000]) for start in range(0, 3_000, 1_000)]
    (found,) = differences(column, *parts)
    if shape != "one value more":  # NumPy's deciles have no limit between 0 and 1 there
        assert judge(found).psi == pytest.approx(psi_of(before, now), rel=1e-9)
    assert sum(found.actual) == 3_000 and sum(found.expected) == 5_000
    assert found.n_outside == sum(x is not None and not min(before) <= x <= max(before) for x in now)


def test_bins_are_exact_beyond_the_values_that_are_counted_one_by_one():
    values = np.random.default_rng(3).normal(size=200_000)  # binned: more than 65,536 distinct ones
    profile = profiled_column(spec("x"), numbers(values)).profile.numbers[0]
    bins = np.searchsorted(profile.edges, values)
    assert np.bincount(bins).tolist() == list(profile.counts) and len(profile.counts) == 10
    assert max(abs(count - 20_000) for count in profile.counts) < 200
    positive = np.exp(np.linspace(-700, 700, 150_000))
    wide = np.concatenate([-positive, [0.0] * 5, positive[5:]])
    profile = profiled_column(spec("x", scale="none"), numbers(wide)).profile.numbers[0]
    assert np.bincount(np.searchsorted(profile.edges, wide), minlength=len(profile.counts)).tolist() == list(
        profile.counts
    )


@given(st.lists(st.one_of(st.none(), st.floats(-5, 5), st.sampled_from([0.0, -0.0, 1.0])), min_size=12), st.randoms())
@settings(max_examples=60, deadline=None)
def test_any_order_and_any_parts_give_the_same_profile(values, random):
    column = profiled_column(spec("x", scale="none"), numbers([1.0, 2.0, *values]))
    shuffled = [1.0, 2.0, *values]
    random.shuffle(shuffled)
    profiler, cut = Profiler(column), random.randrange(len(shuffled))
    for part in (shuffled[:cut], shuffled[cut:]):
        if part:
            profiler.add(numbers(part))
    assert profiler.profile() == column.profile


def test_the_profile_of_bigints_beside_each_other_can_be_read():
    column = profiled_column(spec("n"), bigints(2**60 + np.arange(6), np.zeros(6, bool)))
    y = fitted([(spec("x"), numbers([1, 2])), (target("y"), texts(["a", "b"]))]).targets[0]
    assert Preprocessor.from_json(Preprocessor((column, y)).to_json()).columns[0].profile == column.profile


def test_absent_elements_of_long_arrays_count_in_no_mean_or_deviation():
    width = MAX_ELEMENTS + 8
    absent = np.arange(width) >= np.array([[2], [3], [0], [width]])
    values = np.where(absent, np.float32(0), np.arange(width, dtype=np.float32))
    rows = raw.Vectors(values, np.zeros(4, bool), "v", absent=absent)
    mean, deviation = numbers_of(VectorFit(width, True, False, 0.0, 1.0, is_padded=True), rows, "v")
    assert mean[1].missing.tolist() == deviation[1].missing.tolist() == [False, False, True, False]
    np.testing.assert_allclose(mean[1].values[[0, 1, 3]], [0.5, 1, (width - 1) / 2])
    np.testing.assert_allclose(deviation[1].values[[0, 1, 3]], [0.5, np.std([0, 1, 2]), np.arange(width).std()])


def test_levels_are_known_rare_or_new():
    training = ["red"] * 60 + ["blue"] * 39 + ["Jane Doe"]
    column = profiled_column(spec("c", "category"), texts(training))
    assert column.fit.levels == ("red", "blue")
    levels = column.profile.levels
    assert (levels.counts, levels.n_other, len(levels.others), levels.knows_others) == ((60, 39), 1, 1, True)
    assert "Jane" not in json.dumps(column.profile.levels.others)
    (found,) = differences(column, texts(["red", "Jane Doe", "new", None, "new"]), texts(["newer"]))
    assert (found.n_new, found.n_unknown, found.new_levels) == (3, 4, ("new", "newer"))
    assert found.expected == (60, 39, 1, 0, 0, 0) and found.actual == (1, 0, 1, 3, 1, 0)


def test_levels_of_numbers_and_booleans_are_those_of_the_encoder():
    column = profiled_column(spec("n", "category"), numbers([1, 2, 2, 3]))
    (found,) = differences(column, numbers([3, 2, float("nan"), 4, None]))
    assert (found.n_new, found.n_special, found.n_null, found.new_levels) == (1, 1, 1, ("4",))
    column = profiled_column(spec("b", "category"), numbers([0, 1, 1, 1], "boolean"))
    (found,) = differences(column, numbers([1, 1], "boolean"))
    assert (found.n_new, found.actual[:2]) == (0, (2, 0))


def test_hashed_levels_are_compared_by_groups():
    training = [f"user {i % 300}" for i in range(3_000)]
    column = profiled_column(spec("h", "category", encode="hashed"), texts(training))
    (same,) = differences(column, texts(training))
    assert judge(same).psi == 0.0 and same.n_new == 0 and len(same.expected) == 24
    (one,) = differences(column, texts(["user 7"] * 2_990 + ["stranger"] * 10))
    assert judge(one).verdict is Verdict.LARGE and (one.n_new, one.new_levels) == (10, ("stranger",))


def test_too_many_levels_cannot_be_told_from_new_ones():
    training = [f"user {i}" for i in range(MAX_OTHERS + 2)]
    column = profiled_column(spec("h", "category", encode="hashed"), texts(training))
    assert column.profile.levels.others == () and not column.profile.levels.knows_others
    (found,) = differences(column, texts(["stranger"] * 10))
    assert (found.n_new, found.new_levels) == (None, ())


def test_levels_that_packing_has_not_counted_one_by_one_are_compared_together():
    training = texts([f"u{i % 70_000}" for i in range(140_000)])
    found = differences(profiled_column(spec("c", "category", encode="hashed"), training), training)
    assert judge(found[0]).psi == 0


def test_a_hundred_thousand_new_levels_take_little():
    column = profiled_column(spec("c", "category"), texts(["a", "b"] * 50))
    observed = ObservedColumn(column)
    for start in range(0, 100_000, 10_000):
        observed.add(texts([f"{i} " + "x" * 500 for i in range(start, start + 10_000)]))
    (found,) = observed.differences()
    assert found.n_new == 100_000 and len(found.new_levels) == 5
    assert all(len(text) <= 60 for text in found.new_levels) and len(observed._levels._new) <= 10_000


def test_texts_arrays_dates_and_images_have_numbers_of_their_own():
    column = profiled_column(spec("t", "text"), texts(["ä" * 3, "b" * 30] * 50))
    (found,) = differences(column, texts(["c" * 300, None]))
    assert (found.measured, found.minimum, found.baseline_minimum, found.n_outside) == ("characters", "300", "3", 1)
    column = profiled_column(spec("v", "vector"), vectors([[1.0, 2.0], [3.0, 4.0]] * 20, 2))
    first, second = differences(column, vectors([[9.0, 2.0], None], 2))
    assert (first.measured, first.maximum, second.measured, second.maximum) == ("element 1", "9", "element 2", "2")
    wide = profiled_column(spec("v", "vector"), vectors([[1.0] * 40, [2.0] * 40] * 20, MAX_ELEMENTS + 8))
    assert [one.measured for one in differences(wide, vectors([[1.0] * 40], 40))] == ["mean", "deviation"]
    column = profiled_column(spec("d", "datetime"), moments([0, DAY, 2 * DAY, 3 * DAY] * 30))
    (found,) = differences(column, moments([9 * DAY, raw.END, None]))
    assert (found.maximum, found.baseline_maximum, found.n_special) == ("2000-01-10", "2000-01-04", 1)
    column = profiled_column(spec("p", "image", impute="zero"), raw.Blobs([b"12", b"1234"] * 20))
    (found,) = differences(column, raw.Blobs([b"123456", None]))
    assert (found.measured, found.maximum, found.baseline_maximum) == ("bytes", "6", "4")


def test_a_column_of_another_kind_is_one_error():
    column = profiled_column(spec("v", "vector"), vectors([[1.0, 2.0]] * 4, 2))
    for wrong in (vectors([[1.0, 2.0, 3.0]], 3), texts(["a"]), numbers([1])):
        with pytest.raises(InvalidParameter):
            ObservedColumn(column).add(wrong)
    with pytest.raises(InvalidParameter, match="a category"):
        ObservedColumn(profiled_column(spec("c", "category"), texts(["a", "b"]))).add(moments([1]))


def test_null_only_rows_are_a_difference_and_few_rows_are_chance():
    draw = np.random.default_rng(5)
    column = profiled_column(spec("x"), numbers(draw.normal(size=10_000)))
    (found,) = differences(column, numbers([None] * 1_000))
    assert judge(found).verdict is Verdict.LARGE and "NULL in 100 % of the rows, 0 % before." in judge(found).reason
    (found,) = differences(column, numbers(draw.normal(size=20)))
    few = judge(found)
    assert few.psi > 0.25 > 0.1 and few.verdict is Verdict.STABLE and "20 rows can reach" in few.reason


@pytest.mark.parametrize(("n", "m"), [(10_000, 100), (2_000, 2_000)])
def test_one_in_a_hundred_samples_of_one_distribution_exceeds_what_chance_does(n, m):
    draw = np.random.default_rng(11)
    shares = np.full(10, 0.1)
    pairs = [(draw.multinomial(n, shares).tolist(), draw.multinomial(m, shares).tolist()) for _ in range(4_000)]
    above = np.mean([stability_index(e, a) > index_by_chance(e, a) for e, a in pairs])
    assert 0.003 < above < 0.02


def test_chance_needs_rows_and_two_bins():
    assert index_by_chance([0, 0], [1, 2]) == float("inf") and index_by_chance([5, 0], [7, 0]) == 0.0


def test_verdicts_follow_the_thresholds():
    (found,) = differences(profiled_column(spec("x"), numbers(range(1_000))), numbers(range(300, 1_300)))
    psi = judge(found).psi
    for moderate, large, verdict in (
        (psi / 3, psi / 2, Verdict.LARGE),
        (psi, psi, Verdict.LARGE),
        (psi / 2, psi * 2, Verdict.MODERATE),
        (psi * 2, psi * 3, Verdict.STABLE),
    ):
        assert judge(found, moderate, large).verdict is verdict
    (nothing,) = differences(replace(profiled_column(spec("x"), numbers(range(9))), profile=None), numbers([1]))
    assert judge(nothing, missing="Nothing is known.").reason == "Nothing is known."


def preprocessor_with_profiles():
    columns = [
        (spec("x"), numbers([1.0, 2.0, 3.0, 4.0])), (spec("c", "category"), texts(["a", "b", "b", None])),
        (spec("h", "category", encode="hashed"), texts(["a", "b", "b", None])),
        (spec("v", "vector"), vectors([[1.0, 2.0]] * 4, 2)), (target("y"), texts(["a", "b", "a", "b"])),
    ]  # fmt: skip
    by_name = {one.name: column for one, column in columns}
    statistics = {name: ColumnStatistics.of(column) for name, column in by_name.items()}
    return profiled(fitted(columns), statistics, lambda column: [by_name[column.name]])


def test_the_document_has_the_profiles_and_one_without_them_stays_as_it_was():
    found = preprocessor_with_profiles()
    assert Preprocessor.from_json(found.to_json()) == found
    document = json.loads(found.to_json())
    for column in document["columns"]:
        del column["profile"]
    before = Preprocessor.from_json(json.dumps(document))
    assert {column.profile for column in before.columns} == {None}
    assert json.loads(before.to_json()) == document and before.tensors == found.tensors


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (0, lambda p: p["numbers"][0].update(counts=[1] * 99), "bins of its profile do not fit"),
        (0, lambda p: p["numbers"][0].update(edges=[3.0, 2.0, 1.0]), "limits of its profile do not increase"),
        (0, lambda p: p["numbers"][0].update(counts=[-1, 1, 1, 1]), "negative count"),
        (0, lambda p: p["numbers"][0].update(minimum=None), "limits without values"),
        (0, lambda p: p["numbers"][0].update(edges=[float("nan")] * 3), "finite"),
        (0, lambda p: p.update(levels=NO_LEVELS), "another kind"),
        (1, lambda p: p["levels"].update(counts=[1]), "does not fit its levels"),
        (1, lambda p: p["levels"].update(others=["a"]), "is not int"),
        (1, lambda p: p.update(levels=None), "another kind of column"),
        (2, lambda p: p["levels"].update(counts=[1, 2]), "does not fit its levels"),
        (4, lambda p: p.update(extra=1), "'extra'"),
    ],
)
def test_a_profile_that_somebody_wrote_is_checked(place, change, words):
    document = json.loads(preprocessor_with_profiles().to_json())
    change(document["columns"][place]["profile"])
    with pytest.raises(UnreadableText, match="damaged") as caught:
        Preprocessor.from_json(json.dumps(document))
    assert words in caught.value.message
