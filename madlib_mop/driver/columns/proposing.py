"""The command propose_columns: counts the rows of a table, and writes what pack_columns would do with each column."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.proposals.guesses import form_of_images
from madlib_mop.columns.proposals.kinds import ColumnSpec, TableColumn
from madlib_mop.columns.proposals.proposal import CountedColumn, check_targets, check_task, propose, targets_of_classes
from madlib_mop.columns.proposals.review import ColumnToCheck, columns_to_check
from madlib_mop.columns.records import family_of
from madlib_mop.columns.vectors import MAX_WIDTH
from madlib_mop.driver.columns.rows import SourceRows, UnusableColumn, read_rows
from madlib_mop.driver.columns.source import SourceTable, read_source
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.packing.columns import split_columns
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession

#: Columns that a notice names at most.
_MOST_NAMED = 10
#: The columns of a proposal, in order, with their types.
COLUMNS = (
    ("name", "text"), ("sql_type", "text"), ("role", "text"), ("kind", "text"), ("impute", "text"),
    ("indicator", "boolean"), ("encode", "text"), ("scale", "text"), ("width", "integer"), ("max_levels", "integer"),
    ("levels", "text[]"), ("n_rows", "bigint"), ("n_null", "bigint"), ("n_distinct", "bigint"), ("minimum", "text"),
    ("maximum", "text"), ("examples", "text[]"), ("reason", "text"),
)  # fmt: skip


def propose_columns(call: Call) -> None:
    """Write an editable table with a row for each column of the source table."""
    session, arguments = call.session, call.arguments
    dependent = split_columns(arguments["dependent"], "dependent")
    source = read_source(session, arguments["source_table"])
    output = session.output(arguments["output_table"], ("",), "output_table")
    exclude = arguments["exclude"] or []
    check_targets(table_columns(source), dependent, exclude)
    check_task(table_columns(source), dependent, arguments["task"])
    rows, unusable = _read(session, source, dependent, exclude)
    counted = count(source, rows, unusable=unusable)
    specs = propose(counted, dependent, exclude, classes=targets_of_classes(counted, dependent, arguments["task"]))
    statistics = {one.name: one.statistics for one in counted if one.statistics is not None}
    to_check = columns_to_check(specs, statistics, rows.columns, rows.order())
    write_proposal(session, output, _with_checks(specs, to_check))
    n_inputs = sum(spec.role == "input" for spec in specs)
    ignored = [spec.name for spec in specs if spec.role == "ignored"]
    text = f"{call.function}: {rows.n_rows} rows; {n_inputs} columns are inputs"
    session.notice(f"{text}, ignored: {', '.join(ignored)}" if ignored else text)
    notice_checks(call, to_check)


def notice_checks(call: Call, to_check: Sequence[ColumnToCheck]) -> None:
    """Name the columns that a person should check before training."""
    if to_check:
        call.session.notice(f"{call.function}: check these columns: {listed([one.text for one in to_check])}")


def listed(texts: Sequence[str]) -> str:
    """Return the first texts, and how many more there are."""
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more


def _with_checks(specs: Sequence[ColumnSpec], to_check: Sequence[ColumnToCheck]) -> list[ColumnSpec]:
    """Return the proposal with what to check in the reasons."""
    problems = {one.name: one.problem for one in to_check}
    return [
        replace(spec, reason=f"{spec.reason} Check it: {problems[spec.name]}") if spec.name in problems else spec
        for spec in specs
    ]


def _read(
    session: CallerSession, source: SourceTable, dependent: Collection[str], exclude: Collection[str]
) -> tuple[SourceRows, dict[str, str]]:
    """Read the columns that are not excluded.

    Arrays with different numbers of elements, or with NULL as an element, are read as padded ones. Other inputs with a
    value that cannot be used are left out. The rows are read again for each of them: most tables have none. The second
    result is the problem of each.
    """
    unusable: dict[str, str] = {}
    padded: dict[str, int] = {}
    while True:
        fields = [
            replace(f, padded_to=padded.get(f.name))
            for f in source.fields
            if f.name not in exclude and f.name not in unusable
        ]
        unchecked = [f.name for f in fields if f.name not in dependent]
        try:
            return read_rows(session, source, fields, 0, unchecked=unchecked), unusable
        except UnusableColumn as error:
            if error.column in dependent:
                raise
            width = _most_elements(session, source, error.column) if error.is_ragged else 0
            if 0 < width <= MAX_WIDTH and error.column not in padded:
                padded[error.column] = width
            else:
                unusable[error.column] = error.problem


def _most_elements(session: CallerSession, source: SourceTable, column: str) -> int:
    """Return the most elements of an array in a column; 0 if the column has no arrays."""
    field = next(field for field in source.fields if field.name == column)
    if not field.reader.startswith("_"):
        return 0
    query = "SELECT pg_catalog.max(pg_catalog.cardinality(s.{c})) AS most FROM {source} s"
    return int(session.execute(statement(query, c=Identifier(column), source=source.relation))[0]["most"] or 0)


def table_columns(source: SourceTable) -> list[TableColumn]:
    """Return a table's columns and how they are read, before any row is."""
    return [
        TableColumn(c.name, c.type_sql, family_of(c.field.reader) if c.field is not None else None)
        for c in source.columns
    ]


def count(
    source: SourceTable,
    rows: SourceRows,
    of: npt.NDArray[np.bool_] | None = None,
    unusable: Mapping[str, str] | None = None,
) -> list[CountedColumn]:
    """Return what was counted in each column of a table.

    Parameters
    ----------
    source : SourceTable
    rows : SourceRows
    of : numpy.ndarray or None
        bool (n_rows,): which rows count; None for all.
    unusable : mapping of str to str or None
        The problem of each column that could not be read.
    """
    found = rows.overflowed | rows.statistics(of)
    counted = []
    for column in source.columns:
        reader = column.field.reader if column.field is not None else None
        family = family_of(reader) if reader is not None else None
        values = rows.columns.get(column.name)
        images = form_of_images(values) if isinstance(values, Blobs) else None
        counted.append(
            CountedColumn(
                column.name,
                column.type_sql,
                family,
                found.get(column.name),
                column.labels,
                images,
                reader,
                (unusable or {}).get(column.name),
            )
        )
    return counted


def write_proposal(session: CallerSession, output: Relation, specs: Collection[ColumnSpec]) -> None:
    """Make the table of a proposal and fill it."""
    columns = ", ".join(f"{name} pg_catalog.{_builtin(sql_type)}" for name, sql_type in COLUMNS)
    session.execute(statement(f"CREATE TABLE {{output}} ({columns})", output=output) + table_form(session))
    values = ", ".join(f"${i + 1}" for i in range(len(COLUMNS)))
    insert = statement(f"INSERT INTO {{output}} VALUES ({values})", output=output)
    for spec in specs:
        row = [getattr(spec, name) for name, _ in COLUMNS]
        values_of = [list(value) if isinstance(value, tuple) else value for value in row]
        session.execute(insert, values_of, [sql_type for _, sql_type in COLUMNS])


def _builtin(sql_type: str) -> str:
    """Return the name of a type in pg_catalog."""
    base = sql_type.removesuffix("[]")
    named = {"integer": "int4", "bigint": "int8", "boolean": "bool"}.get(base, base)
    return named + ("[]" if sql_type.endswith("[]") else "")
