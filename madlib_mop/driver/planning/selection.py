"""A model selection table for a run: its configurations, their architectures and start weights, all checked."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.custom_functions import custom_names, read_custom_functions
from madlib_mop.driver.data.selection_tables import read_arch_table_name
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_column, not_one_row
from madlib_mop.errors import InvalidParameter, MopError, UndefinedTable
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.parameters.parser import recorded_notice
from madlib_mop.models.stored import check_statistics, readable_by_keras

_MAKE_AGAIN = "Create it with load_model_selection_table or generate_model_configs."
_COLUMNS = ("mst_key", "model_id", "compile_params", "fit_params")
_ARCH_COLUMNS = ("model_id", "model_arch", "model_weights")


@dataclass(frozen=True)
class ModelSelection:
    """A model selection table: configurations by mst_key, in their order, with start weights and functions."""

    relation: Relation
    arch_table: Relation
    arch_table_text: str | None
    object_table: str | None
    configurations: dict[int, Configuration]
    weights: dict[int, bytes | None] = field(repr=False)
    functions: CustomFunctions = CustomFunctions()


def read_selection(session: CallerSession, name: str | None, recorded: CustomFunctions | None = None) -> ModelSelection:
    """Read a model selection table and the tables that it references.

    Parameters
    ----------
    session : CallerSession
    name : str or None
    recorded : CustomFunctions or None
        Those of a warm start's parent run, which take precedence over the object table.

    Raises
    ------
    MopError
        If a table or column is missing, or a configuration is invalid; the message has the mst_key.
    """
    what = "model_selection_table"
    relation = session.relation(name, what)
    _need_columns(session, relation, _COLUMNS, what, name)
    summary = session.existing(relation.with_suffix("_summary").sql)
    if summary is None:
        raise UndefinedTable(
            f"{what}: {relation} has no {relation.name}_summary. Received: {name!r}",
            hint=_MAKE_AGAIN,
        )
    has_objects = "object_table" in _need_columns(session, summary, ("model_arch_table",), what, name)
    object_table = "object_table" if has_objects else "NULL"  # tables written by hand may lack it
    rows = session.execute(statement(f"SELECT {object_table}::pg_catalog.text AS object_table FROM {{s}}", s=summary))
    if len(rows) != 1:
        raise not_one_row(what, summary, len(rows), name, _MAKE_AGAIN)
    arch_text, arch_name = read_arch_table_name(session, summary)
    arch_table = read_architecture_table(session, arch_name)
    msts = session.execute(
        statement(
            "SELECT mst_key::pg_catalog.int4, model_id::pg_catalog.int4, compile_params::pg_catalog.text,"
            " fit_params::pg_catalog.text FROM {t} ORDER BY 1",
            t=relation,
        )
    )
    _check_keys(msts, relation, name)
    archs: dict[int, Node] = {}
    weights: dict[int, bytes | None] = {}
    for model_id in sorted({row["model_id"] for row in msts}):
        archs[model_id], weights[model_id] = read_architecture(session, arch_table, model_id)
    object_table = rows[0]["object_table"]
    known = custom_names(session, object_table, True, recorded)
    configurations = {row["mst_key"]: _configuration(row, archs, known) for row in msts}
    _notice_recorded(session, configurations.values())
    used = {used for c in configurations.values() for used in c.custom_names}
    functions = read_custom_functions(session, object_table, used, True, recorded)
    return ModelSelection(relation, arch_table, arch_text, object_table, configurations, weights, functions)


def read_architecture_table(session: CallerSession, name: str | None) -> Relation:
    """Find an architecture table. Raises MopError unless it is one."""
    table = session.relation(name, "model_arch_table")
    _need_columns(session, table, _ARCH_COLUMNS, "model_arch_table", name)
    return table


def read_configuration(
    session: CallerSession,
    arch_table: Relation,
    model_id: int,
    compile_params: str | None,
    fit_params: str | None,
    known: frozenset[str] = frozenset(),
) -> tuple[Configuration, bytes | None]:
    """Read one configuration from its parts, without a model selection table.

    Parameters
    ----------
    session : CallerSession
    arch_table : Relation
    model_id : int
    compile_params, fit_params : str or None
    known : frozenset of str
        Names of allowed custom functions.

    Returns
    -------
    tuple of Configuration and (bytes or None)
        With the start weights of the architecture table.

    Raises
    ------
    MopError
        If the parameters cannot be read, or the architecture does not exist or cannot be used.
    """
    arch, weights = read_architecture(session, arch_table, model_id)
    configuration = Configuration.checked(model_id, compile_params, fit_params, arch, known)
    _notice_recorded(session, [configuration])
    return configuration, weights


def _notice_recorded(session: CallerSession, configurations: Iterable[Configuration]) -> None:
    if notice := recorded_notice(configuration.fit for configuration in configurations):
        session.notice(notice)


def _check_keys(rows: Sequence[Mapping[str, Any]], relation: Relation, name: str | None) -> None:
    if not rows:
        raise InvalidParameter(
            f"model_selection_table: {relation} has no rows. Received: {name!r}", hint="Load configurations into it."
        )
    seen = set()
    for row in rows:
        mst_key = row["mst_key"]
        if mst_key is None or mst_key < 0 or row["model_id"] is None:
            raise InvalidParameter(
                f"model_selection_table: mst_key must be 0 or more, and model_id not NULL."
                f" Received: mst_key {mst_key}, model_id {row['model_id']}",
                hint=_MAKE_AGAIN,
            )
        if mst_key in seen:
            raise InvalidParameter(
                f"model_selection_table: mst_key must be unique in {relation}. Received twice: {mst_key}",
                hint=_MAKE_AGAIN,
            )
        seen.add(mst_key)


def _configuration(row: Mapping[str, Any], archs: Mapping[int, Node], known: frozenset[str]) -> Configuration:
    try:
        arch = archs[row["model_id"]]
        return Configuration.checked(row["model_id"], row["compile_params"], row["fit_params"], arch, known)
    except MopError as error:
        error.message = f"model_selection_table: mst_key {row['mst_key']}: {error.message}"
        raise


def read_architecture(session: CallerSession, table: Relation, model_id: int) -> tuple[Node, bytes | None]:
    """Return the JSON of an architecture, checked, and its start weights.

    Raises
    ------
    MopError
        If it does not exist exactly once, or cannot be trained.
    """
    rows = session.execute(
        statement(
            "SELECT model_arch::pg_catalog.text AS arch, model_weights AS weights FROM {t} WHERE model_id = $1", t=table
        ),
        [model_id],
        ["integer"],
    )
    if len(rows) != 1:
        raise InvalidParameter(
            f"model_arch_table: {table} must have one row for each model_id in the configurations."
            f" Received: {len(rows)} rows of model_id {model_id}",
            hint="Load the architecture with load_keras_model, or remove its configurations.",
        )
    try:
        arch = check_architecture(rows[0]["arch"])
        check_statistics(arch)
    except MopError as error:
        error.message = f"model_arch_table: model_id {model_id}: {error.message}"
        raise
    return readable_by_keras(json.loads(rows[0]["arch"]), arch), rows[0]["weights"]


def _need_columns(
    session: CallerSession, relation: Relation, columns: Sequence[str], what: str, name: str | None
) -> set[str]:
    """Raise an error if a table lacks one of the columns; return all its columns."""
    present = {column.name for column in session.columns(relation)}
    for column in columns:
        if column not in present:
            hint = "Create it with load_keras_model." if what == "model_arch_table" else _MAKE_AGAIN
            raise no_column(what, f"table {relation}", column, name, hint)
    return present
