"""`drop_packed`: a packed table goes with all that belongs to it, nothing else does, and no run loses its rows."""

import json

import psycopg2
import psycopg2.errors
import pytest

from tests.helpers.columns import pack_with
from tests.helpers.faults import BackgroundFit, wait_for
from tests.helpers.security.attacks import record_run, recorded_plan, user

pytestmark = pytest.mark.one_session

ROWS = """
CREATE TABLE people AS SELECT i AS id, i * 7 % 50 AS age, ARRAY[i, 1]::real[] AS x, CASE WHEN i % 3 = 0 THEN 'yes'
ELSE 'no' END AS y FROM generate_series(1, 60) AS i
"""
ALICE, BOB = "alice", "bob"


@pytest.fixture(scope="module")
def people(db):
    db.rows(ROWS)
    for role in (ALICE, BOB):
        user(db, role)
    db.rows(f"GRANT SELECT ON people TO {ALICE}, {BOB}")
    return db


def pack(db, name: str, validation: str = "0.2") -> None:
    pack_with(db, 2, f"pack_columns('people', '{name}', 'y', validation => {validation}, seed => 1)")


def tables(db, pattern: str) -> set[str]:
    query = "SELECT relname FROM pg_class WHERE relname LIKE %s AND relkind IN ('r', 'p', 'f', 'v', 'm')"
    return {name for (name,) in db.rows(query, [pattern])}


def dropped(db, name: str, role: str | None = None) -> tuple[list[str], str]:
    """Drop a packed table; return the names of the dropped tables, and the notices."""
    connection = db.caller(role)
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.drop_packed(%s)", [name])
        return cursor.fetchone()[0], "".join(connection.notices)


def refusal(db, name: str, kind: type[psycopg2.Error], role: str | None = None) -> psycopg2.Error:
    with pytest.raises(kind) as raised:
        dropped(db, name, role)
    assert "Traceback" not in str(raised.value) and "internal error" not in str(raised.value)
    return raised.value


def test_a_table_of_pack_columns_goes_with_all_that_was_packed_beside_it(people):
    pack(people, "p_1")
    assert tables(people, "p\\_1%") == {
        "p_1", "p_1_seg0", "p_1_seg1", "p_1_summary", "p_1_validation", "p_1_validation_seg0", "p_1_validation_seg1",
        "p_1_validation_summary",
    }  # fmt: skip
    names = ["public.p_1", "public.p_1_summary", "public.p_1_validation", "public.p_1_validation_summary"]
    assert dropped(people, "p_1") == (names, "")
    assert tables(people, "p\\_1%") == set() and "people" in tables(people, "people")


def test_a_table_of_arrays_goes_with_the_one_that_was_packed_like_it(people):
    people.rows("SELECT madlib.training_preprocessor_dl('people', 'p_arrays', 'y', 'x', seed => 1)")
    people.rows(
        "SELECT madlib.validation_preprocessor_dl('people', 'p_arrays_validation', 'y', 'x', 'p_arrays')"
    )
    people.rows("SELECT madlib.validation_preprocessor_dl('people', 'p_arrays_2', 'y', 'x', 'p_arrays')")
    found, said = dropped(people, "p_arrays")
    assert len(found) == 4 and said == ""
    left = {name for name in tables(people, "p\\_arrays%") if "_seg" not in name}
    assert left == {"p_arrays_2", "p_arrays_2_summary"}
    assert len(dropped(people, "p_arrays_2")[0]) == 2


def test_the_validation_table_alone_and_names_of_any_kind(people):
    pack(people, "p_2")
    assert dropped(people, "p_2_validation")[0] == ["public.p_2_validation", "public.p_2_validation_summary"]
    assert dropped(people, "public.p_2")[0] == ["public.p_2", "public.p_2_summary"]
    pack(people, '"P, too"')
    assert len(dropped(people, '"P, too"')[0]) == 4 and tables(people, "P, too%") == set()


@pytest.mark.parametrize("made", ["as a table", "by another packing", "by another role"])
def test_what_only_has_the_name_of_a_validation_table_stays(people, made):
    pack(people, "p_3", "NULL")
    if made == "as a table":
        people.rows("CREATE TABLE p_3_validation AS SELECT 1 AS mine")
        reason = "it is not a packed table"
    elif made == "by another packing":
        pack_with(people, 2, "pack_columns('people', 'p_3_validation', 'y', exclude => '{age}', seed => 1)")
        reason = "it was packed in another way"
    else:
        people.rows("SELECT madlib.validation_preprocessor_dl('people', 'p_3_validation', '*', '*', 'p_3')")
        for table in ("p_3", "p_3_summary"):
            people.rows(f"ALTER TABLE {table} OWNER TO {ALICE}")
        people.rows(f"GRANT SELECT ON p_3_validation, p_3_validation_summary TO {ALICE}")
        reason = f"public.p_3_validation does not belong to role {ALICE}"
    found, said = dropped(people, "p_3", ALICE if made == "by another role" else None)
    assert found == ["public.p_3", "public.p_3_summary"]
    assert f"drop_packed: public.p_3_validation was not dropped: {reason}" in said
    assert "p_3_validation" in tables(people, "p_3_validation")
    people.rows("DROP TABLE p_3_validation; DROP TABLE IF EXISTS p_3_validation_summary")


@pytest.fixture(scope="module")
def others(people):
    """Tables that are not packed, or not any more."""
    pack(people, "p_4", "NULL")
    people.rows("CREATE VIEW p_view AS SELECT * FROM p_4")
    people.rows("CREATE TABLE p_copy AS SELECT * FROM p_4")
    people.rows("CREATE TABLE p_more AS SELECT *, 1 AS mine FROM p_4")
    people.rows("CREATE TABLE p_more_summary AS SELECT * FROM p_4_summary")
    people.rows("CREATE TABLE p_twice AS SELECT * FROM p_4")
    people.rows("CREATE TABLE p_twice_summary AS SELECT * FROM p_4_summary UNION ALL SELECT * FROM p_4_summary")
    people.rows("CREATE TABLE p_models AS SELECT 1 AS mst_key, ''::bytea AS model_weights, '{}'::json AS model_arch")
    people.rows("CREATE TABLE p_models_summary AS SELECT 'p'::text AS source_table, 'p_models'::text AS model")
    return people


@pytest.mark.parametrize("name", ["people", "p_view", "p_copy", "p_more", "p_twice", "p_4_summary", "p_models"])
def test_nothing_is_dropped_but_packed_tables(others, name):
    before = tables(others, "p%")
    error = refusal(others, name, psycopg2.errors.InvalidParameterValue)
    assert f"drop_packed: packed_table: public.{name} is not a packed table that this library made" in str(error)
    assert f"Received: '{name}'" in str(error) and "DROP TABLE any other table" in error.diag.message_hint
    assert tables(others, "p%") == before


def test_a_table_that_is_not_there_or_in_use_elsewhere(others):
    assert "packed_table does not exist. Received: 'nowhere'" in str(
        refusal(others, "nowhere", psycopg2.errors.UndefinedTable)
    )
    assert "packed_table" in str(refusal(others, "", psycopg2.errors.InvalidParameterValue))
    error = refusal(others, "p_4", psycopg2.errors.DuplicateTable)
    assert "public.p_4 cannot be dropped: rule _RETURN on view public.p_view depends on it" in str(error)
    others.rows(f"GRANT SELECT ON p_4, p_4_summary TO {BOB}")
    error = refusal(others, "p_4", psycopg2.errors.InsufficientPrivilege, BOB)
    assert f"public.p_4 does not belong to role {BOB}" in str(error)
    connection = others.connect()
    with connection.cursor() as cursor, pytest.raises(psycopg2.errors.ReadOnlySqlTransaction):
        cursor.execute("SET default_transaction_read_only = on")
        cursor.execute("SELECT madlib_mop.drop_packed('p_4')")
    connection.close()


def test_a_transaction_that_is_rolled_back_drops_nothing(people):
    pack(people, "p_5")
    connection = people.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(madlib_mop.drop_packed('p_5')), to_regclass('p_5_validation') IS NULL")
        assert cursor.fetchone()[0] == 4
    connection.rollback()
    connection.close()
    assert people.value("SELECT count(*) > 0 FROM p_5_validation") and len(dropped(people, "p_5")[0]) == 4


def run_on(db, run_id: int, table: str, state: str, owner: str = ALICE, data_set: str = "training") -> int:
    """Record a run by hand that reads this table."""
    plan = recorded_plan("public", f"out_{run_id}", '"public"."elsewhere"')
    plan[data_set] = {**plan["training"], "sql_name": f'"public"."{table}"'}
    return record_run(db, run_id, owner, state, plan=plan)


def change_plan(db, run_id: int, key: str, value) -> None:
    """Change a value of the training table in a run's plan."""
    query = "UPDATE madlib_mop.run SET plan = jsonb_set(plan, %s, %s::jsonb) WHERE run_id = %s"
    db.rows(query, [["training", key], json.dumps(value), run_id])


@pytest.mark.parametrize("data_set", ["training", "validation"])
@pytest.mark.parametrize("now", ["running", "interrupted", "cancelled", "failed", "trained", "finished"])
def test_a_run_that_is_not_at_its_end_keeps_its_tables(people, now, data_set):
    if not tables(people, "p\\_6"):
        pack(people, "p_6")
    run_id = run_on(people, 61, "p_6" if data_set == "training" else "p_6_validation", now, data_set=data_set)
    if now in ("trained", "finished"):
        assert len(dropped(people, "p_6")[0]) == 4
        people.rows("SELECT madlib_mop.drop_run(%s)", [run_id])
    else:
        error = refusal(people, "p_6", psycopg2.errors.ObjectNotInPrerequisiteState)
        assert f"public.p_6 is still needed by run {run_id} of role {ALICE}, which is {now}" in str(error)
        assert f"drop_run({run_id})" in error.diag.message_hint
        assert ("cancel" if now == "running" else "resume") + f"({run_id})" in error.diag.message_hint
        people.rows("DELETE FROM madlib_mop.model WHERE run_id = %s", [run_id])
        assert "still needed" in str(refusal(people, "p_6", psycopg2.errors.ObjectNotInPrerequisiteState)), "a search"
        people.rows("SELECT madlib_mop.drop_run(%s)", [run_id])


def test_a_run_whose_models_have_all_failed_needs_no_table(people):
    pack(people, "p_7", "NULL")
    run_on(people, 71, "p_7", "failed")
    people.rows("UPDATE madlib_mop.model SET state = 'failed' WHERE run_id = 71")
    assert len(dropped(people, "p_7")[0]) == 2


def test_a_table_that_was_renamed_is_the_one_that_its_run_read(people):
    pack(people, "p_8", "NULL")
    run_id = run_on(people, 81, "p_8", "interrupted")
    change_plan(people, run_id, "oid", people.value("SELECT 'p_8'::regclass::oid::int8"))
    people.rows("ALTER TABLE p_8 RENAME TO p_9; ALTER TABLE p_8_summary RENAME TO p_9_summary")
    assert "run 81" in str(refusal(people, "p_9", psycopg2.errors.ObjectNotInPrerequisiteState))
    people.rows("SELECT madlib_mop.drop_run(81)")
    assert len(dropped(people, "p_9")[0]) == 2


def test_a_run_of_another_role_is_named_with_its_owner(people):
    people.rows(f"SELECT madlib_mop.pack_columns('people', '{ALICE}.packed', 'y', seed => 1)", role=ALICE)
    run_id = run_on(people, 91, "x", "interrupted", BOB)
    change_plan(people, run_id, "sql_name", f'"{ALICE}"."packed"')
    error = refusal(people, f"{ALICE}.packed", psycopg2.errors.ObjectNotInPrerequisiteState, ALICE)
    assert f"needed by run 91 of role {BOB}, which is interrupted" in str(error)
    assert error.diag.message_hint.startswith(f"Wait until role {BOB}") and "drop_run" not in error.diag.message_hint
    people.rows("SELECT madlib_mop.drop_run(91)")
    assert len(dropped(people, f"{ALICE}.packed", ALICE)[0]) == 2


@pytest.mark.parametrize(
    ("held", "in_mode", "message"),
    [
        ("madlib_mop.run", "ACCESS EXCLUSIVE", "packed_table: another session drops or replaces public.p_11 too"),
        ("p_11_summary", "ACCESS SHARE", "public.p_11 was changed while it was being read"),
    ],
    ids=["both have read it", "one has read it"],
)
def test_of_two_sessions_that_drop_a_table_one_has_a_clear_error(people, held, in_mode, message):
    """A lock holds both up: before they lock the table, or where the second one reads what the first one will drop."""
    pack(people, "p_11", "NULL")
    holder = people.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {held} IN {in_mode} MODE")
        drops, waits = [], "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
        for n_waiting in (1, 2):
            drops.append(BackgroundFit(people, "SELECT madlib_mop.drop_packed('p_11')"))
            wait_for(lambda n=n_waiting: people.value(waits, [held]) == n, 20, "the drop to wait")
    holder.rollback()
    holder.close()
    for drop in drops:
        drop.join()
    (error,) = [drop.error for drop in drops if drop.error is not None]
    assert message in str(error) and tables(people, "p\\_11%") == set()


def test_a_run_that_begins_while_the_drop_waits_for_its_lock_keeps_the_table(people):
    """The call that plans a run holds a lock of the table from before the run is recorded."""
    pack(people, "p_10", "NULL")
    planning = people.connect(autocommit=False)
    with planning.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM p_10_summary")
        drop = BackgroundFit(people, "SELECT madlib_mop.drop_packed('p_10')")
        waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        wait_for(lambda: people.rows(waits, [drop.pid]) or not drop.running, what="the drop to wait for the table")
        assert drop.running, drop.error
        cursor.execute("SELECT count(*) FROM p_10")  # in the order of calls: neither waits for the other
        run_on(people, 101, "p_10", "interrupted")
    planning.rollback()
    planning.close()
    drop.join()
    assert "still needed by run 101" in str(drop.error) and people.value("SELECT count(*) > 0 FROM p_10")
    people.rows("SELECT madlib_mop.drop_run(101)")
    assert len(dropped(people, "p_10")[0]) == 2
