"""The row of a query that always returns one; for cursors of psycopg2 and psycopg."""

from typing import Any, Protocol


class Cursor(Protocol):
    """A cursor that has executed something."""

    def fetchone(self) -> tuple[Any, ...] | None: ...


def one_row(cursor: Cursor) -> tuple[Any, ...]:
    """Return the next row. Raises RuntimeError if there is none, which is a bug in the query."""
    row = cursor.fetchone()
    if row is None:
        raise RuntimeError("a query that always returns a row returned none")
    return row
