"""Promise 7: only roles that may write a run's output tables can reserve their names, and only while they run."""

import os

import pytest

from tests.conftest import TEMPLATE, Cluster, Database, run
from tests.helpers.security.attacks import SOFTMAX, record_run, recorded_plan, refusal, refusal_of, user
from tests.helpers.training import load_digits, script

OWNER, STRANGER = "owner_of_names", "stranger_to_names"
FIT = f"SELECT madlib.madlib_keras_fit_multiple_model('train', '{OWNER}.{{}}', '{OWNER}.mst', 1, seed => 1)"
LOCKS = "SELECT classid::bigint, objid::bigint, objsubid FROM pg_locks WHERE locktype = 'advisory' AND granted"


@pytest.fixture(scope="module")
def bench(state):
    """A cluster with prepared transactions; an owner who can train, and a stranger who may use the extension."""
    cluster = Cluster(f"test-{os.getpid()}-names", "max_prepared_transactions = 4", "shared_buffers = 32MB")
    try:
        cluster.start()
        run(cluster.connect(), f"CREATE DATABASE {TEMPLATE}")
        run(cluster.connect(TEMPLATE), "CREATE EXTENSION madlib_mop CASCADE")
        db = Database(cluster, TEMPLATE)
        load_digits(db, 80, 20)
        script(
            db,
            "SET madlib_mop.segments = 1",
            "SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', 20, 16.0, seed := 5)",
        )
        for role in (OWNER, STRANGER):
            user(db, role)
        db.rows(f"GRANT SELECT ON train, train_summary TO {OWNER}, {STRANGER}")
        script(
            db,
            f"SELECT madlib.load_keras_model('{OWNER}.arch', '{SOFTMAX}')",
            f"SELECT madlib.load_model_selection_table('{OWNER}.arch', '{OWNER}.mst', '{{1}}',"
            " ARRAY[$$loss='categorical_crossentropy', optimizer='SGD'$$]::varchar[],"
            " '{\"batch_size=16, epochs=1\"}'::varchar[])",
            role=OWNER,
        )
        yield db
    finally:
        cluster.destroy()


@pytest.mark.slow
def test_who_holds_every_lock_that_a_run_showed_does_not_stop_the_next_one(bench):
    """Every role can take any advisory lock, and pg_locks shows those of others."""
    owner = bench.connect(OWNER, autocommit=False)
    with owner.cursor() as cursor:
        cursor.execute(FIT.format("watched"))
        shown = bench.rows(LOCKS)
    owner.rollback()
    owner.close()
    stranger = bench.connect(STRANGER)
    with stranger.cursor() as cursor:
        for high, low, n_keys in shown:
            if n_keys == 1:
                cursor.execute("SELECT pg_advisory_lock((%s::bigint << 32) | %s)", [high, low])
            else:
                cursor.execute("SELECT pg_advisory_lock(%s::integer, %s::integer)", [high, low])
    bench.rows(FIT.format("watched"), role=OWNER)
    stranger.close()


def test_who_may_make_no_table_there_reserves_no_name(bench):
    """For example, a role lost the right after it started a run; its transaction then reserves no name."""
    record_run(bench, 900, STRANGER, plan=recorded_plan(OWNER, "strange", "train"))
    stranger = bench.connect(STRANGER, autocommit=False)
    with stranger.cursor() as cursor:
        cursor.execute("SAVEPOINT before")
        error = refusal(stranger, "SELECT madlib_mop.resume(900)")
        assert (error.sqlstate, f"may not create tables in schema {OWNER}" in error.message) == ("42501", True), error
        cursor.execute("ROLLBACK TO before")
        bench.rows(FIT.format("strange"), role=OWNER)
    stranger.close()


@pytest.mark.slow
def test_a_prepared_transaction_keeps_its_names_and_a_crash_frees_the_others(bench):
    open_one, prepared = bench.connect(OWNER, autocommit=False), bench.connect(OWNER)
    with prepared.cursor() as cursor, open_one.cursor() as cursor_of_open:
        cursor.execute("BEGIN")
        cursor.execute(FIT.format("prepared"))
        cursor.execute("PREPARE TRANSACTION 'of the owner'")
        cursor_of_open.execute(FIT.format("open"))
        for name in ("prepared", "open"):
            error = refusal_of(bench, FIT.format(name), role=OWNER)
            assert f"table {OWNER}.{name} is being written by another session's call" in error.message, error
    bench.cluster.stop_immediate()
    bench.cluster.start()
    bench.rows(FIT.format("open"), role=OWNER)
    assert "is being written" in refusal_of(bench, FIT.format("prepared"), role=OWNER).message
    owner = bench.connect(OWNER)
    with owner.cursor() as cursor:
        cursor.execute("ROLLBACK PREPARED 'of the owner'")
        cursor.execute(FIT.format("prepared"))
    owner.close()
