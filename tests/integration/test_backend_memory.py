"""Memory of the caller's backend while rows of megabytes pass through it."""

from pathlib import Path

import pytest

ROWS = "CREATE TABLE wide AS SELECT i, repeat(md5(i::text), 8) AS t, i % 2 AS y FROM generate_series(1, 120000) i"
READ = "SELECT madlib_mop.propose_columns('wide', 'proposal', 'y')"
PAGE_BYTES = 4096


def faults_and_pages(pid: int) -> tuple[int, int]:
    """Return the page faults of a process without I/O, and the pages that it has for itself alone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return int(fields[7]), resident - shared


@pytest.fixture(scope="module")
def wide(db):
    db.rows(ROWS)
    return db


def test_memory_is_used_again_during_a_call_and_returned_at_its_end(wide):
    """Each of 15 ranges of blocks has 2 MB and more, in several copies: far more pages than may be had anew."""
    connection = wide.connect()
    pid = connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute(READ)
        cursor.execute("DROP TABLE proposal")
        before, pages = faults_and_pages(pid)
        cursor.execute(READ)
        after, pages_after = faults_and_pages(pid)
    connection.close()
    n_bytes = wide.value("SELECT sum(pg_column_size(t)) FROM wide")
    assert (after - before) * PAGE_BYTES < 1.5 * n_bytes
    assert (pages_after - pages) * PAGE_BYTES < 4 << 20
