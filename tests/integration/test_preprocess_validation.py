"""validation_preprocessor_dl: a table is packed like a training table, in its own order."""

import numpy as np
import pytest

from tests.helpers.packing import Caller


@pytest.fixture(scope="module")
def caller(db):
    connection = db.connect()
    caller = Caller(connection)
    caller.segments(2)
    caller.table("learn", "x real[], y text", [([i, i], "abc"[i % 3]) for i in range(10)])
    caller.table("check_", "x integer[], y text", [([i, 100 - i], "ca"[i % 2]) for i in range(21)])
    caller.train("learn", "learn_packed", normalizing_const=5, num_classes=[4])
    yield caller
    connection.close()


def test_constant_classes_and_width_are_the_training_tables(caller):
    caller.validate("check_", "check_packed", "learn_packed", buffer_size=5)
    x, y = caller.tensor("check_packed", "x"), caller.tensor("check_packed", "y")
    rows = np.array([[i, 100 - i] for i in range(21)], np.float32)
    assert np.array_equal(x, rows / np.float32(5))
    assert np.array_equal(y, np.eye(4)[[2 if i % 2 == 0 else 0 for i in range(21)]])
    summary = caller.summary("check_packed")
    assert summary["y_class_values"] == ["a", "b", "c", None]
    assert summary["num_classes"] == [4]
    assert summary["normalizing_const"] == 5
    assert summary["buffer_size"] == 4
    assert (summary["source_table"], summary["output_table"]) == ("check_", "check_packed")


def test_rows_keep_their_order_in_even_shards(caller):
    caller.validate("check_", "check_even", "learn_packed", buffer_size=4)
    buffers = caller.buffers("check_even", "x")
    assert [(buffer.segment, len(buffer.tensors["x"])) for buffer in buffers] == [
        (0, 4), (0, 4), (0, 3), (1, 4), (1, 4), (1, 2),
    ]  # fmt: skip
    assert np.array_equal(caller.tensor("check_even", "x")[:, 0], np.arange(21, dtype=np.float32) / np.float32(5))


def test_columns_may_have_other_names(caller):
    caller.rows("CREATE VIEW renamed AS SELECT x AS pixels, y AS label FROM check_ ORDER BY id DESC")
    caller.validate("renamed", "renamed_packed", "learn_packed", y="label", x="pixels")
    assert caller.summary("renamed_packed")["label_class_values"] == ["a", "b", "c", None]
    assert caller.tensor("renamed_packed", "pixels")[0, 0] == 4


def test_integers_and_strings_of_other_widths_are_the_same_classes(caller):
    caller.table("wide", "x real[], y bigint", [([1], 7), ([2], 9), ([3], None)])
    caller.table("narrow", "x real[], y smallint", [([1], 9), ([2], None)])
    caller.validate("narrow", "narrow_packed", caller.train("wide", "wide_packed"))
    assert np.array_equal(caller.tensor("narrow_packed", "y"), [[0, 0, 1], [1, 0, 0]])
    caller.table("letters", "x integer[], y char(2)", [([1, 1], "b")])
    caller.validate("letters", "letters_packed", "learn_packed")
    assert np.array_equal(caller.tensor("letters_packed", "y"), [[0, 1, 0, 0]])


def test_array_labels_and_numbers_need_no_classes(caller):
    caller.table("hot", "x real[], y integer[]", [([1], [0, 1]), ([2], [1, 0])])
    caller.validate("hot", "hot_valid", caller.train("hot", "hot_packed"))
    assert np.array_equal(caller.tensor("hot_valid", "y"), [[0, 1], [1, 0]])
    caller.table("price", "x real[], y double precision", [([1], 2.5), ([2], -1)])
    caller.validate("price", "price_valid", caller.train("price", "price_packed", num_classes=[]))
    assert np.array_equal(caller.tensor("price_valid", "y"), [[2.5], [-1]])
    summary = caller.summary("price_valid")
    assert (summary["num_classes"], summary["y_class_values"]) == ([], None)


def test_class_values_lose_no_digit_whatever_the_caller_has_set(caller):
    caller.table("thirds", "x real[], y double precision", [([i], i / 3) for i in range(4)])
    caller.rows("SET extra_float_digits = -10")
    caller.train("thirds", "thirds_packed")
    caller.validate("thirds", "thirds_valid", "thirds_packed")
    caller.rows("RESET extra_float_digits")
    for table in ("thirds_packed", "thirds_valid"):
        assert caller.summary(table)["y_class_values"] == [i / 3 for i in range(4)]
    assert np.array_equal(caller.tensor("thirds_valid", "y"), np.eye(4))


def test_many_classes_are_found_without_being_counted(caller):
    caller.table("thousand", "x real[], y text", [([i], f"a rather long name of class {i:04}") for i in range(1000)])
    caller.validate("thousand", "thousand_valid", caller.train("thousand", "thousand_packed"))
    assert np.array_equal(caller.tensor("thousand_valid", "y"), np.eye(1000, dtype=np.int16))


@pytest.mark.parametrize(
    ("rows", "unseen"),
    [
        ([([1, 1], "z"), ([1, 1], "a")], "'z'"),
        ([([1, 1], None)], "NULL"),
        ([([1, 1], "A"), ([1, 1], "a ")], "'A', 'a '"),
    ],
)
def test_an_unseen_class_is_refused_by_name(caller, rows, unseen):
    caller.rows("DROP TABLE IF EXISTS stranger")
    caller.table("stranger", "x real[], y text", rows)
    refusal = caller.refused(caller.validate, "stranger", "stranger_packed", "learn_packed")
    assert refusal.sqlstate == "22023"
    assert refusal.message == (
        "validation_preprocessor_dl: column 'y' has values that are not among the classes of public.learn_packed:"
        f" {unseen}"
    )
    assert "y_class_values" in refusal.hint


@pytest.mark.parametrize(
    ("definition", "row", "arguments", "message"),
    [
        (
            "x real[], y text",
            ([1, 2, 3], "a"),
            {},
            "column 'x' has rows of the shape [3], but column 'x' of public.learn_packed has [2]",
        ),
        (
            "x real[], y integer",
            ([1, 2], 1),
            {},
            "column 'y' is of type integer, but public.learn_packed was packed from text",
        ),
        (
            "x real[], y integer[]",
            ([1, 2], [1]),
            {},
            "column 'y' is of type integer[], but public.learn_packed was packed from text",
        ),
        (
            "x bytea, y text",
            (b"123", "a"),
            {},
            "column 'x' is of type bytea, but column 'x' of public.learn_packed was packed from numbers",
        ),
        (
            "x real[], z real[], y text",
            ([1, 2], [1, 2], "a"),
            {"x": "x, z"},
            "independent_varname has 2 columns, but public.learn_packed has 1. Received: x, z",
        ),
        (
            "x real[], z text, y text",
            ([1, 2], "a", "a"),
            {"y": "y, z"},
            "dependent_varname has 2 columns, but public.learn_packed has 1. Received: y, z",
        ),
    ],
)
def test_what_does_not_agree_with_the_training_table_is_refused(caller, definition, row, arguments, message):
    caller.rows("DROP TABLE IF EXISTS other")
    caller.table("other", definition, [row])
    refusal = caller.refused(caller.validate, "other", "other_packed", "learn_packed", **arguments)
    assert (refusal.sqlstate, refusal.message) == ("22023", f"validation_preprocessor_dl: {message}")


@pytest.mark.parametrize(
    ("training", "sqlstate", "message"),
    [
        ("no_such_table", "42P01", "training_preprocessor_table does not exist. Received: 'no_such_table'"),
        (
            "learn",
            "42P01",
            "training_preprocessor_table has no table 'learn_summary' in its schema. Received: 'learn'",
        ),
        ("fake", "22023", "training_preprocessor_table was not created by training_preprocessor_dl. Received: 'fake'"),
        (None, "22023", "training_preprocessor_table is missing. Received: NULL"),
    ],
)
def test_what_is_no_training_table_is_refused(caller, training, sqlstate, message):
    caller.rows("CREATE TABLE IF NOT EXISTS fake (a integer); CREATE TABLE IF NOT EXISTS fake_summary (a integer)")
    refusal = caller.refused(caller.validate, "check_", "never", training)
    assert (refusal.sqlstate, refusal.message) == (sqlstate, f"validation_preprocessor_dl: {message}")
