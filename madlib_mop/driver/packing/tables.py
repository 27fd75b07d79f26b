"""The statements of the preprocessors: queries of the source table that count, and creation of a summary.

Everything runs in the caller's session, with the caller's rights.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.names import Identifier, Relation, Slot, SqlType, StatementParameter, statement
from madlib_mop.columns.preprocessors.checks import MAX_CLASS_BYTES, MAX_CLASSES
from madlib_mop.driver.data.class_values import class_parameter
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.packing.columns import ColumnToPack, PackingKind, PackingSource
from madlib_mop.driver.session.caller import BytesColumn, CallerSession
from madlib_mop.engines.base.system_columns import row_name

_BLANK_PADDED = re.compile(r"(character|bpchar)(\(|$)")
_ROW = "row_"  # prefix of columns that identify a row
_SUMMARY_COLUMNS = (
    "source_table pg_catalog.text, output_table pg_catalog.text, dependent_varname pg_catalog.text[],"
    " independent_varname pg_catalog.text[], dependent_vartype pg_catalog.text[],{class_columns}"
    " buffer_size pg_catalog.int4, normalizing_const pg_catalog.float4, num_classes pg_catalog.int4[],"
    " distribution_rules pg_catalog.text, __internal_gpu_config__ pg_catalog.text,"
    " independent_columns pg_catalog.text[]"
)


@dataclass(frozen=True)
class Classes:
    """The class values of one dependent column.

    Attributes
    ----------
    values : str
        Array literal of the distinct values, NULL first.
    n_values : int
        The number of distinct values.
    width : int
        Width of the one-hot rows: ``n_values`` or more; the rest is padding.
    has_null : bool
        Whether NULL is a class.
    type_sql : str
        The values' type.
    holder, column : Relation or None, str
        The summary table with the values (padded by NULLs), and its column. None: no table has them, so statements get
        ``values`` as a parameter.
    as_index : bool
        Whether rows have their class index, from 0, instead of one-hot labels.
    counts : tuple of int
        Rows of each class in the source table, in the order of the values.
    is_safe : bool
        Whether the type of the summary's values belongs to a superuser, so it is not a user's enum.
    """

    values: str
    n_values: int
    width: int
    has_null: bool
    type_sql: str
    holder: Relation | None
    column: str
    as_index: bool = False
    counts: tuple[int, ...] = ()
    is_safe: bool = True

    @property
    def padded_counts(self) -> list[int]:
        """Rows of each class, 0 for the padding."""
        return [*self.counts, *[0] * (self.width - len(self.counts))]


@dataclass(frozen=True)
class SummaryRow:
    """The row of a packed table's ``_summary``; the class values are passed separately."""

    source_table: str
    output_table: str
    dependent_varname: list[str]
    independent_varname: list[str]
    dependent_vartype: list[str]
    buffer_size: int
    normalizing_const: float
    num_classes: list[int | None]
    distribution_rules: str
    gpu_config: str
    independent_columns: list[str]


@dataclass(frozen=True)
class DistinctValues:
    """The distinct values of a column.

    Attributes
    ----------
    n_values, n_bytes : int
        Their number, NULL included, and the bytes of their texts.
    literal : str
        An array literal of them; empty if they are too many or too long for classes.
    texts, counts : list
        Their texts, and the number of rows of each; [] then.
    """

    n_values: int
    n_bytes: int
    literal: str
    texts: list[str | None]
    counts: list[int]


class SourceQueries:
    """The queries of the source table that count; names are quoted once, here.

    Parameters
    ----------
    session : CallerSession
    source : PackingSource
    """

    def __init__(self, session: CallerSession, source: PackingSource):
        self.session = session
        self.source = source

    def count_rows(self) -> tuple[int, list[tuple[str, bool, int]]]:
        """Return the number of rows; for each column its name, whether it has classes, and its rows with a value."""
        columns = [
            (one.name, column.kind is PackingKind.CLASS) for column in self.source.columns for one in column.sources
        ]
        slots = {f"c{i}": Identifier(name) for i, (name, _) in enumerate(columns)}
        counts = ", ".join(f"pg_catalog.count(s.{{{slot}}}) AS {slot}" for slot in slots)
        (row,) = self._ask(f"SELECT pg_catalog.count(*) AS n_rows, {counts} FROM {{source}} s", slots)
        return row["n_rows"], [(name, has_classes, row[f"c{i}"]) for i, (name, has_classes) in enumerate(columns)]

    def distinct_values(self, column: ColumnToPack) -> DistinctValues:
        """Return a column's distinct values with the rows of each, NULL first; only their number if classes cannot have
        them."""
        order = f"v{_collation(column)} NULLS FIRST"
        few = f"FILTER (WHERE n_values <= {MAX_CLASSES:d} AND n_bytes <= {MAX_CLASS_BYTES:d})"
        (row,) = self._ask(
            # convert by the types' own output functions: the type's owner may have defined a cast to text
            "SELECT e.n_values, e.n_bytes, e.literal, e.literal::pg_catalog.text[] AS texts, e.counts"
            " FROM (SELECT pg_catalog.textin(pg_catalog.array_out("
            f"pg_catalog.array_agg(v ORDER BY {order}) {few})) AS literal,"
            f" pg_catalog.array_agg(n ORDER BY {order}) {few} AS counts,"
            " pg_catalog.max(n_values) AS n_values, pg_catalog.max(n_bytes) AS n_bytes"
            " FROM (SELECT v, n, pg_catalog.count(*) OVER () AS n_values, coalesce(pg_catalog.sum("
            f"pg_catalog.octet_length({column.text('v')})) OVER (), 0) AS n_bytes"
            f" FROM (SELECT s.{{c}}{_collation(column)} AS v, pg_catalog.count(*) AS n FROM {{source}} s"
            " GROUP BY 1) d) w) e",
            {"c": Identifier(column.name)},
        )
        return DistinctValues(
            row["n_values"], row["n_bytes"], row["literal"] or "", row["texts"] or [], row["counts"] or []
        )

    def fits_smallint(self, column: ColumnToPack) -> bool:
        """Return whether all elements of a column of integer arrays fit smallint."""
        (row,) = self._ask(
            "SELECT pg_catalog.bool_and(v.v BETWEEN -32768 AND 32767) AS fits"
            " FROM {source} s, pg_catalog.unnest(s.{c}) AS v",
            {"c": Identifier(column.name)},
        )
        return row["fits"] is not False

    def unseen_classes(self, column: ColumnToPack, classes: Classes, limit: int = 5) -> list[str | None]:
        """Return some of a column's values that are not among the class values."""
        position, slots = class_position(column, classes, "c", 1)
        params, types = class_params(self.session, {column.name: classes}, [column])
        query = statement(
            f"SELECT DISTINCT {column.text('s.{c}')} AS value FROM {{source}} s WHERE {position} IS NULL"
            f" LIMIT {limit:d}",
            source=self.source.relation,
            **slots,
        )
        return [row["value"] for row in self.session.execute(query, params, types)]

    def _ask(self, template: str, slots: Mapping[str, Slot]) -> list[dict[str, Any]]:
        return self.session.execute(statement(template, source=self.source.relation, **slots))


def class_position(column: ColumnToPack, classes: Classes, slot: str, parameter: int) -> tuple[str, dict[str, Slot]]:
    """Return the expression for the 1-based position of a column's value among its class values, and its names.

    It is NULL for a value that is not among them. Of classes that no table has, the statement's parameter of this
    number has the values. The concatenation with an empty array detoasts long values once for each query.
    """
    value = f"s.{{{slot}}}"
    slots: dict[str, Slot] = {slot: Identifier(column.name), f"{slot}_t": SqlType(column.class_type)}
    if classes.holder is None:
        slots[f"{slot}_p"] = StatementParameter(parameter)
        # the cast to text removes the blanks that fill up a char(n), of the values as of the column's value
        cast = "::pg_catalog.bpchar[]" if _BLANK_PADDED.match(classes.type_sql) else ""
        values = f"(SELECT {{{slot}_p}}{cast}::{{{slot}_t}}[])"
    else:
        slots |= {f"{slot}_v": Identifier(classes.column), f"{slot}_h": classes.holder}
        values = f"(SELECT pg_catalog.array_cat(k.{{{slot}_v}}, '{{{{}}}}')::{{{slot}_t}}[] FROM {{{slot}_h}} k)"
    position = f"pg_catalog.array_position({values}, {value}::{{{slot}_t}}{_collation(column)})"
    return position if classes.has_null else f"CASE WHEN {value} IS NOT NULL THEN {position} END", slots


def class_params(
    session: CallerSession, classes: Mapping[str, Classes], columns: Sequence[ColumnToPack]
) -> tuple[list[Any], list[str]]:
    """Return the class values that no table has, as the first parameters of a statement, and their types."""
    given = [
        class_parameter(session, f"{column.class_type}[]", classes[column.name].values)
        for column in columns
        if column.name in classes and classes[column.name].holder is None
    ]
    return [value for value, _ in given], [sql_type for _, sql_type in given]


def _collation(column: ColumnToPack) -> str:
    return ' COLLATE pg_catalog."C"' if column.class_type == "pg_catalog.text" else ""


def row_label(columns: Mapping[str, BytesColumn | list[Any]], row: int, n_before: int) -> str:
    """Return the description of a row of a batch of `SourceTable.rows_query` for messages.

    Parameters
    ----------
    columns : mapping of str to column
        Those of the batch.
    row : int
        Its number in the batch, from 0.
    n_before : int
        Number of rows before the batch.
    """
    naming = {name.removeprefix(_ROW): c for name, c in columns.items() if name.startswith(_ROW)}
    return row_name(naming, row) if naming else f"row {n_before + row + 1} in reading order"


def create_summary(
    session: CallerSession,
    table: Relation,
    summary: SummaryRow,
    classes: list[tuple[str, str, Classes | None]],
    more: Sequence[tuple[str, str, Any]] = (),
) -> None:
    """Create and fill the ``_summary`` table.

    Parameters
    ----------
    session : CallerSession
    table : Relation
        Its name.
    summary : SummaryRow
    classes : list of (str, str, Classes or None)
        For each dependent column: its name, the type of the class values, and these, if it has any.
    more : sequence of (str, str, Any)
        Further columns: name, type of PostgreSQL, value.
    """
    names = {f"v{i}": Identifier(f"{name}_class_values") for i, (name, _, _) in enumerate(classes)}
    types = {f"t{i}": SqlType(type_sql) for i, (_, type_sql, _) in enumerate(classes)}
    columns = "".join(f" {{v{i}}} {{t{i}}}[]," for i in range(len(classes)))
    counts = "".join(f", {{n{i}}} pg_catalog.int8[]" for i in range(len(classes)))
    names |= {f"n{i}": Identifier(f"{name}_class_counts") for i, (name, _, _) in enumerate(classes)}
    template = "CREATE TABLE {table} (" + _SUMMARY_COLUMNS.replace("{class_columns}", columns) + counts
    template += "".join(f", {name} pg_catalog.{type_sql}" for name, type_sql, _ in more) + ")"
    session.execute(statement(template, table=table, **names, **types) + table_form(session))
    params = [
        summary.source_table,
        summary.output_table,
        summary.dependent_varname,
        summary.independent_varname,
        summary.dependent_vartype,
        summary.buffer_size,
        summary.normalizing_const,
        summary.num_classes,
        summary.distribution_rules,
        summary.gpu_config,
        summary.independent_columns,
    ]
    param_types = ["text", "text", "text[]", "text[]", "text[]", "integer", "real", "integer[]", "text", "text"]
    param_types.append("text[]")
    values = ""
    for i, (_, _, known) in enumerate(classes):
        if known is None:
            values += " NULL,"
            continue
        value, param_type = class_parameter(session, f"{types[f't{i}'].sql}[]", known.values)
        params += [value, known.width - known.n_values]
        param_types += [param_type, "integer"]
        literal = f"${len(params) - 1}::{{t{i}}}[]"
        values += f" pg_catalog.array_cat({literal}, pg_catalog.array_fill(NULL::{{t{i}}}, ARRAY[${len(params)}])),"
    counted = ""
    for _, _, known in classes:
        params.append(None if known is None else known.padded_counts)
        param_types.append("bigint[]")
        counted += f", ${len(params)}"
    for _, type_sql, value in more:
        params.append(value)
        param_types.append(type_sql)
        counted += f", ${len(params)}"
    template = "INSERT INTO {table} VALUES ($1, $2, $3, $4, $5," + values + f" $6, $7, $8, $9, $10, $11{counted})"
    session.execute(statement(template, table=table, **types), params, param_types)


def comment_on(session: CallerSession, table: Relation, text: str) -> None:
    """Describe the packing in the packed table's comment; the server quotes the text."""
    (row,) = session.execute(
        "SELECT pg_catalog.format('COMMENT ON TABLE %s IS %L', $1, $2) AS command", [table.sql, text]
    )
    session.execute(row["command"])


def draw_seed() -> int:
    """Draw a seed that fits ``integer``."""
    return secrets.randbelow(1 << 31)
