"""Rows as ``record_send(ROW(...))`` sends them into typed columns; packing and every form of predict read with this.

A record is int32 number of fields, then for each field the oid of its type, int32 length (-1 is NULL) and the value as
its type's send function gives it (``record_send`` in ``src/backend/utils/adt/rowtypes.c``): what COPY BINARY has, with
types. Texts come in the session's ``client_encoding``, which must be UTF8.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.cells import PADDING, Cells, FixedCells, UnreadableValue
from madlib_mop.columns.layout import ArrayLayout, LayoutReader
from madlib_mop.columns.numbers import (
    BigintReader,
    CellReader,
    DateReader,
    IntervalReader,
    MomentReader,
    NumberReader,
    NumericReader,
    TimeReader,
)
from madlib_mop.columns.raw import BOOLEAN, FLOAT4, FLOAT8, INET, UUID, Integers, RawColumn
from madlib_mop.columns.texts import (
    BlobReader,
    TextReader,
    mac_texts,
    network_texts,
    single_char,
    uuid_texts,
    without_trailing_blanks,
)
from madlib_mop.columns.vectors import ArrayReader, PaddedReader, PlainReader, SparseReader
from madlib_mop.errors import InvalidParameter

#: Up to this number of rows, values are read one by one, which is faster than NumPy's fixed cost for each column.
_FEW_ROWS = 24
_HEADER_BYTES = 4
#: Fields of fixed width that are gathered together at most.
_MOST_TOGETHER = 32
_FIELD = struct.Struct(">Ii")

#: The type ``char(n)``: blanks at the end of its values do not count.
BLANK_PADDED = "bpchar"


class _Type(NamedTuple):
    """How a type is read, and for a type of PostgreSQL itself, what its catalog calls it.

    ``sql_name`` is the name that ``format_type`` gives without a modifier, if it is not that of ``pg_type``.
    """

    reader: CellReader
    oid: int | None = None
    sql_name: str | None = None


class _Number(NamedTuple):
    """A type of numbers and that of its arrays, which are vectors."""

    reader: NumberReader
    oid: int
    array_oid: int
    sql_name: str | None = None


_NUMBERS = {
    "int2": _Number(NumberReader(">i2"), 21, 1005, "smallint"),
    "int4": _Number(NumberReader(">i4"), 23, 1007, "integer"),
    "int8": _Number(BigintReader(), 20, 1016, "bigint"),
    "float4": _Number(NumberReader(">f4", form=FLOAT4), 700, 1021, "real"),
    "float8": _Number(NumberReader(">f8", form=FLOAT8), 701, 1022, "double precision"),
    "numeric": _Number(NumericReader(), 1700, 1231),
    "bool": _Number(NumberReader("|u1", BOOLEAN), 16, 1000, "boolean"),
}
#: The types that are read, by their names in ``pg_type``.
_TYPES = {
    **{name: _Type(one.reader, one.oid, one.sql_name) for name, one in _NUMBERS.items()},
    **{
        f"_{name}": _Type(ArrayReader(one.reader), one.array_oid, f"{one.sql_name or name}[]")
        for name, one in _NUMBERS.items()
    },
    "oid": _Type(NumberReader(">u4"), 26),
    "date": _Type(DateReader(), 1082),
    "timestamp": _Type(MomentReader(), 1114, "timestamp without time zone"),
    "timestamptz": _Type(MomentReader(), 1184, "timestamp with time zone"),
    "time": _Type(TimeReader(), 1083, "time without time zone"),
    "timetz": _Type(TimeReader(12), 1266, "time with time zone"),
    "interval": _Type(IntervalReader(), 1186),
    "text": _Type(TextReader(), 25),
    "varchar": _Type(TextReader(), 1043, "character varying"),
    "name": _Type(TextReader(), 19),
    "enum": _Type(TextReader()),
    "citext": _Type(TextReader()),
    BLANK_PADDED: _Type(TextReader(render=without_trailing_blanks), 1042, "character"),
    "char": _Type(TextReader(render=single_char), 18, '"char"'),
    "uuid": _Type(TextReader(UUID, uuid_texts), 2950),
    "inet": _Type(TextReader(INET, network_texts), 869),
    "cidr": _Type(TextReader(INET, network_texts), 650),
    "macaddr": _Type(TextReader(INET, mac_texts), 829),
    "macaddr8": _Type(TextReader(INET, mac_texts), 774),
    "bytea": _Type(BlobReader(), 17),
    "vector": _Type(PlainReader(">f4")),
    "halfvec": _Type(PlainReader(">f2")),
    "sparsevec": _Type(SparseReader()),
}
_READERS = {name: one.reader for name, one in _TYPES.items()}
#: Names in SQL, without a modifier, and those of ``pg_type``.
_SQL_NAMES = {"decimal": "numeric"} | {one.sql_name: name for name, one in _TYPES.items() if one.sql_name}
#: Names of types, for errors.
_OIDS = {114: "json", 3802: "jsonb"} | {one.oid: one.sql_name or name for name, one in _TYPES.items() if one.oid}


class ChangedType(InvalidParameter):
    """A column has another type than the one that it had.

    Attributes
    ----------
    column : str
    """

    def __init__(self, column: str, expected: str, received: int):
        now = _OIDS.get(received, f"the type with oid {received}")
        super().__init__(
            f"column '{column}' is {now}, where {expected} is expected",
            hint=f"Cast it, in a view or in the row: CAST({column} AS {expected}). Or pack the table again.",
        )
        self.column = column


class ChangedColumns(InvalidParameter):
    """A row has another number of columns than is expected."""

    def __init__(self, expected: int, received: int):
        super().__init__(f"a row has {received} columns, where {expected} are expected")


class UnreadableRecord(InvalidParameter):
    """The bytes of a row are no record."""

    def __init__(self, row: int, problem: str = "they do not end where their fields do"):
        super().__init__(f"the bytes of row {row + 1} of a batch are no record of PostgreSQL: {problem}")
        self.row = row


@dataclass(frozen=True)
class Field:
    """A column of the rows that are read.

    Attributes
    ----------
    name : str
        Its name, for errors.
    type_name : str
        Its type as SQL writes it, for errors.
    oid : int
        Oid of its type, of a domain's or an enum's own: what ``record_send`` sends.
    reader : str
        What `reader_of` gives for its type, or for the base type of a domain.
    is_folded : bool
        Whether its collation is nondeterministic: SQL may compare its texts without regard to case or accents.
    padded_to : int or None
        Of arrays: read them as ones of this number of elements, with absent ones; None reads arrays of one width.
    layout : ArrayLayout or None
        Of arrays: they are sent in their memory layout, as bytea; None for the form of their send function.
    """

    name: str
    type_name: str
    oid: int
    reader: str
    padded_to: int | None = None
    is_folded: bool = False
    layout: ArrayLayout | None = None


def not_an_input(name: str, type_sql: str, hint: str | None = None) -> InvalidParameter:
    """Return the error for a column of a type that `reader_of` does not know."""
    return InvalidParameter(f"column {name!r} is of type {type_sql}, which cannot be an input", hint=hint)


def reader_of(type_name: str) -> str | None:
    """Return the name of the reader for a type, or None if no reader knows it.

    Parameters
    ----------
    type_name : str
        Of a base type, as ``pg_type.typname`` (``int4``, ``_float8``) or as ``format_type`` has it (``numeric(12,2)``,
        ``integer[]``, ``interval day to second(3)``); the word ``enum`` for every enum.
    """
    name = re.sub(r"\([^)]*\)", "", type_name).strip()
    brackets = re.fullmatch(r"(.*?)(?:\[\d*\])+", name)
    if brackets:
        name = brackets[1].strip()
    name = "interval" if name.startswith("interval ") else _SQL_NAMES.get(name, name)  # interval day to second
    if brackets:
        name = f"_{name}"
    return name if name in _READERS else None


def family_of(reader: str) -> str:
    """Return the name of the family of the columns that a reader makes; `madlib_mop.columns.families` has families."""
    return _READERS[reader].family


class RecordReader:
    """Reads batches of records with the same columns.

    Parameters
    ----------
    fields : sequence of Field
        The columns in their order.
    """

    def __init__(self, fields: Sequence[Field]):
        self.fields = tuple(fields)
        self._readers = [reader_for(field) for field in self.fields]
        self._widths = [reader.n_bytes for reader in self._readers]  # None also once a NULL was found
        self._headers = [
            _FIELD.pack(field.oid, width) if width is not None else b""
            for field, width in zip(self.fields, self._widths, strict=True)
        ]

    def read(
        self, data: bytes | bytearray | memoryview, lengths: npt.NDArray[np.integer] | Sequence[int]
    ) -> list[RawColumn]:
        """Return the columns of a batch, in the order of the fields.

        Parameters
        ----------
        data : bytes, bytearray or memoryview
            The rows' records, one after the other.
        lengths : numpy.ndarray or sequence of int
            Bytes of each row.

        Raises
        ------
        ChangedColumns, ChangedType
            If a row has other columns than the fields.
        UnreadableValue
            If a value cannot be used: a date that no timestamp holds, an array with a NULL element or with another
            number of elements than the rows before it.
        UnreadableRecord
            If the bytes are no records.
        """
        if 0 < len(lengths) <= _FEW_ROWS:
            return self._read_few(bytes(data), [int(length) for length in lengths])
        return self._read_many(data, np.asarray(lengths, np.int64))

    def _read_many(self, data: bytes | bytearray | memoryview, lengths: Integers) -> list[RawColumn]:
        ends = np.cumsum(lengths)
        if (lengths < _HEADER_BYTES).any() or (ends[-1] if len(ends) else 0) != len(data):
            raise UnreadableRecord(int(np.argmax(lengths < _HEADER_BYTES)), "their lengths are wrong")
        padded = b"".join((data, bytes(PADDING)))
        starts = ends - lengths
        counts = Cells("", padded, starts, lengths).gather(">i4")
        if (counts != len(self.fields)).any():
            raise ChangedColumns(len(self.fields), int(counts[np.argmax(counts != len(self.fields))]))
        starts = starts + _HEADER_BYTES
        columns: list[RawColumn] = []
        while len(columns) < len(self.fields):
            first = len(columns)
            found: Sequence[Cells] = self._fixed_cells(first, padded, starts, ends)
            if not found:
                found = [self._cells(self.fields[first], padded, starts, ends)]
                if found[0].missing.any():
                    self._widths[first] = None
            starts = found[-1].starts + np.maximum(found[-1].lengths, 0)
            for reader, cells in zip(self._readers[first:], found, strict=False):
                columns.append(_read(reader, cells))
        if (starts != ends).any():
            raise UnreadableRecord(int(np.argmax(starts != ends)))
        return columns

    def _fixed_cells(self, first: int, data: bytes, starts: Integers, ends: Integers) -> list[FixedCells]:
        """Return the cells of neighbouring fields of fixed width without NULL, from a field on; [] if it is not such.

        They are gathered together, which takes hardly longer than one value of one field.
        """
        widths = list(takewhile(lambda width: width is not None, self._widths[first : first + _MOST_TOGETHER]))
        n_bytes = sum(_FIELD.size + (width or 0) for width in widths)
        if not widths or not len(starts) or (starts + n_bytes > ends).any():
            return []
        block = np.ndarray((len(data) - n_bytes + 1,), f"V{n_bytes}", data, 0, (1,))[starts]
        found: list[FixedCells] = []
        place = 0
        for field, header, width in zip(self.fields[first:], self._headers[first:], widths, strict=False):
            headers = np.ndarray(block.shape, np.uint64, block, place, block.strides)
            if (headers != np.frombuffer(header, np.uint64)).any():
                break
            place += _FIELD.size
            lengths = np.broadcast_to(np.int64(width or 0), starts.shape)
            found.append(FixedCells(field.name, data, starts + place, lengths, block, place))
            place += width or 0
        return found

    def _cells(self, field: Field, data: bytes, starts: Integers, ends: Integers) -> Cells:
        """Return the cells of the field whose oid and length begin at ``starts``."""
        begins = starts + _FIELD.size
        if (begins > ends).any():
            raise UnreadableRecord(int(np.argmax(begins > ends)))
        header = Cells(field.name, data, starts, ends).gather("V8").view(">u4").reshape(-1, 2)
        oids = header[:, 0].astype(np.int64)
        if (oids != field.oid).any():
            raise ChangedType(field.name, field.type_name, int(oids[np.argmax(oids != field.oid)]))
        sizes = header[:, 1].view(">i4").astype(np.int64)
        wrong = (sizes < -1) | (begins + sizes > ends)
        if wrong.any():
            raise UnreadableRecord(int(np.argmax(wrong)))
        return Cells(field.name, data, begins, sizes)

    def _read_few(self, data: bytes, lengths: list[int]) -> list[RawColumn]:
        values: list[list[object]] = [[] for _ in self.fields]
        position = 0
        for row, length in enumerate(lengths):
            end = position + length
            if length < _HEADER_BYTES or end > len(data):
                raise UnreadableRecord(row, "their lengths are wrong")
            count = int.from_bytes(data[position : position + _HEADER_BYTES], "big", signed=True)
            if count != len(self.fields):
                raise ChangedColumns(len(self.fields), count)
            position += _HEADER_BYTES
            for field, reader, found in zip(self.fields, self._readers, values, strict=True):
                if position + _FIELD.size > end:
                    raise UnreadableRecord(row)
                oid, n_bytes = _FIELD.unpack_from(data, position)
                if oid != field.oid:
                    raise ChangedType(field.name, field.type_name, oid)
                position += _FIELD.size
                if n_bytes == -1:
                    found.append(None)
                    continue
                if n_bytes < 0 or position + n_bytes > end:
                    raise UnreadableRecord(row)
                try:
                    found.append(reader.one(data[position : position + n_bytes]))
                except ValueError as problem:
                    raise UnreadableValue(field.name, row, str(problem)) from None
                position += n_bytes
            if position != end:
                raise UnreadableRecord(row)
        if position != len(data):
            raise UnreadableRecord(len(lengths) - 1, "their lengths are wrong")
        return [
            reader.column(found, field.name)
            for field, reader, found in zip(self.fields, self._readers, values, strict=True)
        ]


def reader_for(field: Field) -> CellReader:
    """Return what reads the values of a field."""
    if field.layout is not None:
        return LayoutReader(field.layout)
    reader = _READERS[field.reader]
    if field.padded_to is None or not isinstance(reader, ArrayReader):
        return reader
    return PaddedReader(reader, field.padded_to)


def value_of(record: bytes, place: int) -> bytes:
    """Return the bytes of one field of a record that was read, by its number from 0; it is not NULL."""
    position = _HEADER_BYTES
    for _ in range(place):
        position += _FIELD.size + max(0, _FIELD.unpack_from(record, position)[1])
    begin = position + _FIELD.size
    return record[begin : begin + _FIELD.unpack_from(record, position)[1]]


def _read(reader: CellReader, cells: Cells) -> RawColumn:
    try:
        return reader.read(cells)
    except ValueError as problem:  # the values were converted together: find the row
        for row in np.flatnonzero(~cells.missing).tolist():
            try:
                reader.one(cells.at(row))
            except ValueError as problem_there:
                raise UnreadableValue(cells.column, row, str(problem_there)) from None
        raise UnreadableRecord(0, str(problem)) from None
