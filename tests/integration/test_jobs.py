"""Jobs: submitted in a transaction, run by a worker with the submitter's rights; times, names, repetitions, errors."""

import json
import time
from contextlib import contextmanager
from dataclasses import replace

import psycopg2
import pytest

from madlib_mop.catalog.jobs import Jobs
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from madlib_mop.jobs.sessions import end_session
from tests.helpers.faults import wait_for
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
from tests.helpers.security.attacks import refusal, refusal_of


@pytest.fixture(scope="module")
def jobs(db):
    """A database with two users; Alice has a table for the marks that her jobs leave."""
    make_marks(db)
    return db


@pytest.fixture(scope="module")
def worked(jobs):
    """The same with a worker."""
    with JobWorker(jobs):
        yield jobs


@contextmanager
def gate(db):
    """Lend a gate and its key: the statement `through` of this key waits while it is closed; it opens at the end."""
    connection = db.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(pg_backend_pid()), pg_backend_pid()")
        yield cursor.fetchone()[1]
    connection.close()


def through(key: int, name: str) -> str:
    return f"INSERT INTO mark SELECT '{name}' FROM pg_advisory_xact_lock({key})"


def test_a_rollback_leaves_nothing_and_a_commit_starts_it(worked):
    connection = worked.connect(ALICE, autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.submit(%s)", [mark("rolled back")])
        ((gone,),) = cursor.fetchall()
        connection.rollback()
        cursor.execute("SELECT madlib_mop.submit(%s)", [mark("committed")])
        ((job_id,),) = cursor.fetchall()
        assert worked.rows("SELECT 1 FROM madlib_mop.job_record WHERE job_id IN (%s, %s)", [gone, job_id]) == []
        connection.commit()
    connection.close()
    assert end_of(worked, job_id) == ("finished", None)
    assert (marks(worked, "rolled back"), marks(worked, "committed")) == (0, 1)


def test_jobs_of_one_transaction_know_each_other(worked):
    """They are not committed yet, so no other session sees them."""
    connection = worked.connect(ALICE, autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.submit(%s, name => 'twins')", [mark("first of two")])
        ((first,),) = cursor.fetchall()
        cursor.execute("SELECT madlib_mop.submit(%s, after => %s)", [mark("second of two"), first])
        ((second,),) = cursor.fetchall()
        connection.commit()
        cursor.execute("SELECT madlib_mop.submit('SELECT 1', name => 'again', at => '2999-01-01')")
        again = "SELECT madlib_mop.submit('SELECT 1', name => 'again', if_running => 'error')"
        message = refusal(connection, again).message
    connection.close()
    assert "which has the same name, has not ended. Received: 'again'" in message
    assert [end_of(worked, job_id) for job_id in (first, second)] == [("finished", None)] * 2
    order = "SELECT job FROM mark WHERE job LIKE '%% of two' ORDER BY at"
    assert worked.rows(order) == [("first of two",), ("second of two",)]


def test_it_runs_as_its_owner_with_the_settings_of_its_session(worked):
    connection = worked.connect(ALICE)
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {ALICE}, public; SET TimeZone = 'Asia/Tokyo'; SET madlib_mop.segments = 3")
        cursor.execute("SET madlib_mop.trainer_threads = 2")
        cursor.execute(
            "SELECT madlib_mop.submit('CREATE TABLE seen AS SELECT current_user::text AS role,"
            " session_user::text AS login, current_setting(''TimeZone'') AS zone,"
            " current_setting(''madlib_mop.trainer_threads'') AS threads,"
            " current_setting(''madlib_mop.segments'') AS segments')"
        )
        ((job_id,),) = cursor.fetchall()
    connection.close()
    assert end_of(worked, job_id) == ("finished", None)
    ((role, login, zone, *settings),) = worked.rows(f"SELECT * FROM {ALICE}.seen")
    assert (role, zone, *settings) == (ALICE, "Asia/Tokyo", "2", "3") and login.startswith("madlib_mop_job_")
    owner = "SELECT tableowner FROM pg_tables WHERE schemaname = %s AND tablename = 'seen'"
    assert worked.value(owner, [ALICE]) == ALICE
    wait_for(lambda: not worked.value(ROLES), what="the end of all login roles")


def test_every_function_of_the_library_is_a_job(worked):
    job_id = submit(
        worked, "load_keras_model", ALICE,
        arguments=json.dumps({
            "keras_model_arch_table": f"{ALICE}.archs", "model_arch": PERCEPTRON, "name": "O'Hara \\ %s",
        }),
    )  # fmt: skip
    assert end_of(worked, job_id) == ("finished", None)
    assert worked.value(f"SELECT name FROM {ALICE}.archs") == "O'Hara \\ %s"


PERCEPTRON = """{"class_name": "Sequential", "config": {"name": "p", "layers": [
    {"class_name": "InputLayer", "config": {"batch_shape": [null, 4], "name": "in"}},
    {"class_name": "Dense", "config": {"name": "out", "units": 3, "activation": "softmax"}}]}}"""


def test_an_error_is_in_the_row(worked):
    state, error = end_of(worked, submit(worked, "SELECT 1 / 0", ALICE))
    assert (state, error) == ("failed", "division by zero")
    state, error = end_of(worked, submit(worked, "cancel", ALICE, arguments='{"run_id": 77}'))
    assert state == "failed"
    assert error.startswith("cancel: you have no run with this run_id. Received: 77 (SELECT run_id")
    state, error = end_of(worked, submit(worked, "COMMIT;", ALICE))
    assert state == "failed" and "transaction commands" in error


def test_a_time_limit_ends_it(worked):
    job_id = submit(worked, mark("limited", 60), ALICE, time_limit="1 second")
    assert end_of(worked, job_id) == ("failed", "it exceeded its time limit of 1 s")
    assert marks(worked, "limited") == 0


def test_a_running_job_is_cancelled_within_a_second(worked):
    job_id = submit(worked, mark("cancelled", 60), ALICE)
    wait_for(lambda: worked.value(RUNNING, [job_id]), what="its session")
    assert worked.value("SELECT madlib_mop.cancel_job(%s)", [job_id], ALICE) is True
    assert end_of(worked, job_id, 5) == ("cancelled", f"it was cancelled by {ALICE}")
    assert worked.value("SELECT madlib_mop.cancel_job(%s)", [job_id], ALICE) is False
    assert marks(worked, "cancelled") == 0


def test_a_job_waits_for_the_end_of_another_one(worked):
    with gate(worked) as key:
        first = submit(worked, through(key, "first"), ALICE)
        second = submit(worked, mark("second"), ALICE, after=first)
        failed = submit(worked, "SELECT 1 / 0", ALICE)
        never = submit(worked, mark("never"), ALICE, after=failed)
        wait_for(lambda: worked.value(RUNNING, [first]), what="the first job")
        waits = worked.value("SELECT waits_for FROM madlib_mop.job WHERE job_id = %s", [second])
        assert waits == f"the end of job {first}"
    assert end_of(worked, second) == ("finished", None)
    order = worked.rows("SELECT job FROM mark WHERE job IN ('first', 'second') ORDER BY at")
    assert order == [("first",), ("second",)]
    assert end_of(worked, never) == ("failed", f"it was to run after job {failed}, which is failed")
    assert marks(worked, "never") == 0


def test_a_job_waits_for_one_of_a_role_that_its_owner_acts_as(worked):
    worked.rows(f"GRANT {ALICE} TO {CAROL}")
    with gate(worked) as key:
        hers = submit(worked, through(key, "hers"), ALICE)
        job_id = submit(worked, mark("of a member"), CAROL, after=hers)
        waits = worked.value("SELECT waits_for FROM madlib_mop.job WHERE job_id = %s", [job_id], CAROL)
        assert waits == f"the end of job {hers}"
    assert end_of(worked, job_id) == ("finished", None)
    gone = submit(worked, mark("gone"), ALICE)
    assert end_of(worked, gone) == ("finished", None)
    after_gone = submit(worked, mark("after"), CAROL, after=gone, at="2999-01-01")
    assert worked.value("SELECT madlib_mop.purge_jobs('0')", role=ALICE) > 0
    assert state_of(worked, gone) == "finished", "it is kept while a job waits to run after it"
    worked.rows("DELETE FROM madlib_mop.job_record WHERE job_id = %s", [gone])
    worked.rows("SELECT madlib_mop.run_now(%s)", [after_gone], CAROL)
    state, error = end_of(worked, after_gone)
    assert state == "failed" and "does not exist any more" in error
    worked.rows(f"REVOKE {ALICE} FROM {CAROL}")


def test_jobs_of_one_name_are_skipped_queued_or_refused(worked):
    with gate(worked) as key:
        first = submit(worked, through(key, "named"), ALICE, name="nightly")
        wait_for(lambda: worked.value(RUNNING, [first]), what="the first job")
        skipped = submit(worked, mark("named"), ALICE, name="nightly")
        queued = submit(worked, mark("named"), ALICE, name="nightly", if_running="queue")
        others = submit(worked, mark("named"), CAROL, name="nightly")  # another role's name is another name
        error = refusal_of(
            worked, "SELECT madlib_mop.submit('SELECT 1', name => 'nightly', if_running => 'error')", role=ALICE
        )
        assert error.sqlstate == "55000" and "'nightly'" in error.message and "if_running" in error.hint
        assert end_of(worked, others) == ("finished", None)
        assert end_of(worked, skipped)[0] == "skipped"
    assert end_of(worked, queued) == ("finished", None)
    starts = "SELECT started_at >= (SELECT ended_at FROM madlib_mop.job WHERE job_id = %s) FROM madlib_mop.job WHERE"
    assert worked.value(f"{starts} job_id = %s", [first, queued]) is True
    assert marks(worked, "named") == 3


@pytest.mark.slow
def test_a_repeated_job_goes_on_until_it_is_cancelled(worked):
    series = submit(worked, mark("repeated"), ALICE, every="1 second")
    wait_for(lambda: marks(worked, "repeated") >= 3, 20, "three repetitions")
    assert worked.value("SELECT madlib_mop.cancel_job(%s)", [series], ALICE) is True
    of_series = "SELECT count(*) FROM madlib_mop.job WHERE series_id = %s AND state IN ('waiting', 'running')"
    wait_for(lambda: not worked.value(of_series, [series]), what="the end of the series")
    n = marks(worked, "repeated")
    time.sleep(1.5)
    assert marks(worked, "repeated") == n
    finished = "SELECT count(*) FROM madlib_mop.job WHERE series_id = %s AND state = 'finished'"
    assert worked.value(finished, [series]) == n


@pytest.mark.slow
def test_repetitions_do_not_pile_up(worked):
    series = submit(worked, mark("slow", 2.5), ALICE, every="1 second")
    wait_for(lambda: marks(worked, "slow") >= 1, 20, "the first repetition")
    worked.rows("SELECT madlib_mop.cancel_job(%s)", [series], ALICE)
    states = "SELECT state, count(*) FROM madlib_mop.job WHERE series_id = %s GROUP BY 1"
    found = dict(worked.rows(states, [series]))
    assert found.get("skipped", 0) >= 1 and found.get("running", 0) + found.get("waiting", 0) <= 2


def test_a_waiting_job_is_altered_and_made_due(worked):
    job_id = submit(worked, mark("later"), ALICE, at="2999-01-01", every="@daily")
    waits = worked.rows("SELECT waits_for, every FROM madlib_mop.job WHERE job_id = %s", [job_id])
    assert waits == [("its time", "@daily")]
    worked.rows("SELECT madlib_mop.alter_job(%s, name => 'new', priority => 7, every => '2 days')", [job_id], ALICE)
    row = worked.rows("SELECT name, priority, every FROM madlib_mop.job WHERE job_id = %s", [job_id])
    assert row == [("new", 7, "2 days")]
    worked.rows("SELECT madlib_mop.run_now(%s)", [job_id], ALICE)
    assert end_of(worked, job_id) == ("finished", None)
    next_one = "SELECT due_at::date = '2999-01-01' FROM madlib_mop.job WHERE"  # it was not due yet
    assert worked.rows(f"{next_one} series_id = %s AND state = 'waiting'", [job_id]) == [(True,)]
    assert worked.value("SELECT madlib_mop.cancel_job(%s)", [job_id], ALICE) is True


def test_a_cron_expression_needs_a_zone_with_a_name_when_a_job_is_altered_too(worked):
    connection = worked.connect(ALICE)
    with connection.cursor() as cursor:
        cursor.execute("SET TimeZone = '<+02>-02'")
        cursor.execute("SELECT madlib_mop.submit('SELECT 1', at => '2999-01-01', every => '1 day')")
        ((job_id,),) = cursor.fetchall()
        cursor.execute("SET TimeZone = 'Europe/Berlin'")
        with pytest.raises(psycopg2.Error, match="TimeZone '<.02>-02', of the session that submitted the job"):
            cursor.execute("SELECT madlib_mop.alter_job(%s, every => '0 3 * * *')", [job_id])
        cursor.execute("SELECT madlib_mop.cancel_job(%s)", [job_id])
    connection.close()


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland"])
def test_months_are_counted_from_the_first_time_in_the_time_zone_of_the_submitter(worked, zone):
    """On the last days of months that have less of them, and never earlier because it was so once."""
    connection = worked.connect(ALICE)
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('TimeZone', %s, false)", [zone])
        cursor.execute("SELECT madlib_mop.submit('SELECT 1', at => '2020-01-31 00:30', every => '1 month')")
        ((series,),) = cursor.fetchall()
        query = "SELECT job_id, due_at::text FROM madlib_mop.job WHERE series_id = %s AND state = 'waiting'"

        def waiting() -> tuple[int, str]:
            cursor.execute(query, [series])
            return cursor.fetchone()

        (job_id, due_at) = wait_for(waiting, what="the next repetition")
        cursor.execute("SELECT min(t)::text FROM (SELECT timestamptz '2020-01-31 00:30' + k * interval '1 month' AS t"
                       " FROM generate_series(1, 1000) AS k) AS s WHERE t > now()")  # fmt: skip
        assert cursor.fetchone() == (due_at,)
        cursor.execute("SELECT madlib_mop.run_now(%s)", [series])
        (later, then) = wait_for(lambda: (found := waiting()) and found[0] > job_id and found, what="a later one")
        assert then == due_at, "as if it had not been made due"
        cursor.execute("SELECT madlib_mop.alter_job(%s, at => '2999-01-31')", [later])
        cursor.execute("SELECT madlib_mop.run_now(%s)", [later])
        (_, then) = wait_for(lambda: (found := waiting()) and found[0] > later and found, what="another one")
        cursor.execute("SELECT %s::timestamptz = '2999-01-31'", [then])
        assert cursor.fetchone() == (True,), "the series began anew with that time"
        cursor.execute("SELECT madlib_mop.cancel_job(%s)", [series])
    connection.close()


@pytest.mark.slow
def test_a_job_waits_while_its_session_cannot_be_opened(worked):
    database = worked.value("SELECT current_database()::text")
    kept_out = submit(worked, "SELECT 1", ALICE, at="2999-01-01")
    worked.rows(f"ALTER DATABASE {database} CONNECTION LIMIT 0")
    try:
        job_id = submit(worked, mark("let in"))  # of a superuser, who is always let in
        worked.rows("SELECT madlib_mop.run_now(%s)", [kept_out])
        query = "SELECT state, attempt, waits_for FROM madlib_mop.job WHERE job_id = %s"
        wait_for(lambda: "attempt: " in (worked.rows(query, [kept_out])[0][2] or ""), what="an attempt")
        (state, attempt, why) = worked.rows(query, [kept_out])[0]
        assert (state, attempt) == ("waiting", 0) and "too many connections for database" in why
        assert end_of(worked, job_id) == ("finished", None)
    finally:
        worked.rows(f"ALTER DATABASE {database} CONNECTION LIMIT -1")
    assert end_of(worked, kept_out) == ("finished", None)


def test_the_session_of_a_role_that_was_dropped_is_still_a_session(jobs):
    job_id = submit(jobs, "SELECT 1", at="2999-01-01")
    connection = jobs.connect("short_lived")
    pid = connection.info.backend_pid
    jobs.rows("DROP ROLE short_lived")
    record = Record(*connect_by_dsn(jobs.dsn))
    try:
        job = replace(Jobs(record).known(job_id), login_role="short_lived", session_pid=pid)
        assert not end_session(record, job)
        connection.close()
        wait_for(lambda: end_session(record, job), what="its end")
    finally:
        record.raw.close()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("NULL", "statement is missing. Received: NULL"),
        ("'no_such_function'", "statement: there is no function 'no_such_function' of madlib or madlib_mop"),
        ("'SELECT 1', '{}'", "arguments are for a function of the library: an SQL statement has none"),
        ("'cancel', '[1]'", "arguments must be a JSON object of the arguments of cancel. Received: [1]"),
        ("'cancel', '{\"run\": 1}'", "arguments: cancel has no argument 'run'"),
        ("'replay', '{\"run_id\": 1}'", "arguments: replay needs output_table"),
        ("'cancel', '{\"run_id\": \"x\"}'", "run_id must be of type bigint. Received: 'x'"),
        ("'SELECT 1', name => ''",
         "name must be a text of 1 to 200 characters, without spaces around it. Received: ''"),
        ("'SELECT 1', priority => 101", "priority must be from -100 to 100. Received: 101"),
        ("'SELECT 1', at => 'infinity'", "at must be a time between the years 2000 and 3000. Received: infinity"),
        ("'SELECT 1', every => 'now and then'", "every is no interval. Received: 'now and then'"),
        ("'SELECT 1', every => '0.1 s'", "every must be at least 1 second. Received: '0.1 s'"),
        ("'SELECT 1', every => '0 25 * * *'", "every: '0 25 * * *' is no cron expression of five fields: Bad hour"),
        ("'SELECT 1', if_running => 'wait'", "if_running must be one of skip, queue, error. Received: 'wait'"),
        ("'SELECT 1', time_limit => '0'", "time_limit must be from 1 second to 20 days. Received: 00:00:00"),
        ("'SELECT 1', time_limit => '1 year -360 days'",
         "time_limit must be from 1 second to 20 days. Received: 1 year -360 days"),
        ("'SELECT 1', after => 987654", "after: you have no job with this number. Received: 987654"),
    ],
)
def test_wrong_input_is_one_clear_error(jobs, arguments, message):
    before = jobs.value("SELECT count(*) FROM madlib_mop.job_record")
    error = refusal_of(jobs, f"SELECT madlib_mop.submit({arguments})", role=ALICE)
    assert error.message == f"submit: {message}"
    assert jobs.value("SELECT count(*) FROM madlib_mop.job_record") == before


def test_ended_jobs_are_refused_and_purged(worked):
    job_id = submit(worked, "SELECT 1", ALICE)
    end_of(worked, job_id)
    for call in (f"run_now({job_id})", f"alter_job({job_id}, priority => 1)"):
        error = refusal_of(worked, f"SELECT madlib_mop.{call}", role=ALICE)
        assert error.message.endswith(f"job {job_id} is finished: only a waiting job can be changed")
    error = refusal_of(worked, f"SELECT madlib_mop.alter_job({job_id})", role=CAROL)
    assert error.message == f"alter_job: you have no job with this number. Received: {job_id}"
    for long in ("1 day", "200000 years", "178000000 years"):
        assert worked.value("SELECT madlib_mop.purge_jobs(%s)", [long], ALICE) == 0
    assert worked.value("SELECT madlib_mop.purge_jobs('0')", role=CAROL) >= 1  # her own
    assert state_of(worked, job_id) == "finished"
    assert worked.value("SELECT madlib_mop.purge_jobs('0')", role=ALICE) >= 1
    assert worked.rows("SELECT 1 FROM madlib_mop.job WHERE job_id = %s", [job_id]) == []
    assert worked.value(
        "SELECT count(*) FROM madlib_mop.job_statement s WHERE NOT EXISTS"
        " (SELECT FROM madlib_mop.job_record j WHERE j.statement_id = s.statement_id)"
    ) == 0
