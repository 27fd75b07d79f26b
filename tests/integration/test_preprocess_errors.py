"""Errors of the preprocessors: one clear error with its SQLSTATE for each bad input, and no leftovers."""

import re

import pytest

from madlib_mop.driver.data.gpus import count_gpus
from tests.helpers.no_gpu import NO_GPU
from tests.helpers.packing import Caller

pytestmark = pytest.mark.one_session

LONG = "n" * 60


@pytest.fixture(scope="module")
def caller(db):
    connection = db.connect()
    caller = Caller(connection)
    caller.segments(2)
    caller.table(
        "good",
        f"x real[], y integer, t text, j json, hot integer[], {LONG} real[], x_shape integer",
        [([1, 2], 1, "a", "{}", [0, 1], [1, 2], 1), ([3, 4], 2, "b", "{}", [1, 0], [1, 2], 1)],
    )
    caller.rows("CREATE TABLE taken (a integer); CREATE TABLE half_summary (a integer); CREATE SEQUENCE counter")
    caller.rows("CREATE TABLE quarter_seg1 (a integer); CREATE TABLE empty_ (LIKE good)")
    caller.rows("CREATE TABLE no_hosts (dbid integer); CREATE TABLE bad_hosts AS SELECT 3 AS dbid")
    yield caller
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message"),
    [
        ({"source": None}, "22023", "source_table is missing. Received: NULL"),
        ({"source": "nowhere"}, "42P01", "source_table does not exist. Received: 'nowhere'"),
        ({"source": "no.where.at.all"}, "22P02", "source_table cannot be read. Received: 'no.where.at.all'"),
        (
            {"source": 'good"; DROP TABLE good'},
            "22P02",
            "source_table cannot be read. Received: 'good\"; DROP TABLE good'",
        ),
        ({"source": "counter"}, "22023", "source_table is neither a table nor a view. Received: 'counter'"),
        ({"source": "empty_"}, "22023", "source_table has no rows. Received: 'empty_'"),
        ({"output": ""}, "22023", "output_table is missing. Received: ''"),
        ({"output": "taken"}, "42P07", "output_table: table public.taken exists already. Received: 'taken'"),
        ({"output": "half"}, "42P07", "output_table: table public.half_summary exists already. Received: 'half'"),
        ({"output": "quarter"}, "42P07", "output_table: table public.quarter_seg1 exists already. Received: 'quarter'"),
        (
            {"output": "nowhere.packed"},
            "22023",
            "output_table: there is no schema 'nowhere'. Received: 'nowhere.packed'",
        ),
        (
            {"output": LONG},
            "22023",
            f"output_table: '{LONG}_summary' would be longer than 63 bytes. Received: '{LONG}'",
        ),
        ({"y": " "}, "22023", "dependent_varname is missing. Received: ' '"),
        ({"x": "x,,hot"}, "22P02", "independent_varname cannot be read. Received: ''"),
        ({"x": "good.x"}, "22P02", "independent_varname takes column names only. Received: 'good.x'"),
        ({"x": "z"}, "42703", "independent_varname: table public.good has no column 'z'"),
        ({"y": '"Y"'}, "42703", "dependent_varname: table public.good has no column 'Y'"),
        (
            {"x": "t"},
            "22023",
            "independent_varname: column 't' cannot be packed. It must be a numeric array, a number, or a bytea that is"
            " a JPEG or PNG image. Received type: text",
        ),
        (
            {"y": "j"},
            "22023",
            "dependent_varname: column 'j' cannot be packed. It must be a boolean, text, a number, an enum or a numeric"
            " array. Received type: json",
        ),
        ({"y": "x"}, "22023", "column 'x' would result in two columns of the packed table named 'x'"),
        (
            {"x": "x, x_shape"},
            "22023",
            "column 'x_shape' would result in two columns of the packed table named 'x_shape'",
        ),
        ({"x": LONG}, "22023", f"column '{LONG}': '{LONG}_class_values' would be longer than 63 bytes"),
        ({"buffer_size": 0}, "22023", "buffer_size must be at least 1. Received: 0"),
        ({"buffer_size": -5}, "22023", "buffer_size must be at least 1. Received: -5"),
        ({"normalizing_const": 0}, "22023", "normalizing_const must be a number above 0. Received: 0"),
        ({"normalizing_const": -1}, "22023", "normalizing_const must be a number above 0. Received: -1"),
        ({"normalizing_const": "NaN"}, "22023", "normalizing_const must be a number above 0. Received: NaN"),
        ({"normalizing_const": "inf"}, "22023", "normalizing_const must be a number above 0. Received: Infinity"),
        ({"seed": -1}, "22023", "seed must not be negative. Received: -1"),
        ({"num_classes": [1]}, "22023", "num_classes has 1 for column 'y', which has 2 distinct values"),
        ({"num_classes": [0]}, "22023", "num_classes must be from 1 to 32768. Received: [0]"),
        (
            {"num_classes": [2, 2]},
            "22023",
            "num_classes has 2 elements for 1 dependent columns. Received: [2, 2]",
        ),
        (
            {"num_classes": [3], "y": "hot"},
            "22023",
            "num_classes has 3 for column 'hot', which has arrays of the shape [2]. Received: [3]",
        ),
        (
            {"num_classes": [], "y": "t"},
            "22023",
            "dependent_varname: column 't' cannot be packed. It must be a number or a numeric array, because"
            " num_classes => '{}' packs values as they are. Received type: text",
        ),
        (
            {"image_shape": [8, 8]},
            "22023",
            "image_shape applies to columns of encoded images, but there is none. Received: [8, 8]",
        ),
        ({"distribution_rules": "nowhere"}, "42P01", "distribution_rules does not exist. Received: 'nowhere'"),
        ({"distribution_rules": "good"}, "42703", "distribution_rules: table public.good has no integer column 'dbid'"),
        (
            {"distribution_rules": "no_hosts"},
            "22023",
            "distribution_rules: table public.no_hosts: has no rows. Received: 'no_hosts'",
        ),
        (
            {"distribution_rules": "bad_hosts"},
            "22023",
            "distribution_rules: table public.bad_hosts: dbid 3 is not a segment. Received: 'bad_hosts'",
        ),
    ],
)
def test_a_bad_argument_is_refused(caller, arguments, sqlstate, message):
    given = {"source": "good", "output": "never"} | arguments
    refusal = caller.refused(caller.train, given.pop("source"), given.pop("output"), **given)
    assert (refusal.sqlstate, refusal.message) == (sqlstate, f"training_preprocessor_dl: {message}")
    assert caller.value("SELECT to_regclass('never')") is None
    assert caller.value("SELECT to_regclass('never_summary')") is None


def test_a_name_that_differs_in_case_only_is_suggested(caller):
    assert caller.refused(caller.train, "good", "never", y='"Y"').hint == 'Write it quoted: "y".'


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "1e3", "1025"])
def test_a_bad_number_of_segments_is_refused(caller, value):
    caller.segments(value)
    refusal = caller.refused(caller.train, "good", "never")
    caller.segments(2)
    assert (refusal.sqlstate, refusal.message) == (
        "22023",
        "training_preprocessor_dl: the setting madlib_mop.segments must be a number from 1 to 1024. Received:"
        f" '{value}'",
    )


def test_gpu_segments_without_a_gpu_are_refused(caller):
    if count_gpus():
        pytest.skip("this host has a GPU")
    refusal = caller.refused(caller.train, "good", "never", distribution_rules="gpu_segments")
    assert refusal.sqlstate == "0A000"
    assert refusal.message.startswith(f"training_preprocessor_dl: distribution_rules => 'gpu_segments': {NO_GPU}")


@pytest.mark.parametrize(
    ("kind", "rows", "column", "problem"),
    [
        ("x real[], y integer", [([1], 1), ([1, 2], 1)], "x", "has the shape [2], but [1] is expected"),
        ("x real[], y integer", [([1], 1), ([[1]], 1)], "x", "has the shape [1, 1], but [1] is expected"),
        ("x real[], y integer", [([1], 1), ([], 1)], "x", "has the shape [], but [1] is expected"),
        ("x real[], y integer", [([1], 1), ([None], 1)], "x", "contains a NULL element at [1]"),
        ("x real[], y integer", [([1], 1), ([float("nan")], 1)], "x", "holds NaN"),
        ("x double precision[], y integer", [([1], 1), ([float("inf")], 1)], "x", "holds an infinite value"),
        (
            "x double precision[], y integer",
            [([1], 1), ([1e200], 1)],
            "x",
            "contains a number that is too large for float32 after division by the normalizing constant",
        ),
        ("x real[], y real[]", [([1], [1]), ([1], [float("nan")])], "y", "holds NaN"),
        ("x real[], y integer[]", [([1], [1]), ([1], [None])], "y", "contains a NULL element at [1]"),
        ("x real, y integer", [(1, 1), (float("-inf"), 1)], "x", "holds an infinite value"),
    ],
)
def test_a_row_that_cannot_be_packed_is_named(caller, kind, rows, column, problem):
    caller.rows("DROP TABLE IF EXISTS bad CASCADE")
    caller.table("bad", kind, rows)
    caller.rows("CREATE VIEW bad_view AS SELECT * FROM bad")
    refusal = caller.refused(caller.train, "bad", "never")
    assert refusal.sqlstate == "22023"
    assert refusal.message == f"training_preprocessor_dl: column {column!r} {problem} (row with ctid (0,2))"
    refusal = caller.refused(caller.train, "bad_view", "never")
    assert re.search(r"\(row [12] in reading order\)$", refusal.message)
    assert caller.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'never%'") == 0


def test_a_row_of_a_tree_of_tables_is_named_with_its_table(caller):
    """Promise 8: each partition and each inheriting table has its own ctids."""
    caller.rows(
        "CREATE TABLE parts (x real[], y integer) PARTITION BY LIST (y);"
        " CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1);"
        " CREATE TABLE part_2 PARTITION OF parts FOR VALUES IN (2);"
        " INSERT INTO parts VALUES ('{1}', 1), ('{2}', 2), ('{NaN}', 2);"
        " CREATE TABLE parent (x real[], y integer); CREATE TABLE child () INHERITS (parent);"
        " INSERT INTO parent VALUES ('{1}', 1); INSERT INTO child VALUES ('{2}', 2), ('{NaN}', 2)"
    )
    for source, table in (("parts", "part_2"), ("parent", "child")):
        refusal = caller.refused(caller.train, source, "never")
        named = caller.value(f"SELECT tableoid::regclass::text FROM {source} WHERE x = '{{NaN}}'")
        assert named == table and refusal.message.endswith(f"holds NaN (row with ctid (0,2) of public.{table})")


def test_a_null_is_counted_before_any_work(caller):
    caller.table("gaps", "x real[], y integer", [([1], 1), (None, 1), (None, 2)])
    refusal = caller.refused(caller.train, "gaps", "never")
    assert refusal.message == "training_preprocessor_dl: column 'x' is NULL in 2 of 3 rows of gaps"


def test_nan_is_no_class(caller):
    caller.table("nan_label", "x real[], y real", [([1], 1), ([1], float("nan"))])
    refusal = caller.refused(caller.train, "nan_label", "never")
    assert refusal.message == "training_preprocessor_dl: column 'y' contains NaN, which cannot be a class"


def test_too_many_classes_are_refused_with_the_way_to_regression(caller):
    caller.rows("CREATE TABLE fine AS SELECT ARRAY[i]::real[] AS x, i AS y FROM generate_series(1, 32769) i")
    refusal = caller.refused(caller.train, "fine", "never")
    assert refusal.message == (
        "training_preprocessor_dl: column 'y' has 32769 distinct values; at most 32768 classes are supported"
    )
    assert refusal.hint == "For regression, use num_classes => '{}'."


def test_classes_with_long_names_are_refused(caller):
    caller.rows(
        "CREATE TABLE wordy AS SELECT ARRAY[i]::real[] AS x, repeat(md5(i::text), 3125) AS y"
        " FROM generate_series(1, 200) i"
    )
    refusal = caller.refused(caller.train, "wordy", "never")
    assert refusal.sqlstate == "22023" and refusal.message == (
        "training_preprocessor_dl: column 'y' has 200 distinct values of 20000000 bytes in all; the classes of a column"
        " can have at most 16777216 bytes"
    )


@pytest.mark.slow
def test_values_that_no_message_could_hold_are_only_counted(caller):
    """327 MB of distinct values: more than a frame between the driver and the server can have."""
    caller.rows(
        "CREATE TABLE no_labels AS SELECT ARRAY[i]::real[] AS x, repeat(md5(i::text), 312) AS y"
        " FROM generate_series(1, 32769) i"
    )
    refusal = caller.refused(caller.train, "no_labels", "never")
    assert "column 'y' has 32769 distinct values; at most 32768 classes are supported" in refusal.message


@pytest.mark.slow
def test_a_buffer_that_no_bytea_could_hold_is_refused(caller):
    caller.rows(
        "CREATE TABLE huge AS SELECT array_fill(0::real, ARRAY[1 << 20]) AS x, i AS y FROM generate_series(1, 300) i"
    )
    caller.segments(1)
    refusal = caller.refused(caller.train, "huge", "never", buffer_size=300)
    caller.segments(2)
    assert refusal.message == (
        "training_preprocessor_dl: buffers of 300 rows would have 1258291200 bytes of column 'x', more than 536870912."
        " Received buffer_size: 300"
    )
    assert refusal.hint == "At most 128 rows fit."


def test_rights_are_the_callers(caller, db):
    caller.rows("CREATE TABLE secret AS SELECT x, y, t FROM good")
    connection = db.connect(role="preprocess_stranger")
    stranger = Caller(connection)
    refusal = stranger.refused(stranger.train, "secret", "pg_temp.never")
    assert (refusal.sqlstate, refusal.message) == ("42501", "permission denied for schema madlib")
    caller.rows("SELECT madlib_mop.grant_use('preprocess_stranger')")
    refusal = stranger.refused(stranger.train, "secret", "pg_temp.never")
    assert (refusal.sqlstate, refusal.message) == (
        "42501",
        "training_preprocessor_dl: permission denied for table secret",
    )
    caller.rows("GRANT SELECT (x, y) ON secret TO preprocess_stranger")
    refusal = stranger.refused(stranger.train, "secret", "public.never")
    assert (refusal.sqlstate, refusal.message) == (
        "42501",
        "training_preprocessor_dl: output_table: role preprocess_stranger may not create tables in schema public."
        " Received: 'public.never'",
    )
    stranger.train("secret", "pg_temp.mine")
    assert len(stranger.tensor("pg_temp.mine", "x")) == 2
    caller.rows("CREATE TABLE secrets AS SELECT i % 7 AS x, i % 2 = 0 AS y, 'z' AS z FROM generate_series(1, 90) i")
    caller.rows("GRANT SELECT (x, y) ON secrets TO preprocess_stranger")
    stranger.rows("SELECT madlib_mop.pack_columns('secrets', 'pg_temp.packed', 'y', exclude => '{z}', seed => 1)")
    assert stranger.value("SELECT sum((numbers_shape)[1]) FROM pg_temp.packed") == 90
    connection.close()


def test_a_source_that_changes_meanwhile_is_refused(caller):
    caller.rows("CREATE SEQUENCE looks")
    caller.rows("CREATE VIEW restless AS SELECT x, y FROM good WHERE nextval('looks') <> 1")
    refusal = caller.refused(caller.train, "restless", "never")
    assert (refusal.sqlstate, refusal.message) == (
        "55000",
        "training_preprocessor_dl: restless was changed while it was being packed: 1 rows were counted, 2 read",
    )


def test_a_timeout_ends_the_packing_and_leaves_nothing(caller):
    caller.rows("CREATE VIEW slow AS SELECT x, y FROM good, LATERAL (SELECT pg_sleep(0.2)) s")
    caller.rows("SET statement_timeout = '700ms'")
    refusal = caller.refused(caller.train, "slow", "never")
    caller.rows("RESET statement_timeout")
    assert refusal.sqlstate == "57014"
    assert caller.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'never%'") == 0


def test_an_error_in_a_transaction_leaves_neither_table(caller, db):
    connection = db.connect(autocommit=False)
    mine = Caller(connection)
    mine.rows("CREATE TABLE ragged AS SELECT * FROM (VALUES (ARRAY[1]::real[], 1), (ARRAY[1, 2], 1)) v (x, y)")
    mine.rows("SAVEPOINT before_")
    with pytest.raises(Exception, match="has the shape"):
        mine.train("ragged", "half_way")
    mine.rows("ROLLBACK TO before_")
    assert mine.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'half_way%'") == 0
    connection.rollback()
    connection.close()


def test_help_is_given_in_both_forms(caller):
    for name in ("training_preprocessor_dl", "validation_preprocessor_dl"):
        short, long = caller.value(f"SELECT madlib.{name}()"), caller.value(f"SELECT madlib.{name}('usage')")
        assert f"madlib.{name}('usage')" in short
        assert len(short) < len(long)
        assert "buffer_size" in long
