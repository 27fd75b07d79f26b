"""Object tables as in MADlib's test: functions are registered and deleted, the last one drops the table; errors."""

import dill
import pytest

from madlib_mop.models.parameters.custom import top_k_source
from tests.helpers.sessions import undone

pytestmark = pytest.mark.one_session

SUM = b"def sum_fn(a, b):\n    return a + b\n"
SUM_1 = SUM.replace(b"sum_fn", b"sum_fn1")
TABLE = "__test_custom_functions__"


@pytest.fixture
def session(db):
    with undone(db) as session:
        yield session


def load(session, name="sum_fn", value=SUM, *more, table=TABLE):
    slots = "".join(", %s" for _ in more)
    session.rows(f"SELECT madlib.load_custom_function(%s, %s, %s{slots})", table, value, name, *more)


def delete(session, which, table=TABLE):
    session.rows("SELECT madlib.delete_custom_function(%s, %s)", table, which)


def load_top_k(session, k, table=TABLE):
    session.rows("SELECT madlib.load_top_k_accuracy_function(%s, %s)", table, k)


def listed(session, table=TABLE):
    return session.rows(f'SELECT id, name, description FROM madlib."{table}" ORDER BY id')


def refused(session, call, *args, **kwargs):
    """Return SQLSTATE, message and hint of a call that must fail."""
    error = session.refused(call, session, *args, **kwargs)
    return error.sqlstate, error.message, error.hint


def test_the_table_is_made_on_the_first_load_and_everybody_may_read_it(session):
    load(session, "sum_fn", SUM, "returns sum")
    assert session.columns(f"madlib.{TABLE}") == [
        ("id", "integer"), ("name", "text"), ("description", "text"), ("object", "bytea"),
    ]  # fmt: skip
    assert listed(session) == [(1, "sum_fn", "returns sum")]
    assert bytes(session.value(f"SELECT object FROM madlib.{TABLE}")) == SUM
    key = "SELECT conkey::integer[] FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'"
    assert session.value(key, f"madlib.{TABLE}") == [2]
    rights = "SELECT has_table_privilege('public', %s, 'SELECT'), has_table_privilege('public', %s, 'INSERT, UPDATE')"
    assert session.rows(rights, f"madlib.{TABLE}", f"madlib.{TABLE}") == [(True, False)]


def test_functions_are_added_and_deleted_by_id_and_by_name(session):
    load(session, "sum_fn", SUM, "returns sum")
    load(session, "sum_fn1", SUM_1)
    assert listed(session) == [(1, "sum_fn", "returns sum"), (2, "sum_fn1", None)]
    sqlstate, message, hint = refused(session, load, "sum_fn1", SUM_1)
    assert (sqlstate, "'sum_fn1'" in message) == ("22023", True) and "Delete it first" in hint
    delete(session, 2)
    assert listed(session) == [(1, "sum_fn", "returns sum")]
    load(session, "sum_fn1", SUM_1)
    delete(session, "sum_fn1")
    assert listed(session) == [(1, "sum_fn", "returns sum")]
    for which in (2, "sum_fn1", "SUM_FN"):
        sqlstate, message, hint = refused(session, delete, which)
        assert sqlstate == "22023" and repr(which) in message and "1 (sum_fn)" in hint


def test_the_table_goes_with_its_last_function_unless_a_view_needs_it(session):
    load(session)
    delete(session, 1)
    assert session.value("SELECT to_regclass(%s)", f"madlib.{TABLE}") is None
    load(session)
    session.rows(f"CREATE VIEW names AS SELECT name FROM madlib.{TABLE}")
    delete(session, "sum_fn")
    assert listed(session) == []
    assert refused(session, delete, 1)[0] == "22023"


def test_a_table_that_is_not_there_or_none_such_is_an_error(session):
    assert refused(session, delete, 1)[:2] == (
        "42P01", f"delete_custom_function: object_table does not exist in schema madlib. Received: '{TABLE}'",
    )  # fmt: skip
    load(session)
    session.rows(f"ALTER TABLE madlib.{TABLE} DROP COLUMN id")
    assert refused(session, delete, 2)[0] == refused(session, load, "f", b"def f(a, b): return a")[0] == "42703"


BAD = {
    "no name": (None, SUM, "22023", "name must be a text"),
    "no object": ("sum_fn", None, "22023", "object is missing"),
    "empty": ("sum_fn", b"", "22023", "object is missing"),
    "a word": ("sum_fn", b"invalid_obj", "22023", "does not define sum_fn"),
    "no Python": ("sum_fn", b"def sum_fn(", "22P02", "is not Python source (line 1: "),
    "no text": ("sum_fn", b"\xff\x00", "22P02", "neither Python source in UTF-8 nor a dill pickle"),
    "other case": ("Sum_fn", SUM, "22023", "does not define Sum_fn"),
    "Keras' own": ("mse", b"def mse(a, b): return a", "22023", "a loss or metric of Keras"),
    "a pickle": ("sum_fn", b"\x80\x04\x95", "0A000", "the object is a pickle"),
}


@pytest.mark.parametrize("name, value, sqlstate, message", BAD.values(), ids=list(BAD))
def test_a_bad_function_is_refused_and_no_table_made(session, name, value, sqlstate, message):
    found = refused(session, load, name, value)
    assert found[0] == sqlstate and found[1].startswith("load_custom_function: ") and message in found[1]
    assert session.value("SELECT to_regclass(%s)", f"madlib.{TABLE}") is None


@pytest.mark.parametrize("which", [None])
def test_deleting_nothing_in_particular_is_an_error(session, which):
    load(session)
    assert refused(session, delete, which)[0] == "22023"


def test_top_k_functions_for_any_k(session):
    for k in (3, 7, 4, 8, 1000):
        load_top_k(session, k)
    assert listed(session)[:2] == [
        (1, "top_3_accuracy", "returns top_3_accuracy"), (2, "top_7_accuracy", "returns top_7_accuracy"),
    ]  # fmt: skip
    assert bytes(session.value(f"SELECT object FROM madlib.{TABLE} WHERE id = 5")) == top_k_source(1000)
    assert "top_3_accuracy" in refused(session, load_top_k, 3)[1]
    for k, received in ((0, "0"), (-1, "-1"), (None, "NULL")):
        assert refused(session, load_top_k, k)[:2] == (
            "22023", f"load_top_k_accuracy_function: k must be a whole number of 1 or more. Received: {received}",
        )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["pg_temp.temp1", f"{TABLE} UNION pg_temp.temp1", "pg_temp.madlib", "madlib.t", "aaa.test_table", "", None]
)
def test_a_schema_or_anything_but_a_name_is_refused(session, name):
    session.rows("CREATE TEMP TABLE temp1 (id serial, name text PRIMARY KEY, description text, object bytea)")
    for call, arguments in ((load, ("sum_fn", SUM)), (delete, (1,)), (load_top_k, (3,))):
        assert refused(session, call, *arguments, table=name)[0] in ("22023", "22P02")
    assert session.rows("SELECT 1 FROM temp1") == []


def test_names_keep_their_case_and_quotes_are_right(session):
    load(session, "MyFn", b"def MyFn(a, b): return a", table='"Odd "" Table; --"')
    load(session, "myfn", b"def myfn(a, b): return a", table='"Odd "" Table; --"')
    assert [row[1] for row in listed(session, 'Odd "" Table; --')] == ["MyFn", "myfn"]
    delete(session, "MyFn", table='"Odd "" Table; --"')
    load(session, table="Folded")
    assert listed(session, "folded") == [(1, "sum_fn", None)]
    assert refused(session, delete, "x'; DROP TABLE madlib.folded; --", table="folded")[0] == "22023"


def test_a_pickle_is_taken_where_a_superuser_turned_it_on(session):
    pickled = dill.dumps(lambda a, b: a + b)
    session.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('pickled_functions', 'off')")
    sqlstate, message, hint = refused(session, load, "any name", pickled)
    assert sqlstate == "0A000" and "'pickled_functions', 'on'" in hint
    session.rows("UPDATE madlib_mop.setting SET value = 'on' WHERE name = 'pickled_functions'")
    load(session, "any name", pickled)
    assert listed(session) == [(1, "any name", None)]


@pytest.mark.parametrize("function", ["load_custom_function", "delete_custom_function", "load_top_k_accuracy_function"])
def test_help_is_there(session, function):
    assert f"SELECT madlib.{function}('usage');" in session.value(f"SELECT madlib.{function}()")
    assert "USAGE" in session.value(f"SELECT madlib.{function}('usage')")
