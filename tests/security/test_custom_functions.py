"""Promise 7: only superusers decide which custom functions exist; pickles are not opened unless they allow it.

Mallory may use the extension, and may make tables anywhere but in schema madlib.
"""

import importlib.util
import os
import pickle
import tempfile
from pathlib import Path

import pytest

from tests.helpers.security.attacks import SOFTMAX, refusal, refusal_of
from tests.helpers.training import fit, load_digits, pack, script

ALICE, MALLORY = "alice", "mallory"
COLUMNS = "(id serial, name text PRIMARY KEY, description text, object bytea)"
GOOD = b"def f(y_true, y_pred): return y_true - y_pred"
EVIL = b"def f(y_true, y_pred): return 0 * y_pred"
USE = "loss='f', optimizer='sgd'"
SELECT = "SELECT madlib.load_model_selection_table('arch', 'mst', '{1}', ARRAY[%s]::varchar[], '{epochs=1}', %s)"
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('train', 'never', %s, 1)"


class Bomb:
    """Creates a directory when it is unpickled."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture(scope="module")
def bench(db):
    for role in (ALICE, MALLORY):
        db.cluster.create_role(role)
        db.rows("SELECT madlib_mop.grant_use(%s)", [role])
    db.rows(f"CREATE SCHEMA evil AUTHORIZATION {MALLORY}")
    load_digits(db, 40, 20)
    db.rows(
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ALICE}; GRANT CREATE ON SCHEMA public TO {ALICE}, {MALLORY}"
    )
    pack(db, 1)  # created by a superuser, because superusers call it too
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [SOFTMAX])
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ALICE}, {MALLORY}")
    db.rows("SELECT madlib.load_custom_function('functions', %s, 'f')", [GOOD])
    return db


@pytest.fixture
def marker(bench):
    """A path at which the server's user can create a directory."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)
    yield directory / "marker"
    for file in directory.iterdir():
        file.rmdir()
    directory.rmdir()


@pytest.fixture
def undone(bench):
    """A session of the superuser whose changes are undone."""
    connection = bench.connect(autocommit=False)
    yield connection
    connection.rollback()
    connection.close()


def do(connection, *statements) -> None:
    """Run statements in a session; a pair is a statement with its parameters."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(*(statement if isinstance(statement, tuple) else (statement,)))


def write_selection(db, name: str, object_table: str, compile_params: str = USE, role: str | None = ALICE) -> str:
    """Write, as alice, a model selection table by hand; return its name."""
    script(
        db,
        f"CREATE TABLE {name} (mst_key integer, model_id integer, compile_params text, fit_params text)",
        f"CREATE TABLE {name}_summary (model_arch_table text, object_table text)",
        role=role,
    )
    db.rows(f"INSERT INTO {name} VALUES (1, 1, %s, '')", [compile_params], role)
    db.rows(f"INSERT INTO {name}_summary VALUES ('public.arch', %s)", [object_table], role)
    return name


@pytest.mark.parametrize(
    "call",
    [
        "load_custom_function('functions', 'def g(a, b): return a', 'g')",
        "load_custom_function('new_functions', 'def g(a, b): return a', 'g')",
        "load_top_k_accuracy_function('functions', 3)",
        "delete_custom_function('functions', 1)",
        "delete_custom_function('functions', 'f')",
    ],
)
def test_others_cannot_register_or_delete(bench, call):
    error = refusal_of(bench, f"SELECT madlib.{call}", None, MALLORY)
    assert error.sqlstate == "42501" and "only superusers" in error.message and "role mallory" in error.message
    assert bench.rows("SELECT name FROM madlib.functions") == [("f",)]
    assert bench.value("SELECT to_regclass('madlib.new_functions')") is None


def test_others_cannot_write_the_table_or_the_record(bench):
    for statement in (
        "INSERT INTO madlib.functions (name, object) VALUES ('g', '')",
        "UPDATE madlib.functions SET object = ''",
        "DELETE FROM madlib.functions",
        "CREATE TABLE madlib.mine (name text)",
        "CREATE TRIGGER t BEFORE INSERT ON madlib.functions EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "INSERT INTO madlib_mop.custom_function VALUES (1, 'g', '')",
        "INSERT INTO madlib_mop.setting VALUES ('pickled_functions', 'on')",
    ):
        assert refusal_of(bench, statement, None, MALLORY).sqlstate == "42501", statement


@pytest.mark.parametrize("table", ["evil.functions", '"evil"."functions"', "pg_temp.functions", "public.functions"])
def test_a_table_of_another_schema_is_refused_wherever_it_is_named(bench, table):
    assert refusal_of(bench, SELECT, [USE, table], MALLORY).sqlstate == "22023"
    name = write_selection(bench, f"mst_{abs(hash(table))}", table)
    error = refusal_of(bench, FIT, [name], ALICE)
    assert error.sqlstate == "22023" and "a name without a schema" in error.message


def test_a_table_of_the_same_name_is_never_met_before_the_right_one(bench):
    """search_path, a temporary table, or a temporary schema of that name cannot hide the right table."""
    connection = bench.connect(MALLORY)
    do(
        connection,
        f"CREATE TEMP TABLE functions {COLUMNS}; CREATE TABLE evil.functions {COLUMNS}",
        ("INSERT INTO pg_temp.functions (name, object) VALUES ('g', %s)", [EVIL]),
        ("INSERT INTO evil.functions (name, object) VALUES ('g', %s)", [EVIL]),
        "SET search_path = pg_temp, evil, madlib, public",
    )
    call = SELECT.replace("'arch'", "'public.arch'")
    error = refusal(connection, call, ["loss='g', optimizer='sgd'", "functions"])
    assert error.sqlstate == "22023" and "Custom functions of the object table: f." in error.hint
    do(connection, (call, [USE, "functions"]))
    connection.close()


def refused_once_it_is(bench, connection, *statements, table="functions") -> str:
    """Change the table, and return the message with which its use is rejected."""
    do(connection, *statements)
    error = refusal(connection, SELECT, [USE, table])
    assert error.sqlstate == "42501", error
    return error.message


def test_a_view_is_refused(bench, undone):
    message = refused_once_it_is(
        bench, undone, "CREATE VIEW madlib.seen AS SELECT * FROM madlib.functions", table="seen"
    )
    assert "must be an ordinary table" in message


def test_a_table_that_is_not_a_superusers_is_refused(bench):
    """For alice; a superuser's call does not accept mallory's tables in any case."""
    before = bench.value("SELECT relowner::regrole::text FROM pg_class WHERE oid = 'madlib.functions'::regclass")
    bench.rows(f"GRANT CREATE ON SCHEMA madlib TO {MALLORY}; ALTER TABLE madlib.functions OWNER TO {MALLORY}")
    try:
        for role in (ALICE, None):
            error = refusal_of(bench, SELECT, [USE, "functions"], role)
            assert error.sqlstate == "42501" and "madlib.functions belongs to mallory" in error.message
            assert role is None or "only superusers may register them" in error.hint
    finally:
        bench.rows(f"ALTER TABLE madlib.functions OWNER TO {before}; REVOKE CREATE ON SCHEMA madlib FROM {MALLORY}")


@pytest.mark.parametrize(
    "grant",
    [
        "GRANT INSERT ON madlib.functions TO mallory",
        "GRANT UPDATE (object) ON madlib.functions TO mallory",
        "GRANT DELETE ON madlib.functions TO PUBLIC",
        "GRANT TRIGGER ON madlib.functions TO mallory",
        "GRANT TRUNCATE ON madlib.functions TO mallory",
        "GRANT pg_write_all_data TO mallory",
    ],
)
def test_a_table_that_others_may_write_to_is_refused(bench, undone, grant):
    message = refused_once_it_is(bench, undone, grant)
    assert "which is not a superuser, may write to madlib.functions" in message


def test_a_child_table_adds_nothing(bench, undone):
    do(
        undone,
        "CREATE TABLE public.child () INHERITS (madlib.functions)",
        ("INSERT INTO public.child (name, object) VALUES ('g', %s)", [EVIL]),
    )
    error = refusal(undone, SELECT, ["loss='g', optimizer='sgd'", "functions"])
    assert "Custom functions of the object table: f." in error.hint


def test_a_pickle_in_the_table_is_opened_by_nobody(bench, marker):
    bench.rows("INSERT INTO madlib.functions (name, object) VALUES ('bomb', %s)", [pickle.dumps(Bomb(marker))])
    n_runs = bench.value("SELECT count(*) FROM madlib_mop.run")
    for role, name in ((ALICE, "mst_bomb"), (None, "mst_our_bomb")):
        selection = write_selection(bench, name, "madlib.functions", "loss='bomb', optimizer='sgd'", role)
        error = refusal_of(bench, FIT, [selection], role)
        assert error.sqlstate == "0A000" and "custom function 'bomb' is a pickle" in error.message, error
    assert bench.value("SELECT count(*) FROM madlib_mop.run") == n_runs
    error = refusal_of(bench, "SELECT madlib.load_custom_function('functions', %s, 'b')", [pickle.dumps(Bomb(marker))])
    assert error.sqlstate == "0A000" and "the object is a pickle" in error.message
    bench.rows("DELETE FROM madlib.functions WHERE name = 'bomb'")
    assert not marker.exists()


def test_nobody_but_superusers_turns_pickles_on(bench):
    connection = bench.connect(ALICE)
    do(connection, "SET madlib_mop.pickled_functions = 'on'")
    error = refusal(connection, "SELECT madlib.load_custom_function('functions', %s, 'b')", [b"\x80\x04."])
    assert error.sqlstate == "42501"
    connection.close()


@pytest.mark.slow
def test_a_pickle_that_a_superuser_allowed_is_opened_in_the_sandbox_only(bench, marker):
    assert importlib.util.find_spec("dill"), "the tests install dill"
    import dill

    notebook = {"__name__": "__main__"}
    exec("def square(y_true, y_pred): return (y_true - y_pred) ** 2", notebook)
    good = dill.dumps(notebook["square"], recurse=True)
    bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('pickled_functions', 'on')")
    try:
        for name, value in (("bomb", pickle.dumps(Bomb(marker))), ("square", good)):
            bench.rows("SELECT madlib.load_custom_function('functions', %s, %s)", [value, name])
        assert not marker.exists()
        selection = write_selection(bench, "mst_on", "madlib.functions", "loss='bomb', optimizer='sgd'")
        bench.rows("INSERT INTO mst_on VALUES (2, 1, %s, '')", ["loss='square', optimizer='sgd'"])
        run = fit(bench, "pickled", selection, 1, role=ALICE)
        rows = bench.rows("SELECT status, status_detail FROM pickled_info ORDER BY mst_key")
        assert [row[0] for row in rows] == ["failed", "trained"], rows
        assert "custom function 'bomb' cannot be created: PermissionError" in rows[0][1]
        assert not marker.exists()
    finally:
        bench.rows("DELETE FROM madlib_mop.setting WHERE name = 'pickled_functions'")
    error = refusal_of(bench, "SELECT madlib_mop.replay(%s, 'again')", [run.run_id], ALICE)
    assert error.sqlstate == "0A000" and "is a pickle" in error.message
