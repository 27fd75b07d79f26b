"""The columns of a table that a recorded preprocessor needs; for all that encode rows after packing."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from madlib_mop.columns.preprocessors.fits import FittedColumn
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.records import Field
from madlib_mop.driver.columns.source import SourceTable
from madlib_mop.driver.packing.columns import split_columns
from madlib_mop.errors import InvalidParameter, UndefinedColumn

_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 10_000
_N_NAMES = 50
#: What stands for the columns of training where a function takes a list of columns.
EVERY = "*"


def needed_fields(columns: Iterable[FittedColumn], source: SourceTable, what: str) -> list[Field]:
    """Return how the columns are read that a preprocessor needs.

    Parameters
    ----------
    columns : iterable of FittedColumn
        Inputs, targets or both.
    source : SourceTable
    what : str
        The argument that named the table, for messages.

    Raises
    ------
    UndefinedColumn
        If the table lacks a column.
    InvalidParameter
        If a column is of a type that cannot be read.
    """
    fields = []
    for column in columns:
        found = source.column(column.name)
        if found is None:
            raise _missing(column, source, what)
        if found.field is None:
            raise InvalidParameter(
                f"{what}: column {column.name!r} of {source.relation} is of type {found.type_sql}, which cannot be"
                f" encoded. When it was packed it was {column.spec.sql_type}. Received: {source.text!r}",
                hint="Cast it in a view.",
            )
        fields.append(replace(found.field, padded_to=column.padded_to))
    return fields


def together(fields: Iterable[Field]) -> list[Field]:
    """Return fields for several encodings, each column once: arrays are padded to the most elements of any of them."""
    found: dict[str, Field] = {}
    for field in fields:
        known = found.get(field.name)
        if known is None or (field.padded_to or 0) > (known.padded_to or 0):
            found[field.name] = field
    return list(found.values())


def check_names(text: str | None, columns: Iterable[FittedColumn], what: str) -> None:
    """Check a list of columns; NULL, ``*`` and the columns of training in any order are the same.

    Raises
    ------
    InvalidParameter, UnreadableText
        If it is another list.
    """
    if text is None or text.strip() in ("", EVERY):
        return
    names, wanted = split_columns(text, what), [column.name for column in columns]
    if sorted(names) != sorted(wanted):
        raise InvalidParameter(
            f"{what} must be '{EVERY}' or the columns of training, which are {', '.join(wanted)}. Received: {text!r}",
            hint=f"Pass '{EVERY}': columns of ordinary tables are found by their names.",
        )


def batch_rows_of(preprocessor: Preprocessor) -> int:
    """Return how many rows are encoded at once by a preprocessor."""
    return rows_in_batch(sum(np.dtype(t.dtype).itemsize * int(np.prod(t.shape)) for t in preprocessor.tensors))


def rows_in_batch(row_bytes: int) -> int:
    """Return how many rows of so many bytes are read or encoded at once: 8 MiB, at most 10,000 rows."""
    return max(1, min(_BATCH_BYTES // max(1, row_bytes), _MAX_BATCH_ROWS))


def _missing(column: FittedColumn, source: SourceTable, what: str) -> UndefinedColumn:
    alike = [other.name for other in source.columns if other.name.lower() == column.name.lower()]
    shown = ", ".join(repr(other.name) for other in source.columns[:_N_NAMES])
    return UndefinedColumn(
        f"{what}: {source.relation} has no column {column.name!r}, with which the table was packed."
        f" Received: {source.text!r}",
        hint=f"Rename {alike[0]!r} in a view." if alike else f"Add it in a view. Its columns are: {shown}.",
    )
