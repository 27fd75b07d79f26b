"""Models leave: files that predict what madlib_mop.predict predicts, with preprocessor and card."""

import json
import re
from contextlib import closing

import numpy as np
import pandas as pd
import pytest

from madlib_mop.client import connect, load_exported
from madlib_mop.errors import InvalidParameter, MopError, Unsupported
from tests.helpers.columns import content, train_churn
from tests.helpers.commands import run as madlib_mop
from tests.helpers.exports import LAST_BIT, networks
from tests.helpers.inference import Dependent, ModelTable, User, weights_of
from tests.helpers.invented import invent_run
from tests.helpers.security.attacks import recorded_plan
from tests.helpers.trackers import name_output

pytestmark = [pytest.mark.timeout(900), pytest.mark.one_session]
COLUMNS = "id, age, income, tier, city, active, joined, seen"


@pytest.fixture(scope="module")
def user(db):
    with closing(User(db.connect()).connection) as connection:
        yield User(connection)


@pytest.fixture(scope="module")
def client(db):
    with connect(db.dsn, settings={"segments": 1}) as client:
        yield client


@pytest.fixture(scope="module")
def arrays(db, user, keras):
    """The ten kinds of networks, each in a table of its own."""
    made = networks(keras)
    for name, network in made.items():
        dependent = [Dependent(f"y{i}", values=None, vartype="real[]") for i in range(network.n_outputs)]
        facts = ModelTable(
            compile_params="loss='mse', optimizer='sgd'", metrics_type=None, loss_type="mse",
            independent=[f"x{i}" for i in range(len(network.xs))], dependent=dependent, normalizing_const=2.0,
        )  # fmt: skip
        user.write_models(name, {1: network.model}, facts)
    return made


def predicted(user: User, name: str, xs) -> np.ndarray:
    """Return what madlib_mop.predict returns for all rows: float32 (n_rows, n_values)."""
    slots = ", ".join(["madlib_mop.array_bytes(CAST(%s AS real[]))"] * len(xs))
    rows = user.value(f"SELECT madlib_mop.predict(%s, 1, ARRAY[{slots}])", name, *[x.tolist() for x in xs])
    return np.asarray(rows, np.float32)


def scaled(name: str, xs) -> list[np.ndarray]:
    """Return inputs that are the network's rows after division by the normalizing constant."""
    return [2 * x for x in xs]


@pytest.mark.one_case
@pytest.mark.parametrize("name", [
    "dense", "one_unit", "inputs_and_outputs", "embedding", "lstm", "bidirectional_gru", "attention", "convolution",
    "convolution_of_sequences", "normalization",
])  # fmt: skip
def test_exports_of_ten_kinds_of_networks_predict_what_the_database_predicts(
    user, client, arrays, name, tmp_path, record_property, keras
):
    network = arrays[name]
    xs = scaled(name, network.xs)
    expected = predicted(user, name, xs)
    model, exact = client.model(name, 1), keras.config.backend() == "tensorflow"
    for form in ("keras", "onnx"):
        model.export(tmp_path, form)
        local = load_exported(tmp_path, form)
        outputs = list(local.outputs(xs if len(xs) > 1 else xs[0]).values())
        found = np.concatenate(outputs, axis=1)
        if form == "keras" and exact:
            assert np.array_equal(found, expected)
        largest = float(np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))))
        record_property(form, largest)
        assert largest <= 1e-5
    plain = model.to_keras()
    batch = [x.astype(tensor.dtype) for x, tensor in zip(network.xs, plain.inputs, strict=True)]
    outputs = plain.predict_on_batch(batch if len(batch) > 1 else batch[0])
    outputs = outputs if isinstance(outputs, list) else [outputs]
    found = np.concatenate([o.reshape(len(o), -1) for o in outputs], axis=1)
    assert float(np.max(np.abs(found - expected))) <= (LAST_BIT.get(name, 0) if exact else 1e-6)


@pytest.mark.slow
def test_every_format_has_signature_and_card(user, client, arrays, tmp_path):
    digest = user.value("SELECT encode(sha256(model_weights), 'hex') FROM inputs_and_outputs")
    for form in ("keras", "saved_model", "onnx", "safetensors"):
        paths = client.model("inputs_and_outputs", 1).export(tmp_path / form, form)
        assert {path.name for path in paths[1:]} == {"signature.json", "README.md"} and paths[0].exists()
        signature = json.loads((tmp_path / form / "signature.json").read_text())
        assert signature["weights_digest"] == digest and signature["model"] == "mst_key 1 of public.inputs_and_outputs"
        assert [one["name"] for one in signature["inputs"]] == ["first_numbers", "zz"]
        assert [one["shape"] for one in signature["inputs"]] == [[None, 4], [None, 3, 2]]
        assert {one["divide_by"] for one in signature["inputs"]} == {2.0}
        assert [one["layer"] for one in signature["outputs"]] == ["kind", "amount"]
        assert "## Intended use" in (tmp_path / form / "README.md").read_text()


@pytest.fixture(scope="module")
def churn(db, user, keras):
    """A model of ordinary columns with NULLs, levels, dates and decimals, and its rows as a frame."""
    db.run = train_churn(db, 1)
    return user


@pytest.fixture(scope="module")
def frame(churn, client):
    rows = client.query(f"SELECT {COLUMNS} FROM customers ORDER BY id")
    rows["age"] = rows["age"].astype("Int64")
    return rows


@pytest.mark.one_case
@pytest.mark.parametrize("form", ["keras", "onnx"])
def test_rows_of_a_frame_are_predicted_as_rows_of_the_table(churn, client, frame, form, tmp_path, record_property):
    client.model("churn", 1).export(tmp_path, form)
    local = load_exported(tmp_path, form)
    expected = np.array([row for (row,) in churn.rows(
        "SELECT madlib_mop.predict('churn', 1, c) FROM customers c ORDER BY id")], np.float32)  # fmt: skip
    found = local.outputs(frame)["churned"]
    largest = float(np.max(np.abs(found - expected)))
    record_property("difference", largest)
    assert largest == 0 if form == "keras" else largest <= 1e-5
    classes = [c for (c,) in churn.rows("SELECT madlib_mop.predict_class('churn', 1, c) FROM customers c ORDER BY id")]
    assert local.predict(frame).tolist() == classes
    assert local.predict(frame).index.equals(frame.index)
    proba = local.predict_proba(frame.head(3))
    assert list(proba.columns) == ["no", "yes"] and np.array_equal(proba.to_numpy(), found[:3])


def test_the_encoder_gives_the_bits_of_the_packed_table(db, churn, client, frame, tmp_path):
    client.model("churn", 1).export(tmp_path, "onnx")
    numbers, city = load_exported(tmp_path).encode(frame)
    packed = {name: np.concatenate([content(db, table)[name] for table in ("packed", "packed_validation")])
              for name in ("numbers", "city")}  # fmt: skip

    def rows(*arrays):
        return sorted(b"".join(part.tobytes() for part in row) for row in zip(*arrays, strict=True))

    assert rows(numbers, city) == rows(packed["numbers"], packed["city"].view(np.int32))
    assert (tmp_path / "preprocessor.json").exists()


def test_unseen_values_and_columns_without_values(churn, client, frame, tmp_path):
    client.model("churn", 1).export(tmp_path, "keras")
    local = load_exported(tmp_path / "model.keras")  # one file is enough
    odd = frame.head(2).assign(city="Atlantis", tier=None, joined=pd.NaT, extra=1)
    churn.rows("CREATE TEMP VIEW odd AS SELECT id, age, income, NULL::text AS tier, 'Atlantis'::text AS city, active,"
               " NULL::date AS joined, seen FROM customers ORDER BY id LIMIT 2")  # fmt: skip
    expected = [row for (row,) in churn.rows("SELECT madlib_mop.predict('churn', 1, o) FROM odd o ORDER BY id")]
    assert np.array_equal(local.outputs(odd)["churned"], np.array(expected, np.float32))
    with pytest.raises(MopError, match="has no column 'age'"):
        local.predict(frame.drop(columns="age"))
    with pytest.raises(MopError, match="column 'age'"):
        local.predict(frame.assign(age="old"))


@pytest.mark.slow
def test_a_scaled_number_comes_back_in_the_units_of_the_table(client, tmp_path):
    draw = np.random.default_rng(3)
    houses = pd.DataFrame({"area": draw.normal(120, 40, 200), "town": draw.choice(["Ulm", "Bonn"], 200)})
    houses["price"] = 3000 * houses["area"] + 9e4 * (houses["town"] == "Ulm")
    packed = client.pack(houses, target="price", seed=1)
    model = client.fit(packed, client.networks(packed, n_configs=1, epochs=2), epochs=2, progress=False).best()
    expected = model.predict(houses)
    for form in ("keras", "onnx"):
        model.export(tmp_path, form)
        found = load_exported(tmp_path, form).predict(houses)
        if form == "keras":
            assert np.array_equal(found.to_numpy(), expected.to_numpy())
        assert np.allclose(found, expected, rtol=1e-4) and expected.mean() > 1e5
        with pytest.raises(Unsupported, match="predict_proba is for a model with one output of classes"):
            load_exported(tmp_path, form).predict_proba(houses)


@pytest.mark.slow
def test_an_ensemble_is_one_network(user, client, keras, tmp_path):
    layers = keras.layers
    nets = {key: keras.Sequential([keras.Input((3,)), layers.Dense(3, "softmax")]) for key in (1, 2)}
    user.write_models("two", nets, ModelTable(dependent=[Dependent(values=["a", "b", "c"])]))
    user.table("points", "id integer, y text, x real[]", [(i, "abc"[i % 3], [i % 3, 1, i / 9]) for i in range(60)],
               "%s, %s, %s::real[]")  # fmt: skip
    user.rows("SET madlib_mop.segments = 1; SELECT madlib.training_preprocessor_dl('points', 'points_p', 'y', 'x')")
    user.rows("SELECT madlib_mop.make_ensemble('two', 'points_p', 'both', mst_keys => '{1,2}')")
    client.model("both", 1).export(tmp_path, "onnx")
    x = np.array([[i % 3, 1, i / 9] for i in range(48)], np.float32)
    assert np.allclose(load_exported(tmp_path).outputs(x)["y"], predicted(user, "both", [x]), atol=1e-5)


@pytest.mark.slow
def test_an_ensemble_of_ordinary_columns_is_exported_in_every_format(churn, client, frame, tmp_path):
    churn.rows("SELECT madlib_mop.make_ensemble('churn', 'packed_validation', 'churn_average')")
    expected = np.array([row for (row,) in churn.rows(
        "SELECT madlib_mop.predict('churn_average', 1, c) FROM customers c ORDER BY id")], np.float32)  # fmt: skip
    model = client.model("churn_average", 1)
    for form in ("keras", "onnx", "saved_model", "safetensors"):
        paths = model.export(tmp_path / form, form)
        assert {path.name for path in paths[1:]} == {"signature.json", "preprocessor.json", "README.md"}
    assert np.array_equal(load_exported(tmp_path / "keras").outputs(frame)["churned"], expected)
    assert np.allclose(load_exported(tmp_path / "onnx").outputs(frame)["churned"], expected, atol=1e-5)


@pytest.fixture(scope="module")
def ensemble(db, user, keras):
    """An ensemble of models of a run, and one whose members no run has trained; each has two or more members."""
    layers = keras.layers
    keras.utils.set_random_seed(5)
    nets, others = (
        {key: keras.Sequential([keras.Input((3,)), layers.Dense(3, "softmax")]) for key in (1, 2, 3)} for _ in range(2)
    )
    facts = ModelTable(dependent=[Dependent(values=["a", "b", "c"])])
    user.table("places", "id integer, y text, x real[]", [(i, "abc"[i % 3], [i % 3, 1, i / 9]) for i in range(60)],
               "%s, %s, %s::real[]")  # fmt: skip
    user.rows("SET madlib_mop.segments = 1; SELECT madlib.training_preprocessor_dl('places', 'places_p', 'y', 'x')")
    user.write_models("trained", nets, facts)
    user.write_models("unknown", others, facts)
    run_id = invent_run(db, n_models=3)
    name_output(db, run_id, "public", "trained")
    db.rows("UPDATE madlib_mop.model SET weights_digest = NULL WHERE run_id = %s AND mst_key = 3", [run_id])
    plan = recorded_plan("public", "trained", "public.train")
    db.rows("UPDATE madlib_mop.run SET plan = %s WHERE run_id = %s", [json.dumps(plan), run_id])
    made = user.rows("SELECT mst_key, weight, validation_metric, ensemble_metric FROM madlib_mop.make_ensemble("
                     "'trained', 'places_p', 'of_run')")  # fmt: skip
    user.run_id, user.members = run_id, made
    return user


def test_the_card_of_an_ensemble_has_its_members_and_their_runs(ensemble, client):
    card = client.model("of_run", 1).card()
    assert "The model averages the outputs of these models of public.trained:" in card
    runs = ensemble.value("SELECT ensemble_run_ids FROM of_run_info")
    assert runs == [None if key == 3 else ensemble.run_id for key, *_ in ensemble.members]
    for (key, share, metric, whole), run_id in zip(ensemble.members, runs, strict=True):
        assert f"| {key} | {share:.4g} | {metric:.6g} | {run_id or 'unknown'} |" in card
        (told,) = re.findall(r"\| validation \| loss \| (\S+) \|", card)  # of evaluating the ensemble's own network
        assert float(told) == pytest.approx(whole, rel=1e-5)
    assert f"| {ensemble.run_id} | public.train | public.valid | 2,000 |" in card
    exported = bytes(ensemble.value("SELECT madlib_mop.export_model('of_run', 1)"))
    assert exported.count(b"The model averages the outputs") == 1


def test_a_version_keeps_the_members_of_an_ensemble(ensemble, client, db):
    ensemble.rows("SELECT madlib_mop.register('averaged', 'of_run', 1)")
    before = client.model("averaged@1").card()
    ensemble.rows("DROP TABLE of_run, of_run_info, of_run_summary")
    ensemble.rows(f"SELECT madlib_mop.drop_run({ensemble.run_id})")
    card = client.model("averaged@1").card()
    assert card == before and f"| {ensemble.run_id} | public.train | public.valid | 2,000 |" in card
    for key, share, metric, _ in ensemble.members:
        assert f"| {key} | {share:.4g} | {metric:.6g} | {'unknown' if key == 3 else ensemble.run_id} |" in card
    assert ensemble.rows("SELECT * FROM madlib_mop.version_lineage WHERE name = 'averaged'") == []


def test_an_ensemble_without_runs_and_a_table_with_other_columns(ensemble, client):
    ensemble.rows("SELECT madlib_mop.make_ensemble('unknown', 'places_p', 'of_none', mst_keys => '{1,2}')")
    card = client.model("of_none", 1).card()
    assert "The record of the runs that trained its members is not there" in card and "| unknown |" in card
    ensemble.rows("ALTER TABLE of_none_info DROP COLUMN ensemble_run_ids")  # as of an earlier version
    assert client.model("of_none", 1).card() == card
    ensemble.rows("ALTER TABLE of_none_info ALTER COLUMN ensemble_weights TYPE text")
    assert "averages the outputs" not in client.model("of_none", 1).card()


@pytest.fixture(scope="module")
def registered(churn):
    """The model of customers as version 1 of a name, which is its champion."""
    churn.rows("SELECT madlib_mop.register('churn', 'churn', note => 'the | first'),"
               " madlib_mop.set_alias('churn', 'champion', 1)")  # fmt: skip
    return churn


def test_registered_models_and_their_cards(registered, client, db, tmp_path, keras):
    by_name = registered.value("SELECT madlib_mop.export_model('churn@champion', format => 'safetensors')")
    assert bytes(by_name) == bytes(registered.value("SELECT madlib_mop.export_model('churn@1', NULL, 'SAFETENSORS')"))
    model = client.model("churn@champion")
    assert weights_of(model.to_keras()) == bytes(registered.value("SELECT model_weights FROM churn"))
    card = model.card()
    for part in ("# Model churn@1", "the \\| first", f"| run | {db.run.run_id} |", "| validation | accuracy |",
                 "| joined | date |", "| training rows | 480 |"):  # fmt: skip
        assert part in card, part
    assert "city7" not in card  # levels are values of rows
    assert model.predict("customers", key="id").equals(client.model("churn", 1).predict("customers", key="id"))
    with pytest.raises(InvalidParameter, match="mst_key is for tables"):
        client.model("churn@champion", 1)


def test_the_card_of_a_model_whose_run_is_gone(churn, user, client):
    user.rows("CREATE TABLE other AS TABLE churn; CREATE TABLE other_info AS TABLE churn_info;"
              " CREATE TABLE other_summary AS TABLE churn_summary;"
              " UPDATE other SET model_weights = model_weights || ''::bytea")  # fmt: skip
    assert "| run |" in client.model("other", 1).card()  # found by the weights
    user.rows("UPDATE other SET weights_digest = NULL, model_weights = set_byte(model_weights, 0, 255 -"
              " get_byte(model_weights, 0))")  # fmt: skip
    assert "you may not see it" in client.model("other", 1).card()


@pytest.mark.parametrize("call, sqlstate, text", [
    ("export_model('dense', 1, 'pickle')", "22023",
     "export_model: format must be one of keras, saved_model, onnx, safetensors. Received: 'pickle'"),
    ("export_model('dense', 7)", "22023", "export_model: mst_key 7 is not in public.dense. Received: 7"),
    ("export_model('nothing', 1)", "42P01", "export_model: model_table"),
    ("export_model(NULL)", "22023", "export_model: model_table"),
    ("export_model('none@champion')", "22023",
     "export_model: there is no registered model of this name that you may use. Received: 'none@champion'"),
    ("export_model('a@b@c')", "22P02", "export_model: model_table is no name of a registered model"),
    ("model_card('dense', 7)", "22023", "model_card: mst_key 7 is not in public.dense"),
    ("report('none@champion')", "22023", "report: there is no registered model with this version or alias"),
    ("report('dense')", "22023", "report: run_id must be the number of a run, or a registered model"),
])  # fmt: skip
def test_bad_input_is_one_clear_error(user, arrays, call, sqlstate, text):
    error = user.refused(user.rows, f"SELECT madlib_mop.{call}")
    assert (error.sqlstate, error.message[: len(text)]) == (sqlstate, text)


def test_a_preprocessor_of_another_model_is_refused(churn, client, tmp_path):
    client.model("churn", 1).export(tmp_path, "onnx")
    document = json.loads((tmp_path / "preprocessor.json").read_text())
    document["columns"][0]["spec"]["note"] = ""
    (tmp_path / "preprocessor.json").write_text(json.dumps(document).replace("gold", "tin"))
    with pytest.raises(MopError):
        load_exported(tmp_path)
    with pytest.raises(InvalidParameter, match="format must be one of"):
        load_exported(tmp_path, "pickle")
    with pytest.raises(InvalidParameter, match="is no exported model in format keras"):
        load_exported(tmp_path, "keras")


@pytest.mark.slow
def test_the_command_line_writes_the_directory_the_card_and_the_report_of_a_name(
    registered, db, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = madlib_mop(db, "export", "churn@champion", "--format", "onnx", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model.onnx", "signature.json", "preprocessor.json", "README.md"}
    assert done.stdout.splitlines()[0].endswith("out/model.onnx")
    shown = madlib_mop(db, "card", "churn", "--mst-key", "1")
    assert shown.stdout.startswith("# Model mst\\_key 1 of public.churn")
    made = madlib_mop(db, "report", "churn@champion", "--output", "-")
    assert f"run {db.run.run_id}" in made.stdout.lower() and made.returncode == 0, made.stderr
    refused = madlib_mop(db, "export", "churn@7", "--output", str(tmp_path / "other"))
    assert refused.returncode == 1 and "churn has no version 7" in refused.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_the_report_of_a_registered_model_is_that_of_its_run(registered, db):
    by_name = registered.value("SELECT madlib_mop.report('churn@1')")
    assert f"{db.run.run_id}" in by_name and "<html" in by_name
    by_number = registered.value(f"SELECT madlib_mop.report('{db.run.run_id}')")
    assert len(by_number) == pytest.approx(len(by_name), rel=0.01)
