"""Columns of the caller's tables that a new table keeps: read as text, and written with the same type and value."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from madlib_mop.driver.session.relations import Column
from madlib_mop.errors import InvalidParameter


@dataclass(frozen=True)
class CopiedColumn:
    """A column that is copied through this process.

    Attributes
    ----------
    column : Column
        Of a type that a superuser owns, or an enum: see `check_copied`.
    """

    column: Column

    def text(self, value: str) -> str:
        """Return the SQL expression of a value as text that converts back to the same value with any DateStyle."""
        # defence: enums-that-are-copied
        if self.column.is_enum:  # not by a cast, which the enum's owner may have defined
            return f"pg_catalog.textin(pg_catalog.enum_out({value}))"
        if self.column.category == "D":
            return f"(pg_catalog.to_json({value}) #>> '{{{{}}}}')"
        return f"{value}::pg_catalog.text"

    def unnested(self, parameter: str, slot: str) -> str:
        """Return the SQL expression of the rows' values.

        Parameters
        ----------
        parameter : str
            The statement's parameter, ``$1``; its value and type are those of `bound`.
        slot : str
            The statement's slot with the column's type (``Column.sql_type``).
        """
        if self.column.is_enum:
            return f"pg_catalog.unnest({parameter})"
        return f"pg_catalog.unnest({parameter}::pg_catalog.text[])::{{{slot}}}"

    def bound(self, elements: Sequence[str]) -> tuple[Any, str]:
        """Return a parameter's value and type.

        Parameters
        ----------
        elements : sequence of str
            As `quoted` makes them.
        """
        if self.column.is_enum:  # read by the type's input function: its owner may have defined a cast from text
            return [_plain(element) for element in elements], f"{self.column.type_sql}[]"
        return array_literal(elements), "pg_catalog.text"


def check_copied(column: Column, what: str, received: str | None) -> CopiedColumn:
    """Return a column that can be copied.

    Raises
    ------
    InvalidParameter
        If its type belongs to another role, whose casts would run.
    """
    if not (column.is_safe or column.is_enum):  # defence: types-that-are-copied
        raise InvalidParameter(
            f"{what}: column {column.name!r} is of type {column.type_sql}, which another role created:"
            f" its casts could run that role's code. Received: {received!r}",
            hint="Cast it to text in a view.",
        )
    return CopiedColumn(column)


def quoted(values: Sequence[str | None]) -> np.ndarray:
    """Return texts as elements of an array literal; an object array, to be indexed by rows or classes."""
    elements = np.empty(len(values), object)
    elements[:] = [
        "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values
    ]
    return elements


def array_literal(elements: Iterable[str]) -> str:
    """Return elements as an array in PostgreSQL's text form."""
    return "{" + ",".join(elements) + "}"


def _plain(element: str) -> str | None:
    """Return the text of an element that `quoted` made."""
    return None if element == "NULL" else element[1:-1].replace('\\"', '"').replace("\\\\", "\\")
