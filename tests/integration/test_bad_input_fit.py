"""Promise 8: each bad input to the hopper gets one clear error before any work: problem, value and solution.

tests/helpers/engines/promises.py tests one case for each argument with SQL, on every engine.
"""

import time

import pytest

from madlib_mop.driver.planning.plan import add_run, plan_fit_multiple
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import MopError
from tests.helpers.bad_inputs import CASES, write_tables
from tests.helpers.direct import record_on
from tests.helpers.direct_session import DirectSession
from tests.helpers.faults import assert_nothing_left, visits
from tests.helpers.security.attacks import record_run, refusal, refusal_of, user
from tests.helpers.sessions import Refusal
from tests.helpers.training import pack

pytestmark = pytest.mark.one_session

FIT = "madlib_keras_fit_multiple_model"
GOOD = {"source_table": "train", "model_output_table": "never", "model_selection_table": "mst", "num_iterations": 2}
AGAIN = "this transaction holds a lock on public.train that blocks other sessions. Received: 'train'"
NO_RUN = 4711


@pytest.fixture(scope="module")
def bench(db):
    write_tables(db)
    return db


@pytest.fixture(scope="module")
def pupil(bench):
    """A role that is not a superuser, and may train on the tables here."""
    role = user(bench, "pupil")
    bench.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    return role


@pytest.fixture
def session(bench):
    connection = bench.connect(autocommit=False)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def plan(bench):
    """Return a function that plans a run that must be rejected, in this process, which is faster than a driver."""
    connection, catalog = bench.connect(autocommit=False), bench.connect()
    record = record_on(catalog)

    def refuse(arguments: dict) -> Refusal:
        try:
            plan_fit_multiple(Call.read(FIT, GOOD | arguments, DirectSession(connection)), record)
        except MopError as error:
            return Refusal(error.sqlstate, f"{FIT}: {error.message}", error.hint)
        finally:
            connection.rollback()
        raise AssertionError(f"not refused: {arguments}")

    yield refuse
    connection.close()
    catalog.close()


def call(**arguments) -> tuple[str, list]:
    """Return a call of fit that is valid except for these arguments."""
    arguments = GOOD | arguments
    slots = ", ".join(f"{name} := %s" for name in arguments)
    return f"SELECT madlib.{FIT}({slots})", list(arguments.values())


def traces(db) -> tuple:
    """Return what a rejected call must not change."""
    return (
        db.rows("SELECT run_id, state FROM madlib_mop.run ORDER BY 1"),
        db.rows("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"),
    )


def assert_refused(error: Refusal, sqlstate: str, message: str, hint: str) -> None:
    """Assert the text of an error: one line, not too long, and a hint."""
    assert error.sqlstate == sqlstate, error
    assert error.message.startswith(f"{FIT}: {message}"), error
    assert "\n" not in error.message and len(error.message) < 600
    assert hint in (error.hint or ""), error


@pytest.mark.one_case
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_argument_is_named(plan, case):
    assert_refused(plan(case.arguments), case.sqlstate, case.message, case.hint)


@pytest.mark.parametrize(
    "before, arguments, sqlstate, message, hint",
    [
        (
            "CREATE TEMP TABLE mine AS TABLE train; CREATE TEMP TABLE mine_summary AS TABLE train_summary",
            {"source_table": "mine"}, "0A000", "source_table: pg_temp", "ordinary table",
        ),
        (
            "CREATE TABLE fresh AS TABLE train; CREATE TABLE fresh_summary AS TABLE train_summary",
            {"source_table": "fresh"}, "55000", "source_table: public.fresh was created in this transaction", "COMMIT",
        ),
        (
            "CREATE TABLE fresh AS TABLE valid; CREATE TABLE fresh_summary AS TABLE valid_summary",
            {"validation_table": "fresh"}, "55000", "validation_table: public.fresh was created in this", "COMMIT",
        ),
        ("LOCK TABLE train", {}, "55000", f"source_table: {AGAIN}", "COMMIT"),
        ("LOCK TABLE train_seg0", {}, "55000", f"source_table: {AGAIN}", "COMMIT"),
        ("SET TRANSACTION READ ONLY", {}, "25006", "model_output_table cannot be written in a read-only", "READ WRITE"),
        (
            "SET search_path = nowhere", {"source_table": "public.train"},
            "42P01", "model_selection_table does not exist. Received: 'mst'", "schema",
        ),
        (
            "SET madlib_mop.trainer_threads = 'many'", {},
            "22023", "setting madlib_mop.trainer_threads must be a whole number from 1 to 1024", "",
        ),
    ],
    ids=["temporary", "uncommitted", "validation", "locked", "partition locked", "read-only", "path", "setting"],
)  # fmt: skip
def test_what_the_callers_session_lacks_is_named(bench, session, before, arguments, sqlstate, message, hint):
    with session.cursor() as cursor:
        cursor.execute(before)
    began = time.monotonic()
    assert_refused(refusal(session, *call(**arguments)), sqlstate, message, hint)
    assert time.monotonic() - began < 10


def test_who_may_not_make_tables_in_the_schema_is_told_before_the_work(bench):
    role = user(bench, "without_create")
    bench.rows("GRANT SELECT ON ALL TABLES IN SCHEMA public TO without_create")
    error = refusal_of(bench, *call(model_output_table="public.never"), role)
    message = "model_output_table: role without_create may not create tables in schema public. Received: 'public.never'"
    assert_refused(error, "42501", message, "GRANT CREATE")


@pytest.mark.parametrize("control", ["resume(%s)", "cancel(%s)", "replay(%s, 'again')", "drop_run(%s)"])
def test_a_run_that_is_not_there_is_named(bench, session, control):
    name = control.partition("(")[0]
    for run_id in (NO_RUN, None):
        error = refusal(session, f"SELECT madlib_mop.{control}", [run_id])
        assert error.sqlstate == "22023"
        assert error.message == f"{name}: you have no run with this run_id. Received: {run_id}"
        assert "madlib_mop.progress" in error.hint
        session.rollback()


def test_runs_in_the_wrong_state_are_told_so(bench, session):
    owner = bench.cluster.superuser
    record_run(bench, 51, owner)
    record_run(bench, 52, owner, kind="replay", parent_run_id=NO_RUN)
    record_run(bench, 53, owner, state="finished")
    bench.rows("UPDATE madlib_mop.model SET state = 'trained' WHERE run_id = 53")
    bench.rows("CREATE TABLE out_53_info (a integer)")
    holder = bench.connect()
    holder.cursor().execute("SELECT pg_advisory_lock(x'6d6f70'::int, 51)")  # the lock of a run's driver
    for statement, sqlstate, message, hint in (
        ("replay(51, 'again')", "55000", "run 51 has not ended: it is interrupted", "resume(51)"),
        ("replay(53, 'taken')", "42P07", "output_table: table public.taken exists already", "Drop it"),
        ("replay(53, NULL)", "22023", "output_table is missing. Received: NULL", "name"),
        ("replay(53, 'a.b.c')", "22P02", "output_table cannot be read. Received: 'a.b.c'", "schema.name"),
        ("replay(52, 'again')", "55000", "run 52 repeats run 4711, whose record was dropped", "record exists"),
        ("resume(52)", "55000", "run 52 repeats run 4711, whose record was dropped", "drop_run(52)"),
        ("resume(53)", "42P07", "run 53 cannot write its tables: table public.out_53_info exists already", "drop it"),
        ("resume(51)", "55000", "run 51 is in progress in another session", "madlib_mop.cancel(51)"),
        ("drop_run(51)", "55000", "run 51 is in progress in another session", "madlib_mop.cancel(51)"),
    ):
        before = traces(bench)
        error = refusal(session, f"SELECT madlib_mop.{statement}")
        message = f"{statement.partition('(')[0]}: {message}"
        assert (error.sqlstate, error.message[: len(message)]) == (sqlstate, message), error
        assert hint in error.hint, error
        session.rollback()
        assert traces(bench) == before
    holder.close()


def test_too_few_connections_are_told_with_their_numbers(bench):
    bench.rows(
        "CREATE TABLE many AS SELECT k AS __dist_key__, x, y, x_shape, y_shape, buffer_id FROM train,"
        " generate_series(1, 120) k WHERE buffer_id = 0; CREATE TABLE many_summary AS TABLE train_summary"
    )
    error = refusal_of(bench, *call(source_table="many"))
    assert_refused(error, "53000", "a run on 120 segments needs 240 connections, but only ", "max_connections")


@pytest.mark.parametrize(
    "rule, hint",
    [
        ("", "Add the line `host all all 127.0.0.1/32 scram-sha-256` to pg_hba.conf"),
        ("host all all 127.0.0.1/32 reject\n", "A line of pg_hba.conf rejects this login"),
        ("host all all 127.0.0.1/32 ident\n", "requires another authentication method"),
    ],
    ids=["no line", "reject", "ident"],
)
def test_readers_that_are_not_let_in_are_told_why(bench, pupil, rule, hint):
    connection = bench.connect(pupil)
    connection.autocommit = True
    hba = bench.cluster.datadir / "pg_hba.conf"
    text = hba.read_text()
    hba.write_text(rule + "".join(line for line in text.splitlines(keepends=True) if not line.startswith("host")))
    try:
        bench.rows("SELECT pg_reload_conf()")
        error = refusal(connection, *call(model_output_table=f"{pupil}.never"))
    finally:
        connection.close()
        hba.write_text(text)
        bench.rows("SELECT pg_reload_conf()")
    assert_refused(error, "55000", "the sessions of segment 0 cannot be opened at 127.0.0.1:", hint)
    assert_nothing_left(bench)


def test_a_role_whose_connection_limit_the_readers_would_pass_is_told_so(bench, pupil):
    bench.rows(f"ALTER ROLE {pupil} CONNECTION LIMIT 1")
    try:
        error = refusal_of(bench, *call(model_output_table=f"{pupil}.never"), role=pupil)
    finally:
        bench.rows(f"ALTER ROLE {pupil} CONNECTION LIMIT -1")
    message = f"the run needs 1 sessions to read its rows, but the CONNECTION LIMIT of role {pupil} leaves 0"
    assert_refused(error, "53000", message, "raise its limit")
    assert_nothing_left(bench)


@pytest.mark.slow
def test_a_database_that_is_full_is_told_so(bench, pupil):
    connection = bench.connect(pupil)
    bench.rows(f'ALTER DATABASE "{bench.name}" CONNECTION LIMIT 0')
    try:
        connection.autocommit = True
        error = refusal(connection, *call(model_output_table=f"{pupil}.never"))
    finally:
        connection.close()
        bench.rows(f'ALTER DATABASE "{bench.name}" CONNECTION LIMIT -1')
    message = "the sessions of segment 0 found no free connection at 127.0.0.1:"
    assert_refused(error, "53000", message, "CONNECTION LIMIT")
    assert_nothing_left(bench)


def test_nan_in_packed_data_is_named_with_its_row(bench):
    error = refusal_of(bench, *call(source_table="nan_x"))
    message = "column x1 has nan in 1 of the rows 0 to 19 of the shard, first in row 5"
    assert_refused(error, "22023", message, "Remove or replace NaN")
    assert_nothing_left(bench)


def test_one_damaged_shard_among_whole_ones_is_named(bench):
    """The visits of the other shard are kept: the run goes on with them when the shard is whole again."""
    pack(bench, 2, buffer_size=20, suffix="_halves")
    change = "UPDATE train_halves SET x = {} WHERE __dist_key__ = (SELECT max(__dist_key__) FROM train_halves)"
    bench.rows(change.format("x || '\\x00'"))
    error = refusal_of(bench, *call(source_table="train_halves", model_output_table="halves"))
    message = "column x1 has 5121 bytes for shape [20, 8, 8, 1], which is not a packed array"
    assert_refused(error, "22023", f"{message} (public.train_halves, segment 1)", "Pack the table again")
    assert_nothing_left(bench)
    run_id = bench.value("SELECT run_id FROM madlib_mop.run WHERE model_output_table = 'public.halves'")
    seen = bench.rows("SELECT DISTINCT segment_id FROM madlib_mop.visit WHERE run_id = %s", [run_id])
    assert seen in ([], [(0,)]) and bench.value("SELECT to_regclass('halves')") is None
    bench.rows(change.format("substr(x, 1, length(x) - 1)"))
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert visits(bench, run_id) == 2 * 2 * bench.value("SELECT count(*) FROM halves")


@pytest.mark.slow
def test_ragged_rows_are_named(bench):
    error = refusal_of(bench, *call(source_table="ragged"))
    assert_refused(error, "22023", "column x1 is ragged: rows 20 to 39 have shape [64]", "one shape")


def test_rows_that_are_not_those_of_the_run_any_more_are_told_so(bench):
    """A run is interrupted after its first visit, and resumed after the table was packed again."""
    connection, catalog = bench.connect(autocommit=False), bench.connect()
    record = record_on(catalog)
    run_id = add_run(record, plan_fit_multiple(Call.read(FIT, GOOD, DirectSession(connection)), record))
    connection.close()
    record.set_run(run_id, state="interrupted")
    record.set_segment(run_id, "training", 0, fingerprint="that of other rows")
    catalog.close()
    error = refusal_of(bench, "SELECT madlib_mop.resume(%s)", [run_id])
    assert error.sqlstate == "22023"
    assert error.message == (
        "resume: public.train: the rows of segment 0 differ from the rows that the run was trained on"
    )
    assert "Restore the packed table" in error.hint
    assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "failed"
    assert_nothing_left(bench)


def test_rows_that_are_not_committed_are_told_so(bench, session):
    with session.cursor() as cursor:
        cursor.execute("INSERT INTO train TABLE train")
    error = refusal(session, *call())
    message = "public.train: the worker of segment 0 can see 40 rows, but the caller could see 80"
    assert_refused(error, "55000", message, "Commit the transaction")
