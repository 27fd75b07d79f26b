"""An update waits until no session reads or writes the record, and meanwhile makes none wait."""

import threading
import uuid

import psycopg2
import pytest

from tests.conftest import Database, run
from tests.helpers.dumps import RECORDS
from tests.helpers.faults import wait_for

VERSION = min(file.name.removesuffix(".sql.gz") for file in RECORDS.glob("*.sql.gz"))
WAITS = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s AND wait_event IN ('PgSleep', 'relation')"


@pytest.fixture
def old(cluster):
    database = Database(cluster, f"beside_{uuid.uuid4().hex[:8]}")
    run(cluster.connect(), f'CREATE DATABASE "{database.name}"')
    run(cluster.connect(database.name), f"CREATE EXTENSION madlib_mop VERSION '{VERSION}' CASCADE")
    yield database
    cluster.drop(database.name)


def test_a_transaction_that_has_read_one_table_of_the_record_reads_the_others(old):
    """As a writer of a run does, whose transaction goes from table to table."""
    updating, errors = old.connect(), []

    def update():
        try:
            updating.cursor().execute("ALTER EXTENSION madlib_mop UPDATE")
        except psycopg2.Error as error:
            errors.append(error)

    working = old.connect(autocommit=False)
    thread = threading.Thread(target=update)
    try:
        with working.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM madlib_mop.model")
            thread.start()
            pid = updating.info.backend_pid
            wait_for(lambda: not thread.is_alive() or old.rows(WAITS, [pid]), what="the update", log=lambda: errors)
            cursor.execute("SET lock_timeout = '5s'")
            for table in ("run", "visit", "metric", "segment", "progress"):
                cursor.execute(f"SELECT count(*) FROM madlib_mop.{table}")
        working.commit()
    finally:
        working.close()
        if thread.ident is not None:
            thread.join(60)
    assert not thread.is_alive() and not errors, errors
    assert any("the update waits until no run trains" in notice for notice in updating.notices)
    updating.close()
