"""Writes the output tables of model averaging in the caller's transaction: the model and its `_summary`.

The counterpart of `hopper`, which writes those of many models; `writers` chooses.
"""

import json

from madlib_mop import __version__
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.driver.evaluation.early_stopping import best_epoch
from madlib_mop.driver.outputs import hopper
from madlib_mop.driver.outputs.hopper import weights_to_write
from madlib_mop.driver.outputs.tables import (
    QUALIFIED,
    check_columns,
    create_table,
    drop_replaced,
    insert_row,
    output_relation,
    qualified_names,
)
from madlib_mop.driver.session.caller import CallerSession

SUFFIXES = ("", "_summary")
_MODEL = (("model_weights", "bytea"), ("model_arch", "json"))
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
_SERIES = {  # column: data set and ordinal of the metric
    "training_metrics": ("training", 1), "training_loss": ("training", 0),
    "validation_metrics": ("validation", 1), "validation_loss": ("validation", 0),
}  # fmt: skip


def check_outputs(session: CallerSession, run: dict) -> None:
    """Refuse a run whose output tables exist already, unless it is a warm start; see `hopper.check_outputs`."""
    hopper.check_outputs(session, run, SUFFIXES, check_replaceable)


def has_outputs(session: CallerSession, record: Record, run: dict) -> bool:
    """Return whether a finished run has nothing left to write; see `hopper.has_outputs`."""
    return hopper.has_outputs(session, record, run, SUFFIXES)


def check_replaceable(session: CallerSession, output: Relation, summary: dict) -> None:
    """Hold the tables that a warm start is to replace the rows of against what it will write; see `check_columns`."""
    expected = {"": [name for name, _ in _MODEL], "_summary": [name for name, _ in _summary_columns(summary)]}
    check_columns(session, output, expected, "model")


def write_outputs(session: CallerSession, record: Record, run_id: int) -> None:
    """Write the model and the `_summary` of a trained run, and mark it finished."""
    run = record.run(run_id)
    (model,) = record.models(run_id)
    output, summary = output_relation(run), run["plan"]["summary"]
    drop_replaced(session, run, SUFFIXES)
    if not (run["warm_start"] and session.existing(output.sql)):
        create_table(session, output, _MODEL)
        session.execute(statement("ALTER TABLE {t} ALTER COLUMN model_weights SET STORAGE EXTERNAL", t=output))
        create_table(session, output.with_suffix("_summary"), _summary_columns(summary))
    else:
        for suffix in SUFFIXES:
            session.execute(statement("DELETE FROM {t}", t=output.with_suffix(suffix)))
    weights = weights_to_write(session, record, run_id, model, str(output))
    insert_row(
        session, output, _MODEL, {"model_weights": weights, "model_arch": json.dumps(model["model_arch"])}
    )  # fmt: skip
    values = _summary_values(run, model, record.metrics(run_id)) | {QUALIFIED[0]: qualified_names(session, run)}
    insert_row(session, output.with_suffix("_summary"), _summary_columns(summary), values)
    record.set_run(run_id, state="finished")


def _summary_columns(summary: dict) -> list[tuple[str, str]]:
    named = zip(summary["dependent_varname"], summary["class_values"], strict=True)
    return [*_SUMMARY, *[(f"{name}_class_values", type_name) for name, (type_name, _) in named], QUALIFIED]


def _summary_values(run: dict, model: dict, metrics: list[dict]) -> dict:
    summary = run["plan"]["summary"]
    epochs = sorted({row["epoch"] for row in metrics})
    by_place = {(row["epoch"], row["data_set"], row["ordinal"]): row for row in metrics}
    elapsed = [next(row["elapsed_s"] for row in metrics if row["epoch"] == epoch) for epoch in epochs]
    values = {
        **run["arguments"],
        **summary,
        "model_type": "madlib_keras",
        "model_size": model["model_bytes"] / 1024.0,
        "num_iterations": run["num_iterations"],
        "metrics_compute_frequency": run["metrics_compute_frequency"],
        "start_training_time": run["created_at"].isoformat(),
        "end_training_time": run["ended_at"].isoformat(),
        "metrics_elapsed_time": elapsed or None,
        "madlib_version": f"madlib_mop {__version__}",
        "metrics_type": model["metrics_type"],
        "loss_type": model["loss_type"],
        "metrics_iters": [epoch - model["first_epoch"] + 1 for epoch in epochs],
    }
    final_epoch = best_epoch(model) or (epochs[-1] if epochs else None)
    for column, place in _SERIES.items():
        series = [by_place[epoch, *place]["value"] for epoch in epochs if (epoch, *place) in by_place]
        values[column] = series or None
        values[f"{column}_final"] = by_place.get((final_epoch, *place), {}).get("value")
    for name, (_, text) in zip(summary["dependent_varname"], summary["class_values"], strict=True):
        values[f"{name}_class_values"] = text
    return values
