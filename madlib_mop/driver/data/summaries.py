"""The summary of a packed table, read in the caller's session and checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import not_one_row
from madlib_mop.errors import InvalidParameter, UndefinedColumn, UndefinedTable, shown

PACK_AGAIN = "Pack the data again with training_preprocessor_dl or validation_preprocessor_dl."
#: The column of a summary of `pack_columns` with the inputs that a person should check.
CHECKS = "columns_to_check"
_COLUMNS = (
    "dependent_varname", "independent_varname", "dependent_vartype", "buffer_size", "normalizing_const", "num_classes",
)  # fmt: skip


@dataclass(frozen=True)
class PackedSummary:
    """The summary of a packed table.

    Attributes
    ----------
    relation : Relation
    types : dict of str to str
        The types of its columns.
    row : dict
        The values that all packed tables have, by column.
    """

    relation: Relation
    types: dict[str, str]
    row: dict[str, Any]


def read_summary(session: CallerSession, relation: Relation, name: str | None, what: str) -> PackedSummary:
    """Find and read the summary of a packed table.

    Raises
    ------
    UndefinedTable, UndefinedColumn, InvalidParameter
        If it does not exist, or is not the summary of a preprocessor.
    """
    summary = relation.with_suffix("_summary")
    found = session.existing(summary.sql)
    if found is None:
        raise UndefinedTable(
            f"{what}: table {relation} is not packed: {summary} does not exist. Received: {name!r}",
            hint="Pack it with madlib.validation_preprocessor_dl and the training table as training_preprocessor_table,"
            " so that both have one encoding."
            if what == "validation_table"
            else "Pack the data first, with madlib.training_preprocessor_dl or madlib_mop.pack_columns.",
        )
    types = {column.name: column.type_sql for column in session.columns(found)}
    missing = [column for column in _COLUMNS if column not in types]
    if missing:
        raise UndefinedColumn(
            f"{what}: {summary} has no column {missing[0]!r}; it is not a preprocessor's summary. Received: {name!r}",
            hint=PACK_AGAIN,
        )
    rows = session.execute(statement("SELECT {c} FROM {s}", c=[Identifier(column) for column in _COLUMNS], s=found))
    if len(rows) != 1:
        raise not_one_row(what, summary, len(rows), name, PACK_AGAIN)
    for column in ("dependent_varname", "independent_varname", "dependent_vartype", "normalizing_const"):
        value = rows[0][column]
        if value is None or value == [] or (isinstance(value, list) and None in value):
            raise InvalidParameter(
                f"{what}: {summary} has no value for {column}. Received: {shown(value)}", hint=PACK_AGAIN
            )
    return PackedSummary(found, types, rows[0])


def names_of(value: str | list[str]) -> list[str]:
    """Return a list of one or more names; a summary of one input or output has the name alone."""
    return list(value) if isinstance(value, list) else [value]


def class_values(session: CallerSession, summary: PackedSummary, column: str) -> tuple[str, str | None]:
    """Return the type of an output's class values, and their text; the text is None where there are none."""
    name = f"{column}_class_values"
    sql_type = summary.types.get(name)
    if sql_type is None:
        return "text[]", None
    if not sql_type.endswith("[]"):
        raise InvalidParameter(
            f"column {name!r} of {summary.relation} must be an array. Received: {sql_type}", hint=PACK_AGAIN
        )
    query = "SELECT pg_catalog.textin(pg_catalog.array_out({c})) AS value FROM {s}"
    row = session.only_row(statement(query, c=Identifier(name), s=summary.relation), summary.relation)
    return sql_type, row["value"]


def class_counts(session: CallerSession, summary: PackedSummary, column: str) -> tuple[int, ...] | None:
    """Return the rows of each class of an output; None if the summary does not have them."""
    counts = _cell(session, summary, f"{column}_class_counts", "bigint[]")
    return tuple(counts) if counts and all(count is not None and count >= 0 for count in counts) else None


def index_inputs(session: CallerSession, summary: PackedSummary, independent: Sequence[str]) -> tuple[int, ...]:
    """Return which inputs, by number, hold int32 indices."""
    names = _cell(session, summary, "index_columns", "text[]") or []  # of pack_columns
    return tuple(i for i, name in enumerate(independent) if name in names)


def columns_to_check(session: CallerSession, summary: PackedSummary) -> list[str]:
    """Return the inputs that a person should check, each with the reason."""
    texts = _cell(session, summary, CHECKS, "text[]") or []
    return [text for text in texts if text is not None]


def preprocessor_digest(session: CallerSession, summary: PackedSummary) -> str | None:
    """Return the recorded SHA-256 of the preprocessor; None for a table that `pack_columns` did not make."""
    digest: str | None = _cell(session, summary, "preprocessor_digest", "text")
    return digest


def _cell(session: CallerSession, summary: PackedSummary, column: str, sql_type: str) -> Any:
    """Return the value of a column that not every summary has; None where it is missing or of another type."""
    if summary.types.get(column) != sql_type:
        return None
    query = statement("SELECT {c} FROM {s}", c=Identifier(column), s=summary.relation)
    return session.only_row(query, summary.relation)[column]
