"""load_keras_model and delete_keras_model, called from SQL."""

import json

import numpy as np
import psycopg2
import pytest

from madlib_mop.models.build import build_architecture
from tests.helpers.sessions import Session, undone
from tests.helpers.unit.documents import KERAS_2_1, KERAS_2_2_4_TF, KERAS_2_10, dense, keras_3, layer
from tests.helpers.unit.plain import data_for, functional, nested, perceptron, recurrent

pytestmark = pytest.mark.one_session

ARCH = json.dumps(keras_3(dense()))
LOAD = "SELECT madlib.load_keras_model({})"


@pytest.fixture
def session(db):
    with undone(db, Loader) as session:
        yield session


class Loader(Session):
    """A user who loads architectures."""

    def refusal(self, query, *parameters):
        """Return SQLSTATE and message of a statement that must fail,"""
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


SHORT = """{"class_name": "Sequential", "config": {"layers": [
    {"class_name": "InputLayer", "config": {"batch_shape": [null, 8, 8, 1]}},
    {"class_name": "Conv2D", "config": {"filters": 2, "kernel_size": [3, 3], "activation": "relu"}},
    {"class_name": "BatchNormalization", "config": {}},
    {"class_name": "Flatten", "config": {}},
    {"class_name": "Dense", "config": {"units": 10, "activation": "softmax"}}]}}"""
GIVEN = {
    "short": SHORT,
    "keras 3": ARCH,
    **{f"keras {one['keras_version']}": json.dumps(one) for one in (KERAS_2_1, KERAS_2_2_4_TF, KERAS_2_10)},
    "perceptron": lambda: perceptron().to_json(),
    "functional": lambda: functional().to_json(),
    "nested": lambda: nested().to_json(),
    "recurrent": lambda: recurrent().to_json(),
}


@pytest.mark.one_case
@pytest.mark.parametrize("given", GIVEN)
def test_what_is_stored_is_what_keras_writes_of_the_model(session, keras, given):
    text = GIVEN[given]() if callable(GIVEN[given]) else GIVEN[given]
    session.load(arch=text)
    stored = session.value("SELECT model_arch::text FROM lib")
    plain, ours = keras.models.model_from_json(stored), build_architecture(text)
    assert json.loads(plain.to_json()) == json.loads(stored)
    assert [weight.shape for weight in plain.get_weights()] == [weight.shape for weight in ours.get_weights()]
    plain.set_weights(ours.get_weights())
    x, _ = data_for(ours)
    for one, other in zip(listed(plain.predict(x, verbose=0)), listed(ours.predict(x, verbose=0)), strict=True):
        assert one.tobytes() == other.tobytes()
    session.load(arch=stored)
    assert session.value("SELECT model_arch::text FROM lib WHERE model_id = 2") == stored


def listed(outputs):
    return outputs if isinstance(outputs, list) else [outputs]


def test_a_stored_architecture_draws_the_weights_that_the_given_one_draws(session, keras):
    session.load(arch=SHORT)
    stored = session.value("SELECT model_arch::text FROM lib")
    keras.utils.set_random_seed(3)
    plain = keras.models.model_from_json(stored).get_weights()
    ours = build_architecture(SHORT, 3).get_weights()
    assert [weight.tobytes() for weight in plain] == [weight.tobytes() for weight in ours]


REFUSED = {
    "an object": ('{"a": 1}', "22P02", "is not a Keras model", "model.to_json()"),
    "null": ("null", "22P02", "is not a Keras model", None),
    "a layer": (json.dumps(dense()), "22P02", "is a single layer", None),
    "a class": (json.dumps(keras_3(layer("Dens", units=3))), "0A000", "Received: 'Dens'", "Did you mean Dense?"),
    "an argument": (
        json.dumps(keras_3(layer("Dense", unit=3, name="head"))), "22023",
        "layer 2 (head): Dense has no argument of that name. Received: 'unit'", "Did you mean units?",
    ),
    "an inner argument": (
        json.dumps(keras_3(dense(kernel_initializer={"class_name": "HeNormal", "config": {"sead": 1}}))), "22023",
        "kernel_initializer: HeNormal has no argument of that name. Received: 'sead'", "Did you mean seed?",
    ),
    "a value": (json.dumps(keras_3(dense(0))), "38000", "units", None),
    "no statistics": (
        json.dumps(keras_3(layer("Normalization", axis=-1, name="scaled"), dense())), "22023",
        "layer 2 (scaled) has no statistics, so it would have no effect", "mean=layer.mean",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_train_is_refused_when_it_is_loaded(session, case):
    arch, sqlstate, message, hint = REFUSED[case]
    error = session.refused(session.load, arch=arch)
    assert error.sqlstate == sqlstate and message in error.message and (hint or "") in (error.hint or "")
    assert session.value("SELECT to_regclass('lib')") is None


def test_a_normalization_with_statistics_is_taken(session):
    session.load(arch=json.dumps(keras_3(layer("Normalization", mean=[1, 2, 3, 4], variance=[1, 1, 2, 2]), dense())))
    assert session.value("SELECT count(*) FROM lib") == 1


@pytest.mark.parametrize("weights", [b"dummy weights", b"", bytes(56), bytes(64)])
def test_weights_of_another_length_are_refused(session, weights):
    error = session.refused(session.load, model_weights=weights)
    assert error.sqlstate == "22023" and f"Received: {len(weights)} bytes" in error.message
    assert "15 weights of 4 bytes" in error.message and "4x3 + 3" in error.detail


def test_weights_name_and_description_are_stored(session):
    weights = np.arange(15, dtype=np.float32).tobytes()
    session.load(model_weights=weights, name="it's", description="two\nlines")
    assert [bytes(value) if isinstance(value, memoryview) else value for value in session.rows(
        "SELECT model_weights, name, description FROM lib"
    )[0]] == [weights, "it's", "two\nlines"]  # fmt: skip


def test_megabytes_of_weights_arrive_whole(session):
    weights = np.random.default_rng(1).random(3_000_000, np.float32).tobytes()
    session.load(arch=json.dumps(keras_3(dense(1000, use_bias=False), input_shape=(3000,))), model_weights=weights)
    assert bytes(session.value("SELECT model_weights FROM lib")) == weights


def test_a_network_that_no_memory_could_hold_is_loaded_at_once(session):
    session.load(arch=json.dumps(keras_3(dense(1_000_000), dense(1_000_000), input_shape=(1_000_000,))))
    assert session.value("SELECT count(*) FROM lib") == 1


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
    assert any("was not dropped" in notice for notice in session.connection.notices)


def test_errors_of_loading(session):
    assert session.refusal("SELECT madlib.load_keras_model(NULL, '{}')") == (
        "22023", "load_keras_model: keras_model_arch_table is missing. Received: NULL",
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
            cursor.execute("SELECT madlib.load_keras_model('shared', %s)", [ARCH])
        assert caught.value.pgcode == "55P03"
        one.commit()
        cursor.execute("SELECT madlib.load_keras_model('shared', %s)", [ARCH])
        cursor.execute("SELECT array_agg(model_id ORDER BY model_id) FROM shared")
        assert cursor.fetchone()[0] == [1, 2, 3]
    for connection in (one, other):
        connection.close()


@pytest.mark.parametrize("function", ["load_keras_model", "delete_keras_model"])
def test_help(session, function):
    short, long = (session.value(f"SELECT madlib.{function}({argument})") for argument in ("", "'usage'"))
    assert f"madlib.{function}" in short and "USAGE" not in short
    assert "USAGE" in long and "EXAMPLE" in long
