"""Models come in: what export_model wrote has the same bits again, and Keras' own files predict as in Keras."""

import json
from contextlib import closing

import numpy as np
import pytest

from madlib_mop.client import connect
from madlib_mop.errors import InvalidParameter, MopError
from tests.helpers.columns import train_churn
from tests.helpers.commands import run as madlib_mop
from tests.helpers.imports import imported_networks, legacy_weights, safetensors_of, saved, saved_weights
from tests.helpers.inference import Dependent, ModelTable, User, weights_of
from tests.helpers.registry import class_net, number_net, write_classifiers

pytestmark = [pytest.mark.timeout(900), pytest.mark.one_session]


@pytest.fixture(scope="module")
def user(db):
    with closing(User(db.connect()).connection) as connection:
        yield User(connection)


@pytest.fixture(scope="module")
def client(db):
    with connect(db.dsn, settings={"segments": 1}) as client:
        yield client


@pytest.fixture(scope="module")
def made(keras):
    return imported_networks(keras)


def outputs(keras, network) -> np.ndarray:
    """Return what Keras predicts for the rows of a network: float32 (n_rows, n_values)."""
    xs = [x.astype(tensor.dtype) for x, tensor in zip(network.xs, network.model.inputs, strict=True)]
    found = keras.tree.flatten(network.model.predict_on_batch(xs[0] if len(xs) == 1 else xs))
    return np.concatenate([one.reshape(len(one), -1) for one in found], axis=1)


@pytest.mark.one_case
@pytest.mark.parametrize("name", [
    "dense", "inputs_and_outputs", "embedding", "lstm", "bidirectional_gru", "attention", "convolution",
    "normalization", "shared_layers", "nested_models", "adapted_normalization", "time_distributed", "frozen_base",
])  # fmt: skip
def test_files_of_keras_predict_in_the_database_as_in_keras(user, keras, made, name):
    network = made[name]
    version = user.value("SELECT madlib_mop.import_version(%s, %s)", name, saved(network.model))
    slots = ", ".join(["madlib_mop.array_bytes(CAST(%s AS real[]))"] * len(network.xs))
    xs = [x.tolist() for x in network.xs]
    rows = user.value(f"SELECT madlib_mop.predict(%s, NULL, ARRAY[{slots}])", f"{name}@{version}", *xs)
    assert np.allclose(np.asarray(rows, np.float32), outputs(keras, network), rtol=0, atol=1e-6)


def test_a_row_of_an_architecture_has_the_bits_of_the_file(user, keras, made):
    for number, name in enumerate(("nested_models", "attention", "frozen_base"), 1):
        file = saved(made[name].model)
        assert user.value("SELECT madlib_mop.import_model('archs', %s, %s, 'from Keras')", file, name) == number
    rows = user.rows("SELECT model_id, name, description, model_arch::text, model_weights FROM archs ORDER BY model_id")
    assert [row[:3] for row in rows[:1]] == [(1, "nested_models", "from Keras")]
    for _, name, _, arch, weights in rows:
        assert bytes(weights) == weights_of(made[name].model)
        assert keras.models.model_from_json(arch).count_params() == made[name].model.count_params()


def test_a_fit_starts_from_imported_weights(user, keras):
    net = class_net(keras, 1)
    user.value("SELECT madlib_mop.import_model('starts', %s)", saved(net))
    rows = [(i, "abc"[i % 3], [float(i % 3 == k) for k in range(3)]) for i in range(30)]
    user.table("points", "id integer, y text, x real[]", rows, "%s, %s, %s::real[]")
    user.rows("SET madlib_mop.segments = 1; SELECT madlib.training_preprocessor_dl('points', 'points_p', 'y', 'x')")
    user.rows(
        "SELECT madlib.load_model_selection_table('starts', 'mst_of_starts', '{1}', ARRAY[%s], ARRAY['batch_size=8'])",
        "loss='categorical_crossentropy', optimizer='SGD(learning_rate=0.0)', metrics=['accuracy']",
    )
    user.rows("SELECT madlib.madlib_keras_fit_multiple_model('points_p', 'fitted', 'mst_of_starts', 1)")
    assert bytes(user.value("SELECT model_weights FROM fitted")) == weights_of(net)
    assert user.value("SELECT training_metrics_final FROM fitted_info") == 1


@pytest.mark.one_case
@pytest.mark.parametrize("write", [saved, saved_weights, legacy_weights, safetensors_of], ids=lambda w: w.__name__)
def test_weights_of_each_kind_of_file(user, keras, write):
    table, source = f"weights_{write.__name__}", class_net(keras, 2)
    user.value("SELECT madlib_mop.import_model(%s, %s)", table, saved(number_net(keras, 5)))
    user.rows(f"SELECT madlib.load_keras_model('{table}', %s)", source.to_json())
    user.notices()
    assert user.value("SELECT madlib_mop.import_weights(%s, 2, %s)", table, write(source)) == 1
    assert f"model_id 2 of public.{table}: weights for {source.layers[0].name}" in user.notices()
    assert bytes(user.value(f"SELECT model_weights FROM {table} WHERE model_id = 2")) == weights_of(source)
    other = bytes(user.value(f"SELECT model_weights FROM {table} WHERE model_id = 1"))
    assert other == weights_of(number_net(keras, 5))


def test_layers_by_name_keep_the_others(user, keras):
    layers = keras.layers
    old = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="body"), layers.Dense(2, name="old_head")])
    new = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="body"), layers.Dense(5, name="head")])
    user.value("SELECT madlib_mop.import_model('heads', %s)", saved(new))
    user.notices()
    assert user.value("SELECT madlib_mop.import_weights('heads', 1, %s, by_name => true)", saved_weights(old)) == 1
    notice = user.notices()
    assert "weights for body; unchanged: head; only in the file: layers/dense_1 (old_head)" in notice
    expected = b"".join(w.tobytes() for w in (*old.get_weights()[:2], *new.get_weights()[2:]))
    assert bytes(user.value("SELECT model_weights FROM heads")) == expected


def test_what_was_exported_comes_in_with_the_same_bits(db, user, client):
    """A model of ordinary columns: preprocessor, classes and weights survive the round trip."""
    train_churn(db, 1)
    for form in ("keras",):
        file = bytes(user.value("SELECT madlib_mop.export_model('churn', 1, %s)", form))
        version = user.value("SELECT madlib_mop.import_version('churn', %s, note => 'came back')", file)
    stored = user.rows(
        "SELECT c.weights, c.document, d.digest, d.note, d.lineage FROM madlib_mop.version_content c"
        " JOIN madlib_mop.version_detail d USING (version_id) JOIN madlib_mop.model_version v USING (version_id)"
        " WHERE v.name = 'churn' AND v.version = %s", version)[0]  # fmt: skip
    weights, document, digest, note, lineage = stored
    assert bytes(weights) == bytes(user.value("SELECT model_weights FROM churn"))
    assert json.loads(document)["preprocessor"] == user.value("SELECT preprocessor FROM churn_summary")
    assert digest == user.value("SELECT encode(sha256(model_weights), 'hex') FROM churn") and note == "came back"
    assert lineage["imported"]["model"] == "mst_key 1 of public.churn"
    same = "SELECT count(*) FROM customers c WHERE {f}('churn@1', NULL, c) IS DISTINCT FROM {f}('churn', 1, c)"
    for function in ("predict", "predict_class", "predict_json"):
        assert user.value(same.format(f=f"madlib_mop.{function}")) == 0
    again = bytes(user.value("SELECT madlib_mop.export_model('churn@1')"))
    assert user.value("SELECT madlib_mop.import_version('churn', %s)", again) == 2
    handle = client.registered("churn@2")
    assert handle.predict("customers", key="id").equals(client.model("churn", 1).predict("customers", key="id"))
    assert "churn@1" in client.model("churn@1").card()
    error = user.refused(user.rows, "SELECT madlib_mop.import_version('churn', %s, '{no,yes}')", file)
    assert error.message.startswith("import_version: class_values is in the file, which has the preprocessor")


def test_arrays_keep_their_constant_and_their_classes(user, keras):
    facts = ModelTable(dependent=[Dependent(values=["a", "b", "c"])], normalizing_const=4.0)
    user.write_models("scaled", {1: class_net(keras, 1)}, facts)
    file = bytes(user.value("SELECT madlib_mop.export_model('scaled', 1)"))
    user.value("SELECT madlib_mop.import_version('scaled', %s)", file)
    for x in ("ARRAY[1, 0, 0]::real[]", "ARRAY[0, 0.5, 0.25]::real[]"):
        for function in ("predict", "predict_class", "predict_named"):
            one, other = (f"madlib_mop.{function}({name}, {x})" for name in ("'scaled', 1", "'scaled@1', NULL"))
            assert user.value(f"SELECT {one} = {other}"), function
    user.value("SELECT madlib_mop.import_version('scaled', %s, '{x,y,z}', 1)", file)
    assert user.value("SELECT madlib_mop.predict_class('scaled@2', NULL, ARRAY[0, 1, 0]::real[])") == "y"


def test_an_imported_version_is_deployed_if_it_has_a_loss(user, keras):
    write_classifiers(user, keras, "rivals", [-1])
    user.rows("SELECT madlib_mop.register('rival', 'rivals', 1); SELECT madlib_mop.set_alias('rival', 'best', 1)")
    rows = [(i, "abc"[i % 3], [float(i % 3 == k) for k in range(3)]) for i in range(30)]
    user.table("tested", "id integer, y text, x real[]", rows, "%s, %s, %s::real[]")
    user.rows("SET madlib_mop.segments = 1; SELECT madlib.training_preprocessor_dl('tested', 'tested_p', 'y', 'x')")
    file = saved(class_net(keras, 1))
    deploy = "SELECT madlib_mop.deploy('rival', 'best', {}, 'accuracy', 'tested_p', 0.9)"
    user.value("SELECT madlib_mop.import_version('rival', %s, '{a,b,c}')", file)
    error = user.refused(user.rows, deploy.format(2))
    assert "rival@2 was imported without compile parameters" in error.message
    user.value("SELECT madlib_mop.import_version('rival', %s, '{a,b,c}', compile_params => %s)", file,
               "loss='categorical_crossentropy', optimizer='sgd', metrics=['accuracy']")  # fmt: skip
    assert user.value(deploy.format(3)) is True
    assert user.value("SELECT madlib_mop.predict_class('rival@best', NULL, ARRAY[0, 0, 1]::real[])") == "c"


@pytest.mark.one_case
@pytest.mark.parametrize("call, sqlstate, text", [
    ("import_model('t', NULL)", "22023", "import_model: file is missing. Received: NULL"),
    ("import_model('t', '')", "22P02", "import_model: the file is empty"),
    ("import_model('t', 'PK')", "22P02", "import_model: the file is neither a Keras archive"),
    ("import_model('t', '\\x80045d942e')", "0A000", "import_model: the file is a pickle, which can run any code"),
    ("import_model('pg_class', '\\x504b0304')", "42703", "import_model: model_arch_table: pg_catalog.pg_class"),
    ("import_model('one', '\\x504b0304')", "22P02", "import_model: the zip archive is damaged: it is cut off"),
    ("import_weights('one', 9, 'x')", "22023", "import_weights: model_id is not in public.one. Received: 9"),
    ("import_weights('one', NULL, 'x')", "22023", "import_weights: model_id is missing. Received: NULL"),
    ("import_weights('none', 1, 'x')", "42P01", "import_weights: model_arch_table"),
    ("import_version('no name', 'x')", "22023", "import_version: name must have 1 to 63 letters"),
    ("import_version('m', 'x', normalizing_const => 0)", "22023", "import_version: normalizing_const must be a number"),
    ("import_version('m', 'x', compile_params => 'loss=open()')", "22", "import_version: compile_params: "),
])  # fmt: skip
def test_bad_input_is_one_clear_error(user, keras, call, sqlstate, text):
    user.rows("DROP TABLE IF EXISTS one")
    user.value("SELECT madlib_mop.import_model('one', %s)", saved(number_net(keras, 1)))
    error = user.refused(user.rows, f"SELECT madlib_mop.{call}")
    assert error.sqlstate.startswith(sqlstate) and error.message.startswith(text), error.message
    assert user.value("SELECT count(*) FROM one") == 1 and user.value("SELECT to_regclass('t')") is None


@pytest.mark.slow
def test_the_command_line_and_the_client(db, user, client, keras, tmp_path):
    net = class_net(keras, 1)
    path, weights = tmp_path / "model.keras", tmp_path / "model.weights.h5"
    path.write_bytes(saved(net))
    weights.write_bytes(saved_weights(class_net(keras, 3)))

    def shell(*words):
        done = madlib_mop(db, "import", *map(str, words))
        return done.returncode, done.stdout.strip(), done.stderr

    assert shell(path, "--table", "by_shell", "--name", "n")[:2] == (0, "1")
    assert shell(weights, "--table", "by_shell", "--weights-of", 1)[:2] == (0, "1")
    assert bytes(user.value("SELECT model_weights FROM by_shell")) == weights_of(class_net(keras, 3))
    assert shell(path, "--register", "shell", "--classes", "a, b,c")[:2] == (0, "shell@1")
    assert user.value("SELECT madlib_mop.predict_class('shell@1', NULL, ARRAY[0, 1, 0]::real[])") == "b"
    (tmp_path / "bad.keras").write_bytes(b"\x80\x04]\x94.")
    for words, text in (
        ((path,), "pass either --table or --register"),
        ((path, "--table", "a", "--register", "b"), "pass either --table or --register"),
        ((path, "--register", "b", "--by-name"), "--by-name has no meaning with --register"),
        ((path, "--table", "b", "--classes", "x"), "--classes has no meaning with --table"),
        ((tmp_path / "bad.keras", "--table", "b"), "the file is a pickle"),
        ((tmp_path / "none", "--table", "b"), "cannot be read"),
        ((weights, "--table", "b"), "which is imported onto an architecture"),
    ):
        code, _, error = shell(*words)
        assert code == 1 and text in error, error
    assert client.import_model("by_client", net) == 1
    assert client.import_weights("by_client", 1, weights.read_bytes()) == 1
    handle = client.import_version("client", path, class_values=["a", "b", "c"])
    assert handle.name == "client@1" and list(handle.predict(np.eye(3, dtype=np.float32))) == ["a", "b", "c"]
    with pytest.raises(InvalidParameter, match="Received: list"):
        client.import_model("by_client", [])
    with pytest.raises(MopError, match="has weights of the shapes"):
        client.import_weights("by_client", 1, number_net(keras, 1))
