"""A run in MLflow, read by its own client: runs, parameters, metrics, tags, states, the report; written once only."""

import math
import os
import re
import shutil
from dataclasses import replace

import pytest

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.tracked import TrackedState
from madlib_mop.errors import InvalidParameter, NotReady
from madlib_mop.trackers.mlflow_runs import MlflowTracker
from tests.helpers.trackers import (
    BEGAN,
    HOSTILE,
    Session,
    a_model,
    a_record,
    a_run,
    empty_mlflow,
    files_below,
    hostile_record,
    points_of,
)

EXPERIMENT = "flowers"


@pytest.fixture(scope="module")
def made_store(tmp_path_factory):
    """An empty database of MLflow, which takes seconds to make."""
    return empty_mlflow(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def uri(made_store, tmp_path, monkeypatch):
    """The address of an empty database of the test's own; artifacts are beside it."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(made_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


def log(uri: str, *records: TrackedState) -> MlflowTracker:
    tracker = MlflowTracker(uri, EXPERIMENT)
    tracker.start(records[0])
    for record in records:
        tracker.write(record)
    tracker.finish(records[-1], Session())
    return tracker


class Logged:
    """What MLflow's client reads."""

    def __init__(self, uri: str, experiment: str = EXPERIMENT):
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        runs = self.client.search_runs([self.client.get_experiment_by_name(experiment).experiment_id])
        self.parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        self.models = {int(run.data.tags["madlib_mop.mst_key"]): run for run in runs if run not in self.parents}
        self.n_runs = len(runs)

    def history(self, key: int, metric: str) -> list[tuple[int, int, float]]:
        found = self.client.get_metric_history(self.models[key].info.run_id, metric)
        return sorted((m.step, m.timestamp, m.value) for m in found)


def test_a_run_and_its_models_are_there_with_parameters_tags_and_states(uri):
    models = (a_model(1), a_model(2, state="failed", detail="its loss is NaN"), a_model(3, state="stopped"))
    tracker = log(uri, replace(a_record(3, a_run(name="spring")), models=models))
    logged = Logged(uri)
    (parent,) = logged.parents
    assert parent.info.run_id == tracker.run_id and parent.info.run_name == "spring"
    assert parent.info.status == "FINISHED" and parent.info.start_time == BEGAN * 1000
    assert parent.info.end_time == (BEGAN + 600) * 1000
    assert parent.data.params == {"num_iterations": "3", "seed": "11", "schedule": "rotation", "n_segments": "2"}
    tags = {name.removeprefix("madlib_mop."): value for name, value in parent.data.tags.items()}
    assert tags["run_id"] == "7" and tags["system_identifier"] == "7300000000000000001" and tags["owner"] == "ada"
    assert tags["model_output_table"] == "public.models" and tags["version.keras"] == "3.15.1"
    assert tags["best_mst_key"] == "1" and tags["mlflow.user"] == "ada"
    assert {key: run.info.status for key, run in logged.models.items()} == {1: "FINISHED", 2: "FAILED", 3: "KILLED"}
    model = logged.models[1]
    assert model.data.tags["mlflow.parentRunId"] == parent.info.run_id and model.info.run_name == "model 1"
    assert model.data.params == {name: str(value) for name, value in a_model(1).hyper_parameters.items()}
    assert model.data.tags["madlib_mop.weights_digest"] == a_model(1).weights_digest
    assert logged.models[2].data.tags["madlib_mop.reason"] == "its loss is NaN"
    assert (model.info.start_time, model.info.end_time) == ((BEGAN + 1) * 1000, (BEGAN + 301) * 1000)


def test_metrics_have_their_step_and_their_time(uri):
    log(uri, a_record(2))
    logged = Logged(uri)
    assert set(logged.models[1].data.metrics) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for key in (1, 2):
        expected = [
            (p.epoch, round(p.at * 1000), p.value)
            for p in points_of(key)
            if p.data_set == "validation" and p.name == "loss"
        ]
        assert logged.history(key, "val_loss") == expected


def test_the_report_is_an_artifact(uri, tmp_path):
    tracker = log(uri, a_record(1))
    client = Logged(uri).client
    assert [file.path for file in client.list_artifacts(tracker.run_id)] == ["report.html"]
    (path,) = [tmp_path / name for name in files_below(tmp_path) if name.endswith("report.html")]
    assert path.read_text() == Session().report()


def test_a_second_call_changes_nothing_and_logs_only_what_is_new(uri):
    running = a_run(state="running", ended_at=None)
    half = replace(a_record(2, running, state="training"), points=(*points_of(1, 1), *points_of(2, 1)))
    first = log(uri, half)
    assert {run.info.status for run in (*Logged(uri).parents, *Logged(uri).models.values())} == {"RUNNING"}
    again = log(uri, half)
    assert first.run_id == again.run_id and Logged(uri).n_runs == 3
    assert [step for step, _, _ in Logged(uri).history(1, "loss")] == [1]
    whole = log(uri, a_record(2))
    logged = Logged(uri)
    assert whole.run_id == first.run_id and logged.n_runs == 3
    assert [step for step, _, _ in logged.history(1, "loss")] == [1, 2, 3]
    assert {run.info.status for run in (*logged.parents, *logged.models.values())} == {"FINISHED"}


def test_a_child_that_others_have_added_is_left_alone(uri):
    tracker = log(uri, a_record(1))
    client = Logged(uri).client
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    own = client.create_run(experiment, tags={"mlflow.parentRunId": tracker.run_id, "note": "mine"}).info.run_id
    log(uri, a_record(1))
    assert client.get_run(own).data.tags["note"] == "mine" and client.get_run(own).info.status == "RUNNING"


def test_a_followed_run_is_logged_as_it_goes_on(uri):
    running = a_run(state="running", ended_at=None)
    begun = TrackedState(running, (a_model(1, state="training"), a_model(2, state="waiting", started_at=None)), ())
    tracker = MlflowTracker(uri, EXPERIMENT)
    tracker.start(begun)
    tracker.write(begun)
    assert set(Logged(uri).models) == {1}
    tracker.write(replace(begun, points=points_of(1, 1)))
    assert [step for step, _, _ in Logged(uri).history(1, "loss")] == [1]
    tracker.write(replace(a_record(2), points=(*points_of(1, 2, first=2), *points_of(2))))
    logged = Logged(uri)
    assert [step for step, _, _ in logged.history(1, "loss")] == [1, 2, 3] and set(logged.models) == {1, 2}


@pytest.mark.parametrize(
    ("state", "expected"),
    [("finished", "FINISHED"), ("failed", "FAILED"), ("cancelled", "KILLED"), ("interrupted", "KILLED"),
     ("running", "RUNNING"), ("trained", "RUNNING")],
)  # fmt: skip
def test_the_states_of_a_run_and_of_an_unfinished_model(uri, state, expected):
    log(uri, a_record(1, a_run(state=state), state="training"))
    logged = Logged(uri)
    assert logged.parents[0].info.status == expected
    assert logged.models[1].info.status == ("RUNNING" if expected == "RUNNING" else "KILLED")


def test_a_run_that_is_resumed_runs_again(uri):
    log(uri, a_record(1, a_run(state="interrupted"), state="training"))
    log(uri, a_record(1, a_run(state="running"), state="training"))
    assert {run.info.status for run in (*Logged(uri).parents, *Logged(uri).models.values())} == {"RUNNING"}


def test_a_run_of_the_same_number_in_another_database_is_another_run(uri):
    log(uri, a_record(1))
    for change in ({"database": "other"}, {"system_identifier": "8"}, {"created_at": BEGAN + 1e-3}):
        log(uri, a_record(1, a_run(**change)))
    assert len(Logged(uri).parents) == 4


def test_a_parameter_that_a_search_changes_keeps_its_first_value_and_the_tag_has_the_new_one(uri):
    log(uri, a_record(1), a_record(1, hyper_parameters={"learning_rate": 0.5}))
    model = Logged(uri).models[1]
    assert model.data.params["learning_rate"] == "0.001"
    assert model.data.tags["madlib_mop.hyper_parameters"] == '{"learning_rate": 0.5}'


def test_samples_have_names_of_their_own(uri):
    points = [MetricPoint(1, BEGAN + n, "validation", "loss", 1 / n, 1, n, True) for n in (1, 2)]
    log(uri, replace(a_record(1), points=(*points, *points_of(1))))
    assert [step for step, _, _ in Logged(uri).history(1, "sample_val_loss")] == [1, 2]


def test_hostile_names_are_data(uri, tmp_path):
    log(uri, hostile_record())
    logged = Logged(uri)
    (parent,) = logged.parents
    assert parent.data.tags["madlib_mop.owner"] == HOSTILE[0] and parent.info.run_name == "a\\x1b[31mb\\x00c\\nd"
    model = logged.models[1]
    assert len(model.data.params) == len(HOSTILE) and len(model.data.metrics) == 4 * len(HOSTILE)
    for name in (*model.data.params, *model.data.metrics, *model.data.tags, *parent.data.tags):
        assert re.fullmatch(r"[A-Za-z0-9_. -]+", name) and ".." not in name
    assert all(value.isprintable() for value in (*model.data.params.values(), *parent.data.tags.values()))
    roots = {name.split("/")[0] for name in files_below(tmp_path)}
    assert roots <= {"mlflow.db", "mlruns", "mlartifacts"}


def test_more_metrics_than_one_request_takes_and_values_that_are_not_finite(uri):
    points = tuple(MetricPoint(1, BEGAN + n, "training", "loss", 1 / n, n, n, False) for n in range(1, 1502))
    odd = tuple(
        MetricPoint(1, BEGAN, "validation", "loss", v, n, n, False) for n, v in ((1, math.nan), (2, math.inf))
    )
    log(uri, replace(a_record(1), points=(*points, *odd)))
    logged = Logged(uri)
    assert len(logged.history(1, "loss")) == 1501
    assert math.isnan(logged.history(1, "val_loss")[0][2]) and logged.history(1, "val_loss")[1][2] > 1e300


def test_a_deleted_experiment_is_one_error(uri):
    log(uri, a_record(1))
    client = Logged(uri).client
    client.delete_experiment(client.get_experiment_by_name(EXPERIMENT).experiment_id)
    with pytest.raises(InvalidParameter, match="experiment 'flowers' is deleted"):
        log(uri, a_record(1))


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:1", "http://ann:secret@127.0.0.1:1", "sqlite:////no/such/directory/a.db", "nonsense://there",
     "postgresql://ann:secret@127.0.0.1:1/x"],
)  # fmt: skip
def test_an_address_that_cannot_be_reached_is_one_error(address, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(NotReady, match="--tracking-uri cannot be reached") as raised:
        MlflowTracker(address, EXPERIMENT)
    assert "secret" not in raised.value.message and "\n" not in raised.value.message


def test_nothing_is_printed_and_nothing_is_sent_to_mlflow_s_authors(uri, capfd):
    log(uri, a_record(1))
    assert tuple(capfd.readouterr()) == ("", "")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
