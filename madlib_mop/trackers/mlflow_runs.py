"""A run as runs of MLflow: one for the run, and one below it for each model; called by `madlib-mop mlflow`.

A run is found again by the tag ``madlib_mop.key``. So a second call updates it, and logs only metrics and models that
are not logged yet.
"""

import contextlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.models import ModelFacts, best_model
from madlib_mop.catalog.facts.tracked import TrackedRun, TrackedState
from madlib_mop.catalog.live.words import clean
from madlib_mop.catalog.rows.states import ModelState, RunState
from madlib_mop.errors import InvalidParameter, MopError
from madlib_mop.trackers.addresses import is_database, reach_database, unreachable
from madlib_mop.trackers.exported import Models, chosen
from madlib_mop.trackers.following import RunSession
from madlib_mop.trackers.mlflow_models import MODEL, write_model
from madlib_mop.trackers.names import history_name, key_of, text_of
from madlib_mop.trackers.requirements import package

OPTION = "--tracking-uri"
REPORT = "report.html"
#: Tags of a run that has a model: MLflow's own, the key of the model, and the SHA-256 of its weights.
HISTORY, MODEL_KEY, MODEL_DIGEST = "mlflow.log-model.history", "madlib_mop.model_mst_key", "madlib_mop.model_digest"
#: Variables of MLflow that are set unless the user has set them: no telemetry, nothing on the standard output, and an
#: error after a minute if the server does not answer.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # defence: no-telemetry
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
#: What MLflow takes at most in one request: 100 parameters, 100 tags, and 1,000 items with the metrics.
_MAX_NAMES, _MAX_METRICS = 100, 800
#: Runs in one page of a search.
_PAGE = 1000
#: Characters of a parameter and of a tag that all versions of its server take.
_MAX_PARAM, _MAX_TAG = 500, 5000
_RUN_STATES = {
    RunState.RUNNING: "RUNNING",
    RunState.TRAINED: "RUNNING",
    RunState.FINISHED: "FINISHED",
    RunState.FAILED: "FAILED",
}
_MODEL_STATES = {ModelState.TRAINED: "FINISHED", ModelState.FAILED: "FAILED", ModelState.STOPPED: "KILLED"}
_KILLED = "KILLED"
_TERMINAL = ("FINISHED", "FAILED", _KILLED)


@dataclass
class _Logged:
    """What a run of MLflow has: its tags, the names of its parameters, its status, and its metrics."""

    run_id: str
    tags: dict[str, str] = field(default_factory=dict)
    params: set[str] = field(default_factory=set)
    status: str | None = None
    metrics: set[tuple[str, int, int]] = field(default_factory=set)


class MlflowTracker:
    """Writes one run into an experiment.

    Parameters
    ----------
    tracking_uri : str
        A server or a storage, as MLflow takes it. Credentials come from MLflow's own variables.
    experiment : str
        Created if there is none of this name.
    models : Models or None
        Which models become artifacts. None: the best, if the output table belongs to the role that logs in.

    Attributes
    ----------
    problems : list of str
        Why models are not there that should be, after `finish`.

    Raises
    ------
    NotReady
        If mlflow is not installed, or the address cannot be reached.
    """

    def __init__(self, tracking_uri: str, experiment: str, models: Models | None = None):
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        with _quiet():
            tracking, self._entities = package("mlflow", "tracking", "entities")
        self._uri = tracking_uri
        self._experiment = experiment
        self._models_asked = models
        self.problems: list[str] = []
        self._experiment_id = ""
        self._run = _Logged("")
        self._models: dict[int, _Logged] = {}
        if is_database(tracking_uri):
            reach_database(tracking_uri, OPTION)
        with self._calling():
            self._client = tracking.MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
            self._client.search_experiments(max_results=1)

    @property
    def run_id(self) -> str:
        """MLflow's id of the run; empty before `start`."""
        return self._run.run_id

    def start(self, record: TrackedState) -> None:
        """Find or create the experiment and the run, and find what of it is logged."""
        key = record.run.key
        with self._calling():
            self._experiment_id = self._open_experiment()
            found = self._search(f"tags.`madlib_mop.key` = '{key}'")
            if found:
                self._run = _logged(found[0])
                for child in self._search(f"tags.`mlflow.parentRunId` = '{self._run.run_id}'"):
                    mst_key = child.data.tags.get("madlib_mop.mst_key", "")
                    if mst_key.isdecimal():  # a child without it was added by others
                        self._models[int(mst_key)] = self._with_metrics(child)
                return
            name = text_of(record.run.name or f"run {record.run.run_id}", _MAX_TAG)
            tags = {"madlib_mop.key": key, **_run_tags(record)}
            created = self._client.create_run(
                self._experiment_id, start_time=_ms(record.run.created_at), tags=tags, run_name=name
            )
            self._run = _Logged(created.info.run_id, tags, status="RUNNING")

    def write(self, record: TrackedState) -> None:
        """Log parameters, metrics, tags and states that are not logged yet."""
        run = record.run
        points: dict[int, list[MetricPoint]] = {}
        for point in record.points:
            points.setdefault(point.mst_key, []).append(point)
        with self._calling():
            self._log(self._run, _run_params(run), _run_tags(record), ())
            for model in record.models:
                if model.mst_key in self._models or model.mst_key in points or model.state != ModelState.WAITING:
                    logged = self._model(run, model)
                    self._log(logged, _model_params(model), _model_tags(model), points.get(model.mst_key, ()))
                    self._set_status(logged, _model_status(run, model), model.ended_at or run.ended_at)
            status = _KILLED if run.is_lost else _RUN_STATES.get(RunState(run.state), _KILLED)
            self._set_status(self._run, status, run.ended_at)

    def finish(self, record: TrackedState, session: RunSession) -> None:
        """Log the report of the run and the models as artifacts; note in `problems` which models are not there."""
        html = session.report()
        with tempfile.TemporaryDirectory() as directory, self._calling():
            path = Path(directory) / REPORT
            path.write_text(html, encoding="utf-8")
            self._client.log_artifact(self._run.run_id, str(path))
        self.problems = self._log_models(record, session)

    def _log_models(self, record: TrackedState, session: RunSession) -> list[str]:
        """Log the models that are not logged yet: the best for the run, with all of them each for its own run."""
        which = self._models_asked or Models.BEST
        models = chosen(record.models, which)
        takers = {model.mst_key: [self._models[model.mst_key]] if which is Models.ALL else [] for model in models}
        for best in models[:1]:
            takers[best.mst_key].append(self._run)
        missing = [(model, [one for one in takers[model.mst_key] if _lacks(one, model)]) for model in models]
        missing = [(model, runs) for model, runs in missing if runs]
        if not missing:
            is_wanting = not models and which is not Models.NONE
            return [f"no model is written: none is trained, and the run is {record.run.state}"] if is_wanting else []
        try:
            table = session.output_table(record.run, of_others=self._models_asked is not None)
        except MopError as error:
            return [f"no model is written: {clean(error.message)}"]
        failed: dict[str, list[int]] = {}
        for model, runs in missing:
            try:
                data = session.export(table, model)
            except MopError as error:
                # defence: reasons-in-mlflow = failed.setdefault(error.message, []).append(model.mst_key)
                failed.setdefault(clean(error.message), []).append(model.mst_key)
                continue
            self._log_model(model, data, runs)
        return [f"{_models_are(keys)} not written: {message}" for message, keys in failed.items()]

    def _log_model(self, model: ModelFacts, data: bytes, runs: Sequence[_Logged]) -> None:
        for logged in runs:
            with tempfile.TemporaryDirectory() as directory, self._calling():
                made = write_model(Path(directory) / MODEL, data, logged.run_id)
                self._client.log_artifacts(logged.run_id, str(Path(directory) / MODEL), MODEL)
                tags = {HISTORY: json.dumps([made]), MODEL_KEY: str(model.mst_key)}
                if model.weights_digest is not None:
                    tags[MODEL_DIGEST] = model.weights_digest
                self._log(logged, {}, tags, ())

    def _open_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            return str(self._client.create_experiment(self._experiment))
        if found.lifecycle_stage != "active":
            raise InvalidParameter(
                f"experiment {self._experiment!r} is deleted", hint="Restore it, or name another one with --experiment."
            )
        return str(found.experiment_id)

    def _search(self, condition: str) -> list[Any]:
        found: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs([self._experiment_id], condition, max_results=_PAGE, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _with_metrics(self, run: Any) -> _Logged:
        logged = _logged(run)
        for key in run.data.metrics:
            for metric in self._client.get_metric_history(logged.run_id, key):
                logged.metrics.add((metric.key, metric.step, metric.timestamp))
        return logged

    def _model(self, run: TrackedRun, model: ModelFacts) -> _Logged:
        """Return the run of a model, created unless there is one."""
        if model.mst_key not in self._models:
            tags = {"mlflow.parentRunId": self._run.run_id, **_model_tags(model)}
            created = self._client.create_run(
                self._experiment_id,
                start_time=_ms(model.started_at or run.created_at),
                tags=tags,
                run_name=f"model {model.mst_key}",
            )
            self._models[model.mst_key] = _Logged(created.info.run_id, tags, status="RUNNING")
        return self._models[model.mst_key]

    def _log(
        self, logged: _Logged, params: Mapping[str, str], tags: Mapping[str, str], points: Sequence[MetricPoint]
    ) -> None:
        """Log what a run of MLflow lacks. MLflow refuses other values of a parameter, so the first ones are kept."""
        metrics = {}
        for point in points:
            key = key_of(history_name(point))
            if (key, point.step, _ms(point.at)) not in logged.metrics:
                metrics[key, point.step, _ms(point.at)] = point.value
        new_params = [self._entities.Param(key, value) for key, value in params.items() if key not in logged.params]
        new_tags = [self._entities.RunTag(key, value) for key, value in tags.items() if logged.tags.get(key) != value]
        new_metrics = [self._entities.Metric(key, value, at, step) for (key, step, at), value in metrics.items()]
        while new_params or new_tags or new_metrics:  # mostly one request
            self._client.log_batch(
                logged.run_id, new_metrics[:_MAX_METRICS], new_params[:_MAX_NAMES], new_tags[:_MAX_NAMES]
            )
            del new_metrics[:_MAX_METRICS], new_params[:_MAX_NAMES], new_tags[:_MAX_NAMES]
        logged.params |= params.keys()
        logged.tags |= tags
        logged.metrics |= metrics.keys()

    def _set_status(self, logged: _Logged, status: str, ended_at: float | None) -> None:
        if logged.status == status:
            return
        if status in _TERMINAL:
            self._client.set_terminated(logged.run_id, status, None if ended_at is None else _ms(ended_at))
        else:
            self._client.update_run(logged.run_id, status)
        logged.status = status

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Turn errors of MLflow, its server and its storage into one of ours."""
        from sqlalchemy.exc import SQLAlchemyError

        (exceptions,) = package("mlflow", "exceptions")
        try:
            with _quiet():
                yield
        except MopError:
            raise
        except (exceptions.MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            raise unreachable(self._uri, OPTION, error) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow and its migrations of databases, which set up logging of their own, from writing to a terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _models_are(keys: Sequence[int]) -> str:
    return f"model {keys[0]} is" if len(keys) == 1 else f"models {', '.join(map(str, keys))} are"


def _lacks(logged: _Logged, model: ModelFacts) -> bool:
    """Return whether a run of MLflow does not have these weights of a model."""
    has_key = logged.tags.get(MODEL_KEY) == str(model.mst_key)
    return not has_key or model.weights_digest is None or logged.tags.get(MODEL_DIGEST) != model.weights_digest


def _logged(run: Any) -> _Logged:
    return _Logged(run.info.run_id, dict(run.data.tags), set(run.data.params), run.info.status)


def _ms(at: float) -> int:
    return round(at * 1000)


def _run_params(run: TrackedRun) -> dict[str, str]:
    names = ("num_iterations", "seed", "schedule", "n_segments")
    return {name: text_of(getattr(run, name), _MAX_PARAM) for name in names}


def _run_tags(record: TrackedState) -> dict[str, str]:
    run = record.run
    best = best_model(record.models)
    values: dict[str, object] = {
        "mlflow.user": run.owner,
        "mlflow.source.name": "madlib_mop",
        "mlflow.source.type": "JOB",
        "madlib_mop.system_identifier": run.system_identifier,
        "madlib_mop.database": run.database,
        "madlib_mop.run_id": run.run_id,
        "madlib_mop.owner": run.owner,
        "madlib_mop.kind": run.kind,
        "madlib_mop.state": run.state,
        "madlib_mop.state_detail": run.state_detail,
        "madlib_mop.description": run.description,
        "madlib_mop.source_table": run.source_table,
        "madlib_mop.validation_table": run.validation_table,
        "madlib_mop.model_output_table": run.model_output_table,
        "madlib_mop.model_selection_table": run.model_selection_table,
        "madlib_mop.model_arch_table": run.model_arch_table,
        "madlib_mop.ranked_by": run.score_name,
        "madlib_mop.best_mst_key": None if best is None else best.mst_key,
        **{key_of(f"madlib_mop.version.{name}"): version for name, version in run.versions.items()},
    }
    return _tags(values)


def _model_params(model: ModelFacts) -> dict[str, str]:
    return {key_of(name): text_of(value, _MAX_PARAM) for name, value in model.hyper_parameters.items()}


def _model_tags(model: ModelFacts) -> dict[str, str]:
    values: dict[str, object] = {
        "madlib_mop.mst_key": model.mst_key,
        "madlib_mop.state": model.state,
        "madlib_mop.reason": model.detail,
        "madlib_mop.rank": model.rank,
        "madlib_mop.epoch": model.epoch,
        "madlib_mop.weights_digest": model.weights_digest,
        "madlib_mop.compile_params": model.compile_params,
        "madlib_mop.fit_params": model.fit_params,
        "madlib_mop.hyper_parameters": json.dumps(dict(model.hyper_parameters)),
    }
    return _tags(values)


def _tags(values: Mapping[str, object]) -> dict[str, str]:
    return {name: text_of(value, _MAX_TAG) for name, value in values.items() if value is not None}


def _model_status(run: TrackedRun, model: ModelFacts) -> str:
    return _MODEL_STATES.get(ModelState(model.state), _KILLED if run.has_ended else "RUNNING")
