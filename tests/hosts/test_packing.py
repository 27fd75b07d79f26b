"""Packing to hosts: rows lie where the segments are, the same rows as on one server; nothing stays that nobody needs."""

import pytest

from tests.hosts_kit import ANALYST
from tests.workbench import load_digits, pack, script


@pytest.fixture(scope="module")
def packed(hosts):
    """The digits on four segments at alpha, beta, gamma, alpha."""
    load_digits(hosts.db)
    pack(hosts.db, 4)
    return hosts


def buffers(db, table):
    """Give every row of a packed table."""
    return [
        (k, bytes(x), bytes(y), xs, ys, b)
        for k, x, y, xs, ys, b in db.rows(f"SELECT * FROM {table} ORDER BY buffer_id")
    ]


def test_rows_are_those_of_one_server(packed):
    """Which rows a segment gets does not depend on where it is."""
    db = packed.db
    script(
        db,
        "SET madlib_mop.hosts = 'here'",
        "SET madlib_mop.segments = 4",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'alone', 'y', 'x', 37, 16.0, seed := 5)",
    )
    assert buffers(db, "train") == buffers(db, "alone")
    kinds = "SELECT relname, relkind FROM pg_class WHERE relname ~ '^(train|alone)_seg' ORDER BY 1"
    assert {kind for name, kind in db.rows(kinds) if name.startswith("train")} == {"f"}
    assert {kind for name, kind in db.rows(kinds) if name.startswith("alone")} == {"r"}
