"""The output tables of many models: the models, `_info` with their metrics, and `_summary`, in MADlib's form; written
by `writers`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mop_backend.refusals import STATE_DAMAGED, how_to_train_again
from mop_backend.weights import PARTS_SUFFIX

from madlib_mop import __version__
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import OutputSummary
from madlib_mop.catalog.rows.run import Metric, RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.data.packed import COLUMNS as PREPROCESSOR_COLUMNS
from madlib_mop.driver.data.weights import DIGEST, NO_DIGEST, recorded_digest
from madlib_mop.driver.outputs.search import info_columns, info_values, write_selection
from madlib_mop.driver.outputs.tables import (
    QUALIFIED,
    Columns,
    check_some_trained,
    insert_row,
    qualified_names,
    selection_relation,
)
from madlib_mop.driver.outputs.weights import OutputWeights, WrittenWeights
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import read_field_bytes
from madlib_mop.errors import DataDamaged
from madlib_mop.models.parameters.class_weights import as_given

_COLUMNS = {  # column -> data set and index of the metric
    "training_loss": ("training", 0), "training_metrics": ("training", 1),
    "validation_loss": ("validation", 0), "validation_metrics": ("validation", 1),
}  # fmt: skip


@dataclass(frozen=True)
class ModelFigures:
    """The metrics of one model.

    Attributes
    ----------
    iterations : list of int
        The iterations after which they were computed.
    elapsed_s : list of float
        Seconds of training until each computation.
    series : dict of str to list of float, or None
        Their values by the columns of ``_info``; None if there are none.
    final : dict of str to float, or None
        The metrics of the written weights: the newest, or those of the restored epoch.
    """

    iterations: list[int]
    elapsed_s: list[float]
    series: dict[str, list[float] | None]
    final: dict[str, float | None]

    @property
    def deciding_loss(self) -> float | None:
        """The final loss on validation data if there are any, else on training data."""
        loss = self.final["validation_loss"]
        return self.final["training_loss"] if loss is None else loss

    def columns(self) -> dict[str, Sequence[float] | float | None]:
        """Return the values by the columns of ``_info``, and ``metrics_iters``."""
        final = {f"{column}_final": value for column, value in self.final.items()}
        iterations: dict[str, Sequence[float] | None] = {
            "metrics_iters": self.iterations,
            "metrics_elapsed_time": self.elapsed_s or None,
        }
        return {**iterations, **self.series, **final}


def figures_of(
    models: Iterable[ModelRow], metrics: Iterable[Metric], only_last: bool = False
) -> dict[int, ModelFigures]:
    """Return the figures of each model, by mst_key; ``only_last``: their history has the last iteration alone."""
    by_model: dict[int, list[Metric]] = defaultdict(list)
    for metric in metrics:
        by_model[metric.mst_key].append(metric)
    return {model.mst_key: _figures(model, by_model[model.mst_key], only_last) for model in models}


def _figures(model: ModelRow, metrics: Sequence[Metric], only_last: bool) -> ModelFigures:
    by_epoch: dict[int, list[Metric]] = defaultdict(list)
    for metric in metrics:
        if metric.epoch >= model.first_epoch:
            by_epoch[metric.epoch].append(metric)
    epochs = sorted(by_epoch)
    shown = slice(-1 if only_last else 0, None)
    elapsed_s = [by_epoch[epoch][0].elapsed_s for epoch in epochs]
    series: dict[str, list[float] | None] = {}
    final: dict[str, float | None] = {}
    for column, place in _COLUMNS.items():
        values = [m.value for epoch in epochs for m in by_epoch[epoch] if (m.data_set, m.ordinal) == place]
        series[column] = values[shown] or None
        final[column] = _final(values, epochs, model.best_epoch)
    return ModelFigures([model.iteration(epoch) for epoch in epochs[shown]], elapsed_s[shown], series, final)


def shown_frequency(run: RunRow) -> int | None:
    """Return metrics_compute_frequency as output tables have it: as MADlib's, whose default is the last iteration."""
    if run.is_search:
        return run.plan.summary.metrics_compute_frequency
    given: int | None = run.arguments.get("metrics_compute_frequency")
    return run.num_iterations if given is None else given


def shows_only_last(run: RunRow) -> bool:
    """Return whether output tables have the metrics of the last iteration alone."""
    return not run.is_search and run.arguments.get("metrics_compute_frequency") is None


def _final(values: list[float], epochs: list[int], restored: int | None) -> float | None:
    if not values:
        return None
    return values[epochs.index(restored)] if restored in epochs else values[-1]


#: The argument that names the output table.
ARGUMENT = "model_output_table"
#: The primary keys of the tables that are always made, by the suffixes of their names.
KEYS = {"": "mst_key", "_info": "mst_key", "_summary": "model"}
SUFFIXES = (*KEYS, PARTS_SUFFIX)
_TRAIN_AGAIN = "Restore the database from a backup, or train in a new run."
#: Columns of ``_info`` and ``_summary``, name and SQL type, before and after those of a search and of class values.
INFO = (
    ("mst_key", "integer"), ("model_id", "integer"), ("compile_params", "text"), ("fit_params", "text"),
    ("model_type", "text"), ("model_size", "float8"), ("metrics_elapsed_time", "float8[]"), ("metrics_type", "text[]"),
    ("loss_type", "text"), ("training_metrics_final", "float8"), ("training_loss_final", "float8"),
    ("training_metrics", "float8[]"), ("training_loss", "float8[]"), ("validation_metrics_final", "float8"),
    ("validation_loss_final", "float8"), ("validation_metrics", "float8[]"), ("validation_loss", "float8[]"),
)  # fmt: skip
MODELS = (
    ("mst_key", "integer"), ("model_weights", "bytea"), ("model_arch", "json"), ("__dist_key__", "integer"), DIGEST,
)  # fmt: skip
INFO_END = (("status", "text"), ("status_detail", "text"))
SUMMARY = (
    ("source_table", "text"), ("validation_table", "text"), ("model", "text"), ("model_info", "text"),
    ("dependent_varname", "text[]"), ("independent_varname", "text[]"), ("model_arch_table", "text"),
    ("model_selection_table", "text"), ("object_table", "text"), ("num_iterations", "integer"),
    ("metrics_compute_frequency", "integer"), ("warm_start", "boolean"), ("name", "text"), ("description", "text"),
    ("start_training_time", "timestamp"), ("end_training_time", "timestamp"), ("madlib_version", "text"),
    ("num_classes", "integer[]"),
)  # fmt: skip
_SEARCH_SUMMARY = (("automl_method", "text"), ("automl_params", "text"), ("random_state", "text"))
SUMMARY_END = (("dependent_vartype", "text[]"), ("normalizing_const", "real"), ("metrics_iters", "integer[]"))


def columns_of(summary: OutputSummary) -> dict[str, Columns]:
    """Return the columns of a run's output tables by the suffixes of their names."""
    classes = [(name, type_name) for name, type_name, _ in summary.class_columns]
    columns = [*SUMMARY, *classes, *SUMMARY_END, QUALIFIED, *preprocessor_columns(summary)]
    if summary.automl_method is not None:
        at = [name for name, _ in columns].index("object_table")
        columns[at : at + 1] = [*_SEARCH_SUMMARY, columns[at], ("use_gpus", "boolean")]
    of_search = info_columns(summary) if summary.automl_method is not None else ()
    return {"": MODELS, "_info": (*INFO, *of_search, *INFO_END), "_summary": columns}


def write_rows(session: CallerSession, record: Record, run: RunRow, models: list[ModelRow]) -> None:
    """Write the rows of a trained run's tables, which are empty.

    Raises
    ------
    ModelFailed
        If the states of all trained models are damaged.
    """
    run_id, output = run.run_id, run.plan.output.relation
    last_segment = {visit.mst_key: visit.segment_id for visit in record.visits(run_id)}
    has_digest = recorded_digest(session.columns(session.relation(output.sql))) != NO_DIGEST
    columns = MODELS if has_digest else MODELS[:-1]
    weights = OutputWeights(session, output, read_field_bytes(record))
    models = [
        _write_model(session, record, output, model, last_segment.get(model.mst_key), columns, weights)
        if model.state is ModelState.TRAINED
        else model
        for model in models
    ]
    check_some_trained(run_id, models)
    figures = figures_of(models, record.metrics(run_id), shows_only_last(run))
    _write_info(session, record, output, run, models, figures)
    iterations = sorted({i for f in figures.values() for i in f.iterations})
    _write_summary(session, record, output, run, iterations, weights.qualified_names())
    if selection_relation(run) is not None:
        losses = {m.mst_key: figures[m.mst_key].deciding_loss for m in models if m.state is ModelState.TRAINED}
        write_selection(session, run, models, losses)
    failed = [m.mst_key for m in models if m.state is ModelState.FAILED]
    if failed:
        session.warning(
            f"run {run_id}: {len(failed)} of {len(models)} models failed (mst_key {', '.join(map(str, failed))});"
            f" the reasons are in {output}_info.status_detail"
        )


def _write_model(
    session: CallerSession,
    record: Record,
    output: Relation,
    model: ModelRow,
    segment: int | None,
    columns: Sequence[tuple[str, str]],
    weights: OutputWeights,
) -> ModelRow:
    """Write a model; return it, as failed if its stored state is damaged."""
    try:
        written = write_weights(weights, record, model, f"mst_key {model.mst_key}")
    except DataDamaged as error:
        reason = f"{error.message}; {how_to_train_again(model.run_id, model.mst_key)}"
        # a best state is the one that is damaged, so it is no longer one to go on from
        record.set_model(model.run_id, model.mst_key, state=ModelState.FAILED, state_detail=reason, best_state=None)
        return replace(model, state=ModelState.FAILED, state_detail=reason, best_state=None)
    insert_model(session, output, model.mst_key, written, json.dumps(model.model_arch), segment, columns)
    return model


def insert_model(
    session: CallerSession,
    output: Relation,
    mst_key: int,
    weights: WrittenWeights,
    arch: str,
    segment: int | None,
    columns: Sequence[tuple[str, str]] = MODELS,
) -> None:
    """Write one row of a table of models, without waiting for it: the next model is read meanwhile.

    ``columns`` are those of `MODELS` that the table has; one of an earlier version lacks the last.
    """
    cells = (mst_key, weights.field, arch, segment, weights.digest)[: len(columns)]
    names, slots = ", ".join(name for name, _ in columns), ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    insert = statement(f"INSERT INTO {{t}} ({names}) VALUES ({slots})", t=output)
    session.post(insert, cells, [type_name for _, type_name in columns])


def write_weights(weights: OutputWeights, record: Record, model: ModelRow, label: str) -> WrittenWeights:
    """Write a trained model's weights as `OutputWeights.write`.

    Raises DataDamaged if they are not those that training has ended with.
    """
    # imports NumPy; must not run before the trainers have started
    from madlib_mop.trainer.data.parts import StateError
    from madlib_mop.trainer.data.state import weights_in_turn

    parts = islice(record.state_parts(model), model.forward_parts)
    try:
        written = weights.write(model.mst_key, model.model_bytes or 0, weights_in_turn(parts), label)
        problem = None if model.weights_digest in (None, written.digest) else STATE_DAMAGED
    except StateError as error:
        problem = f"its stored state is damaged or gone: {error}"
    if problem is not None:
        weights.remove(model.mst_key)
        raise DataDamaged(problem, hint=_TRAIN_AGAIN) from None
    return written


def _write_info(
    session: CallerSession,
    record: Record,
    output: Relation,
    run: RunRow,
    models: list[ModelRow],
    figures: dict[int, ModelFigures],
) -> None:
    """Write one row for each model."""
    columns = columns_of(run.plan.summary)["_info"]
    slots = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    insert = statement(f"INSERT INTO {{t}} VALUES ({slots})", t=output.with_suffix("_info"))
    extra = info_values(record, run) if run.is_search else {}
    class_weight = run.plan.class_weight
    for model in models:
        values = {
            "mst_key": model.mst_key,
            "model_id": model.model_id,
            "compile_params": model.compile_params,
            "fit_params": as_given(model.fit_params, class_weight) if class_weight else model.fit_params,
            "model_type": "madlib_keras",
            "model_size": model.model_bytes / 1024.0 if model.model_bytes else None,
            "metrics_type": model.metrics_type,
            "loss_type": model.loss_type,
            **figures[model.mst_key].columns(),
            "status": str(ModelState.TRAINED if model.is_alive else model.state),
            "status_detail": model.state_detail,
            **extra.get(model.mst_key, {}),
        }
        session.execute(insert, [values.get(name) for name, _ in columns], [type_name for _, type_name in columns])


def preprocessor_columns(summary: OutputSummary) -> tuple[tuple[str, str], ...]:
    """Return the columns of a summary that hold the run's preprocessor; () if it has none."""
    return PREPROCESSOR_COLUMNS if summary.preprocessor_digest is not None else ()


def preprocessor_values(record: Record, run: RunRow) -> dict[str, str]:
    """Return their values."""
    row = record.preprocessor(run.run_id) if run.plan.summary.preprocessor_digest is not None else None
    return {} if row is None else {"preprocessor_digest": row.digest, "preprocessor": row.document}


def _write_summary(
    session: CallerSession,
    record: Record,
    output: Relation,
    run: RunRow,
    iterations: list[int],
    of_weights: Mapping[str, str],
) -> None:
    summary = run.plan.summary
    assert run.created_at is not None and run.ended_at is not None, "it is recorded, and trained"
    values = {
        **run.arguments,
        **summary.as_json(),
        "model_info": f"{summary.model}_info",
        "num_iterations": run.num_iterations,
        "metrics_compute_frequency": shown_frequency(run),
        "warm_start": run.warm_start,
        "start_training_time": run.created_at.isoformat(),
        "end_training_time": run.ended_at.isoformat(),
        "madlib_version": f"madlib_mop {__version__}",
        "metrics_iters": iterations,
        QUALIFIED[0]: qualified_names(session, run, of_weights),
        **{name: text for name, _, text in summary.class_columns},
        **preprocessor_values(record, run),
    }
    insert_row(session, output.with_suffix("_summary"), columns_of(summary)["_summary"], values)
