"""Packing ordinary tables is all or nothing: a killed process leaves no table, or the whole one, with the same bits.

The kills come at random times within the time that packing takes without them.
"""

import contextlib
import hashlib
import random
import time
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.columns import content
from tests.helpers.faults import BackgroundFit, alive, children, kill, kill_backend, wait_for
from tests.helpers.images import encoded

#: Rows of two ranges of blocks and more, which are read and written in several parts.
ROWS = """
CREATE TABLE measured AS
SELECT i AS id, i * 7919 % 10007 / 7.0 AS x1, CASE WHEN i % 9 > 0 THEN i * 31 % 997 END AS x2,
       'place ' || i * 13 % 800 AS place, date '2020-01-01' + i * 17 % 1000 AS day, repeat('x', 40) || i % 3 AS note,
       CASE WHEN i * 7 % 50 + i % 3 * 9 > 35 THEN 'yes' ELSE 'no' END AS y
FROM generate_series(1, 60000) AS i
"""
PACK = "SELECT madlib_mop.pack_columns('{}', 'packed', '{}', validation => 0.2, seed => 1)"
OUTPUT = ("packed", "packed_summary", "packed_validation", "packed_validation_summary")
DRIVER = "madlib_mop.driver"


def tables(db) -> list[str]:
    return [name for (name,) in db.rows("SELECT relname FROM pg_class WHERE relname LIKE 'packed%' AND relkind <> 'i'")]


def drop(db) -> None:
    db.rows(f"DROP TABLE IF EXISTS {', '.join(OUTPUT)}")


def children_of(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started; the driver of packing starts decoders only."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def digest(db) -> str:
    """Return a digest of the packed tables' values and summaries."""
    found = hashlib.sha256()
    for table in ("packed", "packed_validation"):
        for name, array in content(db, table).items():
            found.update(name.encode() + array.tobytes())
        found.update(repr(db.rows(f"SELECT preprocessor FROM {table}_summary")).encode())
    return found.hexdigest()


@pytest.fixture(scope="module")
def measured(db):
    """The table, what packing makes of it, and how long that takes."""
    db.rows(ROWS)
    begun = time.monotonic()
    db.rows(PACK.format("measured", "y"))
    db.seconds, db.expected = time.monotonic() - begun, digest(db)
    drop(db)
    return db


@pytest.mark.one_case
@pytest.mark.parametrize("share", [0.3, pytest.param(0.6, marks=pytest.mark.slow), 0.9])
@pytest.mark.parametrize("victim", ["the driver", "the caller's backend", "the statement"])
def test_a_killed_packing_leaves_all_or_nothing(measured, victim, share):
    db = measured
    call = BackgroundFit(db, PACK.format("measured", "y"))
    (driver,) = wait_for(lambda: children(call.pid, DRIVER) or not call.running, what="the driver")
    time.sleep(share * db.seconds * random.Random(f"{victim} {share}").uniform(0.7, 1.0))
    if victim == "the driver":
        kill(driver)
    elif victim == "the caller's backend":
        kill_backend(db, call.pid)
    else:
        db.rows("SELECT pg_cancel_backend(%s)", [call.pid])
    call.join()
    if call.error is None:  # it was faster than the kill
        assert digest(db) == db.expected
    else:
        assert "Traceback" not in str(call.error) and "internal error" not in str(call.error)
        assert tables(db) == []
    wait_for(lambda: not alive(driver), 2, "the driver's end")
    drop(db)
    db.rows(PACK.format("measured", "y"))
    assert digest(db) == db.expected
    drop(db)


def test_a_killed_driver_is_one_clear_error(measured):
    call = BackgroundFit(measured, PACK.format("measured", "y"))
    (driver,) = wait_for(lambda: children(call.pid, DRIVER), what="the driver")
    kill(driver)
    call.join()
    assert "the driver process ended with status -9" in str(call.error) and call.error.pgcode == "58000"
    assert tables(measured) == []


@pytest.mark.slow
def test_a_killed_decoder_is_started_again_for_the_same_bits(db):
    pixels = np.random.default_rng(5).integers(0, 256, (400, 48, 48, 3), np.uint8)
    db.rows("CREATE TABLE photos (id integer, photo bytea, kind text)")
    for number, image in enumerate(pixels):
        db.rows("INSERT INTO photos VALUES (%s, %s, %s)", [number, encoded(image), "ab"[number % 2]])
    db.rows(PACK.format("photos", "kind"))
    expected = digest(db)
    drop(db)
    call, n_killed = BackgroundFit(db, PACK.format("photos", "kind")), 0
    (driver,) = wait_for(lambda: children(call.pid, DRIVER), what="the driver")
    while call.running and n_killed < 3:
        n_killed += sum(kill(pid) for pid in children_of(driver))
        time.sleep(0.01)
    call.join()
    if call.error is not None:  # a kill met an image that was decoded alone
        assert "crashed the decoder" in str(call.error) and tables(db) == []
    else:
        assert digest(db) == expected
    assert n_killed
    drop(db)
