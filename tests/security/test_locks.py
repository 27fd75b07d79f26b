"""Promise 7: locks that every role may take do not block other users' runs, whatever holds them."""

import os
import threading

import psycopg2
import pytest

from madlib_mop.catalog.drivers import _LOCK, end_holders
from madlib_mop.cli.cluster.layout import claim
from madlib_mop.errors import NotReady
from tests.conftest import TEMPLATE, Cluster, Database, run
from tests.helpers.faults import wait_for
from tests.helpers.security.attacks import SOFTMAX, record_run, refusal, user

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
    """It survives its session and the server's restart."""
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


@pytest.mark.slow
def test_what_autovacuum_runs_keeps_nobody_from_his_run(locks):
    """ANALYZE evaluates index expressions; its process is not a user's session."""
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


def test_who_waits_for_the_lock_does_not_get_it_next(locks):
    run_id = record_run(locks, 54, ALICE)
    sessions = [locks.connect(MALLORY) for _ in range(4)]

    def hold(session):
        with pytest.raises(psycopg2.OperationalError):
            session.cursor().execute("SELECT pg_advisory_lock(%s, %s), pg_sleep(600)", [LOCK, run_id])

    threads = [threading.Thread(target=hold, args=[session], daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    waiting = HELD.replace("granted", "NOT granted")
    wait_for(lambda: locks.value(waiting, [LOCK, run_id]) == 3, what="a queue")
    catalog = locks.connect()
    end_holders(catalog, _LOCK, [LOCK, run_id])  # once: drop_run would try again
    catalog.close()
    assert locks.value(HELD, [LOCK, run_id]) == 0
    locks.rows("SELECT madlib_mop.drop_run(%s)", [run_id], ALICE)
    assert locks.rows("SELECT 1 FROM madlib_mop.run WHERE run_id = %s", [run_id]) == []
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


LOAD = f"SELECT madlib.load_keras_model('{ALICE}.arch', '{SOFTMAX}')"


@pytest.mark.slow
def test_a_lock_by_a_tables_number_keeps_nobody_from_adding_to_it(locks):
    locks.rows(LOAD, role=ALICE)
    number = locks.value(f"SELECT '{ALICE}.arch'::regclass::oid::bigint")
    session = locks.connect(MALLORY)
    with session.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s::bigint << 32 | %s), pg_advisory_lock(%s)", [LOCK, number, number])
        owner = locks.connect(ALICE)
        with owner.cursor() as own:
            own.execute("SET statement_timeout = '60s'")
            own.execute(LOAD)
        owner.close()
    session.close()


@pytest.mark.one_case
@pytest.mark.parametrize("right", ["ALL", "INSERT, SELECT"])
def test_architectures_get_ids_one_at_a_time(locks, right):
    locks.rows("DROP TABLE IF EXISTS alice.arch")
    locks.rows(LOAD, role=ALICE)
    locks.rows(f"GRANT USAGE ON SCHEMA alice TO {MALLORY}; GRANT {right} ON alice.arch TO {MALLORY}")
    owner = locks.connect(ALICE, autocommit=False)
    owner.cursor().execute(LOAD)
    other = threading.Thread(target=lambda: locks.rows(LOAD, role=MALLORY), daemon=True)
    other.start()
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = %s"
    wait_for(lambda: locks.rows(waits, [MALLORY]), what="the second to wait for the first")
    owner.commit()
    owner.close()
    other.join(60)
    assert locks.rows("SELECT model_id FROM alice.arch ORDER BY 1") == [(1,), (2,), (3,)]
    locks.rows(f"REVOKE ALL ON SCHEMA alice FROM {MALLORY}")


def test_no_role_of_a_server_keeps_it_from_being_installed_on(locks):
    session = locks.connect(MALLORY)
    with session.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtext('madlib-mop install --greenplum'))")
    first, second = locks.connect(), locks.connect()
    with (
        claim(first),
        pytest.raises(NotReady, match="another installation on this cluster is in progress"),
        claim(second),
    ):
        pass
    with claim(second):
        pass
    for connection in (session, first, second):
        connection.close()


def test_no_user_locks_a_table_of_the_record_against_others(locks):
    """A role that may delete rows of a table can lock it, and so block its readers."""
    query = "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace IN ({})"
    tables = locks.rows(query.format("'madlib'::regnamespace, 'madlib_mop'::regnamespace"))
    assert ("madlib_mop.viewer",) in tables
    session = locks.connect(MALLORY)
    for (table,) in tables:
        for mode in ("SHARE", "ACCESS EXCLUSIVE"):
            error = refusal(session, f"BEGIN; LOCK TABLE {table} IN {mode} MODE NOWAIT")
            assert error.sqlstate == "42501", table
            session.cursor().execute("ROLLBACK")
    session.close()
