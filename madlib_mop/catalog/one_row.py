"""The row of a query that always gives one; for cursors of psycopg2 and psycopg alike."""

from typing import Any, Protocol


class Cursor(Protocol):
    """A cursor that has executed something."""

    def fetchone(self) -> tuple[Any, ...] | None: ...


def one_row(cursor: Cursor) -> tuple[Any, ...]:
    """Return the next row. Raises RuntimeError if there is none: only for queries that cannot have that."""
    row = cursor.fetchone()
    if row is None:
        raise RuntimeError("a query that always returns a row returned none")
    return row
