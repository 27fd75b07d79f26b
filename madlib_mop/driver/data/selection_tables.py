"""Creates a user's model selection table and its summary, for configurations and searches."""

import json
from collections.abc import Sequence

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.engine import identify_rows, table_form
from madlib_mop.driver.session.caller import CallerSession

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
