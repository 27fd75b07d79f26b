"""training_preprocessor_dl: content and order of the packed table and its summary."""

import re

import numpy as np
import pytest
from mop_backend.machine import processors

from tests.helpers.packing import Caller

pytestmark = pytest.mark.one_session


@pytest.fixture(scope="module")
def caller(db):
    connection = db.connect()
    caller = Caller(connection)
    caller.segments(2)
    caller.rows("CREATE TYPE colour AS ENUM ('red', 'green')")
    caller.table("seventeen", "x real[], y integer", [([i, 2 * i, 3 * i], i % 3) for i in range(1, 18)])
    yield caller
    connection.close()


def test_the_packed_table_has_the_documented_columns(caller):
    caller.train("seventeen", "columns_of")
    columns = caller.rows(
        "SELECT attname::text, atttypid::regtype::text, attstorage::text FROM pg_attribute"
        " WHERE attrelid = 'columns_of'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert columns == [
        ("__dist_key__", "integer", "p"),
        ("x", "bytea", "e"),
        ("y", "bytea", "e"),
        ("x_shape", "integer[]", "x"),
        ("y_shape", "integer[]", "x"),
        ("buffer_id", "integer", "p"),
    ]


def test_there_is_one_partition_a_segment(caller):
    caller.train("seventeen", "partitioned", buffer_size=5)
    parts = caller.rows(
        "SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c"
        " ON c.oid = i.inhrelid WHERE inhparent = 'partitioned'::regclass ORDER BY 1"
    )
    assert parts == [("partitioned_seg0", "FOR VALUES IN (0)"), ("partitioned_seg1", "FOR VALUES IN (1)")]
    assert caller.value("SELECT count(*) FROM partitioned_seg1 WHERE __dist_key__ = 1") == 2


def test_the_summary_has_the_documented_columns_and_values(caller):
    caller.train("seventeen", "summed", buffer_size=5, normalizing_const=2.5)
    assert list(caller.summary("summed").items()) == [
        ("source_table", "seventeen"),
        ("output_table", "summed"),
        ("dependent_varname", ["y"]),
        ("independent_varname", ["x"]),
        ("dependent_vartype", ["integer"]),
        ("y_class_values", [0, 1, 2]),
        ("buffer_size", 5),
        ("normalizing_const", 2.5),
        ("num_classes", [3]),
        ("distribution_rules", "all_segments"),
        ("__internal_gpu_config__", "all_segments"),
        ("independent_columns", ["x"]),
        ("y_class_counts", [5, 6, 6]),
    ]
    types = caller.rows(
        "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'summed_summary'::regclass AND attnum > 0"
        " ORDER BY attnum"
    )
    assert [kind for (kind,) in types] == [
        "text", "text", "text[]", "text[]", "text[]", "integer[]", "integer", "real", "integer[]", "text", "text",
        "text[]", "bigint[]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("n_segments", "buffer_size", "expected"),
    [
        (1, 5, [(0, 5), (0, 5), (0, 5), (0, 2)]),
        (2, 5, [(0, 5), (0, 4), (1, 5), (1, 3)]),
        (2, 100, [(0, 9), (1, 8)]),
        (3, None, [(0, 6), (1, 6), (2, 5)]),
        (5, 1, [(segment, 1) for segment, n_rows in enumerate((4, 4, 3, 3, 3)) for _ in range(n_rows)]),
    ],
)
def test_rows_are_divided_as_documented(caller, n_segments, buffer_size, expected):
    caller.segments(n_segments)
    name = caller.train("seventeen", f"divided_{n_segments}_{buffer_size}", buffer_size=buffer_size)
    buffers = caller.buffers(name, "x", "y")
    caller.segments(2)
    assert [buffer.buffer_id for buffer in buffers] == list(range(len(expected)))
    assert [(buffer.segment, len(buffer.tensors["x"])) for buffer in buffers] == expected
    assert [len(buffer.tensors["y"]) for buffer in buffers] == [n for _, n in expected]


def test_buffers_have_eight_megabytes_by_default(caller):
    """All columns count: 8 rows of x alone would fit."""
    caller.rows(
        "CREATE TABLE megabytes AS SELECT array_fill(i::real, ARRAY[1 << 18]) AS x, i % 2 AS y"
        " FROM generate_series(1, 16) i"
    )
    caller.segments(1)
    buffers = caller.buffers(caller.train("megabytes", "megabytes_packed"), "x", "y")
    caller.segments(2)
    assert [len(buffer.tensors["x"]) for buffer in buffers] == [6, 6, 4]


def test_every_row_is_packed_once_with_its_own_label(caller):
    caller.train("seventeen", "once", buffer_size=4)
    x, y = caller.tensor("once", "x"), caller.tensor("once", "y")
    assert (x.dtype, y.dtype) == (np.float32, np.int16)
    assert sorted(x[:, 0].tolist()) == list(range(1, 18))
    assert np.array_equal(x, np.outer(x[:, 0], [1, 2, 3]))
    assert np.array_equal(y, np.eye(3)[x[:, 0].astype(int) % 3])


def test_fewer_rows_than_segments_leave_segments_empty_and_say_so(caller):
    caller.table("three_rows", "x real[], y text", [([1], "a"), ([2], "b"), ([3], "a")])
    caller.segments(5)
    caller.notices()
    caller.train("three_rows", "sparse")
    caller.segments(2)
    assert [buffer.segment for buffer in caller.buffers("sparse", "x")] == [0, 1, 2]
    assert caller.value("SELECT count(*) FROM pg_inherits WHERE inhparent = 'sparse'::regclass") == 5
    assert "these segments get none: 3, 4" in caller.notices()


def test_the_order_is_that_of_the_seed_and_the_content_alone(caller):
    rows = [([float(i), float(i * i % 7)], str(i % 4)) for i in range(200)]
    caller.table("ordered", "x real[], y text", rows)
    caller.table("reversed", "x real[], y text", rows[::-1])
    first = caller.tensor(caller.train("ordered", "order_1", seed=11), "x")
    assert not np.array_equal(first[:, 0], np.arange(200))
    assert np.array_equal(caller.tensor(caller.train("reversed", "order_2", seed=11, buffer_size=3), "x"), first)
    caller.rows("UPDATE ordered SET id = id WHERE id < 50")
    caller.rows("VACUUM FULL ordered")
    again = caller.train("ordered", "order_3", seed=11)
    assert caller.rows("SELECT x, y FROM order_3 ORDER BY buffer_id") == caller.rows(
        "SELECT x, y FROM order_1 ORDER BY buffer_id"
    )
    assert np.array_equal(caller.tensor(again, "x"), first)
    other = caller.tensor(caller.train("ordered", "order_4", seed=12), "x")
    assert not np.array_equal(other, first)
    assert sorted(other[:, 0].tolist()) == list(range(200))


def test_rows_that_differ_in_the_label_only_are_ordered_too(caller):
    rows = [([1.0], label) for label in "abcdefghij"]
    caller.table("alike", "x real[], y text", rows)
    caller.table("alike_reversed", "x real[], y text", rows[::-1])
    first = caller.tensor(caller.train("alike", "alike_1", seed=1), "y")
    assert np.array_equal(caller.tensor(caller.train("alike_reversed", "alike_2", seed=1), "y"), first)


def test_the_seed_is_drawn_when_absent_and_told(caller):
    caller.notices()
    caller.train("seventeen", "drawn")
    comment = caller.value("SELECT obj_description('drawn'::regclass)")
    seed = int(comment.rpartition("seed ")[2])
    assert (
        comment == f"madlib_mop: 17 rows of seventeen packed into 2 buffers of up to 9 rows on 2 segments, seed {seed}"
    )
    assert f"seed {seed}" in caller.notices()
    caller.train("seventeen", "drawn_again", seed=seed)
    assert np.array_equal(caller.tensor("drawn_again", "x"), caller.tensor("drawn", "x"))


@pytest.mark.parametrize("kind", ["real", "double precision", "numeric", "smallint", "integer", "bigint"])
def test_x_of_every_numeric_type_is_float32_divided_by_the_constant(caller, kind):
    name = f"typed_{kind.split()[0]}"
    caller.table(name, f"x {kind}[], y integer", [([i, 10 * i], 0) for i in range(6)])
    caller.train(name, f"{name}_packed", normalizing_const=255)
    x = caller.tensor(f"{name}_packed", "x")
    assert x.dtype == np.float32
    rows = np.array([[i, 10 * i] for i in range(6)], np.float32) / np.float32(255)
    assert np.array_equal(x[np.argsort(x[:, 0])], rows)


def test_x_may_have_any_number_of_dimensions_or_none(caller):
    image = np.arange(24, dtype=float).reshape(2, 3, 4)
    caller.table("shaped", "x real[], z double precision, y boolean", [(image.tolist(), 1.5, True)] * 3)
    caller.train("shaped", "shaped_packed", x="x, z")
    assert np.array_equal(caller.tensor("shaped_packed", "x"), np.stack([image] * 3))
    assert np.array_equal(caller.tensor("shaped_packed", "z"), np.full((3, 1), 1.5))
    assert caller.rows("SELECT x_shape, z_shape, y_shape FROM shaped_packed ORDER BY 1 DESC")[0] == (
        [2, 2, 3, 4],
        [2, 1],
        [2, 1],
    )


@pytest.mark.parametrize(
    ("kind", "values", "classes"),
    [
        ("text", ["b", "a", "B", None], [None, "B", "a", "b"]),
        ("varchar(10)", ["x,y", '"q"', "{}", "NULL"], ['"q"', "NULL", "x,y", "{}"]),
        ("char(3)", ["b", "a"], ["a  ", "b  "]),
        ("boolean", [True, False, None], [None, False, True]),
        ("boolean", [True], [True]),
        ("smallint", [3, -1, 2], [-1, 2, 3]),
        ("integer", [10, 9, None], [None, 9, 10]),
        ("bigint", [1 << 40, 0], [0, 1 << 40]),
        ("real", [0.1, -2.5], [-2.5, 0.1]),
        ("double precision", [0.1, 1 / 3, None], [None, 0.1, 1 / 3]),
        ("colour", ["green", "red"], "{red,green}"),
    ],
)
def test_each_distinct_value_is_a_class_and_null_sorts_first(caller, kind, values, classes):
    name = f"classes_{re.sub('[^a-z]', '', kind)}_{len(values)}"
    caller.table(name, f"x integer[], y {kind}", [([i % len(values)], values[i % len(values)]) for i in range(12)])
    caller.train(name, f"{name}_packed")
    summary = caller.summary(f"{name}_packed")
    assert summary["y_class_values"] == classes
    assert summary["num_classes"] == [len(values)]
    vartype = caller.value(f"SELECT pg_typeof(y)::text FROM {name} LIMIT 1")
    assert summary["dependent_vartype"] == ["public.colour" if kind == "colour" else vartype]
    x, y = caller.tensor(f"{name}_packed", "x"), caller.tensor(f"{name}_packed", "y")
    assert y.dtype == np.int16
    sorted_values = ["red", "green"] if kind == "colour" else classes
    kept = [value.ljust(3) if kind == "char(3)" else value for value in values]
    for row, one_hot in zip(x[:, 0].astype(int), y, strict=True):
        assert one_hot.tolist() == [int(value == kept[row]) for value in sorted_values]


def test_num_classes_pads(caller):
    caller.train("seventeen", "padded", num_classes=[5])
    summary = caller.summary("padded")
    assert (summary["num_classes"], summary["y_class_values"]) == ([5], [0, 1, 2, None, None])
    y = caller.tensor("padded", "y")
    assert y.shape == (17, 5)
    assert not y[:, 3:].any()


@pytest.mark.parametrize(
    ("kind", "rows", "dtype"),
    [
        ("integer[]", [[0, 1, 0], [1, 0, 0]], np.int16),
        ("smallint[]", [[0, 1], [1, 0]], np.int16),
        ("bigint[]", [[0, 1 << 20], [5, 0]], np.float32),
        ("real[]", [[0.25, 0.75], [0.5, 0.5]], np.float32),
        ("double precision[]", [[-1.5], [2.25]], np.float32),
        ("numeric[]", [[0.1, 0.9], [1, 0]], np.float32),
    ],
)
def test_array_labels_keep_their_values(caller, kind, rows, dtype):
    name = f"labels_{kind.split()[0].removesuffix('[]')}"
    caller.table(name, f"x integer[], y {kind}", [([i], row) for i, row in enumerate(rows)])
    caller.train(name, f"{name}_packed", normalizing_const=10)
    summary = caller.summary(f"{name}_packed")
    assert (summary["y_class_values"], summary["num_classes"]) == (None, [])
    assert summary["dependent_vartype"] == [kind]
    order = caller.tensor(f"{name}_packed", "x")[:, 0].argsort()
    y = caller.tensor(f"{name}_packed", "y")[order]
    assert y.dtype == dtype
    assert np.array_equal(y, np.array(rows, np.float32).astype(dtype))


@pytest.mark.parametrize("kind", ["real", "double precision", "integer", "numeric"])
def test_an_empty_num_classes_packs_a_number_as_it_is(caller, kind):
    name = f"regression_{kind.split()[0]}"
    caller.table(name, f"x integer[], y {kind}", [([i], 3 * i) for i in range(7)])
    caller.train(name, f"{name}_packed", num_classes=[], normalizing_const=2)
    x, y = caller.tensor(f"{name}_packed", "x"), caller.tensor(f"{name}_packed", "y")
    assert (y.dtype, y.shape) == (np.float32, (7, 1))
    assert np.array_equal(y, x * 6)
    summary = caller.summary(f"{name}_packed")
    assert (summary["num_classes"], summary["y_class_values"]) == ([], None)


def test_many_inputs_and_outputs_and_quoted_names(caller):
    caller.rows(
        'CREATE TABLE "Odd, name" (a real[], "B, c" real[], "y""1" text, Y2 integer[], id integer);'
        'INSERT INTO "Odd, name" SELECT ARRAY[i, i], ARRAY[[i]], (i % 2)::text, ARRAY[i % 2, 1 - i % 2], i'
        " FROM generate_series(1, 9) i"
    )
    caller.train('"Odd, name"', '"Packed, too"', '"y""1", Y2', 'A, "B, c"', num_classes=[3, None])
    (buffer, *_) = caller.rows(
        'SELECT a_shape, "B, c_shape", "y""1_shape", y2_shape FROM "Packed, too" ORDER BY buffer_id'
    )
    assert buffer == ([5, 2], [5, 1, 1], [5, 3], [5, 2])
    summary = dict(
        zip(
            ("dependent", "independent", "classes", "num_classes"),
            *caller.rows(
                'SELECT dependent_varname, independent_varname, "y""1_class_values", num_classes'
                ' FROM "Packed, too_summary"'
            ),
            strict=True,
        )
    )
    assert summary == {
        "dependent": ['y"1', "y2"],
        "independent": ["a", "B, c"],
        "classes": ["0", "1", None],
        "num_classes": [3, None],
    }


def test_a_temporary_and_a_not_yet_committed_table_can_be_packed_into_a_temporary_one(db):
    connection = db.connect(autocommit=False)
    caller = Caller(connection)
    caller.segments(2)
    caller.rows("CREATE TEMP TABLE source_t AS SELECT ARRAY[i]::real[] AS x, i % 2 AS y FROM generate_series(1, 9) i")
    caller.train("source_t", "pg_temp.packed_t", seed=1)
    assert sorted(caller.tensor("pg_temp.packed_t", "x")[:, 0].tolist()) == list(range(1, 10))
    connection.rollback()
    assert caller.value("SELECT to_regclass('pg_temp.packed_t')") is None
    connection.close()


def test_a_call_by_position_as_scripts_for_madlib_write_it(caller):
    caller.rows("SELECT madlib.training_preprocessor_dl('seventeen', 'by_position', 'y', 'x', NULL, 255, NULL)")
    x = caller.tensor("by_position", "x")
    assert np.array_equal(np.sort(x[:, 0]), np.arange(1, 18, dtype=np.float32) / np.float32(255))


def test_views_and_partitioned_tables_can_be_packed(caller):
    caller.rows("CREATE VIEW seen AS SELECT x, y FROM seventeen WHERE y < 2")
    caller.rows("CREATE TABLE parted (x real[], y integer) PARTITION BY LIST (y)")
    caller.rows("CREATE TABLE parted_rest PARTITION OF parted DEFAULT")
    caller.rows("INSERT INTO parted SELECT x, y FROM seventeen")
    assert len(caller.tensor(caller.train("seen", "seen_packed", seed=5), "x")) == 11
    whole = caller.tensor(caller.train("seventeen", "whole_packed", seed=5), "x")
    assert np.array_equal(caller.tensor(caller.train("parted", "parted_packed", seed=5), "x"), whole)


def test_names_follow_the_callers_search_path(caller):
    caller.rows("CREATE SCHEMA elsewhere")
    caller.rows("CREATE TABLE elsewhere.hidden AS TABLE seventeen")
    caller.rows("SET search_path = elsewhere")
    try:
        caller.train("hidden", "hidden_packed")
    finally:
        caller.rows("RESET search_path")
    assert caller.value("SELECT to_regclass('elsewhere.hidden_packed')::text") == "elsewhere.hidden_packed"
    assert caller.value("SELECT count(*) FROM elsewhere.hidden_packed_summary") == 1


def test_only_the_segments_of_a_table_with_dbid_get_data(caller):
    caller.rows("CREATE TABLE hosts (dbid smallint, host text); INSERT INTO hosts VALUES (3, 'a'), (2, 'b'), (3, 'c')")
    caller.segments(4)
    caller.train("seventeen", "ruled", buffer_size=6, distribution_rules="hosts")
    caller.segments(2)
    assert [buffer.segment for buffer in caller.buffers("ruled", "x")] == [1, 1, 2, 2]
    summary = caller.summary("ruled")
    assert (summary["distribution_rules"], summary["__internal_gpu_config__"]) == ("hosts", "{1,2}")


def test_with_no_setting_there_are_as_many_segments_as_cores(caller):
    caller.rows("RESET madlib_mop.segments")
    caller.train("seventeen", "by_cores", buffer_size=1)
    caller.segments(2)
    n_parts = caller.value("SELECT count(*) FROM pg_inherits WHERE inhparent = 'by_cores'::regclass")
    assert n_parts == processors()
