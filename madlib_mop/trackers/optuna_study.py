"""A run as a study of Optuna, which Optuna Dashboard shows; called by `madlib-mop optuna`.

Each model is a trial. Optuna never changes a trial that is complete, pruned or failed. So a trial gets such a state
when its run has ended. If a finished trial of an earlier call is not up to date, because the run was resumed, the study
is made again.
"""

import contextlib
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from json import JSONDecodeError
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.models import ModelFacts, Value
from madlib_mop.catalog.facts.tracked import TrackedRun, TrackedState
from madlib_mop.catalog.live.words import clean, state_of
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.errors import InvalidParameter, MopError
from madlib_mop.reports.importance import is_logarithmic
from madlib_mop.trackers.addresses import connect_options, reach_database, unreachable
from madlib_mop.trackers.following import RunSession

OPTION = "--storage"
_KEY = "madlib_mop_key"
#: A hyper-parameter that is a name, although it is a number.
_NAMES = ("architecture",)


@dataclass(frozen=True, slots=True)
class Trial:
    """A model as a trial should be."""

    mst_key: int
    state: TrialState
    values: tuple[float, ...] | None
    params: Mapping[str, Value]
    distributions: Mapping[str, BaseDistribution]
    intermediate: Mapping[int, float]
    attributes: Mapping[str, Any]
    began: datetime | None
    ended: datetime | None

    def frozen(self) -> FrozenTrial:
        """Return it as Optuna takes it."""
        made = optuna.trial.create_trial(
            state=self.state,
            values=None if self.values is None else list(self.values),
            params=dict(self.params),
            distributions=dict(self.distributions),
            user_attrs=dict(self.attributes),
            intermediate_values=dict(self.intermediate),
        )
        if self.began is not None and self.state != TrialState.WAITING:
            made.datetime_start = self.began
        if self.ended is not None and self.state.is_finished():
            made.datetime_complete = max(self.ended, made.datetime_start or self.ended)
        return made

    def is_like(self, other: FrozenTrial) -> bool:
        """Return whether a trial of a study has the same result."""
        return (
            other.state == self.state
            and other.values == (None if self.values is None else list(self.values))
            and other.params == self.params
            and _comparable(other.intermediate_values) == _comparable(self.intermediate)
        )

    def can_follow(self, other: FrozenTrial) -> bool:
        """Return whether a trial of a study can become this one, as Optuna allows."""
        if other.state.is_finished():
            return self.is_like(other)
        is_back = self.state == TrialState.WAITING and other.state == TrialState.RUNNING
        return not is_back and other.params == self.params


class OptunaTracker:
    """Writes one run as a study.

    Parameters
    ----------
    storage : str
        A URL of SQLAlchemy, or the path of a journal file.
    study_name : str or None
        None: ``run 7 of mydb``.

    Raises
    ------
    NotReady
        If the storage cannot be reached.
    """

    def __init__(self, storage: str, study_name: str | None = None):
        self._address = storage
        self._name = study_name
        self._points: dict[int, list[MetricPoint]] = defaultdict(list)
        self._study: optuna.Study | None = None
        self._trials: dict[int, FrozenTrial] = {}
        if "://" in storage:
            reach_database(storage, OPTION)
        with self._calling():
            self._storage = _storage_of(storage)

    @property
    def study_name(self) -> str:
        """The name of the study."""
        return self._name or ""

    def start(self, record: TrackedState) -> None:
        """Find the study, or create it."""
        run = record.run
        self._name = self._name or f"run {run.run_id} of {clean(run.database)}"
        with self._calling():
            try:
                self._study = self._create(run)
            except DuplicatedStudyError:
                self._study = optuna.load_study(study_name=self._name, storage=self._storage)
                if self._study.user_attrs.get(_KEY) != run.key:  # defence: studies-of-others
                    raise InvalidParameter(
                        f"the storage has another study of this name. Received: {self._name!r}",
                        hint="Give another name with --study-name.",
                    ) from None
                found = self._study.get_trials()
                self._trials = {t.user_attrs["mst_key"]: t for t in found if "mst_key" in t.user_attrs}

    def write(self, record: TrackedState) -> None:
        """Add trials, and update those that are not finished; make the study again if a finished one has changed."""
        assert self._study is not None, "start comes first"
        for point in record.points:
            self._points[point.mst_key].append(point)
        distributions = _distributions(record.models)
        trials = [self._trial(record.run, model, distributions) for model in record.models]
        attributes = _study_attributes(record.run)
        with self._calling():
            known = self._study.user_attrs
            has_same_metrics = known.get("metric", attributes["metric"]) == attributes["metric"]
            has_same_metrics = has_same_metrics and self._study.directions == _directions(record.run)
            if not (has_same_metrics and self._can_update(trials)):
                optuna.delete_study(study_name=self.study_name, storage=self._storage)
                self._study, self._trials, known = self._create(record.run), {}, {}
            for name, value in attributes.items():
                if known.get(name) != value:
                    self._study.set_user_attr(name, value)
            study_id = self._storage.get_study_id_from_name(self.study_name)
            for trial in trials:
                self._write_trial(study_id, trial)

    def finish(self, record: TrackedState, session: RunSession) -> None:
        """Do nothing: all of a study is written as the run goes on."""

    def _create(self, run: TrackedRun) -> optuna.Study:
        study = optuna.create_study(study_name=self._name, storage=self._storage, directions=_directions(run))
        study.set_user_attr(_KEY, run.key)
        study.set_metric_names([clean(run.score_name), *run.objective])
        return study

    def _can_update(self, trials: Sequence[Trial]) -> bool:
        """Return whether the study can become this one: finished trials have not changed, and parameters fit."""
        known: dict[str, BaseDistribution] = {}
        for old in self._trials.values():
            known |= old.distributions
        return all(
            (trial.mst_key not in self._trials or trial.can_follow(self._trials[trial.mst_key]))
            and all(_kind(d) == _kind(known[name]) for name, d in trial.distributions.items() if name in known)
            for trial in trials
        )

    def _write_trial(self, study_id: int, trial: Trial) -> None:
        old = self._trials.get(trial.mst_key)
        if old is None:
            created = self._storage.create_new_trial(study_id, template_trial=trial.frozen())
            self._trials[trial.mst_key] = self._storage.get_trial(created)
            return
        if old.state.is_finished():
            return
        number = old._trial_id  # by this number a storage knows it
        if trial.state == TrialState.RUNNING and old.state == TrialState.WAITING:
            self._storage.set_trial_state_values(number, TrialState.RUNNING)
        for step, value in trial.intermediate.items():
            if step not in old.intermediate_values:
                self._storage.set_trial_intermediate_value(number, step, value)
        for name, attribute in trial.attributes.items():
            if old.user_attrs.get(name) != attribute:
                self._storage.set_trial_user_attr(number, name, attribute)
        if trial.state.is_finished():
            self._storage.set_trial_state_values(number, trial.state, trial.values)
        self._trials[trial.mst_key] = self._storage.get_trial(number)

    def _trial(self, run: TrackedRun, model: ModelFacts, known: Mapping[str, BaseDistribution]) -> Trial:
        params = {clean(name): _param(known[clean(name)], value) for name, value in model.hyper_parameters.items()}
        intermediate = self._intermediate(run, model)
        state = _state(run, model)
        has_values = model.score is not None and state in (TrialState.COMPLETE, TrialState.PRUNED)
        attributes = _attributes(run, model)
        ended = model.ended_at or run.ended_at
        return Trial(
            model.mst_key,
            state,
            _values(run, model) if has_values else None,
            params,
            {name: known[name] for name in params},
            intermediate,
            attributes,
            None if model.started_at is None else datetime.fromtimestamp(model.started_at),
            None if ended is None else datetime.fromtimestamp(ended),
        )

    def _intermediate(self, run: TrackedRun, model: ModelFacts) -> dict[int, float]:
        """Return the figure that ranks models by epoch, on validation data if there are some."""
        found: dict[str, dict[int, float]] = {"training": {}, "validation": {}}
        for point in self._points[model.mst_key]:
            if point.name == run.score_name and not point.is_sample:
                found[point.data_set][point.epoch] = point.value
        return found["validation"] or found["training"]

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Keep Optuna quiet, and turn errors of its storage into one of ours."""
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except MopError:
            raise
        except (SQLAlchemyError, StorageInternalError, OSError, ImportError, RuntimeError, JSONDecodeError) as error:
            raise unreachable(self._address, OPTION, error) from None
        finally:
            optuna.logging.set_verbosity(level)


def _storage_of(address: str) -> BaseStorage:
    """Open a storage.

    Raises
    ------
    InvalidParameter
        If the path of a journal is that of another file: Optuna would write into it.
    """
    if "://" in address:
        return RDBStorage(address, engine_kwargs=connect_options(address))
    path = Path(address)
    if path.is_file():
        with path.open("rb") as file:
            if file.read(1) not in (b"", b"{"):  # defence: journals-only
                raise InvalidParameter(
                    f"{OPTION} is a file, but no journal of Optuna. Received: {clean(address)}",
                    hint="For a database in a file, write sqlite:///path.db.",
                )
    return JournalStorage(JournalFileBackend(address))


def _directions(run: TrackedRun) -> list[optuna.study.StudyDirection]:
    """Return the direction of the figure that ranks models, and of what a search minimizes besides."""
    direction = optuna.study.StudyDirection
    is_maximized = run.metric_name is not None and run.higher_is_better
    return [direction.MAXIMIZE if is_maximized else direction.MINIMIZE, *(direction.MINIMIZE for _ in run.objective)]


def _values(run: TrackedRun, model: ModelFacts) -> tuple[float, ...]:
    """Return the values of a model with a score, in the order of `_directions`; a cost that is not known is infinite,
    as for the search."""
    costs = (getattr(model, name) for name in run.objective)
    return cast(float, model.score), *(math.inf if cost is None else float(cost) for cost in costs)


def _state(run: TrackedRun, model: ModelFacts) -> TrialState:
    """Return the state of a trial; those of models that can still change are not final."""
    if not run.is_over(model):
        return TrialState.WAITING if model.started_at is None else TrialState.RUNNING
    if model.state == ModelState.TRAINED and model.score is not None:
        return TrialState.COMPLETE
    return TrialState.PRUNED if model.state == ModelState.STOPPED else TrialState.FAIL


def _study_attributes(run: TrackedRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "database": clean(run.database),
        "system_identifier": run.system_identifier,
        "owner": clean(run.owner),
        "kind": run.kind,
        "state": run.state,
        "description": clean(run.description),
        "metric": clean(run.score_name),
        "source_table": clean(run.source_table),
        "validation_table": clean(run.validation_table),
        "model_output_table": clean(run.model_output_table),
        "seed": run.seed,
        "versions": {clean(name): clean(version) for name, version in run.versions.items()},
    }


def _attributes(run: TrackedRun, model: ModelFacts) -> dict[str, Any]:
    reason = model.detail
    if reason is None and run.has_ended and model.state in (ModelState.WAITING, ModelState.TRAINING):
        reason = f"the run is {state_of(run)}"
    values = {
        "mst_key": model.mst_key,
        "state": model.state,
        "reason": None if reason is None else clean(reason),
        "epoch": model.epoch,
        "weights_digest": model.weights_digest,
        "validation_loss": model.validation_loss,
        "training_loss": model.training_loss,
        "validation_metric": model.validation_metric,
        "training_metric": model.training_metric,
        "visits_s": round(model.seconds, 3),
        "compile_params": clean(model.compile_params),
        "fit_params": clean(model.fit_params),
    }
    return {name: value for name, value in values.items() if value is not None and _is_json(value)}


def _is_json(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _distributions(models: Sequence[ModelFacts]) -> dict[str, BaseDistribution]:
    """Return the distribution of each hyper-parameter over all models: numbers as a range, others as choices."""
    values: dict[str, list[Value]] = defaultdict(list)
    for model in models:
        for name, value in model.hyper_parameters.items():
            values[clean(name)].append(value)
    return {name: _distribution(name, found) for name, found in values.items()}


def _distribution(name: str, values: Sequence[Value]) -> BaseDistribution:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if name in _NAMES or len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        return CategoricalDistribution(sorted({_choice(value) for value in values}))
    low, high = min(numbers), max(numbers)
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(low), int(high), log=low > 0 and is_logarithmic(numbers))
    return FloatDistribution(float(low), float(high), log=low > 0 and is_logarithmic(numbers))


def _param(distribution: BaseDistribution, value: Value) -> Value:
    if isinstance(distribution, CategoricalDistribution):
        return _choice(value)
    return float(value) if isinstance(distribution, FloatDistribution) else value


def _choice(value: Value) -> str:
    return clean(value) if isinstance(value, str) else str(value)


def _kind(distribution: BaseDistribution) -> tuple[object, ...]:
    """Return what Optuna wants to be the same of all distributions of a parameter in a study."""
    return type(distribution), getattr(distribution, "log", None), getattr(distribution, "choices", None)


def _comparable(values: Mapping[int, float]) -> dict[int, float | None]:
    return {step: None if math.isnan(value) else value for step, value in values.items()}
