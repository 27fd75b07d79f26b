"""Promises 4 and 8: a driver that loses its own session says so, and leaves nothing behind."""

import psycopg2
import pytest

from tests.helpers.commands import run as run_command
from tests.helpers.faults import (
    BackgroundFit,
    assert_nothing_left,
    assert_whole,
    fit_statement,
    kill_backend,
    login_roles,
    newest_run,
    trainers,
    undisturbed,
    visits,
    wait_for,
    workers,
)
from tests.helpers.invented import invent_run
from tests.helpers.jobs import JobWorker

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 12, 82
ANN = "ann"
DRIVERS = """
SELECT pid FROM pg_stat_activity WHERE application_name = 'madlib_mop driver' AND datname = current_database()
"""
STATE = "SELECT state FROM madlib_mop.run WHERE run_id = %s"


@pytest.fixture(scope="module")
def bench(db):
    undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)
    db.cluster.create_role(ANN)
    db.rows("SELECT madlib_mop.grant_use(%s)", [ANN])
    db.rows(f"GRANT CREATE ON SCHEMA public TO {ANN}")
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ANN}")
    return db


def begin(db, table: str) -> tuple[BackgroundFit, int, set[int]]:
    """Start a run of a role that is no superuser; return it, with its trainers, after some visits."""
    before = newest_run(db)
    call = BackgroundFit(db, fit_statement(table, "mst", N_EPOCHS, "train_2", SEED), role=ANN)
    run_id = wait_for(lambda: newest_run(db) != before and newest_run(db), what="the run's start")
    wait_for(lambda: visits(db, run_id) >= 2 or call.error, what="visits")
    assert call.error is None, call.error
    return call, run_id, set(trainers(db))


def resumes(db, run_id: int) -> None:
    db.rows("SELECT madlib_mop.resume(%s)", [run_id], ANN)
    assert_whole(db, run_id, db.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(db)


def test_a_terminated_session_of_the_driver(bench):
    call, run_id, processes = begin(bench, "t_terminated")
    assert bench.rows(DRIVERS.replace("pid", "pg_terminate_backend(pid)", 1)) == [(True,)]
    call.join()
    assert isinstance(call.error, psycopg2.errors.ObjectNotInPrerequisiteState), call.error
    message, hint = call.error.diag.message_primary, call.error.diag.message_hint
    assert "the driver has lost its session with the server: " in message
    assert f"SELECT madlib_mop.resume({run_id}); continues the run." in hint and "bug" not in str(call.error)
    assert bench.value(STATE, [run_id]) == "interrupted"
    assert_nothing_left(bench, processes)
    resumes(bench, run_id)


@pytest.mark.slow
def test_a_crash_of_the_server(bench):
    """The server recovers, and the driver of the run, which has lost its session and its caller, ends the run."""
    call, run_id, processes = begin(bench, "t_crashed")
    kill_backend(bench, workers(bench)[0])
    call.join()
    wait_for(lambda: bench.value(STATE, [run_id]) == "interrupted", 10, "the end of the run")
    assert_nothing_left(bench, processes)
    resumes(bench, run_id)


def lost_run(db) -> int:
    """Return a run that is recorded as running and has no process, with a login role that it has left."""
    run_id = invent_run(db, owner=ANN, state="running", output="public.lost")
    oid = db.value("SELECT oid FROM pg_database WHERE datname = current_database()")
    db.rows(f"CREATE ROLE madlib_mop_run_{oid}_{run_id}_0123abcd LOGIN IN ROLE {ANN}")
    assert login_roles(db)
    return run_id


def is_ended(db, run_id: int) -> bool:
    detail = db.rows("SELECT state, state_detail FROM madlib_mop.run WHERE run_id = %s", [run_id])
    return detail == [("interrupted", "its driver no longer exists")] and not login_roles(db)


def test_the_doctor_ends_a_lost_run(bench):
    run_id = lost_run(bench)
    found = run_command(bench, "doctor")
    assert f"had lost their driver, and are interrupted now: {run_id}" in found.stdout, found.stdout
    assert is_ended(bench, run_id)
    assert "none has lost its driver" in run_command(bench, "doctor").stdout


def test_a_job_worker_ends_a_lost_run(bench):
    run_id = lost_run(bench)
    with JobWorker(bench):
        wait_for(lambda: is_ended(bench, run_id), what="the end of the lost run")


def test_the_next_cancel_ends_a_lost_run(bench):
    finished = bench.value("SELECT min(run_id) FROM madlib_mop.run WHERE state = 'finished'")
    run_id = lost_run(bench)
    assert bench.value("SELECT madlib_mop.cancel(%s)", [finished]) is False
    assert is_ended(bench, run_id)
