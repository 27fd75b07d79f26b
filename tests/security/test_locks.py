"""Promise 7: locks that every role may take keep nobody from his runs, whatever holds them."""

import os

import pytest

from tests.conftest import TEMPLATE, Cluster, Database, run
from tests.faults.lab import wait_for
from tests.security.kit import record_run, user

ALICE, MALLORY = "alice", "mallory"
LOCK = 0x6D6F70  # of a run's driver (madlib_mop/catalog/drivers.py)
HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s AND granted"


@pytest.fixture(scope="module")
def locks(state):
    """A cluster that takes prepared transactions, and analyzes tables at once."""
    settings = ("max_prepared_transactions = 4", "autovacuum_naptime = 1s", "shared_buffers = 32MB")
    cluster = Cluster(f"test-{os.getpid()}-locks", *settings)
    try:
        cluster.start()
        run(cluster.connect(), f"CREATE DATABASE {TEMPLATE}")
        run(cluster.connect(TEMPLATE), "CREATE EXTENSION madlib_mop CASCADE")
        db = Database(cluster, TEMPLATE)
        for role in (ALICE, MALLORY):
            user(db, role)
        yield db
    finally:
        cluster.destroy()


def test_a_prepared_transaction_keeps_nobody_from_his_run(locks):
    """It outlives its session, and the server."""
    run_id = record_run(locks, 51, ALICE)
    session = locks.connect(MALLORY)
    with session.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK, run_id])
        cursor.execute("PREPARE TRANSACTION 'mine'")
    session.close()
    assert locks.value(HELD, [LOCK, run_id]) == 1
    locks.rows("SELECT madlib_mop.drop_run(%s)", [run_id], ALICE)
    assert locks.rows("SELECT 1 FROM madlib_mop.run WHERE run_id = %s", [run_id]) == []
    assert locks.rows("SELECT gid FROM pg_prepared_xacts") == []


def test_prepared_transactions_of_superusers_and_of_other_locks_stay(locks):
    run_id = record_run(locks, 52, ALICE)
    session = locks.connect(MALLORY)
    with session.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK, run_id + 1])
        cursor.execute("PREPARE TRANSACTION 'of another run'")
        locks.rows("SELECT madlib_mop.drop_run(%s)", [run_id], ALICE)
        assert locks.rows("SELECT gid FROM pg_prepared_xacts") == [("of another run",)]
        cursor.execute("ROLLBACK PREPARED 'of another run'")
    session.close()


def test_what_autovacuum_runs_keeps_nobody_from_his_run(locks):
    """ANALYZE computes index expressions; its process is no user's session."""
    run_id = record_run(locks, 53, ALICE)
    session = locks.connect(MALLORY)
    with session.cursor() as cursor:
        cursor.execute("CREATE TABLE mallory.armed (a boolean)")
        cursor.execute(
            "CREATE FUNCTION mallory.hold(n integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$"
            " BEGIN IF EXISTS (SELECT FROM mallory.armed) THEN"
            f" PERFORM pg_catalog.pg_advisory_lock({LOCK}, {run_id}); PERFORM pg_catalog.pg_sleep(600); END IF;"
            " RETURN n; END $$"
        )
        cursor.execute(
            "CREATE TABLE mallory.bait (n integer) WITH (autovacuum_analyze_threshold = 1,"
            " autovacuum_analyze_scale_factor = 0)"
        )
        cursor.execute("CREATE INDEX ON mallory.bait ((mallory.hold(n)))")
        cursor.execute("INSERT INTO mallory.bait SELECT generate_series(1, 100)")
        cursor.execute("INSERT INTO mallory.armed VALUES (true)")
        wait_for(lambda: locks.value(HELD, [LOCK, run_id]), what="autovacuum")
        cursor.execute("DELETE FROM mallory.armed")
    session.close()
    locks.rows("SELECT madlib_mop.drop_run(%s)", [run_id], ALICE)
    assert locks.rows("SELECT 1 FROM madlib_mop.run WHERE run_id = %s", [run_id]) == []
    assert locks.value(HELD, [LOCK, run_id]) == 0
