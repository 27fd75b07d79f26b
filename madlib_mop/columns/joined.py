"""Columns of many rows that the server has joined, each by itself; `SourceTable.blocks_query` says how.

Values of a fixed width are an array in its memory layout (`madlib_mop.columns.layout`), which costs the server no
function call for each value, and this process no search for where a value begins. Texts, and numerics as they are sent,
lie one after the other, and their lengths are an array of ``integer``.
"""

from enum import StrEnum

import numpy as np
import numpy.typing as npt
from mop_backend.frames import Blob

from madlib_mop.columns.cells import PADDING, Cells
from madlib_mop.columns.layout import read_header
from madlib_mop.columns.raw import Flags, RawColumn
from madlib_mop.columns.records import ChangedType, Field, UnreadableRecord, reader_for

_INT4 = 23
#: The header of an array of one dimension.
_HEADER_BYTES = 20
_TEXTS = ("text", "varchar")


class JoinedForm(StrEnum):
    """How the values of a column can be joined."""

    ARRAY = "array"
    TEXT = "text"
    NUMERIC = "numeric"


def form_of(field: Field) -> JoinedForm | None:
    """Return how a column can be joined; None where its values must be sent in records."""
    if field.layout is None and field.reader in _TEXTS:
        return JoinedForm.TEXT
    if field.layout is None and field.reader == "numeric":
        return JoinedForm.NUMERIC
    return JoinedForm.ARRAY if reader_for(field).native is not None else None


def n_rows_of(array: Blob) -> int:
    """Return the number of elements of an array of one dimension."""
    return read_header(array).n_elements


def read_array(field: Field, array: Blob) -> RawColumn:
    """Return the values of a column that are an array in its memory layout.

    Raises
    ------
    ChangedType
        If its elements have another type than the field.
    UnreadableRecord
        If the bytes are no array of such values.
    UnreadableValue
        If a value cannot be used.
    """
    reader = reader_for(field)
    assert reader.native is not None, "it can be joined"
    if (received := read_header(array).element_type) != field.oid:
        raise ChangedType(field.name, field.type_name, received)
    return reader.of_array(*_elements(array, np.dtype(reader.native)), field.name)


def read_values(field: Field, data: Blob, lengths: Blob) -> RawColumn:
    """Return the texts or numerics of a column.

    Parameters
    ----------
    field : Field
    data : bytes-like
        The values, one after the other.
    lengths : bytes-like
        The bytes of each, an array of ``integer`` in its memory layout; NULL for NULL.

    Raises
    ------
    UnreadableRecord
        If the bytes are none of such lengths.
    UnreadableValue
        If a value cannot be used.
    """
    sizes = read_lengths(lengths)
    n_bytes = np.maximum(sizes, 0)
    ends = np.cumsum(n_bytes)
    if (ends[-1] if len(ends) else 0) != len(data):
        raise UnreadableRecord(0, "the lengths of its values are wrong")
    return reader_for(field).read(Cells(field.name, b"".join((data, bytes(PADDING))), ends - n_bytes, sizes))


def value_at(data: Blob, lengths: Blob, row: int) -> bytes:
    """Return one of the values of `read_values`, which is not NULL."""
    sizes = read_lengths(lengths)
    start = int(np.maximum(sizes[:row], 0).sum())
    return bytes(data[start : start + int(sizes[row])])


def read_lengths(array: Blob) -> npt.NDArray[np.int64]:
    """Return the elements of an array of ``integer``, int64 (n,): -1 for NULL."""
    values, missing = _elements(array, np.dtype(np.int32))
    lengths = values.astype(np.int64)
    lengths[missing] = -1
    return lengths


def _elements(array: Blob, dtype: np.dtype) -> tuple[npt.NDArray[np.generic], Flags]:
    """Return the elements of an array of one dimension, 0 where NULL, and which are NULL: (n,) each."""
    header = read_header(array)
    n_rows = header.n_elements
    missing = np.zeros(n_rows, np.bool_)
    if header.has_bitmap:
        bits = np.frombuffer(array, np.uint8, -(-n_rows // 8), _HEADER_BYTES)
        missing = np.unpackbits(bits, count=n_rows, bitorder="little") == 0
    n_present = n_rows - int(np.count_nonzero(missing))
    if len(header.shape) != 1 or len(array) != header.data_offset + n_present * dtype.itemsize:
        raise UnreadableRecord(0, "an array of its values has another size")
    present = np.frombuffer(array, dtype, n_present, header.data_offset)
    if n_present == n_rows:
        return present, missing
    values = np.zeros(n_rows, dtype)
    values[~missing] = present
    return values, missing
