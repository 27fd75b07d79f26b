"""Promise 6: a cancel works at any moment of a run; cancelling a run that does not train is an error."""

import os
import signal
from contextlib import ExitStack

import psycopg2
import pytest

from tests.helpers.faults import (
    BackgroundFit,
    assert_nothing_left,
    assert_whole,
    fit_statement,
    kill,
    undisturbed,
    wait_for,
)
from tests.helpers.gates import BEFORE_LISTENING, FIRST_READ, METRICS, Gate, begun, gate

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 2, 79
SESSIONS = "SELECT 1 FROM pg_stat_activity WHERE application_name ^@ 'madlib_mop' AND datname = current_database()"
MODELS_TRAINED = "SELECT 1 FROM madlib_mop.model WHERE run_id = %s AND state = 'trained'"


@pytest.fixture(scope="module")
def bench(db):
    return undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)


def statement(table: str) -> str:
    return fit_statement(table, "mst", N_EPOCHS, "train_2", SEED)


def cancelled(db, call: BackgroundFit, run_id: int) -> None:
    """Assert that a call ended because it was cancelled, and that its resumed run has the usual result."""
    call.join()
    assert isinstance(call.error, psycopg2.errors.QueryCanceled), call.error
    assert "was cancelled by" in str(call.error)
    assert state_of(db, run_id) == "cancelled"
    assert_nothing_left(db)
    db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert_whole(db, run_id, db.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert state_of(db, run_id) == "finished"


def state_of(db, run_id: int) -> str:
    return db.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id])


def cancel(db, run_id: int) -> bool:
    return db.value("SELECT madlib_mop.cancel(%s)", [run_id])


def ask_to_cancel(db, run_id: int) -> BackgroundFit:
    """Cancel a run whose driver is held at a gate; the call returns when the run has stopped, after the gate opens."""
    asked = BackgroundFit(db, "SELECT madlib_mop.cancel(%s)", [run_id])
    wait_for(lambda: db.value("SELECT cancelled_by FROM madlib_mop.run WHERE run_id = %s", [run_id]), what="the cancel")
    return asked


def test_before_the_run_is_marked_as_begun(bench):
    with begun(bench, statement("t_first")) as (call, run_id):
        asked = ask_to_cancel(bench, run_id)
    asked.succeed()
    cancelled(bench, call, run_id)


@pytest.mark.one_case
@pytest.mark.parametrize("moment", [BEFORE_LISTENING, METRICS])
def test_around_the_beginning_to_listen(bench, moment):
    with ExitStack() as until_cancelled:
        with begun(bench, statement(f"t_{moment.rpartition('.')[2]}")) as (call, run_id):
            held = until_cancelled.enter_context(gate(bench, moment))
        held.wait_for_driver()
        asked = ask_to_cancel(bench, run_id)
    asked.succeed()
    cancelled(bench, call, run_id)


@pytest.mark.slow
def test_after_the_last_visit(bench):
    """The driver marks the run as trained by updating its row; here the cancel is earlier in that row's lock queue."""
    with begun(bench, statement("t_last")) as (call, run_id):
        metrics = Gate(bench, f"LOCK TABLE {METRICS} IN SHARE MODE", METRICS)
    metrics.wait_for_driver()  # now it has written its part of the run's row
    row = Gate(bench, f"SELECT 1 FROM madlib_mop.run WHERE run_id = {run_id} FOR NO KEY UPDATE")
    asked = BackgroundFit(bench, "SELECT madlib_mop.cancel(%s)", [run_id])
    row.wait_for_driver(2)
    metrics.open()
    wait_for(lambda: len(bench.rows(MODELS_TRAINED, [run_id])) == N_MODELS, what="the last visits")
    row.wait_for_driver(2)
    row.open()
    asked.succeed()
    cancelled(bench, call, run_id)


def newest_run_of(db, table: str) -> int | None:
    return db.value("SELECT max(run_id) FROM madlib_mop.run WHERE model_output_table = %s", [f"public.{table}"])


@pytest.mark.slow
def test_while_a_resume_begins(bench):
    """The earlier cancel must not stop the resumed run; a second one, before it is marked as begun, must."""
    with begun(bench, statement("t_resumed")) as (call, run_id):
        asked = ask_to_cancel(bench, run_id)
    asked.succeed()
    call.join()
    with gate(bench, FIRST_READ) as held:
        call = BackgroundFit(bench, "SELECT madlib_mop.resume(%s)", [run_id])
        held.wait_for_driver()
        assert state_of(bench, run_id) == "cancelled"
        assert cancel(bench, run_id)
    cancelled(bench, call, run_id)


@pytest.mark.slow
def test_while_a_killed_driver_is_not_replaced_yet(bench):
    with begun(bench, statement("t_killed")) as (call, run_id):
        pass
    pid = wait_for(lambda: bench.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run_id]))
    os.kill(call.pid, signal.SIGSTOP)
    try:
        assert kill(pid)
        wait_for(lambda: not bench.rows(SESSIONS), what="the end of the driver's sessions")
        assert cancel(bench, run_id)
    finally:
        os.kill(call.pid, signal.SIGCONT)
    cancelled(bench, call, run_id)


def test_a_run_that_does_not_train_says_so(bench):
    run_id = newest_run_of(bench, "undisturbed")
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.cancel(%s)", [run_id])
        assert cursor.fetchone() == (False,)
    assert f"run {run_id} is not training: it is finished" in "".join(connection.notices)
    connection.close()
    assert state_of(bench, run_id) == "finished"
