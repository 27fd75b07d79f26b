"""The base of the record's rows: created from query results, and converted for statements."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self

#: A JSON document of the record; only its reader interprets the content.
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: a subclass is a dataclass whose fields are the columns."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the row for a query's result."""
        return cls(**{f.name: _read(f, row[f.name]) for f in dataclasses.fields(cls)})

    def as_row(self) -> dict[str, Any]:
        """Return the columns in the form for a statement."""
        return {f.name: as_column(getattr(self, f.name)) for f in dataclasses.fields(self)}


def as_column(value: Any) -> Any:
    """Return a value in the form for a statement; values of JSON columns become JSON."""
    if isinstance(value, StrEnum):
        return str(value)
    return value.as_json() if hasattr(value, "as_json") else value


def _read(column: dataclasses.Field[Any], value: Any) -> Any:
    read = column.metadata.get("read")
    return value if read is None or value is None else read(value)


def column(read: Callable[[Any], Any], **keywords: Any) -> Any:
    """Declare a column with a conversion from the session's value."""
    return field(metadata={"read": read}, **keywords)


@dataclass(frozen=True, slots=True)
class Document:
    """A dataclass that is a column of type jsonb."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the value from the record."""
        return cls(**found)

    def as_json(self) -> Json:
        """Return the value for the record."""
        return dataclasses.asdict(self)


class Cursor(Protocol):
    """A cursor that has executed something."""

    def fetchone(self) -> tuple[Any, ...] | None: ...


def one_row(cursor: Cursor) -> tuple[Any, ...]:
    """Return the next row. Raises RuntimeError if there is none, which is a bug in the query."""
    row = cursor.fetchone()
    if row is None:
        raise RuntimeError("a query that always returns a row returned none")
    return row
