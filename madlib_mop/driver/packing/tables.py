"""The statements of the preprocessors: queries of the source table, and creation of the packed table and its summary.

Everything runs in the caller's session, with the caller's rights.
"""

import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.names import Identifier, Relation, Slot, SqlType, StatementParameter, statement
from madlib_mop.driver.data.class_values import class_parameter
from madlib_mop.driver.data.engine import engine_of_table, table_form
from madlib_mop.driver.packing.columns import ColumnToPack, PackingKind, PackingSource, as_float4
from madlib_mop.driver.session.caller import Batch, BytesColumn, CallerSession, batch_limits
from madlib_mop.driver.session.relations import Column
from madlib_mop.engines.base.system_columns import row_name, sent
from madlib_mop.errors import NotReady

MAX_CLASSES = 1 << 15
#: Of the texts of a column's classes. They are sent twice in the header of a frame, with up to six bytes a character.
MAX_CLASS_BYTES = 16 << 20
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
    """The queries of the source table; names are quoted once, here.

    Parameters
    ----------
    session : CallerSession
    source : PackingSource
    """

    def __init__(self, session: CallerSession, source: PackingSource):
        self.session = session
        self.source = source
        self._slots: dict[str, Slot] = {"source": source.relation}
        for i, column in enumerate(source.columns):
            self._slots.update({slot: Identifier(one.name) for slot, one in _slots_of(i, column).items()})

    def count_rows(self) -> tuple[int, list[tuple[str, bool, int]]]:
        """Return the number of rows; for each column its name, whether it has classes, and its rows with a value."""
        columns = [
            (slot, one.name, column.kind is PackingKind.CLASS)
            for i, column in enumerate(self.source.columns)
            for slot, one in _slots_of(i, column).items()
        ]
        counts = ", ".join(f"pg_catalog.count(s.{{{slot}}}) AS {slot}" for slot, _, _ in columns)
        (row,) = self._ask(f"SELECT pg_catalog.count(*) AS n_rows, {counts} FROM {{source}} s")
        return row["n_rows"], [(name, has_classes, row[slot]) for slot, name, has_classes in columns]

    def distinct_values(self, i: int) -> "DistinctValues":
        """Return column i's distinct values with the rows of each, NULL first; only their number if classes cannot have
        them."""
        order = f"v{self._collation(i)} NULLS FIRST"
        few = f"FILTER (WHERE n_values <= {MAX_CLASSES:d} AND n_bytes <= {MAX_CLASS_BYTES:d})"
        (row,) = self._ask(
            # convert by the types' own output functions: the type's owner may have defined a cast to text
            "SELECT e.n_values, e.n_bytes, e.literal, e.literal::pg_catalog.text[] AS texts, e.counts"
            " FROM (SELECT pg_catalog.textin(pg_catalog.array_out("
            f"pg_catalog.array_agg(v ORDER BY {order}) {few})) AS literal,"
            f" pg_catalog.array_agg(n ORDER BY {order}) {few} AS counts,"
            " pg_catalog.max(n_values) AS n_values, pg_catalog.max(n_bytes) AS n_bytes"
            " FROM (SELECT v, n, pg_catalog.count(*) OVER () AS n_values, coalesce(pg_catalog.sum("
            f"pg_catalog.octet_length({self.source.columns[i].text('v')})) OVER (), 0) AS n_bytes"
            f" FROM (SELECT s.{{c{i}}}{self._collation(i)} AS v, pg_catalog.count(*) AS n FROM {{source}} s"
            " GROUP BY 1) d) w) e"
        )
        return DistinctValues(
            row["n_values"], row["n_bytes"], row["literal"] or "", row["texts"] or [], row["counts"] or []
        )

    def class_counts(self, i: int, classes: Classes) -> tuple[int, ...]:
        """Return the number of rows of each class value in column i."""
        rows = self._ask(
            "SELECT p.position, pg_catalog.count(*) AS n FROM"
            f" (SELECT {self._position(i, f's.{{c{i}}}', classes)} AS position FROM {{source}} s) p"
            " WHERE p.position IS NOT NULL GROUP BY 1",
            {i: classes},
        )
        found = {row["position"]: row["n"] for row in rows}
        return tuple(found.get(position, 0) for position in range(1, classes.width + 1))

    def special_number(self, i: int) -> str | None:
        """Return NaN or an infinity if scalar column i of a floating type has one."""
        rows = self._ask(
            f"SELECT s.{{c{i}}}::pg_catalog.text AS value FROM {{source}} s"
            f" WHERE s.{{c{i}}}::pg_catalog.text IN ('NaN', 'Infinity', '-Infinity') LIMIT 1"
        )
        return rows[0]["value"] if rows else None

    def fits_smallint(self, i: int) -> bool:
        """Return whether all elements of integer array column i fit smallint."""
        (row,) = self._ask(
            "SELECT pg_catalog.bool_and(v.v BETWEEN -32768 AND 32767) AS fits"
            f" FROM {{source}} s, pg_catalog.unnest(s.{{c{i}}}) AS v"
        )
        return row["fits"] is not False

    def unseen_classes(self, i: int, classes: Classes, limit: int = 5) -> list[str | None]:
        """Return some of column i's values that are not among the class values."""
        rows = self._ask(
            f"SELECT DISTINCT {self.source.columns[i].text(f's.{{c{i}}}')} AS value FROM {{source}} s"
            f" WHERE {self._position(i, f's.{{c{i}}}', classes)} IS NULL LIMIT {limit:d}",
            {i: classes},
        )
        return [row["value"] for row in rows]

    def first_row(self) -> dict[int, bytes]:
        """Return the raw value of each column but the classes', of any one row."""
        wanted = [i for i, column in enumerate(self.source.columns) if column.kind is not PackingKind.CLASS]
        values = ", ".join(f"{self._raw(i, self._value(i), None)} AS c{i}" for i in wanted)
        rows = self._ask(f"SELECT {values} FROM {{source}} s LIMIT 1")
        if not rows:
            raise NotReady(f"{self.source.relation} had rows, and now has none", hint="Call again.")
        return {i: rows[0][f"c{i}"] for i in wanted}

    def stream(self, classes: dict[int, Classes], seed: int | None, batch_rows: int) -> Generator[Batch, None, None]:
        """Yield the raw values as bytea columns ``c0`` ..., and the system columns that name a row (`row_label`).

        With a seed, the order depends only on it and on the rows' content, not on their storage: rows are sorted by
        the SHA-256 of seed and content. The inner query sorts rows whose arrays are still TOAST pointers;
        OFFSET 0 prevents flattening, so only the outer query reads them. The outer query is ordered too: that costs
        nothing here, and Greenplum does not preserve the order of an inner query. Without a seed, the order is that of
        a scan; for a distributed table, where a scan has no order, it is that of seed 0.
        """
        if seed is None and not engine_of_table(self.session, self.source.relation).keeps_order:
            seed = 0
        indices = range(len(self.source.columns))
        inner = ", ".join(map(self._value, indices))
        names = ", ".join(f"c{i}" for i in indices)
        given, given_types = self._class_params(classes)
        outer = ", ".join(f"{self._raw(i, f't.c{i}', classes.get(i))} AS c{i}" for i in indices)
        for column in self.source.naming:
            inner, names = f"{inner}, s.{column}", f"{names}, {_ROW}{column}"
            outer += f", {sent(f't.{_ROW}{column}', column)} AS {_ROW}{column}"
        order = outer_order = ""
        if seed is not None:
            content = " || ".join(
                f"coalesce({self._raw(i, self._value(i), classes.get(i))}, ''::pg_catalog.bytea)" for i in indices
            )
            # Compare in hexadecimal, which sorts in byte order: Greenplum 7 sorts bytea from 80 to ff, then 00 to 7f.
            digest = f"pg_catalog.sha256(pg_catalog.int8send(${len(given) + 1}) || {content})"
            inner = f"{inner}, pg_catalog.encode({digest}, 'hex') COLLATE pg_catalog.\"C\""
            names = f"{names}, shuffled"
            order, outer_order = f" ORDER BY {names.count(',') + 1} OFFSET 0", " ORDER BY t.shuffled"
        template = f"SELECT {outer} FROM (SELECT {inner} FROM {{source}} s{order}) AS t ({names}){outer_order}"
        query = statement(template, **self._slots, **self._class_slots(classes))
        params = [*given, *([] if seed is None else [seed])]
        types = [*given_types, *([] if seed is None else ["bigint"])]
        has_images = any(column.kind is PackingKind.IMAGE for column in self.source.columns)
        return self.session.stream(query, params, types, *batch_limits(batch_rows, has_images))

    def _ask(self, template: str, classes: Mapping[int, Classes] | None = None) -> list[dict[str, Any]]:
        slots = self._class_slots(classes or {})
        return self.session.execute(statement(template, **self._slots, **slots), *self._class_params(classes or {}))

    def _value(self, i: int) -> str:
        """Return the expression of a column's value in the source table ``s``."""
        column = self.source.columns[i]
        if not column.parts:
            return f"s.{{c{i}}}"
        return f"ARRAY[{', '.join(as_float4(f's.{{{slot}}}', one) for slot, one in _slots_of(i, column).items())}]"

    def _raw(self, i: int, value: str, classes: Classes | None) -> str:
        """Return the expression that converts a column's value to bytes."""
        column = self.source.columns[i]
        if column.kind is PackingKind.CLASS:
            assert classes is not None, "a column of classes has their values"
            return f"pg_catalog.int4send({self._position(i, value, classes)})"
        return column.raw(value)

    def _position(self, i: int, value: str, classes: Classes) -> str:
        """Return the expression for a value's 1-based position among the class values; NULL if it is not among them.

        The concatenation with an empty array detoasts long values once for each query.
        """
        values = f"(SELECT pg_catalog.array_cat(k.{{v{i}}}, '{{{{}}}}')::{{t{i}}}[] FROM {{h{i}}} k)"
        if classes.holder is None:
            values = f"(SELECT {{p{i}}}::{{t{i}}}[])"
        position = f"pg_catalog.array_position({values}, {value}::{{t{i}}}{self._collation(i)})"
        return position if classes.has_null else f"CASE WHEN {value} IS NOT NULL THEN {position} END"

    def _collation(self, i: int) -> str:
        return ' COLLATE pg_catalog."C"' if self.source.columns[i].class_type == "pg_catalog.text" else ""

    def _class_slots(self, classes: Mapping[int, Classes]) -> dict[str, Slot]:
        slots: dict[str, Slot] = {}
        n_given = 0
        for i, known in classes.items():
            slots[f"t{i}"] = SqlType(self.source.columns[i].class_type)
            if known.holder is None:
                n_given += 1
                slots[f"p{i}"] = StatementParameter(n_given)
            else:
                slots[f"v{i}"] = Identifier(known.column)
                slots[f"h{i}"] = known.holder
        return slots

    def _class_params(self, classes: Mapping[int, Classes]) -> tuple[list[Any], list[str]]:
        """Return the class values that no table has, as the first parameters of a statement, and their types."""
        given = [
            class_parameter(self.session, f"{self.source.columns[i].class_type}[]", known.values)
            for i, known in classes.items()
            if known.holder is None
        ]
        return [value for value, _ in given], [sql_type for _, sql_type in given]


def row_label(columns: Mapping[str, BytesColumn | list[Any]], row: int, n_before: int) -> str:
    """Return the description of a row of a batch of `SourceQueries.stream` for messages.

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


def _slots_of(i: int, column: ColumnToPack) -> dict[str, Column]:
    """Return the source table's columns of column i, by their slots in statements."""
    return {f"c{i}_{k}": part for k, part in enumerate(column.parts)} or {f"c{i}": column.column}


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
