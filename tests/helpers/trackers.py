"""Runs for tests of trackers, as facts without a server, and what TensorBoard reads of event files."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.models import ModelFacts
from madlib_mop.catalog.facts.tracked import TrackedRun, TrackedState
from madlib_mop.catalog.names import Relation
from madlib_mop.errors import MopError, NotReady
from madlib_mop.exports.formats import CARD, SIGNATURE, archive
from madlib_mop.exports.signature import ModelInput, ModelOutput, Signature
from madlib_mop.trackers.exported import OutputTable
from madlib_mop.trackers.mlflow_runs import MlflowTracker
from madlib_mop.trackers.weights import Weights, WeightVariable

BEGAN = 1_700_000_000.0
#: Texts that are code, paths or commands of a terminal somewhere.
HOSTILE = (
    "<script>alert(1)</script>",
    "../../outside",
    "/etc/passwd",
    "a\x1b[31mb\x00c\nd",
    "' OR 1=1 --",
    "\u202eevil",
    "{{ 7 * 7 }}",
    "ünïcode/metric",
    "x" * 600,
)


def a_run(**fields) -> TrackedRun:
    """Return a finished run, number 7 of a database."""
    given = {
        "system_identifier": "7300000000000000001", "database": "lab", "run_id": 7, "created_at": BEGAN,
        "kind": "fit_multiple_model", "state": "finished",
        "state_detail": None, "owner": "ada", "viewer": "ada", "name": None, "description": None,
        "schedule": "rotation",
        "source_table": "public.train", "validation_table": "public.valid", "model_output_table": "public.models",
        "model_selection_table": "public.mst", "model_arch_table": "public.arch", "num_iterations": 3, "seed": 11,
        "n_segments": 2, "versions": {"keras": "3.15.1"}, "ended_at": BEGAN + 600, "metric_name": "accuracy",
        "higher_is_better": True, "may_own": True,
    }  # fmt: skip
    return TrackedRun(**given | fields)


def a_model(key: int, **fields) -> ModelFacts:
    """Return a trained model after three epochs; the smaller its key, the better it is."""
    given = {
        "mst_key": key, "model_id": 1 + key % 2, "state": "trained", "detail": None, "position": 2, "first_epoch": 1,
        "last_epoch": 3, "pinned": False, "comparable": True, "metric_name": "accuracy", "ranked_by": "accuracy",
        "state_bytes": 1000,
        "hyper_parameters": {"architecture": 1 + key % 2, "optimizer": "Adam", "learning_rate": key / 1000,
                             "batch_size": 16 * key, "shuffle": key % 2 == 0},
        "compile_params": f"optimizer='Adam(lr={key / 1000})'", "fit_params": f"batch_size={16 * key}", "epoch": 3,
        "weights_digest": f"{key:064x}", "rank": key, "metric_epoch": 3, "validation_metric": 0.9 - key / 100,
        "validation_loss": key / 10, "training_metric": 0.95 - key / 100, "training_loss": key / 20,
        "started_at": BEGAN + key, "ended_at": BEGAN + 300 + key, "seconds": 12.5,
    }  # fmt: skip
    return ModelFacts(**given | fields)


def points_of(key: int, n_epochs: int = 3, first: int = 1) -> tuple[MetricPoint, ...]:
    """Return loss and accuracy of a model on both data sets after each epoch."""
    return tuple(
        MetricPoint(key, BEGAN + 100 * epoch + key, data_set, name, value / epoch, epoch, 2 * epoch, False)
        for epoch in range(first, first + n_epochs)
        for data_set in ("training", "validation")
        for name, value in (("loss", key / 10), ("accuracy", 1 - key / 100))
    )


def a_record(n_models: int = 3, run: TrackedRun | None = None, **fields) -> TrackedState:
    """Return a run with models and three epochs of metrics; ``fields`` replace those of all models."""
    models = tuple(replace(a_model(key), **fields) for key in range(1, n_models + 1))
    points = sum((points_of(model.mst_key) for model in models), ())
    return TrackedState(run or a_run(), models, points)


def hostile_record() -> TrackedState:
    """Return a run all of whose names are hostile texts: each is a metric, and a parameter with a hostile value."""
    first, *others = HOSTILE
    run = a_run(
        owner=first, name=HOSTILE[3], description=HOSTILE[6], source_table=HOSTILE[1], model_output_table=HOSTILE[2],
        versions={text: text for text in HOSTILE}, database=HOSTILE[4], metric_name=first,
    )  # fmt: skip
    model = a_model(1, hyper_parameters={text: text for text in HOSTILE}, detail=HOSTILE[3], state="trained")
    failed = a_model(2, hyper_parameters={others[0]: 1}, detail=first, state="failed")
    points = tuple(
        MetricPoint(key, BEGAN + i, data_set, text, float(i), 1, 2, is_sample)
        for key in (1, 2)
        for i, text in enumerate(HOSTILE)
        for data_set in ("training", "validation")
        for is_sample in (False, True)
    )
    return TrackedState(run, (model, failed), points)


def an_export(digest: str, label: str = "mst_key 1 of public.models", **additions: str) -> bytes:
    """Return the bytes of an exported Keras file of one array, whose network is empty."""
    signature = Signature(
        label, "1.1.0", digest, None, (ModelInput("x", "x", "float32", (None, 3), None, 2.0),),
        (ModelOutput("y", "y", "y", "text", ("a", "b")),),
    )  # fmt: skip
    members = {"metadata.json": b'{"keras_version": "3.15.1"}', "config.json": b"{}", "model.weights.h5": b""}
    return archive(members, {SIGNATURE: signature.to_json(), CARD: "# Model\n", **additions})


class Session:
    """What a tracker needs of a session at its end; it has no output table unless it is given models.

    Attributes
    ----------
    asked : list
        What was asked for: ``of_others`` of each table, and the key of each export.
    """

    def __init__(self, files: dict[int, bytes | MopError] | None = None):
        self._files = files
        self.asked: list[object] = []

    def output_table(self, run: TrackedRun, of_others: bool) -> OutputTable:
        """Return a table."""
        self.asked.append(of_others)
        if self._files is None:
            raise NotReady("there is no output table")
        return OutputTable(Relation("public", "models"), True)

    def export(self, table: OutputTable, model: ModelFacts) -> bytes:
        """Return the file of a model, or raise its error."""
        self.asked.append(model.mst_key)
        assert self._files is not None
        found = self._files[model.mst_key]
        if isinstance(found, MopError):
            raise found
        return found

    def report(self) -> str:
        """Return a report."""
        return "<html>report</html>"

    def weights(self, mst_key: int) -> Weights | None:
        """Return two weight variables; those of model 2 are lost."""
        if mst_key == 2:
            return None
        kernel = np.arange(12, dtype=np.float32).reshape(3, 4)
        return Weights(3, (WeightVariable(0, kernel), WeightVariable(1, np.array([np.nan, 1.0, 2.0], np.float32))))


def files_below(directory: Path) -> set[str]:
    """Return the paths of all files in a directory, relative to it."""
    return {os.path.relpath(Path(at, name), directory) for at, _, names in os.walk(directory) for name in names}


def empty_mlflow(directory: Path) -> Path:
    """Make an empty database of MLflow; return its path."""
    path = directory / "mlflow.db"
    MlflowTracker(f"sqlite:///{path}", "nothing")
    return path


def accumulator(directory: Path) -> Any:
    """Return TensorBoard's reader of one directory of event files.

    It would import TensorFlow, which takes seconds; a module of this name is TensorBoard's switch against that.
    """
    import tensorboard.compat

    name = "tensorboard.compat.notf"
    tensorboard.compat.notf = sys.modules.setdefault(name, ModuleType(name))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory)).Reload()


def scalars(directory: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return the scalars of one directory of event files by tag, as TensorBoard reads them: step, time and value."""
    events = accumulator(directory)
    return {tag: [(s.step, s.wall_time, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def recorded(db, run_id: int, mst_key: int, data_set: str) -> dict[str, list[tuple]]:
    """Return the metrics of a model on a data set by name as the record has them: epoch, time and value."""
    rows = db.rows(
        "SELECT name, epoch, EXTRACT(epoch FROM \"time\")::float8, value FROM madlib_mop.metric_series"
        " WHERE run_id = %s AND mst_key = %s AND data_set = %s ORDER BY name, epoch",
        [run_id, mst_key, data_set],
    )
    found: dict[str, list[tuple]] = {}
    for name, epoch, at, value in rows:
        found.setdefault(name, []).append((epoch, pytest.approx(at, abs=1e-3), pytest.approx(value, rel=1e-6)))
    return found


def call_here(capsys, dsn: str, *words: object) -> str:
    """Call `madlib-mop` in this process and return its output; it must print no errors."""
    status, printed, errors = status_here(capsys, dsn, *words)
    assert (status, errors) == (0, "")
    return printed


def status_here(capsys, dsn: str, *words: object) -> tuple[int, str, str]:
    """Call `madlib-mop` in this process; return its exit status, its output and its errors."""
    from madlib_mop.cli import trackers  # noqa: F401 -- registers the commands
    from madlib_mop.cli.app import app

    capsys.readouterr()
    status = app([*map(str, words), "--dsn", dsn], standalone_mode=False)
    printed = capsys.readouterr()
    return status or 0, printed.out.strip(), printed.err.strip()


def name_output(db, run_id: int, schema: str, table: str) -> None:
    """Give an invented run an output table, which exists, and the weights that it has."""
    name = f"{schema}.{table}"
    plan = json.dumps({"output": {"schema": schema, "name": table}})
    db.rows("UPDATE madlib_mop.run SET model_output_table = %s, plan = %s WHERE run_id = %s", [name, plan, run_id])
    db.rows(
        "UPDATE madlib_mop.model AS m SET weights_digest = encode(sha256(t.model_weights), 'hex')"
        f" FROM {name} AS t WHERE t.mst_key = m.mst_key AND m.run_id = %s",
        [run_id],
    )
