"""The command transform: writes what a network gets of each row of a table, in columns that have names.

Rows are read as `pack_columns` reads them, and encoded by the one encoder: a value has the bits that packing has.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from madlib_mop.catalog.names import MAX_NAME_BYTES, SYSTEM_COLUMNS, Identifier, Relation, Slot, statement
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.raw import RawColumn
from madlib_mop.driver.columns.describing import read_preprocessor
from madlib_mop.driver.columns.recorded import batch_rows_of, needed_fields
from madlib_mop.driver.columns.rows import names_of, naming_rows, read_batches
from madlib_mop.driver.columns.source import SourceTable, read_source
from madlib_mop.driver.data.copied import CopiedColumn, array_literal, check_copied, quoted
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.packing.columns import find_column, split_columns
from madlib_mop.driver.packing.tables import comment_on
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter

#: PostgreSQL's limit of the columns of a table.
MAX_COLUMNS = 1600
_TYPES = {
    "float32": "pg_catalog.float4",
    "int32": "pg_catalog.int4",
    "int16": "pg_catalog.int2",
    "uint8": "pg_catalog.int2",
}

_BRACES = str.maketrans("[]", "{}", " ")

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class OutputColumn:
    """A column of the output table.

    Attributes
    ----------
    name : str
    tensor : str
        The tensor, or the target, that it is part of.
    unit : int or None
        Its number in a row of the tensor; None if it is the whole row, as an array with the dimensions of the row.
    dtype : str
        Of NumPy.
    is_target : bool
    """

    name: str
    tensor: str
    unit: int | None
    dtype: str
    is_target: bool = False

    @property
    def type_sql(self) -> str:
        """Its SQL type."""
        return _TYPES[self.dtype] + ("[]" if self.unit is None else "")

    def literal(self, encoded: "EncodedTensor") -> str:
        """Return its values in some rows of the tensor, as an array in PostgreSQL's text form."""
        if self.unit is not None:
            elements = [*map(repr, encoded.rows[:, self.unit].tolist())]
        else:
            elements = [f'"{_nested(row)}"' for row in encoded.rows.tolist()]
        for row in encoded.unknown:
            elements.insert(row, "NULL")
        return array_literal(elements)

    def expression(self, parameter: int) -> str:
        """Return the SQL expression of the values of such a literal."""
        if self.unit is not None:
            return f"pg_catalog.unnest(${parameter}::{self.type_sql}[])"
        return f"pg_catalog.unnest(${parameter}::pg_catalog.text[])::{self.type_sql}"


@dataclass(frozen=True, eq=False)
class EncodedTensor:
    """A tensor of a batch.

    Attributes
    ----------
    rows : numpy.ndarray
        Without those that have none.
    unknown : list of int
        The rows that have none: of targets that are NULL, or have a class that the training rows do not have.
    """

    rows: Array
    unknown: Sequence[int] = ()


#: Inputs (False) and targets (True) by their names; a target and an input tensor may have the same one.
Batch = dict[tuple[bool, str], EncodedTensor]


def transform(call: Call) -> None:
    """Write a table with the encoded rows of a source table."""
    session, arguments = call.session, call.arguments
    preprocessor = read_preprocessor(session, arguments["packed_table"], "packed_table")
    source = read_source(session, arguments["source_table"])
    present = {column.name for column in source.columns}
    columns = [*preprocessor.inputs]
    has_targets = all(column.name in present for column in preprocessor.targets)
    if has_targets:
        columns += preprocessor.targets
    fields = needed_fields(columns, source, "source_table")
    kept = _kept(session, source, arguments["keep"])
    output = session.output(arguments["output_table"], ("",), "output_table")
    written = output_columns(preprocessor, [one.column.name for one in kept], has_targets)
    table = _Table(session, output, kept, written)
    table.create()
    names, n_rows = [field.name for field in fields], 0
    batch_rows = batch_rows_of(preprocessor)
    read = read_batches(session, source, fields, copied=kept, batch_rows=batch_rows)
    with FileDecoder() as decode, closing(read) as batches:
        encoder, targets = Encoder(preprocessor, decode), Targets(preprocessor) if has_targets else None
        for batch, raw in batches:
            with naming_rows(names_of(batch, n_rows)):
                encoded = _encoded(encoder, targets, dict(zip(names, raw, strict=True)))
            table.add([batch.values_of(f"k{i}") for i in range(len(kept))], encoded)
            n_rows += batch.n_rows
    what = f"{n_rows} rows of {source.text}, encoded by preprocessor {preprocessor.digest[:12]}"
    comment_on(session, output, f"madlib_mop: {what}")
    without = "" if has_targets else "; without targets, since source_table lacks them"
    session.notice(f"{call.function}: {arguments['output_table'].strip()}: {what}{without}")


def output_columns(preprocessor: Preprocessor, kept: Sequence[str], has_targets: bool) -> list[OutputColumn]:
    """Return the columns of the output table, after those that are kept.

    The units of numbers are one column each, or one array if the table would have more columns than PostgreSQL allows.

    Raises
    ------
    InvalidParameter
        If a column that is kept has the name of another one.
    """
    n_others = len(kept) + len(preprocessor.tensors) + len(preprocessor.targets)
    names = _Names()
    found: list[OutputColumn] = []
    for tensor in preprocessor.tensors:
        if tensor.kind == "numbers" and n_others + len(tensor.units) <= MAX_COLUMNS:
            found += [
                OutputColumn(names.free(unit), tensor.name, place, tensor.dtype)
                for place, unit in enumerate(tensor.units)
            ]
        elif tensor.kind == "index":
            found.append(OutputColumn(names.free(tensor.units[0]), tensor.name, 0, tensor.dtype))
        else:
            found.append(OutputColumn(names.free(tensor.name), tensor.name, None, tensor.dtype))
    if has_targets:
        targets = Targets(preprocessor)
        for name in targets.names:
            dtype, unit = targets.dtype(name), 0 if targets.shape(name) == (1,) else None
            found.append(OutputColumn(names.free(name), name, unit, dtype, is_target=True))
    taken = {column.name for column in found}
    for name in kept:
        if name in taken:
            raise InvalidParameter(
                f"keep: the output table already has a column {name!r}, the encoded one",
                hint="Give it another name in a view.",
            )
    return found


class _Names:
    """Names of columns: none twice, none of a system column, none longer than PostgreSQL allows."""

    def __init__(self) -> None:
        self._taken = set(SYSTEM_COLUMNS)

    def free(self, name: str) -> str:
        """Return the name, cut and numbered if needed."""
        found, number = _cut(name, ""), 1
        while found in self._taken:
            number += 1
            found = _cut(name, f" ({number})")
        self._taken.add(found)
        return found


def _cut(name: str, end: str) -> str:
    encoded, most = name.encode(), MAX_NAME_BYTES - len(end)
    if len(encoded) > most:
        name = encoded[:most].decode("utf-8", "ignore").rstrip()
    return name + end


def _kept(session: CallerSession, source: SourceTable, text: str | None) -> list[CopiedColumn]:
    """Return the columns to copy."""
    if text is None:
        return []
    known = {column.name: column for column in session.columns(source.relation)}
    names = list(dict.fromkeys(split_columns(text, "keep")))
    return [check_copied(find_column(known, name, "keep", source.relation), "keep", text) for name in names]


def _encoded(encoder: Encoder, targets: Targets | None, raw: dict[str, RawColumn]) -> Batch:
    encoded = {(False, name): EncodedTensor(rows) for name, rows in encoder.encode(raw).arrays.items()}
    if targets is not None:
        for name, known in targets.known(raw).items():
            rows = targets.encode_one(name, raw[name].take(known))
            encoded[True, name] = EncodedTensor(rows, np.flatnonzero(~known).tolist())
    return encoded


def _nested(values: list[Any]) -> str:
    """Return an array of numbers, of any number of dimensions, in PostgreSQL's text form."""
    return repr(values).translate(_BRACES)


class _Table:
    """The output table."""

    def __init__(
        self, session: CallerSession, output: Relation, kept: Sequence[CopiedColumn], written: Sequence[OutputColumn]
    ):
        self._session = session
        self._output = output
        self._kept = kept
        self._written = written
        self._slots: dict[str, Slot] = {"output": output}
        self._slots |= {f"n{i}": Identifier(name) for i, name in enumerate(self._names())}
        self._slots |= {f"t{i}": one.column.sql_type for i, one in enumerate(kept)}

    def _names(self) -> Iterator[str]:
        yield from (one.column.name for one in self._kept)
        yield from (column.name for column in self._written)

    def create(self) -> None:
        types = [f"{{t{i}}}" for i in range(len(self._kept))] + [column.type_sql for column in self._written]
        columns = ", ".join(f"{{n{i}}} {type_sql}" for i, type_sql in enumerate(types))
        query = statement(f"CREATE TABLE {{output}} ({columns})", **self._slots)
        self._session.execute(query + table_form(self._session))

    def add(self, copies: Iterable[Sequence[str | None]], encoded: Batch) -> None:
        """Append a batch: the texts of the columns that are kept, and the tensors."""
        bound = [one.bound(quoted(texts).tolist()) for one, texts in zip(self._kept, copies, strict=True)]
        values = [one.unnested(f"${i + 1}", f"t{i}") for i, one in enumerate(self._kept)]
        params = [value for value, _ in bound]
        for column in self._written:
            params.append(column.literal(encoded[column.is_target, column.tensor]))
            values.append(column.expression(len(params)))
        insert = statement(f"INSERT INTO {{output}} SELECT {', '.join(values)}", **self._slots)
        self._session.execute(insert, params, [sql_type for _, sql_type in bound])
