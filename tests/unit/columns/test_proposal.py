"""Proposals: each rule with its reason; every proposal is a consistent specification."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from madlib_mop.columns import raw
from madlib_mop.columns.proposals.guesses import ImageForm, form_of_images
from madlib_mop.columns.proposals.proposal import CountedColumn, propose
from madlib_mop.columns.proposals.specification import check_specification, read_specification
from madlib_mop.errors import InvalidParameter, UndefinedColumn
from tests.helpers.images import encoded
from tests.helpers.unit.columns import counted, moments, numbers, texts, vectors

RANDOM = np.random.default_rng(14)
DAY = 86_400_000_000
N = 1_000
Y = counted("y", numbers([i % 2 for i in range(N)], "boolean"))
X = counted("base", numbers(RANDOM.normal(size=N).tolist()))


def proposed(name, column, sql_type=None, **rest):
    """Return the proposal of one input, after a check that it can be read back and is consistent."""
    specs = propose([counted(name, column, sql_type, **rest), X, Y], ["y"])
    check_specification(specs)
    rows = [{**asdict(one), "levels": one.levels and list(one.levels)} for one in specs]
    assert read_specification(rows) == specs
    assert specs[0].reason.endswith(".") and specs[0].reason[0].isupper()
    return specs[0]


@pytest.mark.parametrize(
    ("name", "column", "sql_type", "words"),
    [
        ("id", numbers(range(N)), "integer", "Key: all values are distinct, and the name"),
        ("customer_id", numbers(RANDOM.choice(10**7, N, replace=False).tolist()), "integer", "Key"),
        ("customerKey", texts([f"k{i}" for i in range(N)]), None, "Key"),
        ("n", numbers(RANDOM.permutation(N).tolist()), "integer", "Key: whole numbers without repeats"),
        ("u", texts([f"00000000-{i:04x}" for i in range(N)], "uuid"), None, "Key: all values are distinct."),
        ("big", numbers(range(100_000)), "bigint", "Key: nearly all values are distinct, and they are as dense"),
        ("c", numbers([7] * N), "integer", "Constant: all rows have '7'."),
        ("c", texts(["same"] * N), None, "Constant: all rows have 'same'."),
        ("v", vectors([[1.0, 2.5]] * N, 2), "real[]", "Constant: all rows have the same value."),
        ("e", vectors([[]] * N, 0), "integer[]", "All arrays are empty."),
        ("e", vectors([[], None] * N, 0), "integer[]", "All arrays are empty."),
        ("e", numbers([None] * N), None, "All values are NULL."),
        ("n", numbers([np.nan] * N), None, "Not finite: as double precision, 1,000 rows have NaN."),
        ("n", numbers([np.inf, *range(N)]), None, "Not finite: as double precision, 1 row has Infinity."),
        ("d", moments([raw.END, raw.BEGIN, *range(N)]), None, "Not finite: 1 row has -infinity, 1 row has infinity."),
        ("v", vectors([[1.0, np.inf], [2.0, 3.0]], 2), None, "Not finite: as real, 1 row has Infinity."),
        ("t", texts([f"t{i}" for i in range(N)]), None, "Too many levels: 1,000 distinct values in 1,000 rows."),
        ("b", raw.Blobs([b"no image"] * N), None, "no JPEG or PNG"),
    ],
)
def test_what_nothing_can_be_learned_from_is_ignored_with_the_reason(name, column, sql_type, words):
    one = proposed(name, column, sql_type)
    assert one.role == "ignored" and words in one.reason, one.reason


def test_a_column_that_cannot_be_read_is_ignored_with_the_problem_unless_it_is_excluded():
    one = CountedColumn("v", "real[]", "vector", None, unusable="has a NULL element (row 7)")
    spec = propose([one, X, Y], ["y"])[0]
    assert (spec.role, spec.kind, spec.reason) == (
        "ignored", "array", "Cannot be read: it has a NULL element (row 7). Correct such rows in a view.",
    )  # fmt: skip
    assert propose([one, X, Y], ["y"], ["v"])[0].reason == "Named in exclude."


def test_whole_numbers_without_repeats_over_a_wide_range_stay_a_number():
    one = proposed("population", numbers(RANDOM.permutation(10**7)[:500].tolist() + [None] * 500), "integer")
    assert (one.role, one.kind) == ("input", "number")


@pytest.mark.parametrize(
    ("name", "n_levels", "kind", "encode"),
    [
        ("store_id", 5, "category", "one_hot"),
        ("postcode", 60, "category", "index"),
        ("month", 12, "category", "index"),
        ("children", 6, "number", "identity"),
        ("water_level", 60, "number", "identity"),
        ("status", 2, "number", "identity"),
    ],
)
def test_whole_numbers_with_the_name_of_a_code_are_categories(name, n_levels, kind, encode):
    one = proposed(name, numbers(RANDOM.integers(0, n_levels, N).tolist()), "integer")
    assert (one.kind, one.encode) == (kind, encode), one.reason


def test_whole_numbers_that_are_not_told_apart_are_no_category():
    for values in ([None, 2.0**53 + 2], [2.0**53 + 2 * (i % 5) for i in range(N)]):
        assert proposed("code", numbers(values), "bigint").kind == "number"
        assert proposed("code", numbers(values), "double precision").kind == "category"


def test_nulls_get_an_indicator_and_the_share_is_in_the_reason():
    one = proposed("x", numbers([None if i % 4 == 0 else float(i % 97) for i in range(N)]))
    assert one.indicator and "25 % of the rows are NULL" in one.reason
    assert not proposed("x", numbers([float(i % 97) for i in range(N)])).indicator


@pytest.mark.parametrize(
    ("values", "scale", "impute"),
    [
        (RANDOM.normal(size=N), "standard", "mean"),
        (RANDOM.lognormal(8, 2, N), "log1p", "median"),
        (RANDOM.standard_cauchy(N), "quantile", "median"),
        (RANDOM.lognormal(-8, 2, N), "quantile", "median"),
        (np.append(RANDOM.normal(size=N - 1), 500.0), "robust", "median"),
        (RANDOM.integers(0, 3, N) * 1000.0, "standard", "mean"),
    ],
)
def test_the_scale_follows_the_tails(values, scale, impute):
    one = proposed("x", numbers(values.tolist()))
    assert (one.scale, one.impute) == (scale, impute), one.reason


@pytest.mark.parametrize(
    ("n_levels", "n_rows", "encode", "width"),
    [(3, N, "one_hot", None), (8, N, "one_hot", None), (9, N, "index", 5), (150, N, "index", 26)],
)
def test_texts_with_few_values_are_categories_with_widths_by_levels(n_levels, n_rows, encode, width):
    one = proposed("t", texts([f"level {i % n_levels}" for i in range(n_rows)]))
    assert (one.kind, one.encode, one.width) == ("category", encode, width)


def test_texts_with_very_many_levels_that_repeat_are_hashed():
    one = proposed("t", texts([f"l{i % 11_000}" for i in range(60_000)]))
    assert (one.kind, one.encode, one.max_levels) == ("category", "hashed", 4096)


def test_texts_with_words_are_weighted_terms():
    one = proposed("t", texts([f"the quick fox {i} jumps" for i in range(N)]))
    assert (one.kind, one.encode, one.width, one.max_levels) == ("text", "tfidf", 512, 32_768)


def test_an_enum_keeps_the_order_of_its_labels():
    one = proposed("size", texts(["s", "m", "l", "m"] * 250), "size", labels=("s", "m", "l"))
    assert (one.kind, one.levels) == ("category", ("s", "m", "l"))
    few = proposed("size", texts(["s", "m", "l"]), "size", labels=("s", "m", "l"))
    assert (few.role, few.reason) == ("input", "Enum with 3 labels: one unit a level.")


@pytest.mark.parametrize(
    ("column", "sql_type", "kind", "encode"),
    [
        (moments([i * DAY for i in range(N)]), "date", "datetime", "parts"),
        (moments([i * 60_000_000 for i in range(N)], "time"), None, "datetime", "parts"),
        (moments([i * 1_000_003 for i in range(N)], "span"), None, "number", "identity"),
        (numbers([i % 2 for i in range(N)], "boolean"), None, "boolean", "identity"),
        (vectors([[1.0, i] for i in range(N)], 2), "vector(2)", "vector", "identity"),
        (vectors([[1.0, i] for i in range(N)], 2), "real[]", "array", "identity"),
    ],
)
def test_other_types_have_their_kinds(column, sql_type, kind, encode):
    one = proposed("z", column, sql_type)
    assert (one.role, one.kind, one.encode) == ("input", kind, encode)


def test_images_are_proposed_where_bytes_begin_like_one():
    blobs = raw.Blobs([None, b"\xff\xd8\xff\xe0...", b"\x89PNG\r\n\x1a\n"])
    assert form_of_images(blobs) == ImageForm(None, False)
    one = proposed("photo", blobs, images=form_of_images(blobs))
    assert (one.kind, one.impute, one.indicator, one.width) == ("image", "zero", True, 64)


_GREY, _COLOR = np.zeros((28, 28), np.uint8), np.zeros((28, 28, 3), np.uint8)


@pytest.mark.parametrize(
    ("files", "encode", "width"),
    [
        ([encoded(_GREY)] * 2, "grey_pixels", 28),
        ([encoded(_GREY, "JPEG"), encoded(_GREY), None], "grey_pixels", 28),
        ([encoded(_GREY, mode="LA"), encoded(np.zeros((28, 28), np.uint16))], "grey_pixels", 28),
        ([encoded(_GREY), encoded(_COLOR)], "pixels", 28),
        ([encoded(_COLOR, "JPEG")], "pixels", 28),
        ([encoded(_GREY, mode="P")], "pixels", 28),
        ([encoded(_GREY), encoded(_GREY[:20, :20])], "grey_pixels", 64),
        ([encoded(_GREY[:20])], "grey_pixels", 64),
        ([encoded(np.zeros((100, 100), np.uint8))], "grey_pixels", 64),
        ([encoded(_GREY[:4, :4])], "grey_pixels", 64),
        ([encoded(_GREY), b"\x89PNG\r\n\x1a\n"], "pixels", 64),
    ],
)
def test_small_images_are_proposed_as_they_are_and_grey_ones_with_one_channel(files, encode, width):
    blobs = raw.Blobs(files)
    one = proposed("photo", blobs, images=form_of_images(blobs))
    assert (one.kind, one.encode, one.width) == ("image", encode, width)


def test_arrays_keep_their_dimensions_and_padded_ones_say_so():
    both = raw.Vectors(np.arange(12, dtype=np.float32).reshape(2, 6), np.zeros(2, bool), "v", dimensions=(3, 2))
    assert proposed("v", both, "real[]").reason.startswith("Array of 3 x 2 numbers")
    absent = np.array([[False, False, False], [False, False, True]])
    values = np.array([[1, 2, 3], [4, 5, 0]], np.float32)
    one = proposed("v", raw.Vectors(values, np.zeros(2, bool), "v", absent=absent), "real[]")
    assert (one.role, one.encode, one.width) == ("input", "padded", 3)
    few = np.array([[False, True, True], [True, True, False]])
    one = proposed("v", raw.Vectors(values, np.zeros(2, bool), "v", absent=few), "real[]")
    assert one.role == "ignored" and "most of which are absent" in one.reason


def test_a_target_of_many_numbers_is_classes_where_the_caller_says_so():
    y = counted("y", numbers([i % 50 for i in range(N)]), "integer")
    one = propose([X, y], ["y"], classes={"y"})[1]
    assert one.kind == "category" and one.reason.startswith("Target with 50 classes: each number is one.")


def test_types_that_are_not_read_are_ignored_with_an_expression():
    (one, *_) = propose([CountedColumn("doc", "jsonb", None, None), X, Y], ["y"])
    assert one.role == "ignored" and "(doc->>'key')::float8" in one.reason
    (one, *_) = propose([CountedColumn("Doc", "path", None, None), X, Y], ["y"])
    assert '"Doc"::text' in one.reason
    (one, *_) = propose([CountedColumn("doc", "jsonb", None, None), X, Y], ["y"], exclude=["doc"])
    assert one.reason == "Named in exclude."


@pytest.mark.parametrize(
    ("name", "sql_type", "expression"),
    [
        ('Wei"rd', "jsonb", "(\"Wei\"\"rd\"->>'key')::float8"),
        ("user", "money", '"user"::numeric'),
        ("bit31", "bit(31)", "bit31::int"),
        ("flag", "bit", "flag::int"),
        ("bit100", "bit(100)", "bit100::text"),
        ("bits", "bit varying(8)", "bits::text"),
        ("b", "bit(8)[]", "b::text"),
        ("p", "point", "p[0]"),
    ],
)
def test_the_expression_is_that_of_sql_for_any_name_and_width(name, sql_type, expression):
    (one, *_) = propose([CountedColumn(name, sql_type, None, None), X, Y], ["y"])
    assert one.reason.endswith(f"for example {expression}."), one.reason


def test_what_was_counted_is_in_the_row():
    one = proposed("d", moments([0, DAY + 3_600_000_000, None, 0]), "timestamp without time zone")
    assert (one.n_rows, one.n_null, one.n_distinct) == (4, 1, 2)
    assert (one.minimum, one.maximum, one.examples) == (
        "2000-01-01", "2000-01-02 01:00:00", ("2000-01-01", "2000-01-02 01:00:00"),
    )  # fmt: skip
    assert proposed("x", numbers([1.0, 2.5, 2.5])).maximum == "2.5"


@pytest.mark.parametrize(
    ("column", "sql_type", "kind", "encode", "scale"),
    [
        (numbers([0, 1] * 5, "boolean"), None, "boolean", "one_hot", "none"),
        (texts(["a", "b", "c"] * 5), None, "category", "one_hot", "none"),
        (numbers([0, 1, 2] * 5), "integer", "category", "one_hot", "none"),
        (numbers([0, 1, 2] * 5), "double precision", "number", "identity", "standard"),
        (numbers([0, 1] * 5), "double precision", "category", "one_hot", "none"),
        (numbers(range(50)), "integer", "number", "identity", "standard"),
        (numbers([0.5, 1.5] * 5), "double precision", "number", "identity", "standard"),
    ],
)
def test_targets_are_classes_or_numbers(column, sql_type, kind, encode, scale):
    specs = propose([X, counted("y", column, sql_type)], ["y"])
    check_specification(specs)
    assert (specs[1].role, specs[1].kind, specs[1].encode, specs[1].scale) == ("target", kind, encode, scale)


def test_a_domain_over_integers_is_a_target_as_integers_are():
    few = numbers([0, 1, 2] * 5)
    kinds = [propose([X, counted("y", few, "stars", reader=reader)], ["y"])[1].kind for reader in ("int4", "float8")]
    assert kinds == ["category", "number"]


@pytest.mark.parametrize(
    ("family", "sql_type", "kind"),
    [
        ("number", "numeric(8,2)", "number"),
        ("boolean", "boolean", "boolean"),
        ("moment", "date", "datetime"),
        ("time", "time without time zone", "datetime"),
        ("span", "interval", "number"),
        ("text", "character varying", "category"),
        ("uuid", "uuid", "category"),
        ("vector", "integer[]", "array"),
        ("vector", "vector(3)", "vector"),
        ("blob", "bytea", "image"),
    ],
)
def test_excluded_columns_that_were_not_read_have_the_defaults_of_their_types(family, sql_type, kind):
    specs = propose([CountedColumn("x", sql_type, family, None), X, Y], ["y"], exclude=["x"])
    assert (specs[0].role, specs[0].kind, specs[0].reason) == ("ignored", kind, "Named in exclude.")
    check_specification([replace(specs[0], role="input"), *specs[1:]])


def test_excluded_columns_are_ignored_and_keep_their_guess():
    specs = propose([counted("x", numbers(RANDOM.normal(size=N).tolist())), X, Y], ["y"], exclude=["x"])
    assert (specs[0].role, specs[0].kind, specs[0].reason) == ("ignored", "number", "Named in exclude.")
    check_specification([replace(specs[0], role="input"), *specs[1:]])


def test_the_hint_of_a_bad_target_names_all_that_can_be_targets():
    """Each of them is accepted; a time and an array are not."""
    good = [texts(["a", "b"], family) for family in ("text", "uuid", "inet")]
    good += [numbers([0, 1]), numbers([0, 1], "boolean"), moments([1, 2], "span")]
    for column in good:
        assert propose([X, counted("t", column)], ["t"])[1].role == "target"
    for column in (moments([1, 2], "time"), vectors([[1.0], [2.0]], 1)):
        with pytest.raises(InvalidParameter) as caught:
            propose([X, counted("t", column)], ["t"])
        assert caught.value.hint == (
            "Targets are numbers, booleans, intervals, texts, enums, uuids and network addresses."
            " Cast the column in a view."
        )


@pytest.mark.parametrize(
    ("dependent", "exclude", "error", "words"),
    [
        (["Y"], [], UndefinedColumn, "no column 'Y'"),
        (["y"], ["gone"], UndefinedColumn, "no column 'gone'"),
        ([], [], InvalidParameter, "dependent is missing"),
        (["y", "y"], [], InvalidParameter, "'y' is twice in dependent"),
        (["y"], ["y"], InvalidParameter, "'y' is in dependent and in exclude"),
        (["v"], [], InvalidParameter, "cannot be predicted"),
        (["empty"], [], InvalidParameter, "has no values in 3 rows"),
    ],
)
def test_bad_names_and_targets_are_one_clear_error(dependent, exclude, error, words):
    vector, empty = counted("v", vectors([[1.0]] * 3, 1)), counted("empty", numbers([None] * 3))
    with pytest.raises(error) as caught:
        propose([X, Y, vector, empty], dependent, exclude)
    assert words in caught.value.message
