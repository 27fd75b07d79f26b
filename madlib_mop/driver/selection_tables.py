"""Makes a user's model selection table and its summary, for those who fill them: configurations and searches."""

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.caller import CallerSession
from madlib_mop.driver.engine import table_form

_CREATE = """
CREATE TABLE {table} (
    mst_key serial,
    model_id integer,
    compile_params varchar,
    fit_params varchar,
    UNIQUE (model_id, compile_params, fit_params)
)
"""
_CREATE_SUMMARY = "CREATE TABLE {table} (model_arch_table varchar, object_table varchar)"
_CUSTOM_SCHEMA = "madlib"


def create_selection(session: CallerSession, target: Relation) -> None:
    """Make a model selection table without rows."""
    made = statement(_CREATE, table=target)
    session.execute(made + table_form(session, "model_id", "compile_params", "fit_params"))


def create_selection_summary(
    session: CallerSession, target: Relation, arch_table: str, object_table: str | None
) -> None:
    """Make the summary of a model selection table; the object table is given as `stored_name` writes it."""
    summary = target.with_suffix("_summary")
    session.execute(statement(_CREATE_SUMMARY, table=summary) + table_form(session))
    session.execute(
        statement("INSERT INTO {table} VALUES ($1, $2)", table=summary),
        [arch_table, object_table],
        ["varchar", "varchar"],
    )


def stored_name(object_table: str | None) -> str | None:
    """Write the object table as the summary keeps it: with its schema, as MADlib does."""
    return f"{_CUSTOM_SCHEMA}.{object_table.strip()}" if object_table else None
