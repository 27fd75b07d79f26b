"""Fits: results for statistics of the training rows, and the errors of columns that cannot be fitted."""

from dataclasses import replace
from statistics import pstdev

import numpy as np
import pytest

from madlib_mop.columns import raw
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.description import describe
from madlib_mop.columns.preprocessors.fitting import fit_preprocessor
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.errors import InvalidParameter
from tests.helpers.unit.columns import error_text, fitted, moments, numbers, spec, target, texts, vectors

DAY = 86_400_000_000
Y = (target("y"), texts(["a", "b"] * 5))


def fit_of(one, column):
    return fitted([(one, column), Y]).columns[0].fit


@pytest.mark.parametrize(
    ("impute", "fill"), [("mean", 4.0), ("median", 2.0), ("minimum", 1.0), ("constant:-7.5", -7.5), ("error", None)]
)
def test_null_becomes_a_statistic_or_a_constant(impute, fill):
    fit = fit_of(spec("x", impute=impute), numbers([1.0, 2.0, None, 9.0]))
    assert fit.fill == fill


def test_ages_are_in_days_and_intervals_and_times_in_seconds():
    age = fit_of(spec("d", "datetime"), moments([0, 10 * DAY])).age
    assert (age.unit, age.offset, age.divisor) == (DAY, 5.0, 5.0)
    span = fit_of(spec("s", "number"), moments([1_000_000, 3_000_000], "span"))
    assert (span.unit, span.offset, span.divisor) == (1e6, 2.0, 1.0)


@pytest.mark.parametrize(
    ("values", "family", "parts"),
    [
        ([i * DAY for i in range(400)], "moment", ("month", "weekday")),
        ([i * DAY + i * 3_600_000_000 for i in range(400)], "moment", ("month", "weekday", "hour")),
        ([i * 7 * DAY for i in range(100)], "moment", ("month",)),
        ([i * 7 * DAY for i in range(20_000)], "moment", ("month",)),
        ([i * 3_600_000_000 for i in range(24)], "moment", ("hour",)),
        ([i * 60_000_000 for i in range(1440)], "time", ("hour",)),
        ([5, 5], "moment", ()),
    ],
)
def test_a_date_has_the_parts_in_which_the_data_varies(values, family, parts):
    assert fit_of(spec("d", "datetime"), moments(values, family)).parts == parts
    assert fit_of(spec("d", "datetime", encode="age"), moments(values, family)).parts == ()


def test_levels_are_by_count_rare_ones_left_out_given_ones_kept_in_their_order():
    column = texts(["a"] * 20 + ["b"] * 90 + ["c"])
    assert fit_of(spec("c", "category"), column).levels == ("b", "a")
    assert fit_of(spec("c", "category", max_levels=1), column).levels == ("b",)
    given = fit_of(spec("c", "category", levels=("c", "z", "a")), column)
    assert (given.levels, given.n_codes) == (("c", "z", "a"), 5)


def test_one_hot_has_a_unit_for_null_only_where_there_was_one():
    assert not fit_of(spec("c", "category", encode="one_hot"), texts(["a", "b"])).indicator
    assert fit_of(spec("c", "category", encode="one_hot"), texts(["a", None])).indicator
    assert not fit_of(spec("c", "category", encode="one_hot", impute="constant:a"), texts(["a", None])).indicator


def test_vectors_are_scaled_by_one_mean_and_deviation_or_not_at_all():
    column = vectors([[0.0, 12.0], None, [6.0, 3.0]], 2)
    scaled = fit_of(spec("v", "vector"), column)
    assert (scaled.width, scaled.offset, scaled.divisor) == (2, 5.25, pstdev([0, 12, 6, 3]))
    packed = describe(fitted([(spec("v", "vector"), column), Y]))[0]
    assert packed.encoding == "2 elements, each (x - 5.25) / 4.43706"
    for constant in (vectors([[0.1, 0.1], [0.1, 0.1]], 2), vectors([[1e-45, 0.0], *[[0.0, 0.0]] * 99], 2)):
        assert fit_of(spec("v", "vector"), constant).divisor == 1.0
    plain = fit_of(spec("v", "vector", scale="none"), column)
    assert (plain.offset, plain.divisor) == (0.0, 1.0)


def test_a_target_can_have_as_many_classes_as_int16_has_indices():
    """The same number as training_preprocessor_dl takes."""
    column = texts([f"{i:05}" for i in range(1 << 15)])
    one = target("y", encode="index")
    preprocessor = Preprocessor.from_json(fitted([(spec("x"), numbers(range(1 << 15))), (one, column)]).to_json())
    indices = Targets(preprocessor).encode({"y": column})["y"]
    assert indices.dtype == np.int16 and indices[:, 0].tolist() == list(range(1 << 15))


def test_classes_are_sorted_as_in_collation_c_or_as_given():
    def classes(one, column):
        return fitted([(spec("x"), numbers(range(column.n_rows))), (one, column)]).targets[0].fit.classes

    assert classes(target("y"), texts(["b", "é", "B", "a"])) == ("B", "a", "b", "é")
    assert classes(target("y"), numbers([10, 9, -1])) == ("-1", "9", "10")
    assert classes(target("y", "boolean"), numbers([1, 0], "boolean")) == ("false", "true")
    assert classes(target("y", levels=("low", "high", "top")), texts(["high", "low"])) == ("low", "high", "top")


MANY = numbers(range(100_000))
ONE_CLASS = texts(["a"] * 3)


@pytest.mark.parametrize(
    ("one", "column", "words"),
    [
        (spec("x"), numbers([None, None]), ["'x'", "all 2 training rows are NULL", "ignored"]),
        (spec("x"), numbers([]), ["no training rows"]),
        (spec("x"), texts(["a"]), ["cannot be of kind 'number'"]),
        (spec("x"), numbers([1.0, np.inf]), ["1 training row has the value Infinity"]),
        (spec("x"), numbers([np.nan, np.nan, 1.0]), ["2 training rows have the value NaN", "NULL or a number"]),
        (spec("d", "datetime"), moments([0, raw.END]), ["the value infinity"]),
        (spec("x", scale="min_max"), numbers([-1.7e308, 1.7e308]), ["too far apart for scale 'min_max'", "log1p"]),
        (spec("c", "category"), MANY, ["levels are too many for encode 'index'", "Encode hashed"]),
        (
            spec("c", "category"),
            numbers(range(60_000)),
            ["60,000 levels are too many for encode 'index'", "max_levels to 50,000"],
        ),
        (
            spec("c", "category", encode="one_hot"),
            texts([f"l{i}" for i in range(2000)]),
            ["2,000 levels are too many for encode 'one_hot'", "max_levels to 1,000"],
        ),
        (spec("c", "category", levels=("a",)), numbers([1, 2]), ["level 'a' is no value of type any"]),
        (spec("c", "category", levels=("x", "y")), texts(["a"]), ["no training row has one of the levels 'x', 'y'"]),
        (spec("c", "category", impute="constant:z"), texts(["a", None]), ["'constant:z' names none of the levels"]),
        (spec("v", "vector", width=3), vectors([[1.0, 2.0]], 2), ["width is 3, and its values have 2 elements"]),
        (spec("v", "array"), vectors([[], []], 0), ["'v'", "all its arrays are empty", "ignored"]),
        (target("t"), ONE_CLASS, ["the target has one class only", "'a'"]),
        (target("t", levels=("a", "b")), ONE_CLASS, ["the target has one class only", "'a'"]),
        (target("t"), texts(["a", "b", None]), ["target 't' is NULL in 1 training row", "WHERE t IS NOT NULL"]),
        (target('Y "y"'), texts(["a", "b", None, None]), ["NULL in 2 training rows", 'WHERE "Y ""y""" IS NOT NULL']),
        (target("order"), texts(["a", "b", None]), ['WHERE "order" IS NOT NULL']),
        (target("t"), texts([f"l{i}" for i in range(32_769)]), ["32,769 classes; 32,768 are the most", "regression"]),
        (
            target("t"),
            texts([f"{i:0200000}" for i in range(100)]),
            ["the names of the 100 classes have 20,000,000 bytes"],
        ),
        (target("t", levels=("a", "c")), texts(["a", "b"]), ["class 'b' is not in levels"]),
        (target("t"), numbers([1.0, 2.0**53 + 2]), ["numbers beyond 2^53, such as 9007199254740994", "t::text"]),
        (spec("c", "category"), numbers([-1e18, 2.0]), ["numbers beyond 2^53", "Cast it in a view"]),
        (target("t", "number"), numbers([3.0, 3.0]), ["one value only"]),
        (target("t", "number"), numbers([3.0, None]), ["NULL in 1 training row"]),
        (target("t", "number"), numbers([3.0, np.inf]), ["Infinity"]),
    ],
)
def test_what_cannot_be_fitted_is_one_clear_error(one, column, words):
    with pytest.raises(InvalidParameter) as caught:
        fitted([(one, column), (spec("other"), numbers([1.0, 2.0]))])
    assert all(word in error_text(caught) for word in words), error_text(caught)


def test_categories_of_a_domain_over_floats_may_have_any_number():
    one, column = replace(spec("c", "category"), sql_type="amount"), numbers([-1e18, 2.0])
    counts = {"c": ColumnStatistics.of(column), "y": ColumnStatistics.of(Y[1])}
    made = fit_preprocessor([one, Y[0]], counts, {"c": "float8", "y": "text"})
    assert made.columns[0].fit.levels == ("-1e+18", "2")
    with pytest.raises(InvalidParameter, match="numbers beyond"):
        fit_preprocessor([one, Y[0]], counts, {"c": "int8", "y": "text"})


def test_the_fit_is_the_same_for_rows_in_any_order():
    generator = np.random.default_rng(5)
    values = np.concatenate([generator.lognormal(0, 9, 500), [1e300, 1e-300]])
    levels = generator.choice(["a", "b", "c"], len(values))

    def digest(order):
        scales = ["standard", "min_max", "robust", "quantile", "log1p"]
        columns = [(spec(scale, scale=scale), numbers(values[order].tolist())) for scale in scales]
        return fitted([*columns, (target("y"), texts(levels[order].tolist()))]).digest

    expected = digest(np.arange(len(values)))
    assert {digest(generator.permutation(len(values))) for _ in range(3)} == {expected}
