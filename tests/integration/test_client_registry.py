"""The registry and drift in the Python client: handles of versions and aliases, frames in and data frames out."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from madlib_mop.client import Packed, RegisteredModel, connect
from madlib_mop.client.predicting import ClientPredictor
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter, MopError, Unsupported
from tests.helpers.customers import customers


@pytest.fixture(scope="module")
def client(db):
    with connect(db.dsn, settings={"segments": 1}) as client:
        yield client


@pytest.fixture(scope="module")
def frame():
    return customers(400)


@pytest.fixture(scope="module")
def packed(client, frame):
    return client.pack(frame, target="left", validation=0.25, seed=1)


@pytest.fixture(scope="module")
def model(client, packed):
    run = client.fit(packed, client.networks(packed, n_configs=1, epochs=2), epochs=2, seed=1, progress=False)
    return run.best()


@pytest.fixture(scope="module")
def version(model, packed):
    version = model.register("Churn", note="a test", baseline=packed)
    assert version.deploy("champion") is True
    return version


@pytest.mark.slow
def test_a_version_predicts_as_the_model_does(client, version, model, frame):
    assert isinstance(version, RegisteredModel) and (version.name, version.version) == ("churn@1", 1)
    champion = client.registered("CHURN@champion")
    assert champion.targets == model.targets and champion.version == 1
    pd.testing.assert_series_equal(champion.predict(frame), model.predict(frame))
    pd.testing.assert_frame_equal(champion.predict_proba(frame), model.predict_proba(frame))
    assert champion.predict(frame).dtype == "int64"
    kept, stored = model.to_keras().get_weights(), champion.to_keras().get_weights()
    assert all(np.array_equal(one, other) for one, other in zip(kept, stored, strict=True))
    assert list(client.registry()["note"]) == ["a test"]


def test_a_frame_is_compared_with_the_training_rows(client, version, frame):
    champion = client.registered("churn@champion")
    found = champion.drift(frame).set_index(["kind", "feature"])
    assert set(found["verdict"]) == {"stable"}
    assert found.loc[("target", "left"), "baseline_rows"].item() > 250  # the training rows
    assert found.loc[("prediction", "left"), "baseline_rows"].item() < 150  # the validation rows
    assert {("target", "left"), ("input", "Age in years"), ("input", "scores")} <= set(found.index)
    moved = frame.drop(columns="left").assign(city=pd.Categorical(["Rome"] * len(frame)))
    for rows in (moved, pl.from_pandas(moved.assign(**{"Age in years": moved["Age in years"].astype("Float64")}))):
        found = champion.drift(rows, predictions=False).set_index("feature")
        assert found.loc["city", "new_levels"] == ["Rome"] and found.loc["city", "new_share"] == 1.0
    assert set(champion.drift(moved, baseline=moved)["psi"]) == {0.0}
    assert set(champion.drift(moved, max_rows=50, predictions=False)["n_rows"]) <= set(range(15, 100))


def test_tables_are_compared_by_their_names(client, model, packed, frame):
    table = client.upload(frame, "customers_of_today")
    found = model.drift(table, baseline=packed.source, predictions=False)
    assert set(found["verdict"]) == {"stable"} and set(found["psi"]) == {0.0}
    assert client.query("SELECT count(*) AS n FROM pg_class WHERE relname LIKE 'drift!_%%' ESCAPE '!'")["n"].item() == 0


def test_columns_without_values_have_the_type_of_training(model, frame):
    empty = frame.assign(vip=pd.array([None] * len(frame), "boolean"), city=None)
    found = model.drift(empty, predictions=False).set_index("feature")
    assert (found.loc[["vip", "city"], "null_share"] == 1.0).all() and found.loc["city", "verdict"] == "large"


def test_predictions_of_frames_and_tables_are_explained(client, model, version, packed, frame):
    rows = frame.iloc[[5, 2, 9]]
    found = model.explain(rows, n_background=20)
    assert list(found["row"].unique()) == [0, 1, 2] and len(found) == 3 * found["feature"].nunique()
    for _, one in found.groupby("row"):
        assert one["contribution"].sum() == pytest.approx((one["prediction"] - one["base"]).iloc[0], abs=1e-6)
        assert (one["contribution"].abs().diff().dropna() <= 0).all()
    nullable = rows.assign(**{"Age in years": rows["Age in years"].astype("Float64")})
    of_polars = version.explain(pl.from_pandas(nullable), n_background=20)
    pd.testing.assert_frame_equal(of_polars, found)
    named = model.explain(rows, background=packed, n_background=np.int64(20))  # the training rows, by name
    pd.testing.assert_frame_equal(named, found)
    table = client.upload(frame.iloc[:4].assign(id=[7, 5, 6, 8]), "few_customers")
    of_table = model.explain(table, key="id", background=frame.iloc[:30], of_class="1", n_permutations=1)
    assert list(of_table["id"].unique()) == [5, 6, 7, 8] and set(of_table["class"]) == {"1"}
    for arguments, words in (({"n_rows": 3}, "no argument 'n_rows'"), ({"key": "id"}, "is for the name of a table")):
        with pytest.raises(MopError, match=words):
            model.explain(rows, **arguments)
    with pytest.raises(MopError, match="key is missing"):
        model.explain(table)


def test_columns_that_matter_are_data_frames(model, packed, frame):
    of_rows = model.importance(frame, n_repeats=1)
    of_packed = model.importance(packed, metric="error_rate", n_repeats=1)
    assert set(of_rows["feature"]) == set(of_packed["feature"]) and set(of_rows["n_rows"]) == {400}
    found = model.partial_dependence(frame, "city", of_class="1", n_values=2)
    assert list(found["class"]) == ["1", "1"] and found["prediction"].between(0, 1).all()


@pytest.mark.parametrize(
    ("data", "arguments", "words"),
    [
        (lambda frame: frame.drop(columns="city"), {}, "no column 'city'"),
        (lambda frame: frame, {"max_row": 3}, "drift has no argument 'max_row'"),
        (lambda frame: frame, {"moderate": 3.0}, "moderate must not be above large"),
        (lambda frame: frame[:0], {}, "source_table has no rows"),
        (lambda frame: 7, {}, "source_table must be"),
        (lambda frame: "nowhere", {}, "nowhere"),
        (lambda frame: frame.assign(city=1), {"baseline": 3}, "baseline must be"),
    ],
)
def test_bad_input_is_one_clear_error(model, frame, data, arguments, words):
    with pytest.raises(MopError) as caught:
        model.drift(data(frame), **arguments)
    assert words in caught.value.message


def test_an_alias_moves_and_goes_back(client, model, version, packed):
    second = model.register("churn")
    assert second.name == "churn@2" and isinstance(packed, Packed)
    assert second.deploy("champion", test_table=packed, metric="accuracy", at_least=1.1) is False
    assert second.deploy("champion", reason="weekly training") is True
    champion = client.registered("churn@champion")
    assert champion.version == 2 and champion.targets == version.targets
    assert set(champion.drift(packed.source)["verdict"]) == {"stable", "unknown"}  # registered without a baseline
    assert champion.rollback(reason="customers complain") == 1 == champion.version
    history = champion.history()
    assert list(history["change"]) == ["rollback", "deploy", "deploy"] and history["reason"][0] == "customers complain"
    with pytest.raises(InvalidParameter, match="alias is missing"):
        second.rollback()
    with pytest.raises(Unsupported, match="registered already"):
        second.register("other")
    with pytest.raises(InvalidParameter, match="has no alias"):
        client.registered("churn@nobody")
    with pytest.raises(InvalidParameter, match="has no alias newest"):
        client.registered("churn")
    second.deploy("newest")
    assert client.registered("Churn").name == "churn@newest" and client.registered("churn").version == 2
    with pytest.raises(InvalidParameter, match="must name a registered model"):
        client.registered('"churn"')


@pytest.mark.slow
def test_an_alias_that_moves_during_a_call_does_not_mix_two_versions(client, model, version, frame, monkeypatch):
    second = model.register("churn")
    version.deploy("champion")
    asked = []
    answers = ClientPredictor.answers

    def moving(predictor, *arguments):
        asked.append(client.registered("churn@champion").version)
        if len(asked) == 1:
            second.deploy("champion")
        return answers(predictor, *arguments)

    monkeypatch.setattr(ClientPredictor, "answers", moving)
    found = client.registered("churn@champion").predict(frame)
    assert asked == [version.version, second.version] and len(found) == len(frame)
    monkeypatch.undo()
    version.deploy("champion")


def test_only_the_owner_uses_a_handle(db, version, frame):
    db.cluster.create_role("serves_of_client")
    db.rows("SELECT madlib_mop.grant_model('churn', 'serves_of_client', 'predict')")
    with connect(db.dsn_of("serves_of_client")) as client:
        champion = client.registered("churn@champion")
        with pytest.raises(InsufficientPrivilege, match="only the owner of churn can use its handle") as caught:
            champion.predict(frame)
        assert "predict_class('churn@champion', t.*)" in caught.value.hint


@pytest.mark.slow
def test_a_model_of_arrays_is_compared_by_its_inputs(client):
    draw = np.random.default_rng(2)
    x = draw.normal(size=(300, 3)).astype(np.float32)
    arrays = {"x": x, "y": np.where(x[:, 0] > 0, "up", "down")}
    packed = client.pack_arrays(arrays, "y", "x", seed=1)
    import keras

    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="softmax")])
    configs = client.configurations(net, {"loss": "categorical_crossentropy", "optimizer": "adam"}, {"batch_size": 32})
    model = client.fit(packed, configs, epochs=1, seed=1, progress=False).best()
    today = pd.DataFrame({"x": list(x + [2, 0, 0])})
    found = model.drift(today, baseline=pd.DataFrame({"x": list(x)}))
    assert list(found["measured"]) == ["element 1", "element 2", "element 3", "level"]
    assert list(found["verdict"][:3]) == ["large", "stable", "stable"]
    with pytest.raises(InvalidParameter, match="baseline is missing"):
        model.drift(today)


@pytest.mark.slow
def test_a_registered_model_of_arrays_knows_the_name_of_its_input(client):
    x = np.random.default_rng(2).normal(size=(60, 3)).astype(np.float32)
    arrays = {"pixels": x, "y": np.where(x[:, 0] > 0, "up", "down")}
    packed = client.pack_arrays(arrays, "y", "pixels", table="pixelled")
    net = {"class_name": "Sequential", "config": {"layers": [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 3]}},
        {"class_name": "Dense", "config": {"units": 2, "activation": "softmax"}},
    ]}}  # fmt: skip
    configs = client.configurations(net, {"loss": "categorical_crossentropy", "optimizer": "adam"}, {"batch_size": 32})
    model = client.fit(packed, configs, epochs=1, seed=1, progress=False).best()
    version = model.register("pixelled")
    frame = pd.DataFrame({"pixels": list(x)})
    assert version.predict(frame).tolist() == model.predict(frame).tolist()
    assert version.predict("pixelled", key="y").tolist() == model.predict("pixelled", key="y").tolist()
    assert list(version.drift(frame, baseline=frame)["verdict"][:3]) == ["stable"] * 3
