"""load_keras_model with weights => a table: a new head on the layers of an earlier model, by their names."""

import json

import numpy as np
import pytest

from madlib_mop.models.build import build_architecture
from tests.helpers.sessions import undone
from tests.helpers.unit.documents import dense, keras_3, layer

pytestmark = pytest.mark.one_session

OLD = json.dumps(
    keras_3(
        dense(5, name="hidden"), layer("BatchNormalization", name="bn"), dense(6, name="more"), dense(3, name="out")
    )
)
NEW = json.dumps(
    keras_3(
        dense(5, name="hidden", trainable=False), layer("BatchNormalization", name="bn"), dense(6, name="more"),
        dense(2, name="head"), name="new",
    )
)  # fmt: skip
LOAD = "SELECT madlib.load_keras_model('lib', %s, weights => %s, weights_key => %s)"


@pytest.fixture
def session(db, keras):
    with undone(db) as session:
        session.rows("SELECT madlib.load_keras_model('lib', %s, %s)", OLD, numbers(OLD))
        yield session


def numbers(arch, start=1000.0):
    """Return weights that are all different: 1000, 1001, ... in the order of get_weights()."""
    n = sum(weight.size for weight in build_architecture(arch).get_weights())
    return (np.arange(n, dtype=np.float32) + np.float32(start)).tobytes()


def by_layer(arch, blob):
    model = build_architecture(arch)
    arrays, start, values = {}, 0, np.frombuffer(blob, np.float32)
    for one in model.layers:
        n = sum(weight.size for weight in one.get_weights())
        arrays[one.name], start = values[start : start + n], start + n
    assert start == len(values)
    return arrays


def loaded(session, model_id=2):
    return bytes(session.value("SELECT model_weights FROM lib WHERE model_id = %s", model_id))


@pytest.mark.parametrize("key", [1, None])
def test_layers_of_the_same_name_take_their_weights_and_the_others_are_drawn(session, keras, key):
    session.rows(LOAD, NEW, "lib", key)
    old, new = by_layer(OLD, numbers(OLD)), by_layer(NEW, loaded(session))
    for name in ("hidden", "bn", "more"):
        assert np.array_equal(old[name], new[name])
    keras.utils.set_random_seed(0)
    plain = keras.models.model_from_json(session.value("SELECT model_arch::text FROM lib WHERE model_id = 2"))
    kernel, bias = plain.get_layer("head").get_weights()
    assert np.array_equal(new["head"], np.concatenate([kernel.ravel(), bias]))
    where = "public.lib (model_id 1)" if key else "public.lib"
    assert f"weights taken from {where}: hidden, bn, more; newly drawn: head" in session.notices()


def test_from_an_output_table_by_mst_key(session):
    session.rows("CREATE TABLE models (mst_key integer, model_weights bytea, model_arch json)")
    for key in (3, 5):
        session.rows("INSERT INTO models VALUES (%s, %s, %s)", key, numbers(OLD, 100.0 * key), OLD)
    session.rows(LOAD, NEW, "models", 5)
    assert np.array_equal(by_layer(NEW, loaded(session))["more"], by_layer(OLD, numbers(OLD, 500.0))["more"])


def test_from_a_list_of_layers(session):
    session.rows("CREATE TABLE layers (layer text, weights bytea)")
    bias = np.arange(25, dtype=np.float32)
    session.rows("INSERT INTO layers VALUES (%s, %s), (%s, %s)", "hidden", bias.tobytes(), "elsewhere", b"1234")
    session.rows(LOAD, NEW, "layers", None)
    assert np.array_equal(by_layer(NEW, loaded(session))["hidden"], bias)
    assert "weights taken from public.layers: hidden; newly drawn: bn, more, head" in session.notices()


def test_layers_of_nested_models_go_by_the_names_around_them(session, keras):
    base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="inner")], name="base")
    whole = keras.Sequential([keras.Input((4,)), base, keras.layers.Dense(2, name="top")])
    session.rows("SELECT madlib.load_keras_model('nests', %s, %s)", whole.to_json(), numbers(whole.to_json()))
    other = keras.Sequential([keras.Input((4,)), base, keras.layers.Dense(7, name="head")])
    session.rows(LOAD, other.to_json(), "nests", None)
    assert np.frombuffer(loaded(session), np.float32)[:15].tolist() == list(range(1000, 1015))
    assert "base/inner; newly drawn: head" in session.notices()


REFUSED = {
    "another shape": (keras_3(dense(6, name="hidden"), dense(2, name="head")), "lib", 1,
                      "layer 'hidden' of public.lib (model_id 1) has arrays of the shapes [4, 5] and [5], but the"
                      " architecture's has [4, 6] and [6], 120 bytes"),
    "no layer": (keras_3(dense(6, name="a"), dense(2, name="b")), "lib", 1,
        "has no layer with the name of a layer of the architecture"),
    "no such row": (keras_3(dense(5, name="hidden")), "lib", 9, "public.lib (model_id 9) has no such row"),
    "no table": (keras_3(dense(5, name="hidden")), "nothing", 9, "weights does not exist"),
    "no models": (keras_3(dense(5, name="hidden")), "plain", None, "has no column 'model_arch'"),
    "many rows": (keras_3(dense(5, name="hidden")), "two", None, "public.two has more than one row"),
    "wrong weights": (keras_3(dense(5, name="hidden")), "torn", None, "those of public.torn do not fit"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(session, case):
    arch, table, key, message = REFUSED[case]
    session.rows("CREATE TABLE plain (a integer)")
    session.rows("CREATE TABLE two AS SELECT 1 AS mst_key, model_arch, model_weights FROM lib, (VALUES (1), (2)) t")
    session.rows("CREATE TABLE torn AS SELECT model_arch, substr(model_weights, 5) AS model_weights FROM lib")
    error = session.refused(session.rows, LOAD, json.dumps(arch), table, key)
    assert message in error.message
    assert session.value("SELECT count(*) FROM lib") == 1


def test_arguments_that_exclude_each_other(session):
    both = "SELECT madlib.load_keras_model('lib', %s, %s, weights => 'lib')"
    assert "are mutually exclusive" in session.refused(session.rows, both, OLD, numbers(OLD)).message
    alone = "SELECT madlib.load_keras_model('lib', %s, weights_key => 1)"
    assert "weights_key selects a row of the table weights" in session.refused(session.rows, alone, OLD).message
