"""The Python client: which row, which class and which model a prediction is of, where names and NULLs could mislead."""

import numpy as np
import pandas as pd
import pytest

from madlib_mop.client import connect, load_exported
from madlib_mop.errors import InvalidParameter
from tests.helpers.customers import SOFTMAX_16

pytestmark = pytest.mark.usefixtures("keras")  # models of files set up TensorFlow, too
CLASSES = "SELECT madlib_mop.predict_class(%s, %s, r) AS p FROM {} AS r ORDER BY id"


@pytest.fixture(scope="module")
def client(db):
    with connect(db.dsn, settings={"segments": 1}) as client:
        yield client


def network(n_inputs: int, units: int) -> dict:
    layers = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, n_inputs]}},
        {"class_name": "Dense", "config": {"units": units, "activation": "softmax"}},
    ]
    return {"class_name": "Sequential", "config": {"layers": layers}}


def trained(client, packed, configs):
    return client.fit(packed, configs, epochs=1, seed=1, progress=False)


@pytest.mark.slow
def test_a_column_named_t_is_a_column_and_the_row_is_the_row(client):
    """The statements of the client call the table t. A name stands for a column first, and then for the row."""
    draw = np.random.default_rng(1)
    frame = pd.DataFrame({"id": range(200), "t": draw.normal(size=200), "T": draw.normal(size=200)})
    frame["y"] = np.where(frame["t"] > frame["T"], "a", "b")
    packed = client.pack(frame, "y", table="readings", exclude=["id"], seed=1)
    model = trained(client, packed, client.networks(packed, n_configs=1, epochs=1)).best()
    expected = client.query(CLASSES.format("readings"), [model.table, model.mst_key])["p"].tolist()
    assert set(expected) == {"a", "b"}
    assert model.predict(frame).tolist() == expected
    assert model.predict_proba(frame).idxmax(axis=1).tolist() == expected
    assert model.predict("readings", key="id").sort_index().tolist() == expected


@pytest.mark.slow
def test_an_array_column_named_t_is_encoded_as_in_training(client, tmp_path):
    draw = np.random.default_rng(2)
    arrays = 1000 + 50 * draw.normal(size=(200, 3))
    frame = pd.DataFrame({"id": range(200), "t": list(arrays), "y": np.where(arrays[:, 0] > 1000, "a", "b")})
    packed = client.pack(frame, "y", table="curves", exclude=["id"], seed=1)
    model = trained(client, packed, client.networks(packed, n_configs=1, epochs=1)).best()
    model.export(tmp_path / "model", "keras")
    expected = load_exported(tmp_path / "model").predict_proba(frame)
    np.testing.assert_allclose(model.predict_proba(frame), expected, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba("curves", key="id").sort_index(), expected, atol=1e-6)
    for form in ("predict", "predict_class"):  # without .*, the column: its numbers are not those of the network
        with pytest.raises(InvalidParameter, match="so it takes rows, not arrays") as raised:
            client.query(f"SELECT madlib_mop.{form}(%s, %s, t) FROM curves AS t", [model.table, model.mst_key])
        assert "t.*" in raised.value.hint


@pytest.mark.slow
def test_reserved_outputs_are_no_classes_and_a_null_array_has_no_prediction(client):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(90, 3)).astype(np.float32)
    kinds = np.array([None, "a", "b"], object)[draw.integers(0, 3, 90)]
    packed = client.pack_arrays({"x": x, "kind": kinds}, "kind", "x", num_classes=[6])
    model = trained(client, packed, client.configurations(network(3, 6), SOFTMAX_16)).best()
    (target,) = model.targets
    assert target.classes == (None, "a", "b") and target.n_padding == 3
    found = model.predict_proba(x)
    assert found.columns.tolist() == [None, "a", "b"]
    query = "SELECT madlib_mop.predict(%s, %s, CAST(%s AS real[])) AS p"
    arrays = [client.query(query, [model.table, model.mst_key, row.tolist()])["p"][0] for row in x[:5]]
    assert found.to_numpy()[:5].tolist() == np.asarray(arrays, np.float32)[:, :3].tolist()
    client.query("CREATE TABLE pictures AS SELECT 1 AS id, '{1,2,3}'::real[] AS x UNION ALL SELECT 2, NULL")
    by_key = model.predict_proba("pictures", key="id").sort_index()
    assert by_key.loc[1].notna().all() and by_key.loc[2].isna().all()
    assert len(model.predict("pictures", key="id")) == 2
    client.query("DELETE FROM pictures WHERE id = 1")
    assert model.predict_proba("pictures", key="id").isna().all(axis=None)


@pytest.mark.slow
def test_several_outputs_with_reserved_classes(client):
    draw = np.random.default_rng(4)
    x = draw.normal(size=(60, 3)).astype(np.float32)
    rows = pd.DataFrame({"id": range(60), "x": list(x), "kind": np.where(x[:, 0] > 0, "a", "b"),
                         "size": np.where(x[:, 1] > 0, "big", "small")})  # fmt: skip
    client.upload(rows, "things")
    client.call("training_preprocessor_dl", source_table="things", output_table="things_packed",
                dependent_varname="kind, size", independent_varname="x", num_classes=[4, 2])  # fmt: skip
    inner = {"module": "keras.layers", "class_name": "Dense", "registered_name": None}

    def head(name: str, units: int) -> dict:
        tensor = {"class_name": "__keras_tensor__", "config": {"shape": [None, 3], "dtype": "float32",
                                                               "keras_history": ["x", 0, 0]}}  # fmt: skip
        return {**inner, "name": name, "config": {"name": name, "units": units, "activation": "softmax"},
                "inbound_nodes": [{"args": [tensor], "kwargs": {}}]}  # fmt: skip

    start = {"module": "keras.layers", "class_name": "InputLayer", "registered_name": None, "name": "x",
             "config": {"batch_shape": [None, 3], "dtype": "float32", "name": "x"}, "inbound_nodes": []}  # fmt: skip
    arch = {"module": "keras.src.models.functional", "class_name": "Functional", "registered_name": "Functional",
            "config": {"name": "two", "layers": [start, head("kind", 4), head("size", 2)],
                       "input_layers": [["x", 0, 0]], "output_layers": [["kind", 0, 0], ["size", 0, 0]]}}  # fmt: skip
    configs = client.configurations(arch, SOFTMAX_16)
    model = trained(client, "things_packed", configs).best()
    found = model.predict("things", key="id")
    assert len(found) == 60 and set(found["kind"]) <= {"a", "b"} and set(found["size"]) <= {"big", "small"}
    client.query("UPDATE things SET x = NULL WHERE id = 7")
    found = model.predict("things", key="id")
    assert found.loc[7].isna().all() and found.drop(index=7).notna().all(axis=None)


@pytest.mark.slow
def test_a_run_of_madlib_keras_fit_has_a_best_model(client, keras):
    draw = np.random.default_rng(5)
    x = draw.normal(size=(60, 3)).astype(np.float32)
    packed = client.pack_arrays({"x": x, "kind": np.where(x[:, 0] > 0, "a", "b")}, "kind", "x")
    configs = client.configurations(network(3, 2), SOFTMAX_16)
    client.call(
        "madlib_keras_fit", source_table=packed.table, model="average", model_arch_table=configs.architectures,
        model_id=1, compile_params="optimizer='adam', loss='categorical_crossentropy'",
        fit_params="batch_size=16, epochs=1", num_iterations=1,
    )  # fmt: skip
    model = client.run(client.runs().index[0]).best()
    assert model.mst_key is None
    assert model.predict(x).tolist() == client.model("average").predict(x).tolist()
    np.testing.assert_allclose(model.to_keras().predict(x, verbose=0), model.predict_proba(x), atol=1e-6)
