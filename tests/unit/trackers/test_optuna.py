"""A run as a study, read by Optuna: trials with parameters, values by epoch, states; written again without doubles."""

import math
import shutil
from dataclasses import replace
from datetime import datetime

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.tracked import TrackedState
from madlib_mop.errors import InvalidParameter, NotReady
from madlib_mop.trackers.optuna_study import OptunaTracker
from tests.helpers.trackers import (
    BEGAN,
    HOSTILE,
    Session,
    a_model,
    a_record,
    a_run,
    files_below,
    hostile_record,
    points_of,
)

NAME = "run 7 of lab"
RUNNING = {"state": "running", "ended_at": None}


@pytest.fixture(scope="module")
def made_store(tmp_path_factory):
    """An empty database of Optuna, which takes half a second to make."""
    path = tmp_path_factory.mktemp("optuna") / "studies.db"
    OptunaTracker(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "journal"])
def address(request, tmp_path, made_store):
    """A storage of each kind."""
    if request.param == "journal":
        return f"{tmp_path}/studies.journal"
    shutil.copy(made_store, tmp_path / "studies.db")
    return f"sqlite:///{tmp_path}/studies.db"


@pytest.fixture
def journal(tmp_path):
    """A storage that is made at once."""
    return f"{tmp_path}/studies.journal"


def store(address: str, *records: TrackedState, name: str | None = None) -> OptunaTracker:
    tracker = OptunaTracker(address, name)
    tracker.start(records[0])
    for record in records:
        tracker.write(record)
    tracker.finish(records[-1], Session())
    return tracker


def load(address: str, name: str = NAME) -> optuna.Study:
    if "://" in address:
        return optuna.load_study(study_name=name, storage=address)
    backend = optuna.storages.journal.JournalFileBackend(address)
    return optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))


def test_each_model_is_a_trial(address):
    tracker = store(address, a_record())
    study = load(address)
    assert tracker.study_name == NAME and study.direction == StudyDirection.MAXIMIZE
    assert study.metric_names == ["accuracy"]
    attributes = study.user_attrs
    assert attributes["run_id"] == 7 and attributes["owner"] == "ada" and attributes["model_output_table"]
    assert attributes["versions"] == {"keras": "3.15.1"}
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 3
    assert study.best_trial.user_attrs["mst_key"] == 1
    for trial, key in zip(study.trials, (1, 2, 3), strict=True):
        model = a_model(key)
        assert trial.value == model.validation_metric and trial.user_attrs["weights_digest"] == model.weights_digest
        assert trial.params == {**model.hyper_parameters, "architecture": str(model.model_id),
                                "shuffle": str(model.hyper_parameters["shuffle"])}  # fmt: skip
        expected = {p.epoch: p.value for p in points_of(key) if (p.data_set, p.name) == ("validation", "accuracy")}
        assert trial.intermediate_values == expected and len(expected) == 3
        assert trial.datetime_start == datetime.fromtimestamp(model.started_at)
        assert trial.datetime_complete == datetime.fromtimestamp(model.ended_at)


def test_distributions_are_ranges_of_numbers_and_choices_of_others(journal):
    models = (a_model(1), a_model(10, model_id=3))
    store(journal, TrackedState(a_run(), models, points_of(1)))
    found = load(journal).trials[0].distributions
    assert found == {
        "architecture": CategoricalDistribution(("1", "2")),
        "optimizer": CategoricalDistribution(("Adam",)),
        "learning_rate": FloatDistribution(0.001, 0.01, log=True),
        "batch_size": IntDistribution(16, 160, log=True),
        "shuffle": CategoricalDistribution(("False", "True")),
    }


def test_a_parameter_of_some_models_belongs_to_their_trials_only(journal):
    models = (a_model(1, hyper_parameters={"momentum": 0.9}), a_model(2, hyper_parameters={"beta_1": 1}))
    store(journal, TrackedState(a_run(), models, points_of(1)))
    assert [set(trial.params) for trial in load(journal).trials] == [{"momentum"}, {"beta_1"}]


def test_a_loss_is_minimized_and_training_data_serve_where_there_are_no_others(journal):
    run = a_run(metric_name=None, higher_is_better=False)
    model = a_model(1, validation_loss=None, validation_metric=None, ranked_by="loss")
    points = tuple(p for p in points_of(1) if p.data_set == "training")
    store(journal, TrackedState(run, (model,), points))
    study = load(journal)
    (trial,) = study.trials
    assert study.direction == StudyDirection.MINIMIZE and study.metric_names == ["loss"]
    assert trial.value == model.training_loss
    assert trial.intermediate_values == {p.epoch: p.value for p in points if p.name == "loss"}


def test_a_search_with_several_objectives_is_a_study_with_their_directions(address):
    run = a_run(objective=("multiplications", "size_bytes"))
    sizes = ((300, 900), (100, 400), (200, None))
    models = [a_model(key, multiplications=n, size_bytes=size) for key, (n, size) in enumerate(sizes, 1)]
    store(address, TrackedState(run, (*models, a_model(4, state="stopped", validation_metric=None)), points_of(1)))
    store(address, TrackedState(run, (*models, a_model(4, state="stopped", validation_metric=None)), points_of(1)))
    study = load(address)
    assert study.directions == [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE, StudyDirection.MINIMIZE]
    assert study.metric_names == ["accuracy", "multiplications", "size_bytes"]
    assert [trial.values for trial in study.trials] == [[0.89, 300, 900], [0.88, 100, 400], [0.87, 200, math.inf], None]
    assert [trial.user_attrs["mst_key"] for trial in study.best_trials] == [1, 2]  # the Pareto front


def test_a_study_is_made_again_if_its_objectives_are_others(journal):
    store(journal, TrackedState(a_run(), (a_model(1),), points_of(1)))
    store(journal, TrackedState(a_run(objective=("size_bytes",)), (a_model(1, size_bytes=4),), points_of(1)))
    (trial,) = load(journal).trials
    assert trial.values == [0.89, 4.0]


@pytest.mark.parametrize(
    ("run", "model", "expected"),
    [
        ({}, {"state": "trained"}, TrialState.COMPLETE),
        ({}, {"state": "stopped"}, TrialState.PRUNED),
        ({}, {"state": "failed", "detail": "its loss is NaN"}, TrialState.FAIL),
        ({}, {"state": "trained", "validation_metric": math.nan}, TrialState.FAIL),
        ({"state": "cancelled"}, {"state": "training"}, TrialState.FAIL),
        ({"state": "interrupted"}, {"state": "waiting", "started_at": None, "ended_at": None}, TrialState.FAIL),
        (RUNNING, {"state": "training"}, TrialState.RUNNING),
        (RUNNING, {"state": "trained"}, TrialState.RUNNING),
        (RUNNING, {"state": "waiting", "started_at": None, "ended_at": None}, TrialState.WAITING),
        (RUNNING, {"state": "failed", "detail": "x"}, TrialState.FAIL),
    ],
)
def test_states_of_trials(journal, run, model, expected):
    store(journal, TrackedState(a_run(**run), (a_model(1, **model),), points_of(1)))
    (trial,) = load(journal).trials
    assert trial.state == expected
    assert (trial.value is None) == (expected not in (TrialState.COMPLETE, TrialState.PRUNED))
    if model.get("reason"):
        assert trial.user_attrs["reason"] == model["reason"]
    elif run.get("state") in ("cancelled", "interrupted"):
        assert trial.user_attrs["reason"] == f"the run is {run['state']}"


def test_a_second_call_changes_nothing(address):
    store(address, a_record())
    before = load(address)
    store(address, a_record())
    after = load(address)
    assert after._study_id == before._study_id
    assert after.trials == before.trials


def test_a_followed_run_is_updated_trial_by_trial(address):
    running = a_run(**RUNNING)
    begun = TrackedState(
        running,
        (a_model(1, state="training"), a_model(2, state="waiting", started_at=None, ended_at=None)),
        points_of(1, 1),
    )
    tracker = OptunaTracker(address)
    tracker.start(begun)
    tracker.write(begun)
    assert [trial.state for trial in load(address).trials] == [TrialState.RUNNING, TrialState.WAITING]
    number = load(address)._study_id
    on = replace(a_record(2, running, state="training"), points=(*points_of(1, 1, first=2), *points_of(2, 1)))
    tracker.write(on)
    assert [sorted(trial.intermediate_values) for trial in load(address).trials] == [[1, 2], [1]]
    tracker.write(replace(a_record(2), points=(*points_of(1, 1, first=3), *points_of(2, 2, first=2))))
    study = load(address)
    assert study._study_id == number, "it was not made again"
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 2
    assert [sorted(trial.intermediate_values) for trial in study.trials] == [[1, 2, 3]] * 2
    assert study.trials[0].value == a_model(1).validation_metric


def test_a_run_that_was_resumed_makes_the_study_again(address):
    store(address, a_record(2, a_run(state="interrupted"), state="training"))
    store(address, a_record(3))
    study = load(address)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 3
    assert [trial.user_attrs["mst_key"] for trial in study.trials] == [1, 2, 3]


@pytest.mark.parametrize("later", [
    {"hyper_parameters": {"optimizer": "SGD"}},
    {"hyper_parameters": {"optimizer": 1}},
], ids=str)  # fmt: skip
def test_a_choice_that_a_search_adds_makes_the_study_again(address, later):
    running = a_run(**RUNNING)
    first = TrackedState(
        running, (a_model(1, state="training", hyper_parameters={"optimizer": "Adam"}),), points_of(1, 1)
    )
    more = TrackedState(running, (*first.models, a_model(2, state="training", **later)), points_of(2, 1))
    store(address, first, more)
    trials = load(address).trials
    assert [trial.params["optimizer"] for trial in trials] == ["Adam", str(later["hyper_parameters"]["optimizer"])]
    assert trials[0].intermediate_values, "nothing is lost"


def test_a_metric_that_becomes_known_later_makes_the_study_again(address):
    none = TrackedState(a_run(**RUNNING, metric_name=None, higher_is_better=False), (a_model(1, state="training"),), ())
    store(address, none, replace(a_record(1, a_run(**RUNNING)), points=points_of(1, 1)))
    study = load(address)
    assert study.direction == StudyDirection.MAXIMIZE and study.trials[0].intermediate_values == {1: 0.99}


def test_a_study_of_another_run_is_kept(address):
    store(address, a_record())
    other = a_run(created_at=BEGAN + 1)
    with pytest.raises(InvalidParameter, match="the storage has another study of this name. Received: 'run 7 of lab'"):
        store(address, a_record(1, other))
    assert len(load(address).trials) == 3
    store(address, a_record(1, other), name="another")
    assert len(load(address, "another").trials) == 1


def test_metrics_on_samples_are_no_values_of_epochs(journal):
    sample = MetricPoint(1, BEGAN, "validation", "accuracy", 0.1, 1, 1, True)
    store(journal, replace(a_record(1), points=(sample,)))
    assert load(journal).trials[0].intermediate_values == {}


@pytest.mark.one_case
def test_values_that_are_not_finite(address):
    values = ((1, math.nan), (2, math.inf), (3, 0.5))
    points = tuple(MetricPoint(1, BEGAN, "validation", "accuracy", v, n, n, False) for n, v in values)
    record = replace(a_record(1, validation_loss=math.nan), points=points)
    store(address, record)
    found = load(address).trials[0]
    assert math.isnan(found.intermediate_values[1]) and found.intermediate_values[2] == math.inf
    number = load(address)._study_id
    store(address, record)
    assert load(address)._study_id == number


def test_hostile_names_are_data(address, tmp_path):
    store(address, hostile_record())
    name = "run 7 of ' OR 1=1 --"
    study = load(address, name)
    first = study.trials[0]
    assert len(first.params) == len(HOSTILE) and study.user_attrs["owner"] == HOSTILE[0]
    assert all(text.isprintable() for text in (*first.params, *first.params.values()))
    assert {name.split(".")[0] for name in files_below(tmp_path)} == {"studies"}


@pytest.mark.parametrize(
    "address",
    ["sqlite:////no/such/directory/a.db", "/no/such/directory/a.journal", "nonsense://there", "redis://127.0.0.1:1",
     "postgresql+psycopg2://ann:secret@127.0.0.1:1/x"],
)  # fmt: skip
def test_a_storage_that_cannot_be_reached_is_one_error(address):
    with pytest.raises(NotReady, match="--storage cannot be reached") as raised:
        OptunaTracker(address)
    assert "secret" not in raised.value.message and "\n" not in raised.value.message


def test_a_file_that_is_no_journal_is_kept(tmp_path):
    path = tmp_path / "studies.db"
    path.write_bytes(b"SQLite format 3\0")
    with pytest.raises(InvalidParameter, match="is a file, but no journal of Optuna"):
        OptunaTracker(str(path))
    assert path.read_bytes() == b"SQLite format 3\0"


def test_nothing_is_printed(address, capfd):
    store(address, a_record())
    assert tuple(capfd.readouterr()) == ("", "")
