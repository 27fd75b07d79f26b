"""The Python client: from a frame to a leaderboard, predictions and a Keras model; steering, waiting, interrupts."""

import asyncio
import threading
import time
from contextlib import closing

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sqlalchemy import create_engine

from madlib_mop.client import connect
from madlib_mop.errors import DuplicateTable, InvalidParameter, MopError, NotReady, UndefinedTable
from tests.helpers.customers import SOFTMAX_16, customers
from tests.helpers.faults import wait_for
from tests.helpers.jobs import JobWorker


@pytest.fixture(scope="module")
def client(db):
    with connect(db.dsn, settings={"segments": 2}) as client:
        yield client


@pytest.fixture(scope="module")
def frame():
    return customers()


@pytest.fixture(scope="module")
def packed(client, frame):
    return client.pack(frame, target="left", table="customers", validation=0.2, seed=1)


@pytest.fixture(scope="module")
def configs(client, packed):
    return client.networks(packed, n_configs=2, epochs=2)


@pytest.fixture(scope="module")
def states():
    return []


@pytest.fixture(scope="module")
def run(client, packed, configs, states):
    return client.fit(packed, configs, epochs=2, seed=1, schedule="rotation", progress=states.append)


@pytest.fixture(scope="module")
def model(run):
    return run.best()


def test_the_rows_of_a_frame_are_in_its_table(packed, client, frame):
    assert packed.source == '"public"."customers"' and packed.targets == ("left",)
    assert packed.validation == packed.table[:-1] + '_validation"'
    found = client.query('SELECT "Age in years" AS age, city, joined, vip, scores, "left" AS y FROM customers')
    assert len(found) == len(frame)
    np.testing.assert_array_equal(found["age"].to_numpy(float), frame["Age in years"].to_numpy())
    assert found["city"].tolist() == frame["city"].astype(str).tolist()
    assert (found["joined"].to_numpy() == frame["joined"].to_numpy()).all()
    assert found["vip"].dtype == "boolean" and found["vip"].isna().sum() == frame["vip"].isna().sum()
    assert [tuple(row) for row in found["scores"]] == [tuple(row) for row in frame["scores"]]
    assert found["y"].dtype == "int64" and found["y"].tolist() == frame["left"].tolist()


def test_the_encoding_of_each_column_is_described(packed):
    found = packed.describe().set_index("column_name")
    assert set(found.index) == {"Age in years", "city", "joined", "vip", "scores", "left"}


def test_the_baseline_is_measured_on_the_rows_that_were_held_out(packed, client):
    found = packed.gradient_boosting(seed=1)
    n_rows = client.query(f"SELECT sum(left_shape[1]) AS n FROM {packed.validation}")["n"].tolist()
    assert set(found["data_set"]) == {"validation"} and found["n_rows"].unique().tolist() == n_rows
    assert {"accuracy", "log loss", "AUC"} <= set(found["metric"]) and found["value"].dtype == "float64"


def test_a_run_is_a_leaderboard_metrics_and_visits(run, configs):
    board = run.leaderboard()
    assert board.index.name == "mst_key" and sorted(board.index) == [1, 2] and len(configs) == 2
    assert board["rank"].tolist() == [1, 2] and set(board["state"]) == {"trained"}
    assert board["validation_loss"].dtype == "float64" and board["validation_loss"].notna().all()
    front = run.pareto()
    assert len(front) and front["rank"].to_dict().items() <= board["rank"].to_dict().items()
    assert (front["multiplications"] > 0).all() and (front["size_bytes"] > 0).all()
    metrics = run.metrics()
    assert sorted(metrics["epoch"].unique()) == [1, 2] and set(metrics["data_set"]) == {"training", "validation"}
    visits = run.visits()
    assert len(visits) == 2 * 2 * 2 and (visits["end_s"] > visits["start_s"]).all()
    assert configs.frame()["mst_key"].tolist() == [1, 2]


def test_the_progress_of_a_fit_is_shown_until_the_end(run, states):
    assert [status.run_id for status in states] == [run.run_id] * len(states)
    assert states[-1].state == "finished" and states[-1].percent_done == 100
    assert run.progress == states[-1] or run.progress.state == "finished"
    assert "100 %" in run._repr_html_() and repr(run) == f"Run({run.run_id})"


def test_predictions_belong_to_the_rows_of_the_frame(model, frame):
    rows = frame.sample(frac=1, random_state=1)[::-1]
    predicted = model.predict(rows)
    assert predicted.name == "left" and predicted.index.equals(rows.index) and predicted.dtype == "int64"
    assert (predicted == model.predict(frame)[rows.index]).all()
    probabilities = model.predict_proba(rows)
    assert probabilities.columns.tolist() == [0, 1] and probabilities.index.equals(rows.index)
    assert (probabilities.dtypes == "float32").all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    assert (probabilities.idxmax(axis=1) == predicted).all()
    assert (predicted == rows["left"]).mean() > 0.7


def test_a_frame_of_polars_gets_the_same_predictions_as_polars(model, frame):
    columns = {name: frame[name].tolist() for name in ("city", "scores")}
    columns["Age in years"] = [None if np.isnan(age) else age for age in frame["Age in years"]]
    columns["joined"] = [moment.to_pydatetime() for moment in frame["joined"]]
    columns["vip"] = [None if pd.isna(vip) else bool(vip) for vip in frame["vip"]]
    columns["scores"] = [list(row) for row in frame["scores"]]
    polars = pl.DataFrame(columns)
    predicted = model.predict(polars)
    assert isinstance(predicted, pl.Series) and predicted.to_list() == model.predict(frame).tolist()
    probabilities = model.predict_proba(polars)
    assert isinstance(probabilities, pl.DataFrame) and probabilities.columns == ["0", "1"]


def test_rows_of_a_table_are_predicted_where_they_are(model, frame, client):
    client.query("CREATE VIEW with_key AS SELECT row_number() OVER () AS id, c.* FROM customers AS c")
    predicted = model.predict("with_key", key="id")
    assert predicted.index.name == "id"
    assert predicted.sort_index().tolist() == model.predict(frame).tolist()
    with pytest.raises(InvalidParameter, match="key is missing"):
        model.predict("with_key")


def test_predictions_are_those_of_the_sql_function_bit_for_bit(model, client, frame):
    by_sql = client.query("SELECT madlib_mop.predict(%s, %s, c) AS p FROM customers AS c", [model.table, model.mst_key])
    ours = model.predict_proba(frame).to_numpy()
    assert np.asarray(by_sql["p"].tolist(), np.float32).tobytes() == ours.tobytes()


def test_a_column_without_values_has_the_type_of_training(model, frame):
    rows = frame.head(5).copy()
    rows["city"] = None
    rows["Age in years"] = None
    assert len(model.predict(rows)) == 5


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda frame: frame.drop(columns="city"), "no column 'city'"),
        (lambda frame: frame.assign(**{"Age in years": "old"}), "Age in years"),
        (lambda frame: frame.assign(**{"Age in years": np.inf}), "is inf"),
        (lambda frame: frame.head(0), "has no rows"),
        (lambda frame: frame["city"], "must be a data frame"),
    ],
)
def test_rows_that_cannot_be_predicted_are_one_clear_error(model, frame, change, message):
    with pytest.raises(MopError, match=message):
        model.predict(change(frame))


def test_the_keras_model_has_the_bits_of_the_table(model, client, keras):
    network = model.to_keras()
    weights = b"".join(np.asarray(array, np.float32).tobytes() for array in network.get_weights())
    ((stored,),) = client.sessions.rows(
        f"SELECT model_weights FROM {model.table} WHERE mst_key = %s", [model.mst_key]
    )  # fmt: skip
    assert weights == bytes(stored) and isinstance(network, keras.Model)


def test_a_keras_model_predicts_encoded_rows_as_the_database_predicts_rows(model, packed, client, frame, keras):
    client.call("transform", packed_table=packed.table, source_table="customers", output_table="encoded")
    units = packed.describe().set_index("column_name")["units"]
    network = model.to_keras()
    inputs = {tensor.name.split(":")[0]: tensor.shape for tensor in network.inputs}
    encoded = client.query("SELECT * FROM encoded")
    numbers = [name for name in encoded.columns if name not in ("left", "scores")]
    assert {width[-1] for width in inputs.values()} == {len(numbers), 3}, (inputs, units)
    arrays = [
        np.asarray(encoded["scores"].tolist(), np.float32) if shape[-1] == 3 else encoded[numbers].to_numpy(np.float32)
        for shape in inputs.values()
    ]
    predicted = network.predict(arrays, verbose=0)
    np.testing.assert_allclose(predicted, model.predict_proba(frame).to_numpy(), atol=1e-6)


@pytest.mark.slow
def test_a_run_is_steered_and_resumed(run, client):
    run.extend(1, mst_key=1)
    copy = run.clone(2, compile={**SOFTMAX_16, "optimizer": {"name": "Adam", "learning_rate": 0.02}}, num_iterations=1)
    assert copy == 3
    assert run.progress.state == "interrupted"
    with pytest.raises(NotReady, match="is interrupted"):
        run.wait()
    assert run.resume(progress=False) is not run
    assert sorted(run.leaderboard().index) == [1, 2, 3] and run.wait().progress.state == "finished"
    assert "learning_rate=0.02" in run.leaderboard().loc[3, "compile_params"]


def test_a_report_is_a_file(run, tmp_path):
    path = run.report(tmp_path / "run.html")
    assert path.read_text().startswith("<!doctype html>") or "<html" in path.read_text()[:500]
    assert [file.name for file in tmp_path.iterdir()] == ["run.html"]
    with pytest.raises(InvalidParameter, match="path must be a file"):
        run.report(tmp_path / "missing" / "run.html")


def test_a_run_trains_in_the_background_and_is_followed(client, packed, configs):
    run = client.fit(packed, configs, epochs=2, seed=1, wait=False, models="background")
    assert run.progress.state in ("running", "trained")
    seen = [status.percent_done for status in run.follow()]
    assert seen == sorted(seen) and seen[-1] == 100
    assert run.wait().best().table == '"public"."background"'


@pytest.mark.slow
def test_an_async_program_follows_and_waits(client, packed, configs):
    async def follow():
        run = client.fit(packed, configs, epochs=2, seed=1, wait=False)
        seen = [status.percent_done async for status in run.follow_async()]
        await run.wait_async()
        return seen

    seen = asyncio.run(follow())
    assert seen == sorted(seen) and seen[-1] == 100


def test_a_cancelled_task_stops_waiting_at_once_and_leaves_no_session(client, packed, configs, db):
    own = "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN madlib_mop_runs' AND datname = %s"

    async def cancel():
        run = client.fit(packed, configs, epochs=500, seed=1, wait=False)
        task = asyncio.create_task(run.wait_async())
        await asyncio.to_thread(wait_for, lambda: db.value(own, [db.name]), what="a session that listens")
        task.cancel()
        began = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - began < 3
        return run

    run = asyncio.run(cancel())
    assert run.cancel()
    with pytest.raises(MopError):
        run.wait()
    wait_for(lambda: db.value(own, [db.name]) == 0, 10, "the end of the listening sessions")


@pytest.mark.slow
def test_an_interrupt_stops_the_run_which_can_be_resumed(client, packed, configs):
    def interrupt(status):
        if status.visits_done >= 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        client.fit(packed, configs, epochs=500, seed=1, progress=interrupt)
    (note,) = raised.value.__notes__
    run = client.run(int(note.partition("db.run(")[2].partition(")")[0]))
    wait_for(lambda: run.progress.state == "interrupted", 30, "the end of the run")
    assert run.progress.visits_done >= 1
    run.drop()


@pytest.mark.slow
def test_a_job_trains_without_the_client(client, packed, configs, db):
    job = client.submit(packed, configs, epochs=1, seed=1, models="by_job", job={"name": "nightly", "priority": 3})
    assert job.state == "waiting" and job.frame()["name"].tolist() == ["nightly"]
    with pytest.raises(TimeoutError, match="it waits for a worker"):
        job.run(timeout_s=0.1)
    with JobWorker(db):
        run = job.run(timeout_s=60)
        assert job.wait(timeout_s=120).run_id == run.run_id and job.state == "finished"
    assert run.wait().best().table == '"public"."by_job"'
    again = client.submit(packed, configs, epochs=1)
    assert again.cancel() and not again.cancel()
    with pytest.raises(NotReady, match="is cancelled"):
        again.wait()
    with pytest.raises(InvalidParameter, match="num_iterations"):
        client.submit(packed, configs, epochs=0)


def test_errors_of_a_call_are_raised_where_it_was_made(client, packed, configs, run):
    with pytest.raises(DuplicateTable):
        client.fit(packed, configs, epochs=1, models=run.best().table, progress=False)
    with pytest.raises(InvalidParameter, match="num_iterations"):
        client.fit(packed, configs, epochs=0)
    with pytest.raises(InvalidParameter, match="no argument 'learning_rate'"):
        client.fit(packed, configs, learning_rate=0.1)
    with pytest.raises(UndefinedTable, match="no_such"):
        client.networks("no_such")
    with pytest.raises(InvalidParameter, match="no run 1000000"):
        client.run(1000000)
    with pytest.raises(UndefinedTable):
        client.model("no_such", 1)


def test_a_frame_that_cannot_be_packed_leaves_no_table(client, frame):
    before = client.query("SELECT count(*) AS n FROM pg_class WHERE relkind = 'r'")["n"][0]
    with pytest.raises(InvalidParameter, match="no column 'gone'"):
        client.pack(frame, target="gone")
    with pytest.raises(InvalidParameter, match="row 3"):
        client.pack(frame.assign(x=[1.0] * 3 + [np.inf] * (len(frame) - 3)), target="left")
    with pytest.raises(MopError):
        client.pack(frame, target="joined")
    assert client.query("SELECT count(*) AS n FROM pg_class WHERE relkind = 'r'")["n"][0] == before
    with pytest.raises(DuplicateTable):
        client.upload(frame, "customers")


def test_a_packed_table_is_replaced_and_dropped(client, packed, frame):
    first = client.pack(frame, target="left", packed="again", seed=1)
    with pytest.raises(DuplicateTable, match="again") as raised:
        client.pack("customers", target="left", packed="again")
    assert "replace => true" in raised.value.hint
    second = client.pack("customers", target="left", packed="again", validation=None, replace=True)
    assert second.table == first.table and second.validation is None
    found = client.query("SELECT source_table, to_regclass('again_validation') IS NULL AS gone FROM again_summary")
    assert found.iloc[0].tolist() == ["customers", True]
    with pytest.raises(InvalidParameter, match="replace=True needs packed"):
        client.pack("customers", target="left", replace=True)
    third = client.pack("customers", target="left", packed="again", seed=1, test=0.1, replace=True)
    assert third.test == '"public"."again_test"' and third.validation == '"public"."again_validation"'
    assert client.packed("again").test == third.test and third.test in repr(third)
    for handle in (third, second, first):  # the source of the first is its own
        handle.drop()
    gone = "SELECT to_regclass('again') IS NULL AND to_regclass(%s) IS NULL AS gone"
    assert client.query(gone, [first.source])["gone"][0] and client.query("SELECT 1 FROM customers LIMIT 1").size


def test_configurations_of_python_dictionaries(client, packed):
    width = sum(map(len, packed.describe()["units"].dropna()))
    dense = {"class_name": "Dense", "config": {"units": 2, "activation": "softmax"}}
    inputs = {"class_name": "InputLayer", "config": {"batch_shape": [None, width]}}
    own = client.configurations(
        {"class_name": "Sequential", "config": {"layers": [inputs, dense]}},
        [{**SOFTMAX_16, "optimizer": f"Adam(learning_rate={rate})"} for rate in (0.1, 0.01)],
        [{"batch_size": 16}, {"batch_size": 32}],
        table="own_configs",
    )
    assert len(own) == 4 and own.architectures == '"public"."own_configs_networks"'
    assert own.frame()["fit_params"].nunique() == 2
    own.drop()
    assert client.query("SELECT to_regclass('own_configs') IS NULL AS gone")["gone"][0]


def test_a_call_returns_a_value_or_a_frame(client, packed):
    assert client.call("propose_columns", source_table="customers", output_table="proposal", dependent='"left"') is None
    found = client.call("describe_preprocessor", packed_table=packed.table)
    assert isinstance(found, pd.DataFrame) and len(found) == 6


@pytest.mark.slow
def test_an_engine_of_psycopg_3_serves_too(db, packed, frame, model):
    engine = create_engine(db.dsn.replace("postgresql://", "postgresql+psycopg://"))
    with connect(engine, settings={"segments": 2}) as client:
        name = client.upload(frame.head(10), "by_psycopg")
        assert client.query(f"SELECT count(*) AS n FROM {name}")["n"][0] == 10
        assert client.model(model.table, model.mst_key).predict(frame).equals(model.predict(frame))
        found = client.run(client.runs().index[0])
        assert len(found.leaderboard()) >= 1
        with closing(client.sessions.listen()) as listener:
            threading.Timer(0.2, lambda: client.query("SELECT pg_notify('madlib_mop_runs', '7')")).start()
            assert listener.wait(7, time.monotonic() + 10).is_told
    with engine.connect() as connection:  # closing the handle does not close the engine
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    engine.dispose()


@pytest.fixture
def on_one_segment(db):
    with connect(db.dsn, settings={"segments": 1}) as client:
        yield client


def test_learn_takes_a_frame_to_a_registered_model(on_one_segment):
    client = on_one_segment
    frame = pd.DataFrame({"age": np.arange(200) % 50, "city": ["a", "b"] * 100})
    frame["left_us"] = np.where(frame.age > 30, "yes", "no")
    with pytest.raises(InvalidParameter, match="learn needs name"):
        client.learn(frame, "left_us")
    learned = client.learn(frame, "left_us", name="learnt", budget="1 hour", n_configs=1, ensemble=False, seed=1)
    assert learned.model.version == 1 and learned.summary.loc["model", "value"] == "learnt@1"
    assert float(learned.summary.loc["accuracy", "value"]) > 0.5
    assert set(learned.model.predict(frame[["age", "city"]])) <= {"yes", "no"}
    frames = "SELECT count(*) AS n FROM pg_class WHERE relname LIKE 'frame_%'"
    before = client.query(frames)["n"][0]
    table = client.score("learnt", frame, of_class="yes")
    scored = client.query(f"SELECT * FROM {table}")
    assert list(scored) == ["age", "city", "left_us", "predicted", "probability"] and len(scored) == 200
    assert (scored["predicted"] == np.where(scored["probability"] > 0.5, "yes", "no")).all()
    assert client.score(learned.model, table, "scored_again", keep="city, age", replace=True) == '"scored_again"'
    client.score(learned.model, table, "scored_again", keep="city", replace=True)
    assert list(client.query("SELECT * FROM scored_again")) == ["city", "predicted", "probability"]
    assert client.query(frames)["n"][0] == before, "the copy of the frame is dropped"
