"""Models of a run as models of MLflow: which ones are logged, where, once; and one line for those that are not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from madlib_mop.catalog.facts.tracked import TrackedState
from madlib_mop.errors import InsufficientPrivilege, NotReady
from madlib_mop.trackers.exported import Models, chosen
from madlib_mop.trackers.mlflow_runs import MlflowTracker
from tests.helpers.trackers import Session, a_model, a_record, an_export, empty_mlflow
from tests.unit.trackers.test_mlflow import EXPERIMENT, Logged

FILES = {"MLmodel", "model.keras", "signature.json", "README.md", "requirements.txt", "python_env.yaml"}


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


def exports(n_models: int) -> dict:
    """Return a file for each model of `a_record`."""
    return {key: an_export(a_model(key).weights_digest) for key in range(1, n_models + 1)}


def log(uri: str, record: TrackedState, session: Session, models: Models | None = None) -> MlflowTracker:
    tracker = MlflowTracker(uri, EXPERIMENT, models)
    tracker.start(record)
    tracker.write(record)
    tracker.finish(record, session)
    return tracker


def artifacts(logged: Logged, run_id: str) -> set[str]:
    """Return the names of the files of a model of a run; empty without a model."""
    return {Path(file.path).name for file in logged.client.list_artifacts(run_id, "model")}


def test_the_best_model_is_an_artifact_of_the_run(uri):
    session = Session(exports(3))
    tracker = log(uri, a_record(3), session)
    logged = Logged(uri)
    assert tracker.problems == [] and session.asked == [False, 1]
    assert artifacts(logged, tracker.run_id) == FILES
    assert [artifacts(logged, run.info.run_id) for run in logged.models.values()] == [set()] * 3
    tags = logged.parents[0].data.tags
    assert (tags["madlib_mop.model_mst_key"], tags["madlib_mop.model_digest"]) == ("1", a_model(1).weights_digest)


def test_mlflow_reads_what_the_model_is(uri):
    from mlflow.models import Model, get_model_info

    tracker = log(uri, a_record(1), Session(exports(1)))
    client = Logged(uri).client
    path = client.download_artifacts(tracker.run_id, "model")
    model = Model.load(path)
    assert set(model.flavors) == {"keras", "python_function"} and model.run_id == tracker.run_id
    assert model.flavors["keras"]["keras_version"] == "3.15.1"
    (spec,) = model.get_input_schema().inputs
    assert (spec.shape, spec.type.name) == ((-1, 3), "float32")
    assert model.metadata["madlib_mop.weights_digest"] == a_model(1).weights_digest
    assert (Path(path) / "requirements.txt").read_text() == "madlib_mop[keras]==1.1.0\n"
    assert get_model_info(path).signature.params.to_dict()[0]["default"] == "predict"
    (noted,) = json.loads(client.get_run(tracker.run_id).data.tags["mlflow.log-model.history"])
    assert (noted["artifact_path"], noted["run_id"]) == ("model", tracker.run_id) and "keras" in noted["flavors"]


def test_no_file_of_a_model_is_a_pickle(uri):
    tracker = log(uri, a_record(1), Session(exports(1)))
    directory = Path(Logged(uri).client.download_artifacts(tracker.run_id, "model"))
    assert "pickle" not in (directory / "MLmodel").read_text()
    assert {path.suffix for path in directory.iterdir()} <= {"", ".keras", ".json", ".md", ".txt", ".yaml"}


def test_all_models_are_artifacts_of_their_own_runs_and_the_best_of_the_run_too(uri):
    models = (a_model(1), a_model(2, state="failed"), a_model(3), a_model(4, state="stopped"))
    session = Session(exports(4))
    tracker = log(uri, replace(a_record(4), models=models), session, Models.ALL)
    logged = Logged(uri)
    assert session.asked == [True, 1, 3], "each model is exported once"
    assert {key for key, run in logged.models.items() if artifacts(logged, run.info.run_id)} == {1, 3}
    assert logged.parents[0].data.tags["madlib_mop.model_mst_key"] == "1" and tracker.problems == []


def test_none_reads_no_table(uri):
    session = Session(exports(1))
    tracker = log(uri, a_record(1), session, Models.NONE)
    assert session.asked == [] and tracker.problems == []
    assert artifacts(Logged(uri), tracker.run_id) == set()


def test_a_model_that_is_there_is_not_exported_again_and_a_new_one_replaces_it(uri):
    log(uri, a_record(2), Session(exports(2)))
    session = Session(exports(2))
    assert log(uri, a_record(2), session).problems == [] and session.asked == []
    better = replace(a_record(2), models=(a_model(1, rank=2), a_model(2, rank=1)))
    tracker = log(uri, better, session)
    logged = Logged(uri)
    assert session.asked == [False, 2] and logged.parents[0].data.tags["madlib_mop.model_mst_key"] == "2"
    signature = logged.client.download_artifacts(tracker.run_id, "model/signature.json")
    assert a_model(2).weights_digest in Path(signature).read_text()


def test_what_cannot_be_exported_is_one_line_and_the_rest_is_written(uri):
    denied = InsufficientPrivilege("permission denied for table models\x1b[31m")
    session = Session({1: denied, 2: an_export(a_model(2).weights_digest), 3: denied})
    tracker = log(uri, a_record(3), session, Models.ALL)
    logged = Logged(uri)
    assert tracker.problems == ["models 1, 3 are not written: permission denied for table models\\x1b[31m"]
    assert {key for key, run in logged.models.items() if artifacts(logged, run.info.run_id)} == {2}
    assert [file.path for file in logged.client.list_artifacts(tracker.run_id)] == ["report.html"]
    tracker = log(uri, a_record(3), Session())
    assert tracker.problems == ["no model is written: there is no output table"]


def test_a_run_without_a_trained_model_says_so(uri):
    tracker = log(uri, a_record(1, state="failed"), Session(exports(1)))
    assert tracker.problems == ["no model is written: none is trained, and the run is finished"]


def test_the_best_models_come_first_and_only_trained_ones():
    models = (a_model(1, rank=4), a_model(2, rank=2), a_model(3, rank=1), a_model(4, rank=3, state="stopped"))
    assert [model.mst_key for model in chosen(models, Models.ALL)] == [3, 2, 1]
    assert [model.mst_key for model in chosen(models, Models.BEST)] == [3]
    assert chosen(models, Models.NONE) == [] and chosen((), Models.BEST) == []


def test_a_storage_that_takes_no_artifacts_is_an_error(uri, tmp_path):
    """Otherwise a script would take the model for written."""
    tracker = MlflowTracker(uri, EXPERIMENT)
    tracker.start(a_record(1))
    tracker.write(a_record(1))
    tracker._client.log_artifact = lambda *_: None  # the report
    (tmp_path / "mlruns").write_text("a file in the place of the directory")
    with pytest.raises(NotReady, match="--tracking-uri cannot be reached"):
        tracker.finish(a_record(1), Session(exports(1)))
