"""Custom functions for planning a run or using a model: from an object table with safe rights, or from the record.

``custom_names`` goes into a `Configuration`; ``read_custom_functions`` returns the functions that those
parameters use. No function is executed here: sources are parsed, pickles are recognised by their first bytes.
"""

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import replace

from madlib_mop.catalog.names import Relation, split_name, statement
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import (
    InsufficientPrivilege,
    InvalidParameter,
    MopError,
    NotReady,
    UndefinedColumn,
    UndefinedTable,
    Unsupported,
    is_missing,
    shown,
)
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.custom import CustomFunctions, check_source, is_pickle

SCHEMA = "madlib"
COLUMNS = {"id": ("integer",), "name": ("text",), "description": ("text",), "object": ("bytea",)}
SETTING = "pickled_functions"
_WHAT = "object_table"

# Roles that may write the table and are not superusers, nor can become one. TRIGGER counts as a right to write, because
# a trigger can change the written rows. pg_write_all_data (since PostgreSQL 14) grants a right to write that does not
# appear in the table's privileges.
_RIGHTS = """
SELECT c.relkind::pg_catalog.text AS kind, o.rolname::pg_catalog.text AS owner, o.rolsuper AS is_superusers,
       (SELECT pg_catalog.min(r.rolname::pg_catalog.text) FROM pg_catalog.pg_roles r
        WHERE NOT r.rolsuper AND r.rolname <> 'pg_write_all_data'
              AND (pg_catalog.has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')
                   OR pg_catalog.has_any_column_privilege(r.oid, c.oid, 'INSERT, UPDATE')
                   OR EXISTS (SELECT FROM pg_catalog.pg_roles w
                              WHERE w.rolname = 'pg_write_all_data' AND pg_catalog.pg_has_role(r.oid, w.oid, 'MEMBER')))
              AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles s
                              WHERE s.rolsuper AND pg_catalog.pg_has_role(r.oid, s.oid, 'MEMBER'))) AS writer
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
WHERE c.oid = $1::pg_catalog.oid
"""

_RECORDED = """
SELECT f.name, f.object FROM madlib_mop.custom_function f
WHERE f.run_id = (SELECT pg_catalog.max(r.run_id) FROM madlib_mop.run r
                  WHERE r.model_output_table = $1 AND r.state IN ('trained', 'finished'))
"""
_RECORDED_OF_VERSION = """
SELECT f.name, f.object FROM madlib_mop.custom_function f
WHERE f.run_id = (SELECT d.run_id FROM madlib_mop.model_version v
                  JOIN madlib_mop.version_detail d ON d.version_id = v.version_id WHERE v.name = $1 AND v.version = $2)
"""


def object_relation(object_table: str | None, stored: bool = False) -> Relation:
    """Return the name ``madlib.<object_table>``; the table may not exist.

    Parameters
    ----------
    object_table : str
        As written by the caller, without a schema.
    stored : bool
        Whether it comes from a summary table, which has it with its schema.

    Raises
    ------
    InvalidParameter, UnreadableText
        If it is missing, has a schema, or is not a name.
    """
    if object_table is None or not object_table.strip():
        raise is_missing(_WHAT, object_table, "Pass the name of a table.")
    schema, base = split_name(object_table, _WHAT)
    if schema is not None and not (stored and schema == SCHEMA):
        raise InvalidParameter(
            f"{_WHAT} must be a name without a schema: such tables are in schema {SCHEMA}. Received: {object_table!r}",
            hint=f"Write {base}.",
        )
    return Relation(SCHEMA, base)


def find_object_table(session: CallerSession, object_table: str | None, stored: bool = False) -> Relation:
    """Find an object table, and check before reading it that only superusers can write to it.

    Raises
    ------
    UndefinedTable, UndefinedColumn
        If it does not exist, or is not an object table.
    InsufficientPrivilege
        If it does not belong to a superuser, or another role can write to it.
    """
    table = session.existing(object_relation(object_table, stored).sql, _WHAT)
    received = f"Received: {object_table!r}"
    if table is None:
        raise UndefinedTable(
            f"{_WHAT} does not exist in schema {SCHEMA}. {received}",
            hint="A superuser creates it with load_custom_function or load_top_k_accuracy_function.",
        )
    (rights,) = session.execute(_RIGHTS, [table.oid], ["bigint"])
    if rights["kind"] != "r":  # defence: functions-in-a-table
        raise InsufficientPrivilege(
            f"{_WHAT}: {table} must be an ordinary table, because other roles could control the rows of a view or "
            f"foreign table. {received}",
            hint="A superuser creates such tables with load_custom_function.",
        )
    if not rights["is_superusers"]:  # defence: functions-of-superusers
        raise InsufficientPrivilege(
            f"{_WHAT}: {table} belongs to {rights['owner']}, who is not a superuser. {received}",
            hint="Custom functions are code that the server runs: only superusers may register them.",
        )
    if rights["writer"] is not None:  # defence: writers-of-functions
        raise InsufficientPrivilege(
            f"{_WHAT}: role {rights['writer']}, which is not a superuser, may write to {table}. {received}",
            hint=f"REVOKE the right: only superusers may write to {table}, because it contains code.",
        )
    columns = {column.name: column.type_sql for column in session.columns(table)}
    for name, types in COLUMNS.items():
        if columns.get(name) not in types:
            raise UndefinedColumn(
                f"{_WHAT}: {table} has no column {name} of type {types[0]}. {received}",
                hint="load_custom_function creates such a table if it does not exist.",
            )
    return table


def custom_names(
    session: CallerSession, object_table: str | None, stored: bool = False, recorded: CustomFunctions | None = None
) -> frozenset[str]:
    """Return the names that compile parameters can use; none without an object table.

    Parameters
    ----------
    session : CallerSession
    object_table : str or None
    stored : bool
        As for `object_relation`.
    recorded : CustomFunctions or None
        Those of the parent run; they are available even without the table.

    Raises
    ------
    MopError
        As `find_object_table`.
    """
    if not (object_table or "").strip():
        return frozenset()
    kept = recorded.names if recorded else frozenset()
    try:
        table = find_object_table(session, object_table, stored)
    except UndefinedTable:
        if kept:
            return kept
        raise
    return kept | {row["name"] for row in session.execute(statement("SELECT name FROM ONLY {t}", t=table))}


def read_custom_functions(
    session: CallerSession,
    object_table: str | None,
    names: Iterable[str],
    stored: bool = False,
    recorded: CustomFunctions | None = None,
) -> CustomFunctions:
    """Read functions by name, with ``recorded`` ones before those in the table, and check them all.

    Raises
    ------
    MopError
        As `find_object_table`; also if a name does not exist, a source is invalid, or a pickle is not allowed.
    """
    wanted = sorted(set(names))
    objects = {name: recorded.objects[name] for name in wanted if recorded and name in recorded.objects}
    missing = [name for name in wanted if name not in objects]
    if missing:
        if not (object_table or "").strip():
            raise InvalidParameter(
                f"custom function {missing[0]!r} needs an object_table. Received: {shown(object_table)}",
                hint="Pass the table in which load_custom_function registered it.",
            )
        objects |= _read(session, find_object_table(session, object_table, stored), missing)
    functions = CustomFunctions(dict(sorted(objects.items())), pickles_allowed(session) if objects else False)
    for name, value in functions.objects.items():
        if not is_pickle(value):
            check_source(name, value)
    check_openable(functions)
    return functions


def functions_of_model(
    session: CallerSession,
    place: Relation | tuple[str, int],
    object_table: str | None,
    configuration: Configuration,
) -> CustomFunctions:
    """Read the functions that a model was trained with: from its run's record, else as registered now.

    Parameters
    ----------
    session : CallerSession
    place : Relation or (str, int)
        The output table of a fit function, whose newest run it is; or a version of a registered model.
    object_table : str or None
        As its summary has it.
    configuration : Configuration
        The model's.

    Raises
    ------
    MopError
        As `read_custom_functions`, or if the parameters cannot be read.
    """
    if not (object_table or "").strip() or not configuration.compile_params:
        return CustomFunctions()
    if isinstance(place, Relation):
        rows = session.execute(_RECORDED, [str(place)])
    else:
        rows = session.execute(_RECORDED_OF_VERSION, list(place), ["pg_catalog.text", "integer"])
    recorded = CustomFunctions({row["name"]: bytes(row["object"]) for row in rows})
    try:
        names = replace(configuration, allowed_names=recorded.names).custom_names
    except MopError:  # the caller may not read the record, or it was dropped
        known = custom_names(session, object_table, True, recorded)
        names = replace(configuration, allowed_names=frozenset(known)).custom_names
    return read_custom_functions(session, object_table, names, True, recorded)


def warn_changed(session: CallerSession, object_table: str | None, used: CustomFunctions) -> None:
    """Warn if registered functions changed since the parent run."""
    if not used.objects:
        return
    try:
        table = find_object_table(session, object_table, True)
    except MopError:  # the table was dropped or is no longer trusted; none of its functions were used
        return
    rows = session.execute(statement("SELECT name, object FROM ONLY {t}", t=table))
    now = {row["name"]: row["object"] for row in rows}
    if changed := [name for name, value in used.objects.items() if now.get(name) != value]:
        session.notice(
            f"warm start: custom function {', '.join(changed)}: the earlier run's version is used;"
            f" {table} has changed since"
        )


def check_openable(functions: CustomFunctions) -> None:
    """Reject pickles unless a superuser has enabled them and dill is installed.

    Raises
    ------
    Unsupported
        If a function is a pickle and pickles are disabled.
    NotReady
        If dill is not installed.
    """
    for name, value in functions.objects.items():
        if is_pickle(value):
            check_pickle(f"custom function {name!r}", functions.pickles)  # defence: no-pickles


def check_pickle(what: str, allowed: bool) -> None:
    """Raise an error unless pickles are enabled by a superuser's setting and dill is installed."""
    if not allowed:
        raise Unsupported(
            f"{what} is a pickle. Unpickling can run arbitrary code, so pickles are rejected",
            hint="Register the function's Python source instead. Where pickles are trusted, a superuser says so:"
            f" INSERT INTO madlib_mop.setting (name, value) VALUES ('{SETTING}', 'on').",
        )
    if importlib.util.find_spec("dill") is None:
        raise NotReady(
            f"{what} is a dill pickle, and dill is not installed in the library's environment",
            hint=f"As the owner of the library, run {sys.prefix}/bin/python -m pip install 'dill>=0.3.8,<1'",
        )


def pickles_on(settings: dict[str, str]) -> bool:
    """Return whether the superusers' settings enable pickles."""
    return settings.get(SETTING) == "on"


def pickles_allowed(session: CallerSession) -> bool:
    """Return whether pickles are enabled, read in the caller's session."""
    rows = session.execute("SELECT name, value FROM madlib_mop.setting WHERE name = $1", [SETTING])
    return pickles_on({row["name"]: row["value"] for row in rows})


def _read(session: CallerSession, table: Relation, names: list[str]) -> dict[str, bytes]:
    rows = session.execute(
        statement("SELECT name, object FROM ONLY {t} WHERE name = ANY ($1)", t=table), [names], ["text[]"]
    )
    found = {row["name"]: row["object"] for row in rows if row["object"] is not None}
    if missing := [name for name in names if name not in found]:
        present = session.execute(statement("SELECT name FROM ONLY {t} ORDER BY name", t=table))
        raise InvalidParameter(
            f"custom function {missing[0]!r} is not in {table}",
            hint=f"It has {', '.join(row['name'] for row in present) or 'none'}.",
        )
    return found
