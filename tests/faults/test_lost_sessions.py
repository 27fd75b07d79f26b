"""Promises 4 and 8: a driver that loses its own session says so, and leaves nothing behind."""

import os
import signal

import psycopg2
import pytest

from madlib_mop.cli.doctor.context import CheckContext, Probe
from madlib_mop.driver.running.segment_sessions import _end_backends
from madlib_mop.engines.sessions.access import writer_name
from madlib_mop.engines.sessions.ending import end_lost_run
from tests.helpers.commands import run_here
from tests.helpers.direct import record_on
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


def test_a_session_that_a_crash_has_ended_is_lost_after_its_first_error(bench):
    """libpq has then seen only that it could not write: what the server has sent last is still to be read."""
    connection = bench.connect()
    record = record_on(connection)
    victim = bench.connect()
    assert not record.is_lost
    kill_backend(bench, victim.info.backend_pid)
    with pytest.raises(psycopg2.Error):
        record.execute("SELECT 1")
    assert record.is_lost


def test_a_lost_writer_counts_as_ended_when_its_process_has_ended(bench):
    """A process that hangs ends when it continues; if it was committing, its visit is committed then."""
    connection, writer = bench.connect(), bench.connect()
    record, pid = record_on(connection), writer.info.backend_pid
    writer.cursor().execute("SELECT set_config('application_name', %s, false)", [writer_name(7)])
    os.kill(pid, signal.SIGSTOP)
    try:
        assert _end_backends(record, 7, [pid], 50) == [pid]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert _end_backends(record, 7, [pid], 5000) == [] == _end_backends(record, 7, [], 0)


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


def test_the_doctor_ends_a_lost_run(bench, monkeypatch):
    """Without what it asks a process of the server, which imports TensorFlow; test_install.py has all of it."""
    monkeypatch.setattr(CheckContext, "probe", Probe(refusal="skipped"))
    run_id = lost_run(bench)
    found = run_here(bench, "doctor")
    assert f"had lost their driver, and are interrupted now: {run_id}" in found.stdout, found.stdout
    assert is_ended(bench, run_id)
    assert "none has lost its driver" in run_here(bench, "doctor").stdout


def test_a_job_worker_ends_a_lost_run(bench):
    run_id = lost_run(bench)
    with JobWorker(bench):
        wait_for(lambda: is_ended(bench, run_id), what="the end of the lost run")


def test_a_command_ends_a_lost_run(bench):
    plan = "SELECT plan FROM madlib_mop.run WHERE state = 'finished' ORDER BY run_id LIMIT 1"
    run_id = lost_run(bench)
    bench.rows(f"UPDATE madlib_mop.run SET plan = ({plan}) WHERE run_id = %s", [run_id])
    bench.rows("SELECT madlib_mop.pin_model(%s, 1)", [run_id])
    assert is_ended(bench, run_id)


def test_what_the_next_driver_of_a_run_has_is_left_alone(bench, monkeypatch):
    """It can begin as soon as the lock is released, while the sessions of the dead driver are ended."""
    run_id = lost_run(bench)
    (old,) = login_roles(bench)
    role = old[0].replace("0123abcd", "89abcdef")
    old_writer, new_writer = bench.connect(), bench.connect()
    session = bench.connect()
    record = record_on(session)
    release = record.unlock_run

    def begin_anew(number: int) -> None:
        release(number)
        bench.rows(f"CREATE ROLE {role} LOGIN IN ROLE {ANN}")
        be_writer(new_writer)

    def be_writer(connection) -> None:
        connection.cursor().execute("SELECT set_config('application_name', %s, false)", [writer_name(run_id)])

    be_writer(old_writer)
    monkeypatch.setattr(record, "unlock_run", begin_anew)
    try:
        assert end_lost_run(record, run_id)
        with pytest.raises(psycopg2.OperationalError):
            old_writer.cursor().execute("SELECT 1")
        new_writer.cursor().execute("SELECT 1")
        assert login_roles(bench) == [(role,)]
    finally:
        bench.rows(f"DROP ROLE IF EXISTS {role}")
        for connection in (old_writer, new_writer, session):
            connection.close()


def test_the_next_cancel_ends_a_lost_run(bench):
    finished = bench.value("SELECT min(run_id) FROM madlib_mop.run WHERE state = 'finished'")
    run_id = lost_run(bench)
    assert bench.value("SELECT madlib_mop.cancel(%s)", [finished]) is False
    assert is_ended(bench, run_id)
