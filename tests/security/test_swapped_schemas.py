"""A superuser's call names no table that another role can swap: the owner of a schema can rename it meanwhile.

The superuser's tables are here in a database of mallory's. Its schema public belongs to the owner of the database.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from mop_backend.rights import OWNER_OF_SCHEMA

from madlib_mop.catalog.names import Relation
from madlib_mop.errors import InsufficientPrivilege
from madlib_mop.trackers.exported import OutputTable, _check_own
from tests.helpers.faults import wait_for
from tests.helpers.security.attacks import SOFTMAX, refusal_of, user
from tests.helpers.sessions import Session
from tests.helpers.training import script
from tests.security.test_columns import LINEAR

ROOT = Path(__file__).resolve().parents[2]
MALLORY = "mallory_of_schemas"
TABLES = """
CREATE TABLE {0}.rows AS SELECT g AS id, ARRAY[g, 2]::real[] AS x, 'a' || g % 2 AS y FROM generate_series(1, 4) g;
CREATE TABLE {0}.loaded (model_id integer, model_arch json, model_weights bytea, name text, description text,
    __internal_madlib_id__ text);
INSERT INTO {0}.loaded VALUES (1, $${1}$$);
CREATE TABLE {0}.models AS SELECT 1 AS mst_key, ''::bytea AS model_weights, '{{}}'::json AS model_arch;
CREATE TABLE {0}.models_info AS SELECT 1 AS mst_key, 'c'::text AS compile_params, 'f'::text AS fit_params,
    ARRAY['m'] AS metrics_type, 'l'::text AS loss_type;
CREATE TABLE {0}.mst AS SELECT 1 AS mst_key, 1 AS model_id, ''::text AS compile_params, ''::text AS fit_params;
"""
#: The sequence counts also in a transaction that fails.
TRAP = f"""
CREATE SEQUENCE {MALLORY}.attacks;
ALTER SCHEMA public RENAME TO behind;
CREATE SCHEMA public;
CREATE FUNCTION public.attack() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('is_superuser') = 'on' THEN
        PERFORM nextval('{MALLORY}.attacks');
    END IF;
    RETURN true;
END $$;
CREATE VIEW public.rows AS SELECT 1 AS id, ARRAY[1, 2]::real[] AS x, 'a'::text AS y WHERE public.attack();
"""
CALLS = {
    "source": "madlib.training_preprocessor_dl('{}.rows', 'ours.out', 'y', 'x')",
    "columns": "madlib_mop.pack_columns('{}.rows', 'ours.out', 'y')",
    "output": "madlib.training_preprocessor_dl('ours.rows', '{}.out', 'y', 'x')",
    "output of columns": "madlib_mop.pack_columns('ours.rows', '{}.out', 'y')",
    "rules": "madlib.training_preprocessor_dl('ours.rows', 'ours.out', 'y', 'x', distribution_rules := '{}.rows')",
    "load": "madlib.load_keras_model('{}.loaded', '{{}}')",
    "load into a new table": "madlib.load_keras_model('{}.new', '{{}}')",
    "delete": "madlib.delete_keras_model('{}.loaded', 1)",
    "select": "madlib.load_model_selection_table('{}.loaded', 'ours.mst2', ARRAY[1], '{{c}}', '{{f}}')",
    "selection": "madlib.load_model_selection_table('ours.loaded', '{}.mst2', ARRAY[1], '{{c}}', '{{f}}')",
    "evaluate": "madlib.madlib_keras_evaluate('{}.models', 'ours.packed', 'ours.out', mst_key := 1)",
    "predict": "madlib.madlib_keras_predict('{}.models', 'ours.rows', 'id', 'x', 'ours.out', mst_key := 1)",
    "scalar predict": "madlib_mop.predict('{}.models', 1, ARRAY[1, 2])",
    "register": "madlib_mop.register('named', '{}.models', 1)",
    "export": "madlib_mop.export_model('{}.models', 1, 'keras')",
    "drop": "madlib_mop.drop_models('{}.models')",
    "drop packed": "madlib_mop.drop_packed('{}.rows')",
    "a type": "madlib.training_preprocessor_dl('ours.typed', 'ours.out', 'y', 'x')",
}


@pytest.fixture(scope="module")
def owned(db):
    user(db, MALLORY)
    db.rows("CREATE SCHEMA ours")
    for schema in ("public", MALLORY, "ours"):
        script(db, TABLES.format(schema, SOFTMAX))
    script(
        db,
        f"CREATE DOMAIN {MALLORY}.score AS text",
        f"CREATE TABLE ours.typed AS SELECT x, y::{MALLORY}.score FROM ours.rows",
        "SELECT madlib.training_preprocessor_dl('ours.rows', 'ours.packed', 'y', 'x')",
        f'ALTER DATABASE "{db.name}" OWNER TO {MALLORY}',
    )
    yield db
    db.rows(f'ALTER DATABASE "{db.name}" OWNER TO {db.cluster.superuser}')


@pytest.mark.parametrize("schema", ["public", MALLORY])
@pytest.mark.parametrize("call", CALLS)
def test_a_superusers_call_takes_no_table_that_another_role_could_swap(owned, call, schema):
    session = Session(owned.caller())
    error = session.refused(session.rows, f"SELECT {CALLS[call].format(schema)}")
    schema = MALLORY if call == "a type" else schema
    assert error.sqlstate == "42501", error
    assert f"schema {schema} of {MALLORY}, who is not a superuser" in error.message, error
    assert f"ALTER SCHEMA {schema} OWNER TO" in error.hint


def test_it_takes_those_in_a_superusers_schema(owned):
    owned.rows("SELECT madlib.training_preprocessor_dl('ours.rows', 'ours.again', 'y', 'x')")
    assert owned.value("SELECT count(*) > 0 FROM ours.again")


def test_a_schema_that_is_renamed_while_a_superuser_packs_a_table_brings_no_code_along(owned):
    """The call waits for a lock of the table; when it goes on, the name means mallory's view."""
    holder = owned.connect(autocommit=False)
    with holder.cursor() as cursor, ThreadPoolExecutor(1) as threads:
        cursor.execute("LOCK TABLE public.rows IN ACCESS EXCLUSIVE MODE")
        call = threads.submit(refusal_of, owned, f"SELECT {CALLS['source'].format('public')}")
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'public.rows'::regclass"
        wait_for(lambda: call.done() or owned.rows(waiting), what="the call to wait for the table")
        script(owned, TRAP, role=MALLORY)
        holder.rollback()
        call.exception()
    holder.close()
    attacks = owned.rows(f"SELECT is_called FROM {MALLORY}.attacks")
    script(owned, "DROP SCHEMA public CASCADE; ALTER SCHEMA behind RENAME TO public", role=MALLORY)
    assert attacks == [(False,)]


def test_a_trigger_that_a_table_gets_while_a_superuser_adds_to_it_does_not_fire(owned):
    """The call has checked the table, and waits for another one; meanwhile, mallory makes use of the right TRIGGER."""
    script(
        owned,
        f"SELECT madlib.load_keras_model('ours.networks', '{LINEAR}', decode(repeat('00', 12), 'hex'))",
        f"SELECT madlib.load_keras_model('ours.others', '{LINEAR}', decode(repeat('00', 12), 'hex'))",
        f"GRANT USAGE ON SCHEMA ours TO {MALLORY}; GRANT ALL ON ours.networks TO {MALLORY}",
        f"CREATE SEQUENCE {MALLORY}.fired",
    )
    script(
        owned,
        f"CREATE FUNCTION {MALLORY}.fire() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM nextval('{MALLORY}.fired'); RETURN NEW; END $$",
        role=MALLORY,
    )
    holder = owned.connect(autocommit=False)
    with holder.cursor() as cursor, ThreadPoolExecutor(1) as threads:
        cursor.execute("LOCK TABLE ours.others IN ACCESS EXCLUSIVE MODE")
        call = threads.submit(
            refusal_of, owned, "SELECT madlib.load_keras_model('ours.networks', %s, weights => 'ours.others')", [LINEAR]
        )
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'ours.others'::regclass"
        wait_for(lambda: call.done() or owned.rows(waiting), what="the call to wait for the table")
        script(
            owned,
            f"CREATE TRIGGER trap BEFORE INSERT ON ours.networks FOR EACH ROW EXECUTE FUNCTION {MALLORY}.fire()",
            role=MALLORY,
        )
        holder.rollback()
        error = call.result()
    holder.close()
    assert error.sqlstate == "42501" and f"{MALLORY}, who is not a superuser" in error.message, error
    assert owned.rows(f"SELECT is_called FROM {MALLORY}.fired") == [(False,)]


def test_a_superusers_tracker_reads_no_table_that_the_owner_of_the_database_could_swap(owned):
    with psycopg.connect(owned.dsn, autocommit=True) as connection:
        with pytest.raises(InsufficientPrivilege, match=f"schema public can be renamed by role {MALLORY}"):
            _check_own(connection, OutputTable(Relation("public", "models"), True))
        _check_own(connection, OutputTable(Relation("ours", "models"), True))


@pytest.mark.parametrize(
    ("role", "table", "is_read"),
    [(None, "public.rows", False), (None, f"{MALLORY}.rows", False), (None, "ours.rows", True), (MALLORY, "own", True)],
)
def test_a_superusers_predictions_read_no_table_ahead_that_another_role_could_swap(
    owned, role, table, is_read
):
    """The query has locked the table, but the name by which rows are read ahead is looked up again."""
    source = (ROOT / "plpython/mop_backend/read_ahead.py").read_text()  # which only a server process can import
    query = source.partition('_READABLE = """')[2].partition('"""')[0].replace("{owner_of_schema}", OWNER_OF_SCHEMA)
    query = query.replace("%", "%%").replace("$1", "%s")
    connection = owned.connect(role, autocommit=False)
    with connection.cursor() as cursor:
        if table == "own":
            cursor.execute("CREATE TABLE own (a integer)")
        cursor.execute(f"SELECT * FROM {table}")
        cursor.execute(query, [row_type(cursor, table)])
        assert (cursor.fetchone() is not None) is is_read
    connection.close()


def row_type(cursor, table: str) -> int:
    """Return the oid of a table's row type."""
    cursor.execute("SELECT reltype::int8 FROM pg_class WHERE oid = %s::regclass", [table])
    return cursor.fetchone()[0]
