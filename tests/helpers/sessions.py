"""One user's session in tests, and errors as a client gets them; called by helpers and tests of SQL calls."""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2


@dataclass(frozen=True)
class Refusal:
    """An error as the client gets it."""

    sqlstate: str | None
    message: str
    hint: str | None
    detail: str | None = None


class Session:
    """One session of a user."""

    def __init__(self, connection):
        self.connection = connection

    def rows(self, query: str, *parameters) -> list[tuple]:
        """Run one statement and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(query, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *parameters) -> Any:
        """Run one statement and return its only value."""
        ((value,),) = self.rows(query, *parameters)
        return value

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Return the names and types of a table's columns."""
        return self.rows(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            table,
        )

    def refused(self, call, *args, **kwargs) -> Refusal:
        """Make a call that must fail, without a traceback; roll it back and return its error."""
        in_transaction = not self.connection.autocommit
        if in_transaction:
            self.rows("SAVEPOINT before")
        try:
            call(*args, **kwargs)
        except psycopg2.Error as error:
            if in_transaction:
                self.rows("ROLLBACK TO before")
            assert "Traceback" not in str(error)
            diag = error.diag
            return Refusal(error.pgcode, diag.message_primary, diag.message_hint, diag.message_detail)
        raise AssertionError("the call was not refused")

    def notices(self) -> str:
        """Return the notices and warnings since the last call, and clear them."""
        text = "".join(self.connection.notices)
        self.connection.notices.clear()
        return text


@contextmanager
def undone(db, kind: type[Session] = Session):
    """Return a session in one transaction, which is rolled back at the end; the next test gets the same one.

    The first call of our functions in a session takes longer than most of the tests.
    """
    kept = db.__dict__.setdefault("_undone", [])
    connection = kept.pop() if kept else db.connect(autocommit=False)
    yield kind(connection)
    if not connection.closed:
        connection.rollback()
        connection.notices.clear()
        kept.append(connection)
