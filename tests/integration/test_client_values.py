"""The Python client: settings, types of results, regressions, arrays, psycopg 3."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import create_engine

from madlib_mop.client import connect
from madlib_mop.errors import InvalidParameter, NotReady, Unsupported
from tests.helpers.customers import SOFTMAX_16, customers


@pytest.fixture(scope="module")
def client(db):
    with connect(db.dsn, settings={"segments": 2}) as client:
        yield client


@pytest.fixture(scope="module")
def frame():
    return customers()


def test_settings_are_those_of_each_call(db):
    with connect(db.dsn, settings={"segments": 3, "materialise_features": False}) as client:
        found = client.query(
            "SELECT current_setting('madlib_mop.segments') AS n,"
            " current_setting('madlib_mop.materialise_features') AS f"
        )
        assert found.iloc[0].tolist() == ["3", "off"]


def test_results_have_the_types_of_pandas(client):
    found = client.query(
        "SELECT i, nullif(i, 1) AS n, i / 2.0 AS d, nullif(i::float8, 1) AS x, i > 1 AS b, nullif(i > 1, true) AS c,"
        " '2020-01-02 03:04:05+02'::timestamptz AS z, 'a' AS t FROM generate_series(1, 2) AS i"
    )
    types = {name: str(dtype) for name, dtype in found.dtypes.items()}
    assert types | {"z": ""} == {
        "i": "int32", "n": "Int32", "d": "float64", "x": "float64", "b": "bool", "c": "boolean", "z": "", "t": "object",
    }  # fmt: skip
    assert found["z"][0] == pd.Timestamp(dt.datetime(2020, 1, 2, 1, 4, 5, tzinfo=dt.UTC))


def test_a_database_without_the_extension_is_named(cluster):
    with pytest.raises(NotReady, match="database 'postgres' does not have the extension"):
        connect(cluster.dsn)


@pytest.mark.slow
def test_a_regression_predicts_numbers_in_the_units_of_the_frame(client, frame):
    draw = np.random.default_rng(3)
    rows = frame.dropna(subset=["Age in years"]).drop(columns="scores")
    rows = rows.assign(**{"Age in years": rows["Age in years"] + draw.random(len(rows))})
    packed = client.pack(rows, "Age in years", exclude=["left"])
    run = client.fit(packed, client.networks(packed, n_configs=1, epochs=1), epochs=1, seed=1, progress=False)
    model = run.best()
    predicted = model.predict(frame)
    assert predicted.dtype == "float64" and predicted.between(0, 120).all() and predicted.index.equals(frame.index)
    with pytest.raises(Unsupported, match="predict_proba is for a model with one output of classes"):
        model.predict_proba(frame)
    packed.drop()
    assert client.query("SELECT to_regclass(%s) IS NULL AS gone", [packed.table])["gone"][0]


def _linear(client, units: int):
    layers = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 3]}},
        {"class_name": "Dense", "config": {"units": units}},
    ]
    return client.configurations(
        {"class_name": "Sequential", "config": {"layers": layers}},
        {"loss": "mse", "optimizer": "adam"}, {"batch_size": 16},
    )  # fmt: skip


@pytest.mark.slow
def test_numbers_that_a_model_of_arrays_predicts(client):
    x = np.random.default_rng(4).normal(size=(60, 3)).astype(np.float32)
    sums = client.upload(pd.DataFrame({"id": range(60), "x": list(x), "y": list(x.sum(axis=1, keepdims=True))}))
    packed = client.pack_arrays(sums, "y", "x")
    model = client.fit(packed, _linear(client, 1), epochs=1, seed=1, progress=False).best()
    predicted = model.predict(x)
    assert predicted.dtype == "float64" and len(predicted) == 60
    by_key = model.predict(sums, key="id").sort_index()
    assert by_key.tolist() == predicted.tolist()
    packed = client.pack_arrays({"x": x, "y": (x > 0).astype(np.float32)}, "y", "x")
    model = client.fit(packed, _linear(client, 3), epochs=1, seed=1, progress=False).best()
    rows = np.stack(model.predict(x).to_list())
    assert rows.shape == (60, 3)
    network = model.to_keras()
    np.testing.assert_allclose(rows, network.predict(x, verbose=0), atol=1e-6)


def test_arrays_that_cannot_be_packed_leave_no_table(client):
    x = np.ones((20, 3), np.float32)
    kinds = np.array(["a", "b"] * 10)
    tables = "SELECT count(*) AS n FROM pg_class WHERE relkind = 'r'"
    before = client.query(tables)["n"][0]
    for validation in ({"x": x, "y": np.array(["a", "never"] * 10)}, {"x": x * np.inf, "y": kinds}):
        with pytest.raises(InvalidParameter):
            client.pack_arrays({"x": x, "y": kinds}, "y", "x", validation=validation)
        assert client.query(tables)["n"][0] == before


@pytest.mark.slow
def test_arrays_of_numpy_are_packed_and_predicted(client):
    draw = np.random.default_rng(2)
    pictures = draw.random((120, 2, 3, 1)).astype(np.float32)
    kinds = np.where(pictures.mean(axis=(1, 2, 3)) > 0.5, "bright", "dark")
    packed = client.pack_arrays(
        {"x": pictures[:100], "kind": kinds[:100]}, "kind", "x", validation={"x": pictures[100:], "kind": kinds[100:]},
        table="pictures",
    )  # fmt: skip
    assert packed.source == '"public"."pictures"' and packed.validation is not None
    layers = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 2, 3, 1]}},
        {"class_name": "Flatten", "config": {}},
        {"class_name": "Dense", "config": {"units": 2, "activation": "softmax"}},
    ]
    own = client.configurations({"class_name": "Sequential", "config": {"layers": layers}}, SOFTMAX_16)
    model = client.fit(packed, own, epochs=1, seed=1, progress=False).best()
    predicted = model.predict(pictures)
    probabilities = model.predict_proba(pictures)
    assert set(predicted) <= {"bright", "dark"} and len(predicted) == 120
    assert (probabilities.idxmax(axis=1) == predicted).all()
    network = model.to_keras()
    np.testing.assert_allclose(network.predict(pictures, verbose=0), probabilities.to_numpy(), atol=1e-6)
    by_key = model.predict("pictures", key="kind")
    assert (by_key.to_numpy() == predicted[:100].to_numpy()).all()
    for rows in (pictures[0, 0, 0], [["a"]], np.full((2, 2, 3, 1), np.nan)):
        with pytest.raises(InvalidParameter):
            model.predict(rows)


@pytest.mark.slow
def test_psycopg_3_packs_trains_and_is_interrupted(db, frame):
    def interrupt(status):
        if status.visits_done >= 1:
            raise KeyboardInterrupt

    engine = create_engine(db.dsn.replace("postgresql://", "postgresql+psycopg://"))
    with connect(engine, settings={"segments": 1}) as client:
        with pytest.raises(InvalidParameter, match="row 3"):
            client.upload(frame.assign(x=[1.0] * 3 + [np.inf] * (len(frame) - 3)))
        packed = client.pack(frame, "left")
        configs = client.networks(packed, n_configs=1, epochs=1)
        run = client.fit(packed, configs, epochs=1, seed=1, progress=False)
        assert (run.best().predict(frame).index == frame.index).all() and len(run.visits()) == 1
        assert len(run.best().to_keras().get_weights()) > 2
        with pytest.raises(KeyboardInterrupt) as raised:
            client.fit(packed, configs, epochs=500, seed=1, progress=interrupt)
        assert "resume()" in raised.value.__notes__[0]
    engine.dispose()
