"""Promise 7: users can see and control only their own runs, and can never write the record."""

import json
import time

import psycopg2
import pytest

from madlib_mop.catalog.state_slots import create_slot, drop_slots
from tests.helpers.direct import record_on
from tests.helpers.security.attacks import fingerprint, record_run, refusal, refusal_of, user

ALICE, CAROL, LEAD = "alice", "carol", "team_lead"
ALICES, CAROLS, NOBODYS = 11, 12, 999
TABLES = ("run", "segment", "model", "model_state", "start_weights", "custom_function", "visit", "metric",
          "visit_metric", "evaluation", "search_event", "change")  # fmt: skip
VIEWS = (
    "progress", "leaderboard", "pareto", "timeline", "search_history", "steering", "metric_series", "model_summary",
    "visit_gantt",
)  # fmt: skip
CONTROLS = ("resume(%s)", "cancel(%s)", "replay(%s, 'again')", "drop_run(%s)")


@pytest.fixture(scope="module")
def runs(db):
    for role in (ALICE, CAROL, LEAD):
        user(db, role)
    db.rows(f"GRANT {ALICE} TO {LEAD}")
    for run_id, owner in ((ALICES, ALICE), (CAROLS, CAROL)):
        record_run(db, run_id, owner, baselines=json.dumps([{"name": "gradient boosting"}]))  # a row of the leaderboard
    yield db
    db.rows(f"REVOKE {ALICE} FROM {LEAD}")


@pytest.mark.parametrize("table", [*TABLES, *VIEWS])
@pytest.mark.parametrize(
    "role, seen", [(ALICE, [ALICES]), (CAROL, [CAROLS]), (LEAD, [ALICES]), (None, [ALICES, CAROLS])]
)
def test_a_user_sees_the_runs_of_roles_he_is_a_member_of(runs, role, seen, table):
    rows = runs.rows(f"SELECT DISTINCT run_id FROM madlib_mop.{table} ORDER BY 1", role=role)
    assert [run_id for (run_id,) in rows] == seen


def test_a_state_is_not_seen_through_its_partition(runs):
    for role in (ALICE, CAROL):
        error = refusal_of(runs, f"SELECT * FROM madlib_mop.model_state_{CAROLS}_0", role=role)
        assert error.sqlstate == "42501"


def test_default_privileges_give_nobody_rights_to_the_partitions_of_states(runs):
    """With the right TRIGGER, a user could have code run as the superuser that writes the states."""
    session, slot = runs.connect(), CAROLS * 1000 + 7
    with session.cursor() as cursor:
        cursor.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, {ALICE}")
        try:
            create_slot(record_on(session), slot)
        finally:
            cursor.execute(f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC, {ALICE}")
        cursor.execute("INSERT INTO madlib_mop.model_state VALUES (%s, %s, 1, 0, 0, 'x')", [slot, CAROLS])
    table = f"madlib_mop.model_state_{CAROLS}_7"
    for statement in (
        f"SELECT * FROM {table}",
        f"TRUNCATE {table}",
        f"CREATE TRIGGER t AFTER INSERT ON {table} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ):
        assert refusal_of(runs, statement, role=ALICE).sqlstate == "42501"
    others = "SELECT count(*) FROM pg_class c, aclexplode(relacl) a WHERE c.oid = %s::regclass AND grantee <> relowner"
    assert runs.value(others, [table]) == 0
    drop_slots(record_on(session), [slot], ("SELECT 1", {}))
    session.close()


@pytest.mark.parametrize("table", [*TABLES, "setting"])
def test_no_user_can_write_the_record(runs, table):
    connection = runs.connect(ALICE, autocommit=False)
    column = "name" if table == "setting" else "run_id"
    for statement in (
        f"INSERT INTO madlib_mop.{table} ({column}) VALUES ('1')",
        f"UPDATE madlib_mop.{table} SET {column} = {column}",
        f"DELETE FROM madlib_mop.{table}",
        f"TRUNCATE madlib_mop.{table}",
        f"LOCK TABLE madlib_mop.{table} IN ROW EXCLUSIVE MODE",
        f"SELECT * FROM madlib_mop.{table} FOR UPDATE",
        f"ALTER TABLE madlib_mop.{table} ADD COLUMN more text",
        f"CREATE TRIGGER t AFTER INSERT ON madlib_mop.{table} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ):
        error = refusal(connection, statement)
        assert error.sqlstate == "42501", (statement, error)
        connection.rollback()
    connection.close()


@pytest.mark.parametrize("control", CONTROLS)
def test_somebody_elses_run_is_like_one_that_is_not_there(runs, control):
    before = fingerprint(runs, CAROLS)
    name = control.partition("(")[0]
    for run_id in (CAROLS, NOBODYS):
        error = refusal_of(runs, f"SELECT madlib_mop.{control % run_id}", role=ALICE)
        assert error.sqlstate == "22023"
        assert error.message == f"{name}: you have no run with this run_id. Received: {run_id}"
        assert "madlib_mop.progress" in error.hint
    assert fingerprint(runs, CAROLS) == before


def test_the_driver_is_asked_as_who_calls_it_whatever_he_says(runs):
    """The internal functions take a function's name and arguments; they allow no more than the public functions."""
    before = fingerprint(runs, CAROLS)
    connection = runs.connect(ALICE)
    arguments = json.dumps({"run_id": CAROLS, "role": CAROL, "continue_run": CAROLS, "session": CAROL})
    for function in ("resume", "cancel", "drop_run", "replay"):
        error = refusal(connection, "SELECT madlib_mop_calls.call(%s, %s, NULL)", [function, arguments])
        assert error.message == f"{function}: you have no run with this run_id. Received: {CAROLS}"
    connection.close()
    assert fingerprint(runs, CAROLS) == before


def test_a_run_is_resumed_as_its_owner_to_whom_the_output_tables_belong(runs):
    for role in (LEAD, None):
        error = refusal_of(runs, "SELECT madlib_mop.resume(%s)", [ALICES], role)
        assert error.sqlstate == "42501"
        assert error.message.startswith("resume: run 11 belongs to role alice, who will own its output tables.")
        assert error.hint == "Log in as alice to resume it."


def test_the_owner_ends_what_a_dead_driver_left_as_running(runs):
    run_id = record_run(runs, 21, ALICE, state="running")
    assert runs.value("SELECT madlib_mop.cancel(%s)", [run_id], ALICE) is False
    assert runs.rows("SELECT state, state_detail FROM madlib_mop.run WHERE run_id = %s", [run_id]) == [
        ("interrupted", "its driver no longer exists")
    ]


def test_a_lock_that_anybody_may_take_keeps_nobody_from_his_run(runs):
    """All roles can take advisory locks: a stranger's lock is not a driver's, and its session is ended."""
    run_id = record_run(runs, 22, ALICE)
    stranger = runs.connect("stranger")
    with stranger.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(x'6d6f70'::int, %s)", [run_id])
    assert runs.value("SELECT madlib_mop.cancel(%s)", [run_id], ALICE) is False
    runs.rows("SELECT madlib_mop.drop_run(%s)", [run_id], ALICE)
    assert runs.rows("SELECT * FROM madlib_mop.run WHERE run_id = %s", [run_id]) == []
    with pytest.raises(psycopg2.OperationalError):
        stranger.cursor().execute("SELECT 1")
    stranger.close()


def test_who_reads_states_keeps_nobody_from_forgetting_a_run(runs):
    """Not even the transaction that has read them blocks."""
    run_id = record_run(runs, 23, ALICE)
    reader, owner = runs.connect(CAROL, autocommit=False), runs.connect(ALICE, autocommit=False)
    begun = time.monotonic()
    with reader.cursor() as others, owner.cursor() as own:
        others.execute("SELECT count(*) FROM madlib_mop.model_state")
        own.execute("SELECT count(*) FROM madlib_mop.model_state")
        own.execute("SELECT madlib_mop.drop_run(%s)", [run_id])
    assert time.monotonic() - begun < 20
    owner.commit()
    reader.rollback()
    reader.close()
    owner.close()
    assert runs.value("SELECT count(*) FROM madlib_mop.run WHERE run_id = %s", [run_id]) == 0
    assert runs.value("SELECT count(*) FROM madlib_mop.model_state WHERE run_id = %s", [run_id]) == 0
    other = record_run(runs, 24, ALICE)  # remaining rows are removed when the next run is dropped
    runs.rows("SELECT madlib_mop.drop_run(%s)", [other], ALICE)
    assert runs.rows("SELECT relname FROM pg_class WHERE relname ~ '^model_state_2[34]_'") == []


@pytest.mark.parametrize("arguments", [r'{"num_iterations": "\u0000"}', '{"num_iterations": 1e400}', r'{"\ud800": 1}'])
def test_arguments_that_cannot_be_stored_are_refused(runs, arguments):
    """Only a direct call passes them: the column of the view is jsonb, which has no such values."""
    call = json.dumps({"run_id": ALICES, "command": "extend", "arguments": arguments})
    error = refusal_of(runs, "SELECT madlib_mop_calls.call('command', %s, NULL)", [call], ALICE)
    assert error.sqlstate == "22023" and "cannot store" in error.message
