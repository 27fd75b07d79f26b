"""The readers of facts: in the session of a driver's caller, and on connections of psycopg 3."""

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import psycopg

from madlib_mop.catalog.facts.now import lost_runs
from madlib_mop.catalog.sessions.dsn import check_dsn
from madlib_mop.errors import NAME_THE_SERVER, MopError, cannot_log_in, connection_lost, read_server_error

#: What the library's own SQL functions set: names mean the same in every session.
_PIN = "SET LOCAL search_path = pg_catalog, pg_temp"


class ReportSession(Protocol):
    """What `SessionReader` needs of a session: that of the driver's caller has it."""

    def execute(
        self, statement: str, params: Sequence[Any] = (), types: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Run one statement with ``$1`` ... parameters; return its rows."""


class SessionReader:
    """Reads in the caller's session, in the caller's transaction."""

    def __init__(self, session: ReportSession):
        self._session = session

    def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Return the rows of one statement; see `shared.FactsReader`."""
        texts = [None if value is None else str(value) for value in values]
        return self._session.execute(statement, texts)

    def fetch(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of one statement; see `shared.FactsReader`."""
        numbers = itertools.count(1)
        numbered = re.sub("%s", lambda _: f"${next(numbers)}", statement)
        types = ["bigint" if isinstance(value, int) else "text" for value in values]
        return [tuple(row.values()) for row in self._session.execute(numbered, values, types)]

    @cached_property
    def lost(self) -> Collection[int]:
        """The runs that had no process; see `shared.FactsReader`. In one snapshot of the caller's it is not known."""
        ((level,),) = self.fetch("SELECT pg_catalog.current_setting('transaction_isolation') AS level", [])
        return lost_runs(self.fetch) if level == "read committed" else ()


class ConnectionReader:
    """Reads on a connection of psycopg 3, which `login` opens or a web page has; ``lost`` as `shared.FactsReader`."""

    def __init__(self, connection: psycopg.Connection[Any], lost: Collection[int] = ()):
        self._connection = connection
        self.lost = lost

    def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Return the rows of one statement; see `shared.FactsReader`."""
        texts = [None if value is None else str(value) for value in values]
        try:
            with psycopg.RawCursor(self._connection, row_factory=psycopg.rows.dict_row) as cursor:
                return cursor.execute(statement, texts or None).fetchall()
        except psycopg.Error as error:
            raise _mop_error(error) from None

    def fetch(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of one statement; see `shared.FactsReader`."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except psycopg.Error as error:
            raise _mop_error(error) from None


@contextmanager
def one_snapshot(connection: psycopg.Connection[Any]) -> Iterator[ConnectionReader]:
    """Read everything in one snapshot, in a read-only transaction that is rolled back at the end.

    Which runs are lost is found in a transaction before: a run could end between the snapshot and a look at processes.

    Parameters
    ----------
    connection : psycopg.Connection
        Outside of a transaction.

    Raises
    ------
    MopError
        The server's error.
    """
    with _transaction(connection, "READ COMMITTED"):
        lost = lost_runs(ConnectionReader(connection).fetch)
    with _transaction(connection, "REPEATABLE READ"):
        yield ConnectionReader(connection, lost)


@contextmanager
def _transaction(connection: psycopg.Connection[Any], isolation: str) -> Iterator[None]:
    try:
        connection.autocommit = True
        connection.execute(f"BEGIN ISOLATION LEVEL {isolation} READ ONLY")
    except psycopg.Error as error:
        raise _mop_error(error) from None
    try:
        connection.execute(_PIN)
        yield
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


@contextmanager
def login(dsn: str) -> Iterator[ConnectionReader]:
    """Log in with a DSN, and read everything in one snapshot.

    Parameters
    ----------
    dsn : str
        URI or keywords of libpq; PGHOST and the other variables of libpq supply the rest.

    Raises
    ------
    NotReady
        If the login fails.
    """
    check_dsn(dsn)
    try:
        connection = psycopg.connect(dsn, connect_timeout=10, application_name="madlib-mop", autocommit=True)
    except psycopg.Error as error:
        raise cannot_log_in(error, NAME_THE_SERVER) from None
    try:
        with one_snapshot(connection) as reader:
            yield reader
    finally:
        connection.close()


def _mop_error(error: psycopg.Error) -> MopError:
    """Return the server's error as one of ours; without its SQLSTATE, the session was lost."""
    found = read_server_error(error)
    return connection_lost("Try again.") if found.sqlstate is None else found.as_error()
