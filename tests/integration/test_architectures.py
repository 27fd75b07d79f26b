"""load_keras_model and delete_keras_model, as a user of SQL meets them."""

import json

import numpy as np
import psycopg2
import pytest
from sessions import Session, undone

from tests.unit.models.documents import dense, keras_3

ARCH = json.dumps(keras_3(dense()))
LOAD = "SELECT madlib.load_keras_model({})"


@pytest.fixture
def session(db):
    with undone(db, Loader) as session:
        yield session


class Loader(Session):
    """One user, who loads architectures."""

    def refusal(self, query, *parameters):
        """Give SQLSTATE and message of a statement that must fail,"""
        error = self.refused(self.rows, query, *parameters)
        return error.sqlstate, error.message

    def load(self, table="lib", arch=ARCH, **others):
        names = "".join(f", {name} => %s" for name in others)
        self.rows(f"SELECT madlib.load_keras_model(%s, %s{names})", table, arch, *others.values())


def test_the_table_has_the_documented_columns(session):
    session.load()
    assert session.columns("lib") == [
        ("model_id", "integer"),
        ("model_arch", "json"),
        ("model_weights", "bytea"),
        ("name", "text"),
        ("description", "text"),
        ("__internal_madlib_id__", "text"),
    ]
    definition = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'lib'::regclass"
    assert session.rows(definition) == [("UNIQUE (__internal_madlib_id__)",)]
    assert session.value("SELECT relpersistence::text FROM pg_class WHERE oid = 'lib'::regclass") == "p"


def test_ids_are_given_one_after_the_other(session):
    for _ in range(3):
        session.load()
    assert session.rows("SELECT model_id FROM lib ORDER BY 1") == [(1,), (2,), (3,)]
    session.rows("SELECT madlib.delete_keras_model('lib', 2)")
    session.load(name="fourth")
    assert session.rows("SELECT model_id, name FROM lib ORDER BY 1") == [(1, None), (3, None), (4, "fourth")]
    assert session.value("SELECT count(DISTINCT __internal_madlib_id__) FROM lib") == 3


@pytest.mark.parametrize("text", ['{"a" : 1, "b" : [2,  3] }', "null", "[]", '"x"', '{"a": 1, "a": 2}', ARCH])
def test_any_json_is_stored_as_it_was_given(session, text):
    session.load(arch=text)
    assert session.value("SELECT model_arch::text FROM lib") == text


def test_weights_name_and_description_are_stored(session):
    weights = np.arange(15, dtype=np.float32).tobytes()
    session.load(model_weights=weights, name="it's", description="two\nlines")
    assert [bytes(value) if isinstance(value, memoryview) else value for value in session.rows(
        "SELECT model_weights, name, description FROM lib"
    )[0]] == [weights, "it's", "two\nlines"]  # fmt: skip


def test_megabytes_of_weights_arrive_whole(session):
    weights = np.random.default_rng(1).random(3_000_000, np.float32).tobytes()
    session.load(model_weights=weights)
    assert bytes(session.value("SELECT model_weights FROM lib")) == weights


def test_weights_that_are_not_float32_are_stored_with_a_warning(session):
    session.load(model_weights=b"dummy weights")
    assert any("13 bytes" in notice and notice.startswith("WARNING") for notice in session.connection.notices)
    assert bytes(session.value("SELECT model_weights FROM lib")) == b"dummy weights"


def test_names_with_schemas_and_quotes(session):
    session.rows('CREATE SCHEMA "My Schema"')
    for table in ('"My Schema"."Lib "";drop"', "pg_temp.passing", "Public.Folded"):
        session.load(table)
    assert session.value('SELECT count(*) FROM "My Schema"."Lib "";drop"') == 1
    assert session.value("SELECT count(*) FROM pg_temp.passing") == 1
    assert session.value("SELECT count(*) FROM public.folded") == 1


def test_unqualified_names_follow_the_callers_search_path(session):
    session.rows("CREATE SCHEMA elsewhere")
    session.rows("SET LOCAL search_path = elsewhere")
    session.load()
    session.load()
    assert session.value("SELECT count(*) FROM elsewhere.lib") == 2
    session.rows("SELECT madlib.delete_keras_model('lib', 1)")
    assert session.value("SELECT count(*) FROM elsewhere.lib") == 1


def test_deleting_the_last_row_drops_the_table(session):
    session.load()
    session.load()
    session.rows("SELECT madlib.delete_keras_model('lib', 1)")
    assert session.value("SELECT count(*) FROM lib") == 1
    session.rows("SELECT madlib.delete_keras_model('lib', 2)")
    assert session.value("SELECT to_regclass('lib')") is None


def test_a_table_with_a_view_on_it_is_kept_with_a_warning(session):
    session.load()
    session.rows("CREATE VIEW seen AS SELECT model_id FROM lib")
    session.rows("SELECT madlib.delete_keras_model('lib', 1)")
    assert session.value("SELECT count(*) FROM lib") == 0
    assert any("is kept" in notice for notice in session.connection.notices)


def test_errors_of_loading(session):
    assert session.refusal("SELECT madlib.load_keras_model(NULL, '{}')") == (
        "22023", "load_keras_model: keras_model_arch_table is missing. Received: None",
    )  # fmt: skip
    assert session.refusal("SELECT madlib.load_keras_model('lib', NULL)") == (
        "22023", "load_keras_model: model_arch is missing. Received: NULL",
    )  # fmt: skip
    assert session.refusal("SELECT madlib.load_keras_model('a.b.c', '{}')")[0] == "22P02"
    assert session.refusal("SELECT madlib.load_keras_model('nowhere.lib', '{}')")[0] == "22023"
    assert session.refusal("SELECT madlib.load_keras_model(%s, '{}')", "x" * 64)[0] == "22023"
    session.rows("CREATE TABLE other (model_id integer, model_arch json)")
    state, message = session.refusal("SELECT madlib.load_keras_model('other', '{}')")
    assert state == "42703" and "'model_weights'" in message
    assert session.value("SELECT count(*) FROM other") == 0


def test_errors_of_deleting(session):
    session.load()
    assert session.refusal("SELECT madlib.delete_keras_model('lib', 7)") == (
        "22023", "delete_keras_model: public.lib has no such model_id. Received: 7",
    )  # fmt: skip
    assert session.refusal("SELECT madlib.delete_keras_model('lib', NULL)")[0] == "22023"
    assert session.refusal("SELECT madlib.delete_keras_model('nothing', 1)") == (
        "42P01", "delete_keras_model: keras_model_arch_table does not exist. Received: 'nothing'",
    )  # fmt: skip
    session.rows("ALTER TABLE lib DROP COLUMN name")
    assert session.refusal("SELECT madlib.delete_keras_model('lib', 1)")[0] == "42703"


def test_a_failed_transaction_leaves_no_table(db):
    connection = db.connect(autocommit=False)
    session = Loader(connection)
    session.load("rolled_back")
    connection.rollback()
    assert session.value("SELECT to_regclass('rolled_back')") is None
    connection.close()


def test_two_sessions_never_give_the_same_id(db):
    one, other = db.connect(autocommit=False), db.connect()
    Loader(one).load("shared")
    one.commit()
    Loader(one).load("shared")
    with other.cursor() as cursor:
        cursor.execute("SET lock_timeout = '300ms'")
        with pytest.raises(psycopg2.Error) as caught:
            cursor.execute("SELECT madlib.load_keras_model('shared', '{}')")
        assert caught.value.pgcode == "55P03"
        one.commit()
        cursor.execute("SELECT madlib.load_keras_model('shared', '{}')")
        cursor.execute("SELECT array_agg(model_id ORDER BY model_id) FROM shared")
        assert cursor.fetchone()[0] == [1, 2, 3]
    for connection in (one, other):
        connection.close()


@pytest.mark.parametrize("function", ["load_keras_model", "delete_keras_model"])
def test_help(session, function):
    short, long = (session.value(f"SELECT madlib.{function}({argument})") for argument in ("", "'usage'"))
    assert f"madlib.{function}" in short and "USAGE" not in short
    assert "USAGE" in long and "EXAMPLE" in long
