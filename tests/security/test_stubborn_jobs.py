"""A job that ignores its cancel, floods the queue or raises huge errors keeps no other job waiting."""

import pytest

from madlib_mop.errors import NotReady
from madlib_mop.jobs.stopping import StopSignals
from madlib_mop.jobs.working import work
from tests.conftest import Database
from tests.helpers.faults import wait_for
from tests.helpers.jobs import RUNNING, JobWorker, end_of, submit
from tests.helpers.security.attacks import user

ALICE, MALLORY = "alice_waits", "mallory_floods"
# PL/pgSQL can catch what pg_cancel_backend() and statement_timeout raise.
STUBBORN = (
    "DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(3600); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$"
)


@pytest.fixture(scope="module")
def jobs(db):
    for role in (ALICE, MALLORY):
        user(db, role)
    with JobWorker(db) as worker:
        db.worker = worker
        yield db


def by_hand(jobs, columns: str, values: str, settings: str = "'{}'") -> int:
    """Insert jobs of Mallory's without submit(); return the number of one."""
    return jobs.value(
        "WITH s AS (INSERT INTO madlib_mop.job_statement (statement, settings)"
        f" VALUES ('SELECT 1', {settings}) RETURNING statement_id), r AS ("
        f" INSERT INTO madlib_mop.job_record (statement_id, {columns}) SELECT statement_id, {values} s"
        " RETURNING job_id) SELECT max(job_id) FROM r, pg_notify('madlib_mop_jobs', '')", role=MALLORY,
    )  # fmt: skip


def peak_mb(jobs) -> int:
    """Return the most memory that the worker has used."""
    with open(f"/proc/{jobs.worker.pid}/status") as file:
        (line,) = [line for line in file if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


@pytest.mark.slow
def test_a_job_that_catches_its_cancel_is_cancelled(jobs):
    job_id = submit(jobs, STUBBORN, MALLORY)
    wait_for(lambda: jobs.value(RUNNING, [job_id]), what="its session")
    assert jobs.value("SELECT madlib_mop.cancel_job(%s)", [job_id], MALLORY) is True
    assert end_of(jobs, job_id, 40) == ("cancelled", f"it was cancelled by {MALLORY}")


@pytest.mark.slow
def test_a_job_that_catches_its_time_limit_is_ended(jobs):
    job_id = submit(jobs, STUBBORN, MALLORY, time_limit="1 second")
    assert end_of(jobs, job_id, 40) == ("failed", "it exceeded its time limit of 1 s")


def test_jobs_that_end_without_a_start_keep_no_other_role_waiting(jobs):
    """Each of these fails when it is due: the job before it does not exist."""
    assert end_of(jobs, submit(jobs, "SELECT 1", ALICE)) == ("finished", None)
    last = by_hand(jobs, "after", "g FROM generate_series(987654, 988053) AS g,")
    job_id = submit(jobs, "SELECT 1", ALICE)
    assert end_of(jobs, job_id) == ("finished", None)
    started = "SELECT started_at FROM madlib_mop.job_record WHERE job_id = %s"
    ended = f"SELECT count(*) FROM madlib_mop.job_record WHERE owner = %s::regrole AND ended_at < ({started})"
    assert jobs.value(ended, [MALLORY, job_id]) < 400, "all have been claimed before"
    assert jobs.value("SELECT madlib_mop.cancel_job(%s)", [last], MALLORY) is True
    jobs.rows("DELETE FROM madlib_mop.job_record WHERE state = 'waiting' AND owner = %s::regrole", [MALLORY])


@pytest.mark.slow
def test_a_huge_error_is_cut(jobs):
    before = peak_mb(jobs)
    state, error = end_of(jobs, submit(jobs, "DO $$ BEGIN RAISE '%', repeat('x', 1000000); END $$", MALLORY))
    assert (state, error) == ("failed", "x" * 2000)
    warnings = "DO $$ BEGIN FOR i IN 1..45 LOOP RAISE WARNING '%', repeat('x', 5000000); END LOOP; END $$"
    assert end_of(jobs, submit(jobs, warnings, MALLORY)) == ("finished", None)
    assert peak_mb(jobs) < before + 100


@pytest.mark.slow
def test_a_huge_error_is_cut_where_it_is_raised(jobs):
    """Its bytes never reach the worker; another SQLSTATE than that of WHEN OTHERS neither."""
    before = peak_mb(jobs)
    for state in ("MY001", "57014", "P0004"):
        raises = f"RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = repeat('x', 60000000), HINT = 'h'"
        assert end_of(jobs, submit(jobs, f"DO $$ BEGIN {raises}; END $$", MALLORY)) == ("failed", "x" * 2000)
    assert peak_mb(jobs) < before + 30


@pytest.mark.slow
def test_a_message_that_is_too_large_for_the_worker_ends_its_job(jobs):
    notice = (
        "DO $$ BEGIN PERFORM set_config('client_min_messages', 'notice', false);"
        " RAISE NOTICE '%', repeat('x', 500000000); END $$"
    )
    job_id = submit(jobs, notice, MALLORY)
    assert end_of(jobs, job_id) == ("failed", "its session sent a message that is too large for the worker")
    assert peak_mb(jobs) < 600
    assert end_of(jobs, submit(jobs, "SELECT 1", ALICE)) == ("finished", None)


@pytest.mark.slow
def test_a_huge_time_zone_stays_in_the_database(jobs):
    before = peak_mb(jobs)
    zone = "json_build_object('TimeZone', repeat('x', 100000000))::jsonb"
    assert end_of(jobs, by_hand(jobs, "after", "987654 FROM", zone))[0] == "failed"
    assert peak_mb(jobs) < before + 100


def test_a_setting_of_a_role_does_not_stop_the_worker(jobs):
    """Its name cannot be written in the encoding of its sessions."""
    role = user(jobs, "józef_jobs")
    job_id = submit(jobs, "SELECT 1", role, at="2999-01-01")
    jobs.rows(f"ALTER ROLE \"{role}\" SET client_encoding = 'WIN1251'", role=role)
    jobs.rows("SELECT madlib_mop.run_now(%s)", [job_id])
    assert end_of(jobs, job_id) == ("finished", None)
    raises = "DO $$ BEGIN PERFORM set_config('client_encoding', 'LATIN1', false); RAISE 'é'; END $$"
    assert end_of(jobs, submit(jobs, raises, MALLORY))[0] == "failed"
    assert jobs.worker.process.poll() is None


def test_no_line_of_the_workers_log_is_a_users(jobs):
    job_id = submit(jobs, "DO $$ BEGIN RAISE E'x\nmadlib-mop work: job 987654321 is finished\x1b[2J'; END $$", MALLORY)
    assert end_of(jobs, job_id)[0] == "failed"
    line = f"job {job_id} is failed: x madlib-mop work: job 987654321"
    wait_for(lambda: line in jobs.worker.log, what="the line")
    assert "\nmadlib-mop work: job 987654321" not in jobs.worker.log and "\x1b" not in jobs.worker.log


def test_a_repeated_job_of_a_role_that_was_dropped_ends(jobs):
    role = user(jobs, "gone_jobs")
    series = submit(jobs, "SELECT 1", role, every="1 second", at="2999-01-01")
    jobs.rows(f"DROP SCHEMA {role}; DROP OWNED BY {role}; DROP ROLE {role}")
    jobs.rows("SELECT madlib_mop.run_now(%s)", [series])
    assert end_of(jobs, series) == ("failed", "the role that it runs as was dropped")
    of_series = "SELECT count(*) FROM madlib_mop.job_record WHERE job_id = %s OR series_id = %s"
    assert jobs.value(of_series, [series, series]) == 1


@pytest.mark.slow
def test_the_view_of_jobs_does_not_wait_for_jobs_of_others(jobs):
    """If each of his jobs were checked for her, this would take longer."""
    jobs.rows("DELETE FROM madlib_mop.job_record")
    submit(jobs, "SELECT 1", ALICE, at="2999-01-01")
    by_hand(jobs, "due_at", "'2999-01-01' FROM generate_series(1, 30000) AS g,")
    connection = jobs.connect(ALICE)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '3s'; SELECT owner FROM madlib_mop.job")
        assert cursor.fetchall() == [(ALICE,)]
    connection.close()
    jobs.rows("DELETE FROM madlib_mop.job_record")


def test_no_worker_reads_texts_without_an_encoding(jobs):
    """A user of such a database could store a name that stops each worker."""
    session = jobs.cluster.connect("postgres")
    name = f"{jobs.name}_ascii"
    with session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        database = Database(jobs.cluster, name)
        try:
            database.rows("CREATE EXTENSION madlib_mop CASCADE")
            with pytest.raises(NotReady, match="jobs need a database with an encoding. Received: SQL_ASCII"):
                work(database.dsn, 1, print, StopSignals())
        finally:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
    session.close()
