"""The sessions of a command that trains: the caller's, with the caller's transaction, and the superuser's for the
record."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from madlib_mop.catalog.one_row import one_row
from madlib_mop.catalog.sessions.connection import refuse_pool
from madlib_mop.catalog.sessions.dsn import check_dsn
from madlib_mop.catalog.sessions.session_settings import LIFT_TIMEOUTS, PIN_SEARCH_PATH
from madlib_mop.driver.session.direct import DirectSession
from madlib_mop.driver.session.stopping import Stopped, obey_sigint, obey_sigterm
from madlib_mop.errors import NAME_THE_SERVER, InvalidParameter, MopError, cannot_log_in


def connect(dsn: str) -> Connection:
    """Log in with a DSN, and pin the search_path; PGHOST and other libpq variables supply the rest.

    Raises
    ------
    InvalidParameter
        If the DSN has a password that is not quoted.
    NotReady
        If that fails.
    """
    return connect_with_path(dsn)[0]


def connect_with_path(dsn: str) -> tuple[Connection, str]:
    """Log in as `connect` does; return also the search_path of the login, on which names of its tables are found."""
    check_dsn(dsn)
    try:
        connection = psycopg2.connect(dsn, connect_timeout=10, application_name="madlib-mop")
    except psycopg2.Error as error:
        raise cannot_log_in(error, NAME_THE_SERVER) from None
    connection.autocommit = True
    search_path, _ = _row(connection, PIN_SEARCH_PATH)
    connection.autocommit = False
    return connection, search_path


@contextmanager
def driving(dsn: str, catalog_dsn: str | None, settings: list[str]) -> Iterator[DirectSession]:
    """Return the caller's session for one command of the driver; commit at the end, roll back after an error.

    It has no timeouts and its transactions can write, regardless of settings of the database or the role.

    Parameters
    ----------
    dsn : str
        The caller's login.
    catalog_dsn : str or None
        A superuser's login; None where the caller is one.
    settings : list of str
        ``name=value`` for settings of schema madlib_mop, as by SET.

    Raises
    ------
    NotReady
        If the login goes through a connection pool.
    SystemExit
        With 128 + the signal's number, after SIGINT or SIGTERM: committed work of the run is kept.
    """
    connection, search_path = connect_with_path(dsn)
    session = None
    received: list[int] = []
    try:
        connection.set_session(isolation_level="READ COMMITTED", readonly=False, deferrable=False)
        refuse_pool(connection)
        with connection.cursor() as cursor:
            cursor.execute(LIFT_TIMEOUTS)
        _set(connection, settings)
        session = DirectSession(connection, search_path, _print, dsn if catalog_dsn is None else catalog_dsn)
        for number, obey in ((signal.SIGINT, obey_sigint), (signal.SIGTERM, obey_sigterm)):
            obey()
            _note(number, received)
        yield session
        connection.commit()
    except Stopped:
        _print(f"stopped{_resume_hint(session)}")
        sys.exit(128 + (received[0] if received else signal.SIGTERM))
    except MopError as error:
        if session is not None and session.run_id is not None and error.hint is None:
            error.hint = f"Committed work is kept{_resume_hint(session)}"
        raise
    finally:
        connection.close()


def _set(connection: Connection, settings: list[str]) -> None:
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip().isidentifier():
            raise InvalidParameter(
                f"--set takes name=value. Received: {setting!r}", hint="For instance --set trainer_memory_mb=2000."
            )
        _row(connection, "SELECT pg_catalog.set_config(%s, %s, false)", f"madlib_mop.{name.strip()}", value.strip())
    connection.commit()


def _row(connection: Connection, query: str, *values: object) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return one_row(cursor)


def _note(number: int, received: list[int]) -> None:
    """Remember the signal, and call its previous handler."""
    obey = signal.getsignal(number)

    def handle(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if callable(obey):
            obey(signum, frame)

    signal.signal(number, handle)


def _resume_hint(session: DirectSession | None) -> str:
    if session is None or session.run_id is None:
        return ""
    return f"; madlib-mop resume {session.run_id} continues the run"


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
