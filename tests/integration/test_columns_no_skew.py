"""No skew: rows have the same tensors in packing, in transform and in the scalar functions, bit for bit."""

import json
from datetime import date, timedelta
from random import Random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg2.extras import execute_values

from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.records import reader_of
from madlib_mop.driver.columns.transforming import output_columns
from madlib_mop.trainer.data.rows import RowEncoder
from tests.helpers.columns import content
from tests.helpers.images import encoded
from tests.helpers.literals import MOMENTS, NUMBERS, TEXTS, VECTORS

N_TRAINING, N_HELD_OUT = 30, 12
_DAYS = (date(1, 1, 1), date(9999, 12, 31)), (date(2024, 1, 1), date(2024, 3, 1))


def word(random: Random) -> str:
    few = ["red", "grün", "blue", "", "two words", "NULL"]
    return (
        random.choice(few)
        if random.random() < 0.7
        else "".join(random.choices("abcdeäß€😀 '\"\\", k=random.randrange(8)))
    )


def number(random: Random) -> float:
    return random.choice([random.uniform(-1e6, 1e6), random.gauss(0, 1), float(random.randint(-3, 3)), -0.0, 5e-324])


def day(random: Random) -> str:
    first, last = random.choice(_DAYS)
    return (first + timedelta(random.randrange((last - first).days))).isoformat()


def clock(random: Random) -> str:
    return f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}.{random.randrange(10**6):06}"


def listed(values) -> str:
    return "{" + ",".join(map(repr, values)) + "}"


def integer(bits: int):
    most = 2 ** (bits - 1)
    return lambda random: random.choice([random.randint(-2, 2), random.randint(-most, most - 1)])


def photo(random: Random) -> str:
    """Return an image of a random size, mode and format, as PostgreSQL writes bytes."""
    pixels = np.frombuffer(random.randbytes(16 * 12 * 3), np.uint8).reshape(16, 12, 3)
    mode, kind = random.choice([("RGB", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG")])
    return "\\x" + encoded(pixels[: random.randint(1, 16), : random.randint(1, 12)], kind, mode).hex()


# By type: a random value as text, which PostgreSQL reads.
GENERATED = {
    "smallint": integer(16),
    "integer": integer(32),
    "bigint": integer(64),
    "oid": lambda random: random.randrange(2**32),
    "real": lambda random: np.float32(number(random)),
    "double precision": number,
    "numeric": lambda random: f"{random.randint(-(10**18), 10**18)}.{random.randrange(10**6)}",
    "numeric(8,2)": lambda random: f"{random.uniform(-99999, 99999):.2f}",
    "boolean": lambda random: random.random() < 0.5,
    "date": day,
    "timestamp": lambda random: f"{day(random)} {clock(random)}",
    "timestamptz": lambda random: f"{day(random)} {clock(random)}+02",
    "time": clock,
    "timetz": lambda random: f"{clock(random)}+05:30",
    "interval": lambda random: f"{random.randint(-40, 40)} mons {random.randint(-99, 99)} days {clock(random)}",
    "text": word,
    "varchar(30)": word,
    "character(9)": word,
    "name": word,
    '"char"': lambda random: random.choice("abcdefgh"),
    "uuid": lambda random: UUID(int=random.randrange(9)),
    "inet": lambda random: random.choice([f"10.0.0.{random.randrange(9)}/8", f"2001:db8::{random.randrange(9)}"]),
    "cidr": lambda random: f"192.168.{random.randrange(9)}.0/24",
    "macaddr": lambda random: f"08:00:2b:01:02:0{random.randrange(9)}",
    "mood": lambda random: random.choice(["sad", "glad", "neither"]),
    "positive": lambda random: random.randint(1, 9),
    "word": word,
    "integer[]": lambda random: listed([random.randint(-9, 9), 1]),
    "bytea": photo,
    "double precision[]": lambda random: listed([number(random), number(random), number(random)]),
}
# Of other types, except arrays, one of the literals.
VALUES = GENERATED | {
    sql_type: lambda random, values=tuple(values): random.choice(values)
    for sql_type, values in (NUMBERS | TEXTS | MOMENTS | VECTORS).items()
    if reader_of(sql_type) not in {None, *map(reader_of, GENERATED)} and not sql_type.endswith("]")
}
SCALES = ("standard", "min_max", "robust", "quantile", "log1p", "none")
ENCODINGS = {"index": (4, None), "one_hot": (None, 20), "hashed": (4, 16), "frequency": (None, None)}
_FIELDS = """
SELECT attname, format_type(atttypid, atttypmod), atttypid::bigint,
       CASE WHEN t.typtype = 'e' THEN 'enum' ELSE coalesce(b.typname, t.typname)::text END
FROM pg_attribute JOIN pg_type t ON t.oid = atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
WHERE attrelid = 'skew'::regclass AND attnum > 0 ORDER BY attnum
"""
# The backend's own code, on a row of the table; the session has called a function of the extension before.
_WITH_PIXELS = """
CREATE OR REPLACE FUNCTION with_pixels(r bytea, fields text, images text) RETURNS bytea LANGUAGE plpython3u AS $$
import json
from mop_backend import row_images
return row_images.with_pixels(r, json.loads(fields), json.loads(images), None)
$$
"""
_TABLES = "skew, skew_columns, skew_packed, skew_packed_summary, skew_packed_validation, skew_packed_validation_summary"


@pytest.fixture(scope="module")
def typed(db):
    db.rows(
        "CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'glad', 'neither');"
        " CREATE DOMAIN positive AS integer CHECK (VALUE > 0);"
        " CREATE DOMAIN word AS text"
    )
    return db


def random_rows(random: Random) -> list[list]:
    """Return the rows of a table with a column of each type; the last ones have values that the first do not have."""
    rows = []
    for row in range(N_TRAINING + N_HELD_OUT):
        values = [None if random.random() < 0.15 else str(value(random)) for value in VALUES.values()]
        rows.append([row, row >= N_TRAINING, "xyz"[row % 3], *values])
    return rows


def make(cursor, rows, scale: str, encode: str, indicator: bool) -> None:
    """Make the table, edit its proposal, pack it, and transform it."""
    columns = ", ".join(f"c{place} {sql_type}" for place, sql_type in enumerate(VALUES))
    cursor.execute(f"DROP TABLE IF EXISTS {_TABLES}, skew_encoded CASCADE")
    cursor.execute(f"CREATE TABLE skew (id integer, held_out boolean, y text, {columns})")
    execute_values(cursor, "INSERT INTO skew VALUES %s", rows, page_size=1000)
    cursor.execute("SELECT madlib_mop.propose_columns('skew', 'skew_columns', 'y', exclude => '{id,held_out}')")
    cursor.execute(
        "UPDATE skew_columns SET scale = CASE WHEN kind = 'number' THEN %s ELSE scale END, indicator = %s"
        " WHERE role = 'input' AND kind IN ('number', 'datetime')",
        [scale, indicator],
    )
    cursor.execute("UPDATE skew_columns SET width = 8 WHERE kind = 'image'")
    width, max_levels = ENCODINGS[encode]
    cursor.execute(
        "UPDATE skew_columns SET encode = %s, width = %s, max_levels = %s, levels = NULL"
        " WHERE role = 'input' AND kind = 'category'",
        [encode, width, max_levels],
    )
    cursor.execute(
        "SELECT madlib_mop.pack_columns('skew', 'skew_packed', 'y', columns => 'skew_columns', seed => 1,"
        " validation => 'held_out'); SELECT madlib_mop.transform('skew_packed', 'skew', 'skew_encoded', keep => 'id')"
    )


def transformed(cursor, preprocessor: Preprocessor) -> dict[int, dict[str, np.ndarray]]:
    """Return the input tensors of each row of the output of transform, by the row's id."""
    inputs = [column for column in output_columns(preprocessor, ["id"], True) if not column.is_target]
    names = ", ".join('"' + column.name.replace('"', '""') + '"' for column in inputs)
    cursor.execute(f"SELECT id, {names.replace('%', '%%')} FROM skew_encoded", ())
    found = {}
    for number, *values in cursor.fetchall():
        tensors: dict[str, list] = {tensor.name: [] for tensor in preprocessor.tensors}
        for column, value in zip(inputs, values, strict=True):
            tensors[column.tensor] += value if column.unit is None else [value]
        found[number] = {t.name: np.array(tensors[t.name], t.dtype) for t in preprocessor.tensors}
    return found


# Nothing is shrunk: an example takes some seconds.
@settings(deadline=None, max_examples=5, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.sampled_from(SCALES), st.sampled_from(list(ENCODINGS)), st.booleans())
def test_a_row_has_the_same_bits_in_packing_in_transform_and_alone(typed, seed, scale, encode, indicator):
    table = random_rows(Random(seed))
    with typed.caller().cursor() as cursor:
        make(cursor, table, scale, encode, indicator)
        cursor.execute("SELECT preprocessor FROM skew_packed_summary")
        (document,) = cursor.fetchone()
        preprocessor = Preprocessor.from_json(document)
        encoded = transformed(cursor, preprocessor)
        cursor.execute(_FIELDS)
        fields = cursor.fetchall()
        images = {tensor.name: list(tensor.shape) for tensor in preprocessor.tensors if tensor.kind == "image"}
        cursor.execute(_WITH_PIXELS)
        cursor.execute(
            "SELECT id, with_pixels(record_send(s), %s, %s) FROM skew s", [json.dumps(fields), json.dumps(images)]
        )
        records = {number: bytes(record) for number, record in cursor.fetchall()}
    assert len(preprocessor.inputs) > 15 and images and encoded.keys() == records.keys() and len(records) == len(table)

    alone = RowEncoder(document, len(preprocessor.tensors), len(preprocessor.targets))
    for number, record in records.items():
        tensors = alone.tensors(record, [len(record)], fields, "UTF8")
        for tensor, array in zip(preprocessor.tensors, tensors, strict=True):
            assert array[0].tobytes() == encoded[number][tensor.name].tobytes(), (number, tensor.name)

    for table_name, is_held_out in (("skew_packed", False), ("skew_packed_validation", True)):
        packed = content(typed, table_name)
        for tensor in preprocessor.tensors:
            chosen = [encoded[n][tensor.name] for n in encoded if (n >= N_TRAINING) == is_held_out]
            rows = sorted(row.tobytes() for row in packed[tensor.name])
            assert rows == sorted(row.tobytes() for row in chosen), tensor.name
