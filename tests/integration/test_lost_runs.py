"""Runs that are recorded as at work but have no process: who watches or follows one is told so, and does not wait."""

from contextlib import closing, contextmanager

import psycopg
import pytest

from madlib_mop.catalog.facts.now import read_status
from madlib_mop.catalog.facts.reader import one_snapshot
from madlib_mop.catalog.facts.run import read_run
from madlib_mop.catalog.facts.tracked import read_tracked
from madlib_mop.catalog.rows.states import LOCK_CLASS
from madlib_mop.reports.page import page
from tests.helpers.commands import run, run_here
from tests.helpers.invented import invent_run


@contextmanager
def session_of(db, lock: int | None = None):
    """Lend the number of a session's process; it may hold the lock of a run's driver."""
    with closing(db.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid(), pg_try_advisory_lock(%s, coalesce(%s, -1))", [LOCK_CLASS, lock])
        yield cursor.fetchone()[0]


@pytest.fixture(params=["running", "trained"])
def lost(db, request):
    """A run whose session has ended."""
    run_id = invent_run(db, owner=db.cluster.superuser, state=request.param, output=f"public.{request.param}")
    with session_of(db) as pid:
        db.rows("UPDATE madlib_mop.run SET caller_pid = %s, state_detail = NULL WHERE run_id = %s", [pid, run_id])
        assert not read_status(db.rows, run_id).has_ended
    return run_id, request.param


def test_who_watches_it_is_told(db, lost):
    run_id, state = lost
    watched = run_here(db, "watch", str(run_id))
    assert (watched.returncode, watched.stderr) == (1, "")
    assert f"run {run_id} {state} (its session has ended): " in watched.stdout
    assert f"run {run_id} {state}: no process trains it: SELECT madlib_mop.resume({run_id});" in watched.stdout


def test_who_reads_its_report_is_told(db, lost):
    run_id, state = lost
    task = "UPDATE madlib_mop.segment SET task = %s, task_since = now() WHERE run_id = %s AND data_set = 'training'"
    db.rows(task, ['{"kind": "visit", "mst_keys": [1], "epoch": 1}', run_id])
    with closing(psycopg.connect(db.dsn)) as connection, one_snapshot(connection) as reader:
        facts, tracked = read_run(reader, run_id), read_tracked(reader, run_id)
    assert facts.is_lost and facts.status.is_lost and tracked.is_lost
    assert {segment.task for segment in facts.data.segments} == {None}, "nobody has cleared it"
    for text in (db.value("SELECT madlib_mop.report(%s)", [run_id]), page(facts)):
        assert f"{state} (its session has ended)" in text
        assert f"no process trains it: SELECT madlib_mop.resume({run_id}); continues it" in text
    with session_of(db, lock=run_id), closing(psycopg.connect(db.dsn)) as one, one_snapshot(one) as reader:
        assert not read_run(reader, run_id).is_lost


@pytest.mark.slow
def test_who_follows_it_is_told(db, lost, tmp_path):
    run_id, state = lost
    followed = run(db, "tensorboard", str(run_id), str(tmp_path), "--follow")
    assert followed.returncode == 1 and followed.stdout.strip() == str(tmp_path / f"run_{run_id}")
    assert followed.stderr == (
        f"madlib-mop: run {run_id} is {state}, but no process trains it\n"
        f"  SELECT madlib_mop.resume({run_id}); continues it.\n"
    )
    assert run(db, "tensorboard", str(run_id), str(tmp_path)).returncode == 0


def test_it_is_not_lost_while_something_can_continue_it(db, lost):
    run_id, _ = lost
    assert read_status(db.rows, run_id).has_ended
    with session_of(db, lock=run_id):
        assert not read_status(db.rows, run_id).has_ended, "a driver, such as that of resume"
    job_id = db.value("SELECT madlib_mop.submit('SELECT 1', at => '2999-01-01')")
    db.rows("UPDATE madlib_mop.job_record SET run_id = %s WHERE job_id = %s", [run_id, job_id])
    assert not read_status(db.rows, run_id).has_ended, "the job resumes it"
    db.rows("DELETE FROM madlib_mop.job_record")
    db.rows("UPDATE madlib_mop.run SET caller_pid = NULL WHERE run_id = %s", [run_id])
    assert not read_status(db.rows, run_id).has_ended, "an older version has not written who called"
