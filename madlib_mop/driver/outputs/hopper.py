"""Writes a run's output tables in the caller's transaction: the models, `_info` and `_summary`, as MADlib has them."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice

from madlib_mop import __version__
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.evaluation.early_stopping import best_epoch
from madlib_mop.driver.outputs.search import (
    SELECTION_SUFFIXES,
    info_columns,
    info_values,
    selection_relation,
    write_selection,
)
from madlib_mop.driver.outputs.tables import (
    MODEL_TABLES,
    QUALIFIED,
    SELECTION_TABLES,
    check_columns,
    check_droppable,
    create_table,
    drop_replaced,
    insert_row,
    output_relation,
    qualified_names,
)
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.relations import exist_already
from madlib_mop.errors import DuplicateTable, ModelFailed
from madlib_mop.models.parameters.class_weights import as_given, weights_in

SUFFIXES = ("", "_info", "_summary")
_INFO = (
    ("mst_key", "integer"), ("model_id", "integer"), ("compile_params", "text"), ("fit_params", "text"),
    ("model_type", "text"), ("model_size", "float8"), ("metrics_elapsed_time", "float8[]"), ("metrics_type", "text[]"),
    ("loss_type", "text"), ("training_metrics_final", "float8"), ("training_loss_final", "float8"),
    ("training_metrics", "float8[]"), ("training_loss", "float8[]"), ("validation_metrics_final", "float8"),
    ("validation_loss_final", "float8"), ("validation_metrics", "float8[]"), ("validation_loss", "float8[]"),
)  # fmt: skip
_INFO_END = (("status", "text"), ("status_detail", "text"))
_SUMMARY = (
    ("source_table", "text"), ("validation_table", "text"), ("model", "text"), ("model_info", "text"),
    ("dependent_varname", "text[]"), ("independent_varname", "text[]"), ("model_arch_table", "text"),
    ("model_selection_table", "text"), ("object_table", "text"), ("num_iterations", "integer"),
    ("metrics_compute_frequency", "integer"), ("warm_start", "boolean"), ("name", "text"), ("description", "text"),
    ("start_training_time", "timestamp"), ("end_training_time", "timestamp"), ("madlib_version", "text"),
    ("num_classes", "integer[]"),
)  # fmt: skip
_SEARCH_SUMMARY = (("automl_method", "text"), ("automl_params", "text"), ("random_state", "text"))
_SUMMARY_END = (("dependent_vartype", "text[]"), ("normalizing_const", "real"), ("metrics_iters", "integer[]"))
_MAX_FIELD_BYTES = 1_000_000_000


def check_outputs(
    session: CallerSession,
    run: dict,
    suffixes: Sequence[str] = SUFFIXES,
    replaceable: Callable[[CallerSession, Relation, dict], None] | None = None,
) -> None:
    """Refuse a run whose output tables exist already, unless it is a warm start, which replaces them.

    Parameters
    ----------
    session : CallerSession
    run : dict
        Row of `madlib_mop.run`.
    suffixes : sequence of str
        What its tables' names end in.
    replaceable : callable, optional
        Holds the tables of a warm start against what it will write; `check_replaceable` by default.

    Raises
    ------
    DuplicateTable, ReadOnly, InsufficientPrivilege, InvalidParameter
    """
    output = output_relation(run)
    what = f"run {run['run_id']} is to write table {output}, which"
    session.check_may_write(str(output), what)
    if run["warm_start"] and run["kind"] != "replay" and session.existing(output.sql) is not None:
        (replaceable or check_replaceable)(session, output, run["plan"]["summary"])
        return
    session.check_may_create(output, str(output), what)
    tables = {output.with_suffix(suffix): MODEL_TABLES[suffix] for suffix in suffixes}
    if (selection := selection_relation(run)) is not None:
        session.check_may_create(selection, str(selection), what)
        tables |= {selection.with_suffix(suffix): SELECTION_TABLES[suffix] for suffix in SELECTION_SUFFIXES}
    there = [table for table in tables if session.existing(table.sql) is not None]
    if run["arguments"].get("replace"):
        for table in there:
            check_droppable(session, session.relation(table.sql), tables[table], f"run {run['run_id']}: replace")
    elif there:
        raise DuplicateTable(
            f"run {run['run_id']} cannot write its tables: {exist_already(there)}",
            hint="Rename or drop it, then resume the run; or give another name:"
            f" SELECT madlib_mop.resume({run['run_id']}, output_table => '...');",
        )


def has_outputs(session: CallerSession, record: Record, run: dict, suffixes: Sequence[str] = SUFFIXES) -> bool:
    """Return whether a finished run has nothing left to write: its tables are there.

    The tables of a warm start were there before it. Its call may have been rolled back, so the newest run of a table
    writes its rows again.
    """
    output = output_relation(run)
    present = [session.existing(output.with_suffix(suffix).sql) for suffix in suffixes]
    if None in present:
        return False
    return not run["warm_start"] or record.newest_run(str(output), run["owner_oid"])["run_id"] != run["run_id"]


def check_some_trained(run_id: int, models: list[dict]) -> None:
    """Refuse to go on with a run of which no model is left.

    Raises
    ------
    ModelFailed
        If all models have failed; the message has the reason of the first, the detail those of all.
    """
    if not models or any(model["state"] != "failed" for model in models):
        return
    reasons = [f"mst_key {model['mst_key']}: {model['state_detail']}" for model in models]
    many = f"all {len(models)} models failed" if len(models) > 1 else "its only model failed"
    raise ModelFailed(
        f"run {run_id}: {many}, so there is nothing to write. {reasons[0]}",
        detail="\n".join(reasons),
        hint=f"SELECT mst_key, state_detail FROM madlib_mop.leaderboard WHERE run_id = {run_id}; shows it again.",
    )


def check_replaceable(session: CallerSession, output: Relation, summary: dict) -> None:
    """Hold the tables that a warm start is to replace the rows of against what it will write.

    Parameters
    ----------
    session : CallerSession
    output : Relation
    summary : dict
        As in the run's plan.

    Raises
    ------
    UndefinedTable, InvalidParameter, InsufficientPrivilege
        If one is not there, has other columns, or is not the caller's to change.
    """
    expected = {
        "": ["mst_key", "model_weights", "model_arch", "__dist_key__"],
        "_info": [name for name, _ in (*_INFO, *_INFO_END)],
        "_summary": [name for name, _ in _summary_columns(summary)],
    }
    check_columns(session, output, expected, "model_output_table")


def write_outputs(session: CallerSession, record: Record, run_id: int) -> None:
    """Write the models, `_info` and `_summary` of a trained run, and mark it finished.

    Raises
    ------
    ModelFailed
        If all models have failed: the run is marked as failed, and nothing is written.
    """
    run, models = record.run(run_id), record.models(run_id)
    try:
        check_some_trained(run_id, models)
    except ModelFailed as error:
        record.set_run(run_id, state="failed", state_detail=error.message)
        raise
    output = output_relation(run)
    drop_replaced(session, run, SUFFIXES)
    if not (run["warm_start"] and session.existing(output.sql)):
        _create(session, output, run)
    else:
        for suffix in SUFFIXES:
            session.execute(statement("DELETE FROM {t}", t=output.with_suffix(suffix)))
    last_segment = {v["mst_key"]: v["segment_id"] for v in record.visits(run_id)}
    for model in models:
        if model["state"] == "trained":
            _write_model(session, record, output, run_id, model, last_segment.get(model["mst_key"]))
    figures = _figures(record, run, models)
    _write_info(session, record, output, run, models, figures)
    _write_summary(session, output, run, sorted({i for f in figures.values() for i in f["metrics_iters"]}))
    if selection_relation(run) is not None:
        losses = {m["mst_key"]: _deciding_loss(figures[m["mst_key"]]) for m in models if m["state"] == "trained"}
        write_selection(session, run, models, losses)
    record.set_run(run_id, state="finished")
    failed = [m["mst_key"] for m in models if m["state"] == "failed"]
    if failed:
        session.warning(
            f"run {run_id}: {len(failed)} of {len(models)} models failed (mst_key {', '.join(map(str, failed))});"
            f" why is in {output}_info.status_detail"
        )


def _create(session: CallerSession, output: Relation, run: dict) -> None:
    key = "integer PRIMARY KEY" if "search" in run["plan"] else "integer"
    session.execute(
        statement(f"CREATE TABLE {{t}} (mst_key {key}, model_weights bytea, model_arch json, __dist_key__ integer)",
                  t=output)
        + table_form(session, "mst_key")
    )  # fmt: skip
    session.execute(statement("ALTER TABLE {t} ALTER COLUMN model_weights SET STORAGE EXTERNAL", t=output))
    create_table(session, output.with_suffix("_info"), _info_columns(run), "mst_key")
    create_table(session, output.with_suffix("_summary"), _summary_columns(run["plan"]["summary"]))


def _write_model(session, record: Record, output: Relation, run_id: int, model: dict, segment: int | None) -> None:
    weights = weights_to_write(session, record, run_id, model, f"mst_key {model['mst_key']}")
    session.execute(
        statement(
            "INSERT INTO {t} (mst_key, model_weights, model_arch, __dist_key__) VALUES ($1, $2, $3, $4)", t=output
        ),
        [model["mst_key"], weights, json.dumps(model["model_arch"]), segment],
        ["integer", "bytea", "json", "integer"],
    )


def weights_to_write(session: CallerSession, record: Record, run_id: int, model: dict, label: str) -> bytes | None:
    """Return a trained model's weights; None, and a warning, where they do not fit into a field."""
    if not passes_field(model):
        from madlib_mop.trainer.data.state import weights_of  # NumPy with it: not before the trainers have been started

        return weights_of(list(islice(record.state_parts(run_id, model), model["forward_parts"])))
    session.warning(
        f"{label}: its weights of {model['model_bytes']} bytes do not fit into a field of 1 GB;"
        f" model_weights is NULL, the weights are in madlib_mop.model_state of run {run_id}"
    )
    return None


def passes_field(model: dict) -> bool:
    """Return whether a recorded model's weights are too large for a field, so that output tables have NULL."""
    return (model["model_bytes"] or 0) > _MAX_FIELD_BYTES


def _info_columns(run: dict) -> tuple[tuple[str, str], ...]:
    return (*_INFO, *info_columns(run), *_INFO_END)


def _figures(record: Record, run: dict, models: list[dict]) -> dict[int, dict]:
    """Return the columns of ``_info`` that come from a model's metrics, and ``metrics_iters``, by mst_key."""
    by_model = defaultdict(lambda: defaultdict(dict))
    for row in record.metrics(run["run_id"]):
        by_model[row["mst_key"]][row["epoch"]][row["data_set"], row["ordinal"]] = row
    figures = {}
    for model in models:
        epochs = [e for e in sorted(by_model[model["mst_key"]]) if e >= model["first_epoch"]]
        rows = [by_model[model["mst_key"]][e] for e in epochs]
        values = {
            "metrics_iters": [e - model["first_epoch"] + 1 for e in epochs],
            "metrics_elapsed_time": [next(iter(f.values()))["elapsed_s"] for f in rows] or None,
        }
        for data_set in ("training", "validation"):
            for ordinal, what in enumerate(("loss", "metrics")):
                series = _series(rows, data_set, ordinal)
                values[f"{data_set}_{what}"] = series
                values[f"{data_set}_{what}_final"] = _final(series, epochs, best_epoch(model))
        figures[model["mst_key"]] = values
    return figures


def _deciding_loss(figures: dict) -> float | None:
    """Return a model's final loss on validation data where there are some, else on training data."""
    loss = figures["validation_loss_final"]
    return figures["training_loss_final"] if loss is None else loss


def _write_info(session, record: Record, output: Relation, run: dict, models: list[dict], figures: dict) -> None:
    """Write one row a model."""
    columns = _info_columns(run)
    slots = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    insert = statement(f"INSERT INTO {{t}} VALUES ({slots})", t=output.with_suffix("_info"))
    extra = info_values(record, run) if "search" in run["plan"] else {}
    class_weight = weights_in(run["plan"])
    for model in models:
        values = {
            **model,
            "fit_params": as_given(model["fit_params"], class_weight) if class_weight else model["fit_params"],
            "model_type": "madlib_keras",
            "model_size": model["model_bytes"] / 1024.0 if model["model_bytes"] else None,
            **figures[model["mst_key"]],
            "status": model["state"] if model["state"] in ("failed", "stopped") else "trained",
            "status_detail": model["state_detail"],
            **extra.get(model["mst_key"], {}),
        }
        session.execute(insert, [values.get(name) for name, _ in columns], [type_name for _, type_name in columns])


def _series(figures: list[dict], data_set: str, ordinal: int) -> list[float] | None:
    values = [f[data_set, ordinal]["value"] for f in figures if (data_set, ordinal) in f]
    return values or None


def _final(values: list[float] | None, epochs: list[int], restored: int | None) -> float | None:
    """Return the figure of the weights that are written: the newest, or that of the epoch that was restored."""
    if not values:
        return None
    return values[epochs.index(restored)] if restored in epochs else values[-1]


def _summary_columns(summary: dict) -> list[tuple[str, str]]:
    classes = [
        (f"{name}_class_values", type_name)
        for name, (type_name, _) in zip(summary["dependent_varname"], summary["class_values"], strict=True)
    ]
    columns = [*_SUMMARY, *classes, *_SUMMARY_END, QUALIFIED]
    if "automl_method" in summary:
        at = [name for name, _ in columns].index("object_table")
        columns[at : at + 1] = [*_SEARCH_SUMMARY, columns[at], ("use_gpus", "boolean")]
    return columns


def _write_summary(session, output: Relation, run: dict, iterations: list[int]) -> None:
    summary = run["plan"]["summary"]
    values = {
        **run["arguments"],
        **summary,
        "model_info": f"{summary['model']}_info",
        "num_iterations": run["num_iterations"],
        "metrics_compute_frequency": (summary if "search" in run["plan"] else run)["metrics_compute_frequency"],
        "warm_start": run["warm_start"],
        "start_training_time": run["created_at"].isoformat(),
        "end_training_time": run["ended_at"].isoformat(),
        "madlib_version": f"madlib_mop {__version__}",
        "metrics_iters": iterations,
        QUALIFIED[0]: qualified_names(session, run),
    }
    for name, (_, text) in zip(summary["dependent_varname"], summary["class_values"], strict=True):
        values[f"{name}_class_values"] = text
    insert_row(session, output.with_suffix("_summary"), _summary_columns(summary), values)
