"""Library tables of users: architectures, and model selection tables with their summaries; a table is dropped after its
last row, as in MADlib.
"""

import json
import uuid
from collections.abc import Sequence

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.engine import identify_rows, table_form
from madlib_mop.driver.data.weights import MAX_FIELD_BYTES
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import UndefinedColumn, Unsupported

ARCHITECTURE_COLUMNS = ("model_id", "model_arch", "model_weights", "name", "description", "__internal_madlib_id__")

_CREATE_ARCHITECTURES = """
CREATE TABLE {table} (
    model_id integer,
    model_arch json,
    model_weights bytea,
    name text,
    description text,
    __internal_madlib_id__ text UNIQUE
)
"""

# Reasons not to drop an emptied table: another role owns it, a row policy may hide rows, or a view depends on it.
_MAY_DROP = """
SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_owner,
       pg_catalog.row_security_active(c.oid) AS hides_rows,
       EXISTS (SELECT FROM pg_catalog.pg_depend d
               WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = c.oid
                     AND d.deptype = 'n') AS is_used
FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid AND c.relkind IN ('r', 'p')
"""


def check_architecture_table(
    session: CallerSession,
    table: Relation,
    name: str | None,
    what: str,
    columns: Sequence[str] = ARCHITECTURE_COLUMNS,
) -> None:
    """Raise UndefinedColumn unless a table is one of architectures; ``what`` is the argument that named it."""
    present = {column.name for column in session.columns(table)}
    if missing := [column for column in columns if column not in present]:
        raise UndefinedColumn(
            f"{what}: {table} is not a table of architectures: it has no column {missing[0]!r}. Received: {name!r}",
            hint="load_keras_model creates such a table if it does not exist.",
        )


def create_architectures(session: CallerSession, name: str, what: str) -> Relation:
    """Make a table of architectures without rows; ``what`` is the name of the argument for messages."""
    table = session.output(name, suffixes=("",), what=what)
    session.execute(statement(_CREATE_ARCHITECTURES, table=table) + table_form(session, "__internal_madlib_id__"))
    identify_rows(session, table)
    return session.relation(table.sql, what)


def add_architecture(
    session: CallerSession, table: Relation, text: str, weights: bytes | None, name: str | None, description: str | None
) -> int:
    """Add a row to a table of architectures; return its ``model_id``, the highest one plus 1.

    Raises Unsupported if the weights do not fit into a field.
    """
    if weights is not None and len(weights) > MAX_FIELD_BYTES:
        raise Unsupported(
            f"start weights are one field of a table of architectures, which has at most {MAX_FIELD_BYTES:,} bytes."
            f" Received: {len(weights):,} bytes",
            hint="A warm start continues a model of this size.",
        )
    (row,) = session.execute(
        statement(
            "INSERT INTO {table} (model_id, model_arch, model_weights, name, description, __internal_madlib_id__)"
            " SELECT coalesce(pg_catalog.max(model_id), 0) + 1, $1, $2, $3, $4, $5 FROM {table} RETURNING model_id",
            table=table,
        ),
        [text, weights, name, description, uuid.uuid4().hex],
        ["json", "bytea", "text", "text", "text"],
    )
    return int(row["model_id"])


def drop_if_empty(call: Call, table: Relation, rows: str) -> None:
    """Drop a table without rows, if it is the caller's; a table with dependent views is kept.

    Parameters
    ----------
    call : Call
    table : Relation
    rows : str
        The name of a row, for the NOTICE, e.g. ``model``.
    """
    session = call.session
    if session.execute(statement("SELECT 1 AS found FROM {table} LIMIT 1", table=table)):
        return
    state = session.execute(_MAY_DROP, [table.oid], ["bigint"])
    if not state or state[0]["hides_rows"] or not state[0]["is_owner"]:
        return
    if state[0]["is_used"]:
        session.warning(
            f"{call.function}: {table} is empty, but was not dropped: a view or another object depends on it"
        )
        return
    session.execute(statement("DROP TABLE {table}", table=table))
    session.notice(f"{call.function}: {table} was dropped, because it had no other {rows}")


_CREATE = """
CREATE TABLE {table} (
    mst_key serial,
    model_id integer,
    compile_params varchar,
    fit_params varchar,
    UNIQUE (model_id, compile_params, fit_params)
)
"""
_INSERT = """
INSERT INTO {table} (model_id, compile_params, fit_params)
SELECT u.model_id, u.compile_params, u.fit_params
FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3))
     WITH ORDINALITY AS u (model_id, compile_params, fit_params, position)
ORDER BY u.position
"""
_CREATE_SUMMARY = """
CREATE TABLE {table} (model_arch_table varchar PRIMARY KEY, object_table varchar, qualified_names json)
"""
_ARCH = "model_arch_table"
_CUSTOM_SCHEMA = "madlib"


def create_selection(session: CallerSession, target: Relation) -> None:
    """Make a model selection table without rows."""
    made = statement(_CREATE, table=target)
    session.execute(made + table_form(session, "model_id", "compile_params", "fit_params"))
    identify_rows(session, target)


def fill_selection(session: CallerSession, target: Relation, rows: Sequence[tuple[int, str, str]]) -> None:
    """Add configurations: model id, compile parameters, fit parameters. Keys follow their order."""
    columns = [[row[place] for row in rows] for place in range(3)]
    session.execute(statement(_INSERT, table=target), columns, ["integer[]", "varchar[]", "varchar[]"])


def write_selection_summary(
    session: CallerSession,
    target: Relation,
    arch_text: str,
    object_table: str | None,
    qualified: str,
    created: bool = False,
) -> None:
    """Write the summary of a model selection table.

    Parameters
    ----------
    session : CallerSession
    target : Relation
    arch_text : str
        The architecture table as written by the user.
    object_table : str or None
        As `stored_name` writes it.
    qualified : str
        The architecture table with its schema.
    created : bool
        Whether the table of the summary exists, without a row.
    """
    summary = target.with_suffix("_summary")
    if not created:
        session.execute(statement(_CREATE_SUMMARY, table=summary) + table_form(session, "model_arch_table"))
    session.execute(
        statement("INSERT INTO {table} VALUES ($1, $2, $3)", table=summary),
        [arch_text, object_table, json.dumps({_ARCH: qualified})],
        ["varchar", "varchar", "json"],
    )


def read_arch_table_name(session: CallerSession, summary: Relation) -> tuple[str | None, str | None]:
    """Return the architecture table of a model selection table's summary, if that has one row.

    Returns
    -------
    tuple of (str or None, str or None)
        As written by its creator, and the name to look up: with its schema, if the summary has it and the table still
        exists. In summaries written by hand or by MADlib, both are the same.
    """
    has_qualified = "qualified_names" in {column.name for column in session.columns(summary)}
    qualified = f"qualified_names ->> '{_ARCH}'" if has_qualified else "NULL::pg_catalog.text"
    query = statement(f"SELECT {_ARCH}::pg_catalog.text AS written, {qualified} AS qualified FROM {{s}}", s=summary)
    row = session.only_row(query, summary)
    if row["qualified"] and session.existing(row["qualified"]) is not None:
        return row["written"], row["qualified"]
    return row["written"], row["written"]


def stored_name(object_table: str | None) -> str | None:
    """Return the object table's name for the summary: with its schema, as in MADlib."""
    return f"{_CUSTOM_SCHEMA}.{object_table.strip()}" if object_table else None
