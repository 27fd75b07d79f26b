"""Writes the output tables of model averaging in the caller's transaction: the model and its `_summary`.

See `hopper` for those of many models; `writers` chooses the module.
"""

import json
from typing import Any

from madlib_mop import __version__
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.of_run import Metric
from madlib_mop.catalog.rows.plan import OutputSummary
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.driver.data.weights import DIGEST, digest_of
from madlib_mop.driver.outputs import hopper
from madlib_mop.driver.outputs.figures import shown_frequency, shows_only_last
from madlib_mop.driver.outputs.hopper import weights_to_write
from madlib_mop.driver.outputs.tables import (
    QUALIFIED,
    check_columns,
    create_table,
    drop_replaced,
    insert_row,
    qualified_names,
)
from madlib_mop.driver.session.caller import CallerSession

#: The argument that names the output table.
ARGUMENT = "model"
SUFFIXES = ("", "_summary")
_MODEL = (("model_weights", "bytea"), ("model_arch", "json"), DIGEST)
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


def check_outputs(session: CallerSession, run: RunRow) -> None:
    """Raise an error if a run's output tables exist, unless it is a warm start; see `hopper.check_outputs`."""
    hopper.check_outputs(session, run, SUFFIXES, check_replaceable)


def has_outputs(session: CallerSession, record: Record, run: RunRow) -> bool:
    """Return whether a finished run's output tables exist; see `hopper.has_outputs`."""
    return hopper.has_outputs(session, record, run, SUFFIXES)


def check_replaceable(session: CallerSession, output: Relation, summary: OutputSummary) -> None:
    """Check the tables that a warm start will fill; see `check_columns`."""
    expected = {"": [name for name, _ in _MODEL], "_summary": [name for name, _ in _summary_columns(summary)]}
    check_columns(session, output, expected, ARGUMENT)


def write_outputs(session: CallerSession, record: Record, run_id: int, models: list[ModelRow] | None = None) -> None:
    """Write the model and the `_summary` of a trained run, and mark it finished."""
    run = record.known_run(run_id)
    (model,) = models or record.models(run_id)
    output, summary = run.plan.output.relation, run.plan.summary
    drop_replaced(session, run, SUFFIXES)
    if not (run.warm_start and session.existing(output.sql)):
        create_table(session, output, _MODEL)
        session.execute(statement("ALTER TABLE {t} ALTER COLUMN model_weights SET STORAGE EXTERNAL", t=output))
        create_table(session, output.with_suffix("_summary"), _summary_columns(summary), "model")
    else:
        for suffix in SUFFIXES:
            session.lock_to_write(output.with_suffix(suffix))
            session.execute(statement("DELETE FROM {t}", t=output.with_suffix(suffix)))
    weights = weights_to_write(session, record, model, str(output))
    cells = {"model_weights": weights, "model_arch": json.dumps(model.model_arch), DIGEST[0]: digest_of(weights)}
    insert_row(session, output, _MODEL, cells)
    values = _summary_values(run, model, record.metrics(run_id)) | {QUALIFIED[0]: qualified_names(session, run)}
    values |= hopper.preprocessor_values(record, run)
    insert_row(session, output.with_suffix("_summary"), _summary_columns(summary), values)
    record.set_run(run_id, state=RunState.FINISHED)


def _summary_columns(summary: OutputSummary) -> list[tuple[str, str]]:
    classes = [(name, type_name) for name, type_name, _ in summary.class_columns]
    return [*_SUMMARY, *classes, QUALIFIED, *hopper.preprocessor_columns(summary)]


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
