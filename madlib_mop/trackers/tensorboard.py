"""A run as event files for TensorBoard; called by `madlib-mop tensorboard`.

Each model is a directory, `run_7/model_3`, with its hyper-parameters. The directories `train` and `validation` in it
have its metrics, as Keras' callback TensorBoard writes them. No name of the record is part of a path.
"""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.models import ModelFacts
from madlib_mop.catalog.facts.tracked import TrackedRun, TrackedState
from madlib_mop.catalog.live.words import clean
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter
from madlib_mop.trackers.event_files import EventFile, event, replace_file, scalar, subdirectory, writing
from madlib_mop.trackers.following import RunSession
from madlib_mop.trackers.names import tag_of
from madlib_mop.trackers.requirements import package

#: Says which run a directory belongs to.
MARKER = "madlib_mop.json"
_FOLDERS = {"training": "train", "validation": "validation"}
_HPARAMS_MODULES = ("api_pb2", "plugin_data_pb2", "metadata")
#: The session of a model in HParams: its own directory.
_SESSION = ""


class TensorBoardTracker:
    """Writes the event files of one run.

    Parameters
    ----------
    directory : Path
        Where the directory of the run is created; TensorBoard's ``--logdir``.
    histograms : bool
        Also write the final weights of each model as histograms.

    Raises
    ------
    NotReady
        If tensorboard is not installed.
    InvalidParameter
        If nothing can be written there.
    """

    def __init__(self, directory: Path, histograms: bool = False):
        package("tensorboard", "summary.writer.record_writer", "plugins.hparams.summary_v2")
        self._directory = directory
        self._histograms = histograms
        self._files: dict[tuple[int, str], EventFile] = {}
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        _check_directory(directory)

    def run_directory(self, run: TrackedRun) -> Path:
        """Return the directory of a run."""
        return self._directory / f"run_{run.run_id}"

    def start(self, record: TrackedState) -> None:
        """Create the directory of the run, or check that an existing one belongs to the run."""
        run = record.run
        if self._histograms and not run.may_own:  # defence: histograms-for-members
            raise InsufficientPrivilege(
                "--histograms reads training states, which only members of the role that owns a run may see."
                f" The owner of run {run.run_id} is {clean(run.owner)}",
                hint="Leave out --histograms, or log in as a member of that role.",
            )
        with writing(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        path = subdirectory(self._directory, f"run_{run.run_id}")
        marker = path / MARKER
        with writing(marker):
            if os.listdir(path) and _key_of(marker) != run.key:  # defence: directories-of-others
                raise InvalidParameter(
                    f"{path} has files of another run, or of another program",
                    hint="Give another directory, or remove this one.",
                )
            replace_file(marker, json.dumps({"key": run.key, "run_id": run.run_id}).encode())

    def write(self, record: TrackedState) -> None:
        """Write hyper-parameters and metrics that are not written yet."""
        run = record.run
        events: dict[tuple[int, str], list[Any]] = defaultdict(list)
        for model in record.models:
            events[model.mst_key, _SESSION] += self._session_events(run, model)
        for point in record.points:
            if folder := _FOLDERS.get(point.data_set):
                events[point.mst_key, folder].append(_event_of(point))
        for (mst_key, folder), some in events.items():
            if some:
                self._file(run, mst_key, folder).append(some)

    def finish(self, record: TrackedState, session: RunSession) -> None:
        """Write histograms of the final weights, if they were asked for."""
        if not self._histograms:
            return
        for model in record.models:
            weights = session.weights(model.mst_key)
            if weights is None:
                continue
            at = model.ended_at or record.run.created_at
            events = [
                event(at, weights.epoch, _histogram(f"weights_{tensor.number}", tensor.values))
                for tensor in weights.tensors
            ]
            self._file(record.run, model.mst_key, _SESSION).append(events)

    def _session_events(self, run: TrackedRun, model: ModelFacts) -> list[Any]:
        """Return the beginning and the end of a model for HParams, once each."""
        (summary_v2,) = package("tensorboard", "plugins.hparams.summary_v2")
        has_ended = run.is_over(model)
        events = []
        began = model.started_at or run.created_at
        if model.mst_key not in self._begun and (has_ended or model.started_at is not None):
            values = {clean(n): clean(v) if isinstance(v, str) else v for n, v in model.hyper_parameters.items()}
            name = f"run_{run.run_id}/model_{model.mst_key}"
            events.append(event(began, 0, summary_v2.hparams_pb(values, trial_id=name, start_time_secs=began)))
            self._begun.add(model.mst_key)
        if model.mst_key not in self._ended and has_ended:
            at = model.ended_at or run.ended_at or began
            events.append(event(at, 0, _end_of_session(model, at)))
            self._ended.add(model.mst_key)
        return events

    def _file(self, run: TrackedRun, mst_key: int, folder: str) -> EventFile:
        if (mst_key, folder) not in self._files:
            directory = subdirectory(self.run_directory(run), f"model_{mst_key}")
            if folder:
                directory = subdirectory(directory, folder)
            self._files[mst_key, folder] = EventFile(directory, run.created_at)
        return self._files[mst_key, folder]


def _event_of(point: MetricPoint) -> Any:
    return event(point.at, point.step, scalar(tag_of(point), point.value))


def _end_of_session(model: ModelFacts, at: float) -> Any:
    """Return what HParams gets to know at the end of a model; tensorboard's own function for it imports TensorFlow."""
    summary_pb2, api, data, metadata = package(
        "tensorboard", "compat.proto.summary_pb2", *(f"plugins.hparams.{m}" for m in _HPARAMS_MODULES)
    )
    statuses = {ModelState.TRAINED: api.STATUS_SUCCESS, ModelState.FAILED: api.STATUS_FAILURE}
    info = data.SessionEndInfo(status=statuses.get(ModelState(model.state), api.STATUS_UNKNOWN), end_time_secs=at)
    value = summary_pb2.Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data.HParamsPluginData(session_end_info=info)),
        tensor=metadata.NULL_TENSOR,
    )
    return summary_pb2.Summary(value=[value])


def _histogram(tag: str, values: Any) -> Any:
    (histograms,) = package("tensorboard", "plugins.histogram.summary_v2")
    numbers = np.asarray(values).astype(np.float64).ravel()
    return histograms.histogram_pb(tag, numbers[np.isfinite(numbers)])


def _key_of(marker: Path) -> str | None:
    """Return the key of the run that a directory belongs to; None if it says none."""
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found.get("key") if isinstance(found, dict) else None


def _check_directory(directory: Path) -> None:
    """Raise InvalidParameter unless a directory can be written to, or created."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise InvalidParameter(
            f"DIR must be a directory. {existing} is not one. Received: {directory}", hint="Give another directory."
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InvalidParameter(
            f"DIR cannot be written to: no permission for {existing}. Received: {directory}",
            hint="Give another directory, or change its permissions.",
        )
