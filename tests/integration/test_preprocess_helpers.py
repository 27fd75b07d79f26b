"""The helpers that turn arrays into bytes and back, which users' scripts call."""

import numpy as np
import psycopg2
import pytest


@pytest.mark.parametrize(
    ("array", "numbers", "dtype"),
    [
        ("ARRAY[1.5, -2, 0.1]::real[]", [1.5, -2, 0.1], np.float32),
        ("ARRAY[[1, 2], [3, 4]]::real[]", [1, 2, 3, 4], np.float32),
        ("'[0:1]={7,8}'::real[]", [7, 8], np.float32),
        ("ARRAY['NaN', 'Infinity']::real[]", [np.nan, np.inf], np.float32),
        ("ARRAY[-32768, 32767]::smallint[]", [-32768, 32767], np.int16),
        ("'{}'::real[]", [], np.float32),
        ("'{}'::smallint[]", [], np.int16),
        ("array_replace(ARRAY[1, NULL, 3]::real[], NULL, 2)", [1, 2, 3], np.float32),
    ],
)
def test_an_array_becomes_the_bytes_of_its_numbers_and_back(db, array, numbers, dtype):
    name = "real" if dtype == np.float32 else "smallint"
    ((data, back),) = db.rows(
        f"SELECT b, madlib.convert_bytea_to_{name}_array(b) FROM madlib.convert_array_to_bytea({array}) b"
    )
    assert bytes(data) == np.array(numbers, dtype).tobytes()
    assert np.array_equal(np.array(back, dtype), np.array(numbers, dtype), equal_nan=dtype == np.float32)


def test_an_idle_null_bitmap_is_not_taken_for_numbers(db):
    value = db.value(
        "WITH w AS (SELECT ARRAY[NULL, 2, 3]::real[] AS a) SELECT madlib.convert_array_to_bytea(a[2:3]) FROM w"
    )
    assert np.frombuffer(value, np.float32).tolist() == [2, 3]
    db.rows("CREATE TABLE mended (a real[]); INSERT INTO mended VALUES (ARRAY[1, NULL, 3])")
    db.rows("UPDATE mended SET a[2] = 2")
    value = db.value("SELECT madlib.convert_array_to_bytea(a) FROM mended")
    assert np.frombuffer(value, np.float32).tolist() == [1, 2, 3]


def test_null_gives_null(db):
    assert db.rows(
        "SELECT madlib.convert_array_to_bytea(NULL::real[]), madlib.convert_bytea_to_real_array(NULL),"
        " madlib.convert_bytea_to_smallint_array(NULL)"
    ) == [(None, None, None)]


@pytest.mark.parametrize(
    ("call", "sqlstate", "message"),
    [
        (
            "madlib.convert_array_to_bytea(ARRAY[1, NULL]::real[])",
            "22004",
            "convert_array_to_bytea: the array contains a NULL element",
        ),
        (
            r"madlib.convert_bytea_to_real_array('\x010203')",
            "22023",
            "convert_bytea_to_real_array: the length must be a multiple of 4. Received: 3 bytes",
        ),
        (
            r"madlib.convert_bytea_to_smallint_array('\x010203')",
            "22023",
            "convert_bytea_to_smallint_array: the length must be even. Received: 3 bytes",
        ),
    ],
)
def test_what_has_no_bytes_is_refused(db, call, sqlstate, message):
    with pytest.raises(psycopg2.Error) as caught:
        db.rows(f"SELECT {call}")
    assert (caught.value.pgcode, caught.value.diag.message_primary) == (sqlstate, message)
    assert "Traceback" not in str(caught.value)
