"""A job has the rights of the role that submitted it as of then, and never another's; others do not see it."""

import json

import pytest

from tests.helpers.faults import wait_for
from tests.helpers.jobs import JobWorker, end_of, submit
from tests.helpers.security.attacks import refusal, refusal_of, user

ALICE, MALLORY, LEAD, READER = "alice_owns", "mallory_jobs", "lead_jobs", "reads_jobs"
RUNNING = (
    "SELECT count(*) FROM madlib_mop.job_record r JOIN pg_stat_activity a ON a.pid = r.session_pid WHERE r.job_id = %s"
)


@pytest.fixture(scope="module")
def jobs(db):
    for role in (ALICE, MALLORY, LEAD):
        user(db, role)
    db.cluster.create_role(READER)
    db.rows(f"CREATE TABLE {ALICE}.secret AS SELECT 'hers' AS what")
    db.rows(f"ALTER TABLE {ALICE}.secret OWNER TO {ALICE}")
    with JobWorker(db):
        yield db


def who(table: str) -> str:
    return f"CREATE TABLE {table} AS SELECT current_user::text AS role, session_user::text AS login"


def test_a_job_reads_nothing_that_its_owner_may_not_read(jobs):
    state, error = end_of(jobs, submit(jobs, f"CREATE TABLE {MALLORY}.stolen AS TABLE {ALICE}.secret", MALLORY))
    assert state == "failed" and "permission denied for schema" in error


@pytest.mark.parametrize(
    "escape",
    [
        "DO $$ BEGIN RESET ROLE; PERFORM 1 FROM pg_authid; END $$",
        "DO $$ BEGIN SET ROLE postgres; END $$",
        "DO $$ BEGIN SET SESSION AUTHORIZATION postgres; END $$",
        "DO $$ BEGIN RESET SESSION AUTHORIZATION; PERFORM 1 FROM pg_authid; END $$",
        "UPDATE madlib_mop.job_record SET owner = 'postgres'",
        "UPDATE madlib_mop.job_statement SET statement = 'SELECT 1'",
        "SELECT 1 FROM pg_authid",
    ],
)
def test_its_session_has_no_more_rights_than_its_owner(jobs, escape):
    state, error = end_of(jobs, submit(jobs, escape, MALLORY))
    assert state == "failed" and ("permission denied" in error or "must be superuser" in error), error


@pytest.mark.slow
def test_a_row_that_is_written_by_hand_runs_as_who_wrote_it(jobs):
    connection = jobs.connect(MALLORY)
    for columns, values in (
        ("statement_id, owner", f"1, '{ALICE}'"), ("statement_id, as_superuser", "1, true"),
        ("statement_id, submitted_by", f"1, '{ALICE}'"), ("statement_id, state", "1, 'running'"),
        ("statement_id, session_pid", "1, pg_backend_pid()"),
    ):  # fmt: skip
        error = refusal(connection, f"INSERT INTO madlib_mop.job_record ({columns}) VALUES ({values})")
        assert error.sqlstate == "42501", (columns, error)
    error = refusal(connection, f"INSERT INTO madlib_mop.job_statement (statement, owner) VALUES ('x', '{ALICE}')")
    assert error.sqlstate == "42501"
    hers = submit(jobs, who(f"{ALICE}.who"), ALICE)
    assert end_of(jobs, hers) == ("finished", None)
    statement = jobs.value("SELECT statement_id FROM madlib_mop.job_record WHERE job_id = %s", [hers])
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO madlib_mop.job_record (statement_id) VALUES (%s) RETURNING job_id", [statement])
        ((job_id,),) = cursor.fetchall()
    connection.close()
    state, error = end_of(jobs, job_id)
    assert state == "failed" and "no rows" in error
    assert jobs.value(f"SELECT role FROM {ALICE}.who") == ALICE


def test_rows_that_submit_would_refuse_stop_no_worker(jobs):
    connection, inserted = jobs.connect(MALLORY), []
    with connection.cursor() as cursor:
        for every in ("nonsense", "-1 day", "0", "1 us", "99 99 99 99 99", "@reboot", "1e30 years"):
            cursor.execute(
                "WITH s AS (INSERT INTO madlib_mop.job_statement (statement, settings)"
                " VALUES ('SELECT 1', '{\"nonsense.x\": \"\", \"TimeZone\": \"../etc/passwd\"}')"
                " RETURNING statement_id) INSERT INTO madlib_mop.job_record (statement_id, due_at, every)"
                " SELECT statement_id, '2000-01-01', %s FROM s RETURNING job_id",
                [every],
            )
            inserted.append((every, *cursor.fetchone()))
        cursor.execute("INSERT INTO madlib_mop.job_record (statement_id) VALUES (123456) RETURNING job_id")
        ((of_no_statement,),) = cursor.fetchall()
        after = []
        for before in (987654, submit(jobs, "SELECT 1", ALICE)):
            cursor.execute(
                "INSERT INTO madlib_mop.job_record (statement_id, after) SELECT max(statement_id), %s"
                " FROM madlib_mop.job_statement RETURNING job_id", [before],
            )  # fmt: skip
            after.append((before, *cursor.fetchone()))
    connection.close()
    for every, job_id in inserted:
        state, error = end_of(jobs, job_id)
        assert state == "failed" and "it cannot be repeated" in error, (every, error)
    assert end_of(jobs, of_no_statement)[0] == "failed"
    for before, job_id in after:
        why = f"it was to run after job {before}, which does not exist any more, or is not a job of its owner's"
        assert end_of(jobs, job_id) == ("failed", why)
    assert end_of(jobs, submit(jobs, "SELECT 1", ALICE)) == ("finished", None)


@pytest.mark.slow
def test_nobody_marks_a_job_as_done(jobs):
    job_id = submit(jobs, "SELECT pg_sleep(2)", ALICE)
    wait_for(lambda: jobs.value(RUNNING, [job_id]), what="its session")
    for role in (ALICE, MALLORY):
        error = refusal_of(jobs, "INSERT INTO madlib_mop.job_done VALUES (%s, 1)", [job_id], role)
        assert error.sqlstate == "42501"
        error = refusal_of(jobs, "SELECT madlib_mop_calls.run_job(%s, 1, NULL)", [job_id], role)
        assert "no rows" in error.message
    assert end_of(jobs, job_id) == ("finished", None)


@pytest.mark.one_case
@pytest.mark.parametrize("control", ["cancel_job(%s)", "run_now(%s)", "alter_job(%s, priority => 1)"])
def test_somebody_elses_job_is_like_one_that_is_not_there(jobs, control):
    job_id = submit(jobs, "SELECT 1", ALICE, at="2999-01-01")
    for number in (job_id, 987654):
        error = refusal_of(jobs, f"SELECT madlib_mop.{control % number}", role=MALLORY)
        assert error.message == f"{control.partition('(')[0]}: you have no job with this number. Received: {number}"
    error = refusal_of(jobs, f"SELECT madlib_mop.submit('SELECT 1', after => {job_id})", role=MALLORY)
    assert error.message == f"submit: after: you have no job with this number. Received: {job_id}"
    assert jobs.value("SELECT madlib_mop.purge_jobs('0')", role=MALLORY) >= 0
    assert jobs.value("SELECT madlib_mop.cancel_job(%s)", [job_id], ALICE) is True


def test_a_job_of_a_role_that_lost_its_rights_fails_with_a_clear_error(jobs):
    for change, undo, message in (
        (f"SELECT madlib_mop.revoke_use('{ALICE}')", f"SELECT madlib_mop.grant_use('{ALICE}')",
         f"role {ALICE} may no longer use madlib_mop in this database. See madlib_mop.grant_use()"),
        (f"ALTER ROLE {ALICE} NOLOGIN", f"ALTER ROLE {ALICE} LOGIN",
         f"role {ALICE}, which submitted it, may no longer log in"),
        (f"ALTER ROLE {ALICE} SUPERUSER", f"ALTER ROLE {ALICE} NOSUPERUSER",
         f"role {ALICE} has become a superuser since it was submitted. Submit it again"),
    ):  # fmt: skip
        job_id = submit(jobs, who(f"{ALICE}.never"), ALICE, at="2999-01-01")
        jobs.rows(change)
        jobs.rows("UPDATE madlib_mop.job_record SET due_at = now() WHERE job_id = %s", [job_id])
        jobs.rows("SELECT pg_notify('madlib_mop_jobs', '')")
        found = end_of(jobs, job_id)
        jobs.rows(undo)
        assert found == ("failed", message)
    assert jobs.value("SELECT to_regclass(%s)", [f"{ALICE}.never"]) is None


def test_a_job_for_a_role_that_the_submitter_has_left_does_not_run(jobs):
    jobs.rows(f"GRANT {ALICE} TO {LEAD}")
    connection = jobs.connect(LEAD)
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {ALICE}")
        cursor.execute("SELECT madlib_mop.submit('SELECT 1', at => '2999-01-01')")
        ((job_id,),) = cursor.fetchall()
    connection.close()
    jobs.rows(f"REVOKE {ALICE} FROM {LEAD}")
    jobs.rows("SELECT madlib_mop.run_now(%s)", [job_id], ALICE)
    assert end_of(jobs, job_id) == ("failed", f"role {LEAD}, which submitted it, is no longer a member of role {ALICE}")


def test_a_function_of_another_role_submits_no_job_of_that_role(jobs):
    """SECURITY DEFINER gives its caller the owner's rights for a moment, not for a job."""
    jobs.rows(
        f"CREATE FUNCTION {ALICE}.hers() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS"
        " $$ SELECT madlib_mop.submit('SELECT 1') $$"
    )
    jobs.rows(f"ALTER FUNCTION {ALICE}.hers() OWNER TO {ALICE}; GRANT USAGE ON SCHEMA {ALICE} TO {MALLORY}")
    job_id = jobs.value(f"SELECT {ALICE}.hers()", role=MALLORY)
    state, error = end_of(jobs, job_id)
    assert (state, error) == ("failed", f"role {MALLORY}, which submitted it, is no longer a member of role {ALICE}")


def test_a_job_that_a_job_submits_belongs_to_the_same_role(jobs):
    job_id = submit(jobs, "SELECT madlib_mop.submit('SELECT 1', name => 'of a job')", ALICE)
    assert end_of(jobs, job_id) == ("finished", None)
    ((inner, submitted_by),) = jobs.rows(
        "SELECT job_id, submitted_by::text FROM madlib_mop.job_record WHERE name = 'of a job'"
    )
    assert end_of(jobs, inner) == ("finished", None) and submitted_by == ALICE


def test_who_was_granted_read_access_sees_the_job_but_not_its_statement(jobs):
    job_id = submit(jobs, "SELECT 'a secret'", ALICE, name="of Alice")
    end_of(jobs, job_id)
    seen = "SELECT name, state, statement FROM madlib_mop.job WHERE job_id = %s"
    assert jobs.rows(seen, [job_id], ALICE) == [("of Alice", "finished", "SELECT 'a secret'")]
    assert jobs.rows(seen, [job_id], MALLORY) == []
    jobs.rows("SELECT madlib_mop.grant_read(%s, %s)", [READER, ALICE])
    assert jobs.rows(seen, [job_id], READER) == [("of Alice", "finished", None)]
    assert jobs.rows("SELECT 1 FROM madlib_mop.job_statement", role=READER) == []
    error = refusal_of(jobs, "SELECT madlib_mop.submit('SELECT 1')", role=READER)
    assert error.sqlstate == "42501"
    assert jobs.rows(f"SELECT 1 FROM madlib_mop.job WHERE owner <> '{ALICE}'", role=READER) == []


def test_the_password_of_a_job_is_in_no_catalog_or_log(jobs):
    """The session's role has a SCRAM verifier, valid for a minute, and is gone with the job."""
    job_id = submit(jobs, "SELECT pg_sleep(1.5)", ALICE)
    wait_for(lambda: jobs.value(RUNNING, [job_id]), what="its session")
    ((verifier, until),) = jobs.rows(
        "SELECT rolpassword, rolvaliduntil < now() + interval '61 s' FROM pg_authid WHERE rolname ="
        " (SELECT login_role FROM madlib_mop.job_record WHERE job_id = %s)", [job_id],
    )  # fmt: skip
    assert verifier.startswith("SCRAM-SHA-256$") and until
    assert end_of(jobs, job_id) == ("finished", None)
    roles = "SELECT count(*) FROM pg_roles WHERE starts_with(rolname, 'madlib_mop_job_')"
    wait_for(lambda: not jobs.value(roles), what="the end of all login roles")


def test_a_name_with_sql_in_it_is_a_name(jobs):
    name = "x'; DROP TABLE mark; --"
    arguments = json.dumps({"run_id": 1, "output_table": name})
    job_id = submit(jobs, "replay", MALLORY, arguments=arguments, name=name)
    state, error = end_of(jobs, job_id)
    assert state == "failed" and "you have no run with this run_id" in error
