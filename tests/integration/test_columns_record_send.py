"""Rows of every type: the output of ``record_send`` is read as the values that SQL prints, bit for bit."""

import re
from datetime import datetime, timedelta

import numpy as np
import pytest

from madlib_mop.columns import raw
from madlib_mop.columns.records import _TYPES, ChangedType, Field, RecordReader, family_of, reader_of
from tests.helpers.literals import MOMENTS, NUMBERS, PGVECTOR, TEXTS, VECTORS

EPOCH = datetime(2000, 1, 1)
FIELDS = """
WITH RECURSIVE base(attnum, type) AS (
    SELECT attnum, atttypid FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT base.attnum, typbasetype FROM base JOIN pg_type AS t ON t.oid = base.type WHERE t.typtype = 'd'
)
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid::int,
    CASE WHEN t.typtype = 'e' THEN 'enum' ELSE t.typname END
FROM base JOIN pg_type AS t ON t.oid = base.type JOIN pg_attribute AS a ON a.attnum = base.attnum
WHERE a.attrelid = %s::regclass AND t.typtype <> 'd' ORDER BY a.attnum
"""
ELEMENTS = re.compile(r"-?(?:NaN|Infinity|[0-9][0-9.e+-]*)")
TYPES = """
CREATE TYPE mood AS ENUM ('low', 'middling', 'high');
CREATE DOMAIN small_number AS int4 CHECK (VALUE < 1000); CREATE DOMAIN a_number AS small_number;
CREATE DOMAIN a_text AS text; CREATE DOMAIN a_vector AS float8[];
"""


def is_there(db, extension):
    return bool(db.rows("SELECT 1 FROM pg_available_extensions WHERE name = %s", [extension]))


@pytest.fixture(scope="module")
def tables(db):
    db.rows(TYPES)
    return db


def make_table(db, name, types):
    """Create a table with a column of each type, and rows with every value and NULLs."""
    columns = ", ".join(f"c{place} {sql_type}" for place, sql_type in enumerate(types))
    db.rows(f"CREATE TABLE {name} (id serial, {columns})")
    for row in range(40):
        values = [None if (row + place) % 5 == 4 else v[row % len(v)] for place, v in enumerate(types.values())]
        names = ", ".join(f"c{place}" for place in range(len(types)))
        casts = ", ".join(f"%s::{sql_type}" for sql_type in types)
        db.rows(f"INSERT INTO {name} ({names}) VALUES ({casts})", values)
    return name


def read(db, table):
    """Return the columns of a table in the order of its rows, read in one batch; single rows must be the same."""
    fields = [Field(n, t, o, reader_of(base)) for n, t, o, base in db.rows(FIELDS, [table, table])]
    reader = RecordReader(fields)
    rows = [bytes(row) for (row,) in db.rows(f"SELECT record_send(t) FROM {table} AS t ORDER BY id")]
    columns = reader.read(b"".join(rows), [len(row) for row in rows])
    single = [reader.read(row, [len(row)]) for row in rows]
    for column, parts in zip(columns, zip(*single, strict=True), strict=True):
        joined = raw.concatenate(parts)
        if isinstance(column, raw.Levels):
            assert joined.texts() == column.texts()
        elif isinstance(column, raw.Blobs):
            assert joined.values == column.values
        else:
            assert joined.values.tobytes() == column.values.tobytes()
            assert joined.missing.tolist() == column.missing.tolist()
    assert [column.family for column in columns] == [family_of(field.reader) for field in fields]
    return dict(zip([field.name for field in fields], columns, strict=True))


def printed(db, table, column, expression="{}::text"):
    """Return SQL's output of a column, in the order of the rows; None is NULL."""
    return [value for (value,) in db.rows(f"SELECT {expression.format(column)} FROM {table} ORDER BY id")]


def bits(values):
    return [None if value is None else np.float64(value).tobytes() for value in values]


def values_of(column):
    return [None if lost else value for lost, value in zip(column.missing, column.values.tolist(), strict=True)]


def test_numbers_are_the_nearest_float64(tables):
    columns = read(tables, make_table(tables, "numbers", NUMBERS | {"bool": ["true", "false"]}))
    for place, sql_type in enumerate(NUMBERS):
        texts = printed(tables, "numbers", f"c{place}", "{}::float8::text" if sql_type == "float4" else "{}::text")
        expected = [None if text is None else float(text) for text in texts]
        assert len(set(expected)) > 2 or sql_type in ("oid", "a_number")
        assert bits(values_of(columns[f"c{place}"])) == bits(expected), sql_type
    booleans = columns[f"c{len(NUMBERS)}"]
    assert values_of(booleans) == printed(tables, "numbers", f"c{len(NUMBERS)}", "{}::int::float8")
    assert booleans.family == raw.BOOLEAN
    assert columns["id"].values.tolist() == list(range(1, 41))


def test_numerics_beyond_float64_are_infinite(tables):
    tables.rows("CREATE TABLE huge AS SELECT 1 AS id, '-1e400'::numeric AS c, '1e-400'::numeric AS d")
    columns = read(tables, "huge")
    assert columns["c"].values.tolist() == [-np.inf] and columns["d"].values.tolist() == [0.0]


@pytest.mark.slow
def test_random_numerics_are_those_of_a_cast(tables):
    tables.rows(
        "CREATE TABLE many AS SELECT id, (random() * 10 ^ (random() * 30 - 12))::numeric AS a,"
        " round(random()::numeric * 1000000, 2) AS b, random()::numeric / 7 AS c,"
        " -(random() * 1e15)::int8::numeric AS d FROM generate_series(1, 20000) AS id"
    )
    columns = read(tables, "many")
    for name in "abcd":
        expected = printed(tables, "many", name, "{}::float8")
        assert columns[name].values.tobytes() == np.array(expected).tobytes()


def test_texts_are_those_that_sql_prints(tables):
    columns = read(tables, make_table(tables, "texts", TEXTS))
    for place, sql_type in enumerate(TEXTS):
        found = columns[f"c{place}"].texts()
        # a cast of an inet to text adds the /32 that its output function omits
        output = "{}" if sql_type == "inet" else "{}::text"
        assert found == printed(tables, "texts", f"c{place}", output), sql_type
        assert None in found and len(set(found)) > 1


def test_moments_are_microseconds(tables):
    columns = read(tables, make_table(tables, "moments", MOMENTS))
    seconds = {
        "date": "extract(epoch FROM {0}) - extract(epoch FROM date '2000-01-01')",
        "timestamp": "extract(epoch FROM {0}) - extract(epoch FROM timestamp '2000-01-01')",
        "timestamptz": "extract(epoch FROM {0}) - extract(epoch FROM timestamptz '2000-01-01Z')",
        "time": "extract(epoch FROM {0})",
        "timetz": "extract(epoch FROM {0}::time)",
        "interval": "(extract(year FROM {0}) * 12 + extract(month FROM {0})) * 30.4375 * 86400"
        " + extract(day FROM {0}) * 86400 + extract(hour FROM {0}) * 3600 + extract(minute FROM {0}) * 60"
        " + extract(second FROM {0})",
    }
    for place, sql_type in enumerate(MOMENTS):
        expected = printed(tables, "moments", f"c{place}", f"(({seconds[sql_type]}) * 1000000)::int8")
        assert values_of(columns[f"c{place}"]) == expected, sql_type
        assert columns[f"c{place}"].values.dtype == np.int64
    dates = printed(tables, "moments", "c0", "{}")
    found = [None if v is None else (EPOCH + timedelta(microseconds=v)).date() for v in values_of(columns["c0"])]
    assert found == dates


def test_endless_moments_are_special(tables):
    tables.rows(
        "CREATE TABLE endless AS SELECT id, (array['infinity', '-infinity'])[id]::date AS a,"
        " (array['infinity', '-infinity'])[id]::timestamptz AS b FROM generate_series(1, 2) AS id"
    )
    columns = read(tables, "endless")
    assert columns["a"].values.tolist() == columns["b"].values.tolist() == [raw.END, raw.BEGIN]
    assert columns["a"].first_special() == raw.Special(0, "infinity")


def assert_vectors(db, table, columns, types, expression="{}::text"):
    """Compare vectors with the numbers in what SQL prints, whatever is between these."""
    for place, sql_type in enumerate(types):
        texts = printed(db, table, f"c{place}", expression)
        column = columns[f"c{place}"]
        assert column.values.dtype == np.float32
        for row, text in enumerate(texts):
            assert column.missing[row] == (text is None)
            # the bounds of an array are before the sign =
            numbers = [0.0] * column.width if text is None else ELEMENTS.findall(text.rpartition("=")[2])
            with np.errstate(over="ignore"):
                expected = np.array([float(number) for number in numbers]).astype(np.float32)
            assert column.values[row].tobytes() == expected.tobytes(), sql_type


def test_vectors_are_rows_of_float32(tables):
    assert_vectors(tables, "vectors", read(tables, make_table(tables, "vectors", VECTORS)), VECTORS)


def test_bytes_are_bytes(tables):
    tables.rows("CREATE TABLE blobs (id int, c bytea)")
    tables.rows(r"INSERT INTO blobs VALUES (1, '\x00ff'), (2, NULL), (3, ''), (4, repeat('x', 100000)::bytea)")
    assert read(tables, "blobs")["c"].values == [b"\x00\xff", None, b"", b"x" * 100_000]


def test_vectors_of_pgvector_are_rows_of_float32(tables):
    if not is_there(tables, "vector"):
        pytest.skip("the extension pgvector is not installed")
    tables.rows("CREATE EXTENSION vector")
    types = {k: v for k, v in PGVECTOR.items() if tables.value("SELECT to_regtype(%s)", [k.partition("(")[0]])}
    columns = read(tables, make_table(tables, "pgvectors", types))
    assert_vectors(tables, "pgvectors", columns, types, "{}::vector::text")


def test_each_type_has_literals():
    named = {reader_of(sql_type) for types in (NUMBERS, TEXTS, MOMENTS, VECTORS, PGVECTOR) for sql_type in types}
    other = {"bool", "enum", "bytea", "citext"} | {name for name in _TYPES if name.startswith("_")}
    assert set(_TYPES) - other <= named


def test_types_have_the_oids_and_names_of_the_catalog(tables):
    ours = {oid: (name, sql_name or name) for name, (_, oid, sql_name) in _TYPES.items() if oid}
    query = "SELECT oid::int, typname::text, format_type(oid, NULL) FROM pg_type WHERE oid = ANY (%s)"
    assert {oid: names for oid, *names in tables.rows(query, [list(ours)])} == {o: [*n] for o, n in ours.items()}
    builtin = "SELECT typname::text FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typname = ANY (%s)"
    assert {name for (name,) in tables.rows(builtin, [list(_TYPES)])} == {name for name, _ in ours.values()}


def test_a_changed_type_is_named(tables):
    tables.rows("CREATE TABLE changing AS SELECT 1 AS id, 2 AS c")
    fields = [Field(n, t, o, reader_of(base)) for n, t, o, base in tables.rows(FIELDS, ["changing", "changing"])]
    tables.rows("ALTER TABLE changing ALTER c TYPE text")
    row = bytes(tables.value("SELECT record_send(t) FROM changing AS t"))
    with pytest.raises(ChangedType, match="column 'c' is text, where integer is expected"):
        RecordReader(fields).read(row, [len(row)])


def test_a_row_constructor_sends_the_same_as_a_table(tables):
    tables.rows("CREATE TABLE whole AS SELECT 1 AS id, 'x'::text AS c, NULL::mood AS m")
    assert tables.value("SELECT record_send(ROW(id, c, m)) = record_send(t) FROM whole AS t")
