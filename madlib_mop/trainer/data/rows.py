"""Predictions for rows of ordinary tables: bytes of records to tensors, and outputs to the units of the table."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mop_backend.frames import Blob

from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.encoding.encoder import BadFile, Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.raw import Levels, RawColumn, dictionary_of
from madlib_mop.columns.records import Field, RecordReader, not_an_input, reader_of
from madlib_mop.errors import InvalidParameter

_SKIPPED = "bytea"  # the reader of columns that the model does not use
_MOST_READERS = 100

#: (name, SQL type, type oid, base type); the base type is None if the type cannot be an input.
RowField = tuple[str, str, int, str | None]
RowFields = Sequence[Sequence[Any]]  # as a request has them


class RowEncoder:
    """Encodes records by a preprocessor.

    Parameters
    ----------
    document : str
        The preprocessor, as `Preprocessor.to_json` writes it.
    n_inputs, n_outputs : int
        Of the model.

    Attributes
    ----------
    preprocessor : Preprocessor

    Raises
    ------
    UnreadableText
        If the document is damaged.
    InvalidParameter
        If it has another number of inputs or targets than the model.
    """

    def __init__(self, document: str, n_inputs: int, n_outputs: int):
        self.preprocessor = Preprocessor.from_json(document)
        self._encoder = Encoder(self.preprocessor, _pixels)
        self._targets = Targets(self.preprocessor)
        self._inputs = {column.name for column in self.preprocessor.inputs}
        self._padded = {column.name: column.padded_to for column in self.preprocessor.inputs}
        for what, expected, received in (
            ("inputs", n_inputs, len(self.preprocessor.tensors)),
            ("outputs", n_outputs, len(self._targets.names)),
        ):
            if expected != received:
                raise InvalidParameter(
                    f"the model has {expected} {what}, but its preprocessor has {received}",
                    hint="The model table was changed. Train again.",
                )
        self._readers: dict[tuple[RowField, ...], RecordReader] = {}
        self._newest: RowFields | None = None
        self._newest_reader: RecordReader

    def tensors(
        self, data: Blob, lengths: Sequence[int], fields: RowFields, encoding: str
    ) -> tuple[np.ndarray, ...]:
        """Return the inputs of the model for some records, one array an input.

        Parameters
        ----------
        data : bytes-like
            The records, one after the other, as ``record_send`` writes them; but for images they have the pixels,
            which a decoder made (``mop_backend/row_images.py``), because images are untrusted bytes.
        lengths : sequence of int
            Bytes of each.
        fields : sequence of (str, str, int, str or None)
            Their fields.
        encoding : str
            PostgreSQL's name of the texts' encoding.

        Raises
        ------
        InvalidParameter, UndefinedColumn
            If a column is missing, or its values are of another kind than those of training; for a value that cannot
            be used.
        """
        try:
            return self._tensors(data, lengths, fields, encoding)
        except UnreadableValue as error:
            if len(lengths) > 1:
                raise
            message = f"column {error.column!r} {error.problem.removesuffix(',')}"  # there is no other row
            raise InvalidParameter(message, hint=error.hint) from None

    def _tensors(
        self, data: Blob, lengths: Sequence[int], fields: RowFields, encoding: str
    ) -> tuple[np.ndarray, ...]:
        if fields is not self._newest:  # those of the next rows are the same object
            self._newest_reader = self._reader_of(fields)
            self._newest = fields
        reader = self._newest_reader
        columns = reader.read(bytes(data), lengths)
        raw = {field.name: column for field, column in zip(reader.fields, columns, strict=True)}
        if len(raw) < len(columns):
            self._check_once([field.name for field in reader.fields])
        if encoding != "UTF8":
            raw = {name: _as_utf8(column, encoding) for name, column in raw.items() if name in self._inputs}
        return tuple(self._encoder.encode(raw).arrays.values())

    def _reader_of(self, fields: RowFields) -> RecordReader:
        key = tuple((name, type_sql, oid, base) for name, type_sql, oid, base in fields)
        reader = self._readers.get(key)
        if reader is None:
            if len(self._readers) >= _MOST_READERS:
                self._readers.clear()
            reader = self._readers[key] = RecordReader([self._field(field) for field in key])
        return reader

    def _check_once(self, names: Sequence[str]) -> None:
        for name in self._inputs:
            if names.count(name) > 1:
                raise InvalidParameter(
                    f"column {name!r} is twice in the row", hint="Name the columns, or leave one of them out."
                )

    def all_tensors(
        self, data: Blob, lengths: Sequence[int], fields: RowFields, encoding: str
    ) -> tuple[tuple[np.ndarray, ...], list[int]]:
        """Return what `readable_tensors` does, but raise the error of the first record that cannot be encoded."""
        return self.tensors(data, lengths, fields, encoding), list(range(len(lengths)))

    def readable_tensors(
        self, data: Blob, lengths: Sequence[int], fields: RowFields, encoding: str
    ) -> tuple[tuple[np.ndarray, ...], list[int]]:
        """Return the inputs of the model for those records that can be encoded, and the numbers of these records.

        Parameters as of `tensors`. Raises its error if no record can be encoded.
        """
        parts: list[tuple[np.ndarray, ...]] = []
        rows: list[int] = []
        starts = [0, *itertools.accumulate(lengths)]
        todo = [(0, len(lengths))]
        while todo:  # a part with an error is divided, until the error is that of a single record
            begin, end = todo.pop()
            try:
                part = data[starts[begin] : starts[end]]
                parts.append(self.tensors(part, lengths[begin:end], fields, encoding))
                rows.extend(range(begin, end))
            except Exception:
                if end - begin == 1:
                    if not rows and not todo:
                        raise
                    continue
                middle = (begin + end) // 2
                todo += [(middle, end), (begin, middle)]
        return (parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts, strict=True)))), rows

    def values(self, outputs: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]]:
        """Return a model's outputs side by side, float64 (n_rows, n_values), and how many values each output has.

        Numbers are brought back to the units of the table.
        """
        parts = [self._targets.values(*one) for one in zip(self._targets.names, outputs, strict=True)]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return joined, [part.shape[1] for part in parts]

    def _field(self, field: RowField) -> Field:
        name, type_sql, oid, base = field
        reader = reader_of(base) if base is not None and name in self._inputs else _SKIPPED
        if reader is None:
            raise not_an_input(name, type_sql, "Cast it to the type of the training table.")
        return Field(name, type_sql, oid, reader, self._padded.get(name))


def _pixels(files: Sequence[bytes], shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Return images that a decoder has made pixels of: uint8 (n, height, width, channels)."""
    for number, file in enumerate(files):
        if len(file) != math.prod(shape):
            raise BadFile(number, f"has {len(file)} bytes, which are not pixels of the shape {list(shape)}")
    return np.frombuffer(b"".join(files), np.uint8).reshape(-1, *shape)


def _as_utf8(column: RawColumn, encoding: str) -> RawColumn:
    """Return a column of texts in another encoding of PostgreSQL's as UTF-8."""
    if not isinstance(column, Levels):
        return column
    from psycopg2.extensions import encodings  # converts PostgreSQL's names of encodings to Python's

    codec = encodings.get(encoding, "utf-8")
    keys = [key.decode(codec).encode() for key in column.levels.keys()]
    return Levels(column.codes, dictionary_of(keys), column.family)
