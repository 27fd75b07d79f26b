"""The configurations of a call, from a model selection table or from its arguments: read, and checked against the data.

They come with their architectures, start weights and custom functions.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mop_backend.keras_backends import BackendName

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.rows.base import Json
from madlib_mop.driver.data.custom_functions import custom_names, read_custom_functions
from madlib_mop.driver.data.library_tables import read_arch_table_name
from madlib_mop.driver.data.packed import PackedTable
from madlib_mop.driver.planning.data_fit import check_fit, check_labels, with_class_weights
from madlib_mop.driver.planning.early_stopping import plan_early_stopping
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_column, not_one_row
from madlib_mop.errors import InvalidParameter, MopError, UndefinedTable, is_missing
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.parameters.parser import recorded_notice
from madlib_mop.models.parameters.search_grid import checked_ids
from madlib_mop.models.stored import check_statistics, readable_by_keras
from madlib_mop.schedule.bulk import MST_KEY

_MAKE_AGAIN = "Create it with load_model_selection_table or generate_model_configs."
_COLUMNS = ("mst_key", "model_id", "compile_params", "fit_params")
_ARCH_COLUMNS = ("model_id", "model_arch", "model_weights")


@dataclass(frozen=True)
class ModelSelection:
    """The configurations of a call, with what was read for them.

    Attributes
    ----------
    relation : Relation or None
        The model selection table: the one that has them, or the one that a search will write.
    arch_table : Relation
    arch_table_text : str or None
        Its name in the output's summary; None: as the call names it.
    object_table : str or None
        The table of custom functions, as written in the output's summary.
    configurations : dict of int to Configuration
        By mst_key, in order; of a search, those that stand for its space.
    weights : dict of int to (bytes or None)
        The start weights of the architectures, by model_id.
    functions : CustomFunctions
        Those that the configurations use.
    in_table : bool
        Whether they come from a model selection table; then messages have the mst_key.
    """

    relation: Relation | None
    arch_table: Relation
    arch_table_text: str | None
    object_table: str | None
    configurations: dict[int, Configuration]
    weights: dict[int, bytes | None] = field(repr=False)
    functions: CustomFunctions
    in_table: bool = False

    @property
    def start_weights(self) -> dict[str, bytes]:
        """The start weights of the architectures that have some, by their origin."""
        return {origin_of(model_id): blob for model_id, blob in self.weights.items() if blob is not None}


@dataclass(frozen=True)
class CheckedSelection:
    """Configurations that fit their data; see `check_selection`.

    Attributes
    ----------
    configurations : dict of int to Configuration
        By mst_key, with the weights of classes written out.
    class_weight : dict of int to float, or None
        What ``class_weight='balanced'`` stands for.
    early_stopping : dict of int to (dict or None)
        The rule of each, by mst_key.
    """

    configurations: dict[int, Configuration]
    class_weight: dict[int, float] | None
    early_stopping: dict[int, Json | None]


def origin_of(model_id: int) -> str:
    """Return the origin of start weights that an architecture has."""
    return f"model_id {model_id}"


def check_selection(
    selection: ModelSelection,
    source: PackedTable,
    backend: BackendName,
    early_stopping: str | None,
    num_iterations: int,
    frequency: int,
    has_validation: bool,
) -> CheckedSelection:
    """Check configurations against the packed table to train on.

    Parameters
    ----------
    selection : ModelSelection
    source : PackedTable
    backend : BackendName
    early_stopping : str or None
        The rule of the call, for configurations without their own.
    num_iterations : int
    frequency : int
        After how many iterations metrics are computed.
    has_validation : bool

    Raises
    ------
    MopError
        If an architecture, a loss, a metric, a class weight or an early stopping rule does not fit.
    """
    configurations = selection.configurations
    check_fit([(c.model_id, c.arch) for c in configurations.values()], source, backend)
    stops = plan_early_stopping(early_stopping, configurations, num_iterations, frequency, has_validation)
    check_labels(configurations, source, selection.in_table)
    weighted, class_weight = with_class_weights(configurations, source)
    return CheckedSelection(weighted, class_weight, stops)


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
    relation, msts = _read_rows(session, name, what)
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
    archs: dict[int, Node] = {}
    weights: dict[int, bytes | None] = {}
    for model_id in sorted({row["model_id"] for row in msts}):
        archs[model_id], weights[model_id] = read_architecture(session, arch_table, model_id)
    object_table = rows[0]["object_table"]
    known = custom_names(session, object_table, True, recorded)
    configurations = {row["mst_key"]: _configuration(row, archs, known) for row in msts}
    notice_recorded(session, configurations.values())
    used = {used for c in configurations.values() for used in c.custom_names}
    functions = read_custom_functions(session, object_table, used, True, recorded)
    return ModelSelection(relation, arch_table, arch_text, object_table, configurations, weights, functions, True)


def read_configurations(
    session: CallerSession, name: str, arch_table: Relation, what: str
) -> list[dict[str, Any]]:
    """Return the rows of a model selection table whose architectures are those of a table; see `_COLUMNS`.

    Raises
    ------
    MopError
        If a table or column is missing, or its architectures are those of another table.
    """
    relation, rows = _read_rows(session, name, what)
    summary = session.existing(relation.with_suffix("_summary").sql)
    named = read_arch_table_name(session, summary)[1] if summary is not None else None
    of_table = session.existing(named) if named is not None else None
    if of_table is None or of_table.oid != arch_table.oid:
        raise InvalidParameter(
            f"{what}: the architectures of {relation} are not in {arch_table}. Received: {name!r}",
            hint="Name a model selection table that was made for the table of architectures of the call.",
        )
    return rows


def _read_rows(session: CallerSession, name: str | None, what: str) -> tuple[Relation, list[dict[str, Any]]]:
    """Return a model selection table and its rows, in the order of their keys, which are checked."""
    relation = session.relation(name, what)
    _need_columns(session, relation, _COLUMNS, what, name)
    rows = session.execute(
        statement(
            "SELECT mst_key::pg_catalog.int4, model_id::pg_catalog.int4, compile_params::pg_catalog.text,"
            " fit_params::pg_catalog.text FROM {t} ORDER BY 1",
            t=relation,
        )
    )
    _check_keys(rows, relation, name, what)
    return relation, rows


def read_architecture_table(session: CallerSession, name: str | None) -> Relation:
    """Find an architecture table. Raises MopError unless it is one."""
    table = session.relation(name, "model_arch_table")
    _need_columns(session, table, _ARCH_COLUMNS, "model_arch_table", name)
    return table


def check_model_ids(session: CallerSession, table: Relation, ids: list[int] | None) -> list[int]:
    """Return the ids sorted, without duplicates, if all are in the table of architectures."""
    ids = checked_ids(ids)
    rows = session.execute(statement("SELECT DISTINCT model_id FROM {table}", table=table))
    present = {row["model_id"] for row in rows}
    if missing := sorted(set(ids) - present):
        raise InvalidParameter(
            f"model_id_list: {table} has no model_id {missing[0]}. Received: {ids!r}",
            hint=f"It has {', '.join(str(item) for item in sorted(present - {None})[:20]) or 'none'}.",
        )
    return sorted(set(ids))


def read_one(session: CallerSession, a: Mapping[str, Any], recorded: CustomFunctions | None = None) -> ModelSelection:
    """Read the only configuration of madlib_keras_fit from its arguments, as a selection of one.

    Raises
    ------
    MopError
        If an argument is missing, the parameters cannot be read, or the architecture does not exist or cannot be used.
    """
    arch_table = read_architecture_table(session, a.get("model_arch_table"))
    model_id = a.get("model_id")
    if model_id is None:
        raise is_missing("model_id", None, f"SELECT model_id, name FROM {arch_table.written};")
    object_table = (a.get("object_table") or "").strip() or None
    known = custom_names(session, object_table, recorded=recorded)
    arch, weights = read_architecture(session, arch_table, model_id)
    c = Configuration.checked(model_id, a.get("compile_params"), a.get("fit_params"), arch, known)
    notice_recorded(session, [c])
    functions = read_custom_functions(session, object_table, c.custom_names, recorded=recorded)
    return ModelSelection(None, arch_table, None, object_table, {MST_KEY: c}, {model_id: weights}, functions)


def notice_recorded(session: CallerSession, configurations: Iterable[Configuration]) -> None:
    """Write a NOTICE about callbacks without effect, if there are any."""
    if notice := recorded_notice(configuration.fit for configuration in configurations):
        session.notice(notice)


def _check_keys(rows: Sequence[Mapping[str, Any]], relation: Relation, name: str | None, what: str) -> None:
    if not rows:
        raise InvalidParameter(
            f"{what}: {relation} has no rows, so no model. Received: {name!r}", hint="Load configurations into it."
        )
    seen = set()
    for row in rows:
        mst_key = row["mst_key"]
        if mst_key is None or mst_key < 0 or row["model_id"] is None:
            raise InvalidParameter(
                f"{what}: mst_key must be 0 or more, and model_id not NULL."
                f" Received: mst_key {mst_key}, model_id {row['model_id']}",
                hint=_MAKE_AGAIN,
            )
        if mst_key in seen:
            raise InvalidParameter(
                f"{what}: mst_key must be unique in {relation}. Received twice: {mst_key}",
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
