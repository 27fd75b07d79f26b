"""Writes the output tables of an ensemble: one model, with `_info` and `_summary` as of a run's models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mop_backend.weights import ModelWeights

from madlib_mop import __version__
from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.data.packed import COLUMNS as PREPROCESSOR_COLUMNS
from madlib_mop.driver.data.packed import read_preprocessor_row
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.outputs.hopper import (
    INFO,
    INFO_END,
    MODELS,
    SUFFIXES,
    SUMMARY,
    SUMMARY_END,
    insert_model,
)
from madlib_mop.driver.outputs.tables import QUALIFIED, create_table, insert_row
from madlib_mop.driver.outputs.weights import OutputWeights
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import FixedSettings, read_field_bytes

MST_KEY = 1
_MEMBERS = (
    ("ensemble_of", "text"), ("ensemble_mst_keys", "integer[]"), ("ensemble_counts", "integer[]"),
    ("ensemble_weights", "float8[]"), ("ensemble_metric", "text"), ("ensemble_member_metrics", "float8[]"),
    ("ensemble_run_ids", "bigint[]"),
)  # fmt: skip
_INFO_COLUMNS = (*INFO, *INFO_END, *_MEMBERS)


@dataclass(frozen=True)
class EnsembleModel:
    """An ensemble to write.

    Attributes
    ----------
    arch : str
        Keras' JSON.
    weights : ModelWeights
    info : dict
        Values of columns of ``_info``.
    outputs : tuple of DependentOutput
    validation_table : Relation
    started, ended : datetime
    """

    arch: str
    weights: ModelWeights
    info: dict[str, Any]
    outputs: tuple[DependentOutput, ...]
    validation_table: Relation
    started: datetime
    ended: datetime


def member_columns(
    source: str,
    keys: Sequence[int],
    counts: Sequence[int],
    metric: str,
    values: Sequence[float],
    run_ids: Sequence[int | None],
) -> dict[str, Any]:
    """Return the values of the columns of ``_info`` that say what an ensemble is made of."""
    weights = [count / sum(counts) for count in counts]
    cells = (source, list(keys), list(counts), weights, metric, list(values), list(run_ids))
    return dict(zip((name for name, _ in _MEMBERS), cells, strict=True))


def write_ensemble(
    session: CallerSession, output: Relation, source: Relation, model: EnsembleModel, replace: bool
) -> None:
    """Create the tables and write their rows, in the caller's transaction.

    Parameters
    ----------
    session : CallerSession
    output : Relation
        To create; existing tables were checked before.
    source : Relation
        The table of the members, whose ``_summary`` is copied.
    model : EnsembleModel
    replace : bool
        Whether to drop existing tables.
    """
    summary = session.relation(source.with_suffix("_summary").sql)
    columns, values = _summary(session, output, summary, model)
    if replace:
        for suffix in SUFFIXES:
            if (there := session.existing(output.with_suffix(suffix).sql)) is not None:
                session.execute(statement("DROP TABLE {t}", t=there))
    create_table(session, output, MODELS, "mst_key")
    create_table(session, output.with_suffix("_info"), _INFO_COLUMNS, "mst_key")
    create_table(session, output.with_suffix("_summary"), columns, "model")
    weights = OutputWeights(session, output, read_field_bytes(FixedSettings(session)))
    written = weights.write(MST_KEY, model.weights.n_bytes, model.weights, "the ensemble")
    insert_model(session, output, MST_KEY, written, model.arch, None)
    info = {"mst_key": MST_KEY, "model_type": "madlib_keras", "status": str(ModelState.TRAINED), **model.info}
    insert_row(session, output.with_suffix("_info"), _INFO_COLUMNS, {name: info.get(name) for name, _ in _INFO_COLUMNS})
    names = {**_names(values.get(QUALIFIED[0])), "validation_table": session.qualified(model.validation_table)}
    names.pop("model_weights", None)
    names |= {"model": session.qualified(output), "model_info": session.qualified(output.with_suffix("_info"))}
    names |= weights.qualified_names()
    insert_row(session, output.with_suffix("_summary"), columns, {**values, QUALIFIED[0]: json.dumps(names)})


def _summary(
    session: CallerSession, output: Relation, summary: Relation, model: EnsembleModel
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Return the columns of the ensemble's summary, and their values: those of the members', where it has them."""
    types = {column.name: column.type_sql for column in session.columns(summary)}
    held = {f"{one.name}_class_values": one.values_text for one in model.outputs}
    classes = [(name, types[name]) for name in held]
    found = read_preprocessor_row(session, summary, types)
    columns = [*SUMMARY, *classes, *SUMMARY_END, QUALIFIED, *(PREPROCESSOR_COLUMNS if found is not None else ())]
    copied = [
        name
        for name, type_name in (*SUMMARY, *SUMMARY_END, QUALIFIED)
        if types.get(name) == type_name
    ]
    query = statement("SELECT {c} FROM {t}", c=[Identifier(name) for name in copied], t=summary)
    values = {name: None for name, _ in columns} | session.only_row(query, summary) | held
    values |= {
        "validation_table": str(model.validation_table),
        "model": str(output),
        "model_info": f"{output}_info",
        "warm_start": False,
        "metrics_iters": None,
        "start_training_time": model.started.isoformat(),
        "end_training_time": model.ended.isoformat(),
        "madlib_version": f"madlib_mop {__version__}",
    }
    if found is not None:
        values |= {"preprocessor_digest": found.digest, "preprocessor": found.document}
    return columns, values


def _names(text: Any) -> dict[str, Any]:
    """Return the qualified names of a summary; a table written by hand may have anything there."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
