"""The output tables of model averaging: the model and its `_summary`, in MADlib's form; written by `writers`."""

import json
from typing import Any

from mop_backend.weights import PARTS_SUFFIX

from madlib_mop import __version__
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import OutputSummary
from madlib_mop.catalog.rows.run import Metric, RunRow
from madlib_mop.driver.data.weights import DIGEST
from madlib_mop.driver.outputs.hopper import (
    preprocessor_columns,
    preprocessor_values,
    shown_frequency,
    shows_only_last,
    write_weights,
)
from madlib_mop.driver.outputs.tables import QUALIFIED, Columns, insert_row, qualified_names
from madlib_mop.driver.outputs.weights import OutputWeights
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import read_field_bytes

#: The argument that names the output table.
ARGUMENT = "model"
#: The primary keys of the tables that are always made, by the suffixes of their names.
KEYS = {"": None, "_summary": "model"}
SUFFIXES = (*KEYS, PARTS_SUFFIX)
_MODEL = (("model_weights", "bytea"), ("model_arch", "json"), DIGEST)
_NAMES = tuple(name for name, _ in _MODEL)
_SUMMARY = (
    ("source_table", "text"), ("model", "text"), ("dependent_varname", "text[]"), ("independent_varname", "text[]"),
    ("model_arch_table", "text"), ("model_id", "integer"), ("compile_params", "text"), ("fit_params", "text"),
    ("num_iterations", "integer"), ("validation_table", "text"), ("object_table", "text"),
    ("metrics_compute_frequency", "integer"), ("name", "text"), ("description", "text"), ("model_type", "text"),
    ("model_size", "float8"), ("start_training_time", "timestamp"), ("end_training_time", "timestamp"),
    ("metrics_elapsed_time", "float8[]"), ("madlib_version", "text"), ("num_classes", "integer[]"),
    ("dependent_vartype", "text[]"), ("normalizing_const", "real"), ("metrics_type", "text[]"), ("loss_type", "text"),
    ("training_metrics_final", "float8"), ("training_loss_final", "float8"), ("training_metrics", "float8[]"),
    ("training_loss", "float8[]"), ("validation_metrics_final", "float8"), ("validation_loss_final", "float8"),
    ("validation_metrics", "float8[]"), ("validation_loss", "float8[]"), ("metrics_iters", "integer[]"),
)  # fmt: skip
_SERIES = {  # column -> data set and index of the metric
    "training_metrics": ("training", 1), "training_loss": ("training", 0),
    "validation_metrics": ("validation", 1), "validation_loss": ("validation", 0),
}  # fmt: skip


def columns_of(summary: OutputSummary) -> dict[str, Columns]:
    """Return the columns of a run's output tables by the suffixes of their names."""
    classes = [(name, type_name) for name, type_name, _ in summary.class_columns]
    return {"": _MODEL, "_summary": [*_SUMMARY, *classes, QUALIFIED, *preprocessor_columns(summary)]}


def write_rows(session: CallerSession, record: Record, run: RunRow, models: list[ModelRow]) -> None:
    """Write the rows of a trained run's tables, which are empty."""
    (model,) = models
    output = run.plan.output.relation
    weights = OutputWeights(session, output, read_field_bytes(record), has_keys=False)
    written = write_weights(weights, record, model, str(output))
    arch = json.dumps(model.model_arch)
    insert_row(session, output, _MODEL, dict(zip(_NAMES, (written.field, arch, written.digest), strict=True)))
    values = _summary_values(run, model, record.metrics(run.run_id))
    values |= {QUALIFIED[0]: qualified_names(session, run, weights.qualified_names())}
    values |= preprocessor_values(record, run)
    insert_row(session, output.with_suffix("_summary"), columns_of(run.plan.summary)["_summary"], values)


def _summary_values(run: RunRow, model: ModelRow, metrics: list[Metric]) -> dict[str, Any]:
    epochs = sorted({metric.epoch for metric in metrics})
    values_at = {(metric.epoch, metric.data_set, metric.ordinal): metric.value for metric in metrics}
    shown = slice(-1 if shows_only_last(run) else 0, None)
    elapsed = [next(metric.elapsed_s for metric in metrics if metric.epoch == epoch) for epoch in epochs]
    assert run.created_at is not None and run.ended_at is not None, "it is recorded, and trained"
    assert model.model_bytes is not None, "it is trained"
    values = {
        **run.arguments,
        **run.plan.summary.as_json(),
        "model_type": "madlib_keras",
        "model_size": model.model_bytes / 1024.0,
        "num_iterations": run.num_iterations,
        "metrics_compute_frequency": shown_frequency(run),
        "start_training_time": run.created_at.isoformat(),
        "end_training_time": run.ended_at.isoformat(),
        "metrics_elapsed_time": elapsed[shown] or None,
        "madlib_version": f"madlib_mop {__version__}",
        "metrics_type": model.metrics_type,
        "loss_type": model.loss_type,
        "metrics_iters": [model.iteration(epoch) for epoch in epochs[shown]],
    }
    final_epoch = model.best_epoch or (epochs[-1] if epochs else None)
    for column, place in _SERIES.items():
        series = [values_at[epoch, *place] for epoch in epochs if (epoch, *place) in values_at]
        values[column] = series[shown] or None
        values[f"{column}_final"] = None if final_epoch is None else values_at.get((final_epoch, *place))
    return values | {name: text for name, _, text in run.plan.summary.class_columns}
