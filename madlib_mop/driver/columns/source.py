"""The columns of a source table with their base types, and the statement that reads its rows as bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from madlib_mop.catalog.names import Identifier, Relation, Slot, statement
from madlib_mop.columns.joined import JoinedForm, form_of
from madlib_mop.columns.records import Field, reader_of
from madlib_mop.driver.data.copied import CopiedColumn
from madlib_mop.driver.data.engine import engine_of_table
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.engines.base.system_columns import in_range, ranges_of_blocks, sent
from madlib_mop.errors import InvalidParameter

#: Types of extensions: extension -> names of its types.
_EXTENSION_TYPES = {"vector": ("vector", "halfvec", "sparsevec")}
#: Greatest number of fields of a row for `record_send`: the limit of a SELECT list.
MAX_FIELDS = 1600

#: The condition of a query for a random share of the rows.
SAMPLED = " WHERE pg_catalog.random() < $1"
#: Blocks that are read together: 2 MiB, some ten thousand rows of a usual table.
_BLOCKS = 256
#: Readers of text types, whose values are sent in the client's encoding.
_TEXTS = ("text", "varchar", "bpchar", "name", "char", "enum", "citext")
_BYTEA_OID = 17
_ENCODING = (
    "SELECT pg_catalog.pg_client_encoding()::pg_catalog.text AS name, pg_catalog.getdatabaseencoding()::pg_catalog.text"
    " AS stored"
)
#: Columns of the query of blocks that are joined by themselves at most: a SELECT list has 1,664 at most.
_MOST_JOINED = 1000

# Resolves a domain over a domain to its innermost base type. record_send names a field by its declared type.
_COLUMNS = """
WITH RECURSIVE chain (attnum, oid, typtype, typbasetype, depth) AS (
    SELECT a.attnum, t.oid, t.typtype, t.typbasetype, 1
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT c.attnum, t.oid, t.typtype, t.typbasetype, c.depth + 1
    FROM chain c JOIN pg_catalog.pg_type t ON t.oid = c.typbasetype WHERE c.typtype = 'd'
)
SELECT a.attname::pg_catalog.text AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type_sql,
       a.atttypid::pg_catalog.int8 AS oid, b.typname::pg_catalog.text AS base, b.typtype = 'e' AS is_enum,
       CASE WHEN b.typtype = 'e' THEN coalesce(ARRAY(SELECT e.enumlabel::pg_catalog.text
           FROM pg_catalog.pg_enum e WHERE e.enumtypid = b.oid ORDER BY e.enumsortorder), ARRAY[]::pg_catalog.text[])
       END AS labels,
       l.oid IS NOT NULL AS is_folded,
       n.nspname = 'pg_catalog' AS is_builtin, x.extname::pg_catalog.text AS extension, o.rolsuper AS is_superusers
FROM chain c
JOIN pg_catalog.pg_attribute a ON a.attrelid = $1::pg_catalog.oid AND a.attnum = c.attnum
JOIN pg_catalog.pg_type b ON b.oid = c.oid
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation AND NOT l.collisdeterministic
JOIN pg_catalog.pg_namespace n ON n.oid = b.typnamespace
JOIN pg_catalog.pg_roles o ON o.oid = b.typowner
LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = b.oid
    AND d.deptype = 'e' AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
WHERE c.typtype <> 'd' ORDER BY c.attnum
"""


@dataclass(frozen=True)
class SourceColumn:
    """One column of the source table.

    Attributes
    ----------
    name : str
    type_sql : str
        As ``format_type`` writes it; of a domain, its own name.
    field : Field or None
        How its bytes are read; None where values of its type cannot be.
    labels : tuple of str or None
        Of an enum, in its order.
    """

    name: str
    type_sql: str
    field: Field | None
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SourceTable:
    """A source table and its columns, in the order of the table.

    Attributes
    ----------
    relation : Relation
    text : str
        Its name as the caller wrote it.
    columns : tuple of SourceColumn
    naming : tuple of str
        The system columns that name a row of it; () where there are none.
    converts : bool
        Whether texts are converted to UTF-8 by the query, since the client's encoding is another.
    is_utf8 : bool
        Whether texts are stored and sent as UTF-8, so that their lengths are the same.
    params, types : tuple
        The parameters of the queries of all rows, and their types.
    what : str
        The argument that named it, for messages.
    """

    relation: Relation
    text: str
    columns: tuple[SourceColumn, ...]
    naming: tuple[str, ...]
    converts: bool = False
    params: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    what: str = field(default="source_table", kw_only=True)
    is_utf8: bool = field(default=False, kw_only=True)

    @property
    def fields(self) -> list[Field]:
        """The columns that can be read."""
        return [column.field for column in self.columns if column.field is not None]

    def column(self, name: str) -> SourceColumn | None:
        """Return the column of that name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    def rows_query(
        self, fields: Sequence[Field], copied: Sequence[CopiedColumn] = (), sampled: bool = False
    ) -> str:
        """Return the SELECT of all rows, or of a share ``$1`` of them that is drawn at random.

        Its columns are ``r``, the bytes of `record_send` of these fields; what names a row; and ``k0``, ``k1``, ...,
        the copied columns as text.
        """
        row, slots = self._row(fields)
        names = "".join(f", {sent(f's.{column}', column)} AS row_{column}" for column in self.naming)
        names += "".join(f", {one.text(f's.{{k{i}}}')} AS k{i}" for i, one in enumerate(copied))
        slots |= {f"k{i}": Identifier(one.column.name) for i, one in enumerate(copied)}
        query = f"SELECT {row} AS r{names} FROM {{source}} s" + (SAMPLED if sampled else "")
        return statement(query, source=self.relation, **slots)

    def blocks_query(self, fields: Sequence[Field]) -> str:
        """Return the SELECT of all rows of a table that can be read by blocks, `_BLOCKS` of them in one row.

        Its columns have the values of many rows, one after the other: ``r`` the records of `rows_query` with the fields
        that are not `joined`, and ``lengths`` the bytes of each of them, an array of ``integer`` in its memory layout;
        those that name the rows; and of each joined field, by its number i, ``v<i>`` an array in its memory layout,
        texts or numerics, and ``l<i>`` the array of the lengths of these. They are NULL where a range of blocks has no
        visible row. An aggregate costs less than a row of the result for each row of the table, and less than a record
        if each column has its own.
        """
        joined = self.joined(fields)
        rest = [one for i, one in enumerate(fields) if i not in joined]
        inner, outer = [], []
        slots: dict[str, Slot] = {}
        if rest:
            row, slots = self._row(rest)
            inner.append(f"{row} AS r")
            outer += ["pg_catalog.string_agg(t.r, '') AS r", f"{_joined('pg_catalog.octet_length(t.r)')} AS lengths"]
        for i, form in joined.items():
            slots[f"v{i}"] = Identifier(fields[i].name)
            value, joined_value = f"s.{{v{i}}}", f"pg_catalog.string_agg(t.v{i}, '')"
            if form is JoinedForm.NUMERIC:
                value = f"pg_catalog.numeric_send({value})"
            elif form is JoinedForm.TEXT:
                joined_value = f"pg_catalog.textsend({joined_value})"
            else:
                joined_value = _joined(f"t.v{i}")
            inner.append(f"{value} AS v{i}")
            outer.append(f"{joined_value} AS v{i}")
            if form is not JoinedForm.ARRAY:
                outer.append(f"{_joined(f'pg_catalog.octet_length(t.v{i})')} AS l{i}")
        for column in self.naming:
            inner.append(f"{sent(f's.{column}', column)} AS row_{column}")
            outer.append(f"pg_catalog.string_agg(t.row_{column}, '') AS row_{column}")
        query = (
            f"SELECT b.* FROM {ranges_of_blocks(self.relation, _BLOCKS)}, LATERAL (SELECT {', '.join(outer)}"
            f" FROM (SELECT {', '.join(inner)} FROM ONLY {{source}} s WHERE {in_range('s', _BLOCKS)}"
            " OFFSET 0) AS t) AS b"
        )
        return statement(query, source=self.relation, **slots)

    def joined(self, fields: Sequence[Field]) -> dict[int, JoinedForm]:
        """Return the fields that `blocks_query` joins by themselves, by their numbers, and how."""
        found: dict[int, JoinedForm] = {}
        n_columns = 0
        for i, one in enumerate(fields):
            form = form_of(one)
            if form is None or (form is JoinedForm.TEXT and not self.is_utf8):
                continue
            n_columns += 1 if form is JoinedForm.ARRAY else 2
            if n_columns <= _MOST_JOINED:
                found[i] = form
        return found

    def sent(self, fields: Sequence[Field]) -> list[Field]:
        """Return the fields as the rows of `rows_query` have them: texts that it converts are sent as bytea."""
        return [replace(f, oid=_BYTEA_OID) if self.converts and f.reader in _TEXTS else f for f in fields]

    def _row(self, fields: Sequence[Field]) -> tuple[str, dict[str, Slot]]:
        """Return the expression of a row's bytes, and the names in it."""
        slots: dict[str, Slot] = {f"c{i}": Identifier(field.name) for i, field in enumerate(fields)}
        row = ", ".join(self._value(f"s.{{{slot}}}", field) for slot, field in zip(slots, fields, strict=True))
        return f"pg_catalog.record_send(ROW({row}))", slots

    def _value(self, value: str, field: Field) -> str:
        if not (self.converts and field.reader in _TEXTS):
            return value
        text = f"{value}::pg_catalog.text"
        # defence: enums-without-casts
        if field.reader == "enum":  # without a cast, because the enum's owner may have defined one
            text = f"pg_catalog.textin(pg_catalog.enum_out({value}))"
        elif field.reader == "bpchar":  # a cast would remove the blanks, which other clients receive
            text = f"pg_catalog.textin(pg_catalog.bpcharout({value}))"
        return f"pg_catalog.convert_to({text}, 'UTF8')"


def _joined(value: str) -> str:
    """Return the SQL expression of an array with the values of all rows, in its memory layout."""
    return f"madlib_mop.array_bytes(pg_catalog.array_agg({value}))"


def read_source(session: CallerSession, name: str | None, what: str = "source_table") -> SourceTable:
    """Find a source table and its columns.

    Raises
    ------
    UndefinedTable, InsufficientPrivilege
        If it is not there, or a superuser calls and the table is not a superuser's.
    InvalidParameter
        If it has no column, or more than a row of bytes can have.
    """
    relation = session.relation(name, what, any_type=True)
    found = session.execute(_COLUMNS, [relation.oid], ["bigint"])
    if not found:
        raise InvalidParameter(f"{what} has no columns. Received: {name!r}")
    if len(found) > MAX_FIELDS:
        raise InvalidParameter(
            f"{what} has {len(found)} columns; at most {MAX_FIELDS} can be read. Received: {name!r}",
            hint="Make a view with those that matter, or put numbers into an array.",
        )
    columns = []
    for row in found:
        known = row["is_builtin"] or row["base"] in _EXTENSION_TYPES.get(row["extension"] or "", ())
        base = "enum" if row["is_enum"] else row["base"]
        # The bytes of an enum are its label, whoever owns the type; those of another type come from its owner's send
        # function.
        # defence: types-of-postgresql = reader_of(base)
        reader = reader_of(base) if row["is_enum"] or (known and row["is_superusers"]) else None
        field = None
        if reader is not None:
            field = Field(row["name"], row["type_sql"], row["oid"], reader, is_folded=row["is_folded"])
        labels = tuple(row["labels"]) if row["labels"] is not None else None
        columns.append(SourceColumn(row["name"], row["type_sql"], field, labels))
    assert name is not None, "a relation was found"
    encoding = session.execute(_ENCODING)[0]
    converts = encoding["name"] != "UTF8"
    is_utf8 = not converts and encoding["stored"] == "UTF8"
    naming = engine_of_table(session, relation).naming_columns(session, relation)
    return SourceTable(relation, name.strip(), tuple(columns), naming, converts, what=what, is_utf8=is_utf8)
