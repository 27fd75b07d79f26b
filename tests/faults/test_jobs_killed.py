"""Workers of jobs: several of them, their deaths and restarts, the server's; a job is done once whatever ends."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from madlib_mop.jobs import working
from madlib_mop.jobs.stopping import StopSignals
from tests.helpers.faults import kill, newest_run, visits, wait_for
from tests.helpers.jobs import (
    ALICE,
    CAROL,
    ROLES,
    RUNNING,
    JobWorker,
    end_of,
    make_marks,
    mark,
    marks,
    state_of,
    submit,
)
from tests.helpers.training import ALIKE, fit, load_architectures, load_digits, pack, select_configurations, weights


@pytest.fixture(scope="module")
def jobs(db):
    """A database with two users and a table for the marks that their jobs leave."""
    make_marks(db)
    return db


def test_without_a_worker_a_warning_says_so(jobs):
    connection = jobs.connect(ALICE)
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.submit('SELECT 1')")
        ((job_id,),) = cursor.fetchall()
    connection.close()
    assert f"job {job_id} waits for a worker, and none is running" in "".join(connection.notices)
    waits = jobs.value("SELECT waits_for FROM madlib_mop.job WHERE job_id = %s", [job_id])
    assert waits == "a worker: none is running (madlib-mop work)"
    assert jobs.value("SELECT madlib_mop.cancel_job(%s)", [job_id], ALICE) is True
    assert state_of(jobs, job_id) == "cancelled"


def test_the_end_of_a_job_starts_those_that_wait_for_it(jobs, monkeypatch):
    """Not the next look at the jobs of other workers, which is seconds away."""
    monkeypatch.setattr(working, "_LOOK_EVERY_S", 3600.0)
    stop = StopSignals()
    worker = threading.Thread(target=working.work, args=(jobs.dsn, 1, lambda line: None, stop))
    first = submit(jobs, mark("made room"), ALICE)
    after, other = submit(jobs, mark("after it"), ALICE, after=first), submit(jobs, mark("in its room"), CAROL)
    worker.start()
    try:
        assert [end_of(jobs, job_id, 30) for job_id in (first, after, other)] == [("finished", None)] * 3
    finally:
        stop.set()
        worker.join()


@pytest.mark.slow
def test_jobs_are_taken_in_turn_by_role_then_by_priority(jobs):
    """With one free slot: the role with fewer running jobs is next; among a role's own jobs, the highest priority."""
    jobs.rows("DELETE FROM madlib_mop.job_record WHERE state NOT IN ('waiting', 'running')")
    order = []
    for name, role, priority in (("a1", ALICE, 0), ("a2", ALICE, 5), ("a3", ALICE, 0), ("c1", CAROL, -5)):
        order.append(submit(jobs, mark(f"turn {name}", 0.3), role, priority=priority))
    positions = jobs.rows("SELECT job_id FROM madlib_mop.job WHERE job_id = ANY (%s) ORDER BY queue_position", [order])
    assert [job_id for (job_id,) in positions if job_id != order[3]] == [order[1], order[0], order[2]]
    with JobWorker(jobs, slots=2):
        for job_id in order:
            assert end_of(jobs, job_id) == ("finished", None)
    started = jobs.rows("SELECT job FROM mark WHERE job LIKE 'turn %%' ORDER BY at")
    assert {started[0][0], started[1][0]} == {"turn a2", "turn c1"}


def test_a_killed_worker_s_jobs_run_once_by_another_one(jobs):
    gate = jobs.connect()
    with gate.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(1)")
    behind_it = "INSERT INTO mark SELECT '{}' FROM pg_advisory_xact_lock_shared(1)"
    with JobWorker(jobs) as first:
        job_id = submit(jobs, behind_it.format("handed over"), ALICE)
        superusers = submit(jobs, behind_it.format("of a superuser"))
        for job in (job_id, superusers):
            wait_for(lambda job=job: jobs.value(RUNNING, [job]), what="its session")
        first.kill()
    with JobWorker(jobs) as second:
        for job in (job_id, superusers):
            again = f"{RUNNING} AND r.attempt = 2"
            wait_for(lambda job=job, again=again: jobs.value(again, [job]), what="its second session")
        gate.close()
        for job in (job_id, superusers):
            assert end_of(jobs, job) == ("finished", None)
    assert (marks(jobs, "handed over"), marks(jobs, "of a superuser")) == (1, 1)
    assert jobs.value("SELECT attempt FROM madlib_mop.job WHERE job_id = %s", [job_id]) == 2
    assert f"job {job_id}: its worker has ended" in second.log
    assert jobs.value(ROLES) == 0


@pytest.mark.slow
def test_a_worker_that_is_stopped_hands_its_jobs_over_at_once(jobs):
    with JobWorker(jobs) as first:
        job_id = submit(jobs, mark("stopped", 30), ALICE)
        wait_for(lambda: jobs.value(RUNNING, [job_id]), what="its session")
        begun = time.monotonic()
        assert first.stop() == 0
    assert time.monotonic() - begun < 10
    assert state_of(jobs, job_id) == "waiting" and not jobs.value(RUNNING, [job_id])
    assert jobs.value("SELECT madlib_mop.cancel_job(%s)", [job_id], ALICE) is True


@pytest.mark.slow
def test_a_job_that_was_committed_is_not_run_again(jobs):
    """The worker dies after the job's commit, before it has written the end."""
    job_id = submit(jobs, mark("committed once"), ALICE)
    gate = jobs.connect(autocommit=False)
    with JobWorker(jobs) as first:
        end_of(jobs, job_id)
    with gate.cursor() as cursor:  # as the worker has left it
        cursor.execute(
            "UPDATE madlib_mop.job_record SET state = 'running', attempt = 1, worker_pid = 1, worker_start = now(),"
            " session_pid = 1 WHERE job_id = %s", [job_id],
        )  # fmt: skip
        cursor.execute("INSERT INTO madlib_mop.job_done VALUES (%s, 1)", [job_id])
        gate.commit()
    gate.close()
    with JobWorker(jobs):
        assert end_of(jobs, job_id) == ("finished", None)
    assert marks(jobs, "committed once") == 1 and first.process.returncode == 0


@pytest.mark.slow
def test_a_run_is_a_job_and_goes_on_after_its_worker_was_killed(jobs):
    load_digits(jobs)
    load_architectures(jobs)
    pack(jobs, 2, suffix="_2")
    select_configurations(jobs, "mst", ALIKE[:2])
    for table in ("train_2", "train_2_summary", "arch", "mst", "mst_summary"):
        jobs.rows(f"GRANT SELECT ON {table} TO {ALICE}")
    expected = fit(jobs, f"{ALICE}.expected", "mst", 60, source_table="train_2", seed=3, role=ALICE)
    before = newest_run(jobs)
    arguments = {
        "source_table": "train_2", "model_output_table": f"{ALICE}.by_job", "model_selection_table": "mst",
        "num_iterations": 60, "seed": 3,
    }  # fmt: skip
    job_id = submit(jobs, "madlib_keras_fit_multiple_model", ALICE, arguments=json.dumps(arguments))
    with JobWorker(jobs) as first:
        wait_for(lambda: newest_run(jobs) != before and visits(jobs, newest_run(jobs)) >= 2, what="visits")
        first.kill()
    run_id = newest_run(jobs)
    assert state_of(jobs, job_id) == "running", "the run ended before the worker was killed"
    with JobWorker(jobs):
        assert end_of(jobs, job_id, 120) == ("finished", None)
    assert jobs.value("SELECT run_id FROM madlib_mop.job WHERE job_id = %s", [job_id]) == run_id == newest_run(jobs)
    assert jobs.value("SELECT attempt FROM madlib_mop.job WHERE job_id = %s", [job_id]) == 2
    assert weights(jobs, f"{ALICE}.by_job") == weights(jobs, f"{ALICE}.expected")
    assert expected.run_id != run_id


@pytest.mark.slow
def test_jobs_survive_a_restart_of_the_server(jobs):
    job_id = submit(jobs, mark("restarted", 2), ALICE)
    with JobWorker(jobs) as worker:
        wait_for(lambda: jobs.value(RUNNING, [job_id]), what="its session")
        jobs.cluster.control("restart")
        assert end_of(jobs, job_id) == ("finished", None)
        assert worker.process.poll() is None
    assert marks(jobs, "restarted") == 1
    assert "the session of this worker was lost" in worker.log


def test_a_worker_needs_a_superuser(jobs):
    done = subprocess.run(
        [sys.executable, "-m", "madlib_mop.cli", "work", "--dsn", jobs.dsn_of(ALICE)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "must be a superuser's. Received role alice_jobs" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_jobs_run_once_each_while_workers_are_killed(jobs):
    def submit_some(session: int) -> list[int]:
        connection = jobs.connect((ALICE, CAROL)[session % 2])
        with connection.cursor() as cursor:
            for number in range(125):
                cursor.execute("SELECT madlib_mop.submit(%s)", [mark(f"many {session} {number}")])
        connection.close()

    left = "SELECT count(*) FROM madlib_mop.job WHERE state IN ('waiting', 'running')"
    n_killed = 0
    with ThreadPoolExecutor(8) as pool:
        submitted = [pool.submit(submit_some, session) for session in range(8)]
        workers = [JobWorker(jobs), JobWorker(jobs)]
        deadline = time.monotonic() + 800
        while not all(done.done() for done in submitted) or jobs.value(left):
            assert time.monotonic() < deadline, f"{jobs.value(left)} jobs have not ended"
            time.sleep(4)
            kill(workers[n_killed % 2].pid)
            workers[n_killed % 2].process.wait()
            workers[n_killed % 2] = JobWorker(jobs)
            n_killed += 1
        for done in submitted:
            done.result()
    for worker in workers:
        worker.stop()
    found = jobs.rows("SELECT job, count(*) FROM mark WHERE job LIKE 'many %%' GROUP BY job")
    assert len(found) == 1000 and {count for _, count in found} == {1} and n_killed >= 3
    states = "SELECT DISTINCT state FROM madlib_mop.job_record WHERE statement_id IN (SELECT statement_id FROM"
    assert jobs.rows(f"{states} madlib_mop.job_statement WHERE statement LIKE '%%many %%')") == [("finished",)]
    assert jobs.value(ROLES) == 0


