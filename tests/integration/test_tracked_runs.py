"""Trackers of runs that really train: after the run, and while it trains."""

import shutil

import optuna
import pytest

from tests.helpers.commands import in_background
from tests.helpers.faults import wait_for
from tests.helpers.reports import train_hostile_run
from tests.helpers.security.attacks import user
from tests.helpers.steering import GATES, N_EPOCHS, N_SEGMENTS, Steered
from tests.helpers.trackers import accumulator, call_here, empty_mlflow, recorded, scalars
from tests.helpers.training import ALIKE, load_architectures, load_digits, pack, select_configurations

OWNER = "owner_of_tracked_runs"


@pytest.fixture(scope="module")
def lab(db):
    user(db, OWNER)
    return db


@pytest.fixture(scope="module")
def made_store(tmp_path_factory):
    """An empty database of MLflow, which takes seconds to make."""
    return empty_mlflow(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def call(lab, tmp_path, monkeypatch, capsys):
    """Return a function that calls `madlib-mop` as the owner, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: call_here(capsys, lab.dsn_of(OWNER), *words)


@pytest.mark.slow
def test_a_real_run_with_samples_a_failure_a_stop_and_a_clone(lab, call, tmp_path, made_store):
    """The run has hostile names, validation data, and metrics after each visit; model 13 fails, a policy stops 2."""
    run_id = train_hostile_run(lab, OWNER)
    logs = tmp_path / call("tensorboard", run_id, "logs", "--histograms")
    for data_set, folder in (("training", "train"), ("validation", "validation")):
        expected = lab.rows(
            "SELECT CASE WHEN sample_rows IS NULL THEN 'epoch_' ELSE 'visit_' END || name, count(*)::integer"
            " FROM madlib_mop.metric_series WHERE run_id = %s AND mst_key = 1 AND data_set = %s GROUP BY 1",
            [run_id, data_set],
        )
        read = scalars(logs / "model_1" / folder)
        assert {tag: len(points) for tag, points in read.items()} == dict(expected)
    tags = accumulator(logs / "model_1").Tags()["tensors"]
    assert [tag for tag in tags if tag.startswith("weights")] == [f"weights_{n}" for n in range(4)]
    name = call("optuna", run_id, "--storage", "studies.journal")
    backend = optuna.storages.journal.JournalFileBackend("studies.journal")
    study = optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))
    states = {trial.user_attrs["mst_key"]: trial.state.name for trial in study.trials}
    recorded_states = dict(lab.rows("SELECT mst_key, state FROM madlib_mop.model WHERE run_id = %s", [run_id]))
    names = {"trained": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}
    assert states == {key: names[state] for key, state in recorded_states.items()} and len(set(states.values())) == 3
    assert {trial.params["learning_rate"] for trial in study.trials} > {0.003, 0.01, 0.03}
    uri = f"sqlite:///{shutil.copy(made_store, tmp_path / 'mlflow.db')}"
    for _ in range(2):
        number = call("mlflow", run_id, "--tracking-uri", uri)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("madlib_mop").experiment_id])
    assert len(runs) == len(states) + 1
    n_points = sum(
        len(client.get_metric_history(run.info.run_id, key)) for run in runs for key in run.data.metrics
    )  # fmt: skip
    points = "SELECT count(*)::integer FROM madlib_mop.metric_series WHERE run_id = %s AND value IS NOT NULL"
    assert n_points == lab.value(points, [run_id])
    assert [file.path for file in client.list_artifacts(number)] == ["model", "report.html"]


@pytest.mark.slow
def test_a_run_is_followed_while_it_trains(lab, tmp_path, made_store):
    """Two models wait at a gate in their second iteration, so the metrics of the first one are written before."""
    load_digits(lab)
    load_architectures(lab, "arch_of_followed")
    pack(lab, N_SEGMENTS)
    select_configurations(lab, "mst", ALIKE, "arch_of_followed")
    lab.rows(GATES)
    steered = Steered(lab, "followed", gates=(2,))
    uri = f"sqlite:///{shutil.copy(made_store, tmp_path / 'mlflow.db')}"
    words = {
        "tensorboard": (str(tmp_path / "logs"),),
        "mlflow": ("--tracking-uri", uri),
        "optuna": ("--storage", str(tmp_path / "studies.journal")),
    }
    processes = [
        in_background(lab, program, str(steered.run_id), *own, "--follow", cwd=tmp_path)
        for program, own in words.items()
    ]
    folder = tmp_path / "logs" / f"run_{steered.run_id}" / "model_1" / "validation"
    wait_for(lambda: folder.is_dir() and scalars(folder), what="metrics of the first iteration")
    assert [step for step, *_ in scalars(folder)["epoch_loss"]] == [1]
    steered.finish()
    ends = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert ends == [("", 0)] * 3
    expected = {f"epoch_{name}": found for name, found in recorded(lab, steered.run_id, 1, "validation").items()}
    assert scalars(folder) == expected and len(expected["epoch_loss"]) == N_EPOCHS
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "studies.journal"))
    study = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * len(ALIKE)
    assert [sorted(trial.intermediate_values) for trial in study.trials] == [[1, 2, 3]] * len(ALIKE)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("madlib_mop").experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"} and len(runs) == len(ALIKE) + 1
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    artifacts = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert artifacts == {"model", "report.html"}, "the model is there, although the run is finished before its COMMIT"
    histories = [
        [metric.step for metric in client.get_metric_history(run.info.run_id, "val_loss")]
        for run in runs
        if "val_loss" in run.data.metrics
    ]
    assert histories == [[1, 2, 3]] * len(ALIKE)
