"""The sessions of commands: a login, and a call of an SQL function that trains, with its messages and signals."""

import select
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import psycopg2
from psycopg2.extensions import POLL_OK, POLL_WRITE, set_wait_callback
from psycopg2.extensions import connection as Connection

from madlib_mop.calls import Function
from madlib_mop.catalog.live.words import clean
from madlib_mop.catalog.rows.base import one_row
from madlib_mop.catalog.sessions.connection import refuse_pool
from madlib_mop.catalog.sessions.dsn import check_dsn
from madlib_mop.catalog.sessions.session_settings import LIFT_TIMEOUTS, PIN_SEARCH_PATH
from madlib_mop.errors import (
    NAME_THE_SERVER,
    InvalidParameter,
    MopError,
    cannot_log_in,
    connection_lost,
    read_server_error,
)
from madlib_mop.jobs.statements import compose

#: Seconds after which a cancel is sent again: the server ignores one that arrives before the statement.
_CANCEL_AGAIN_S = 1.0
_BEGUN = (
    "SELECT pg_catalog.set_config('client_min_messages', 'notice', false),"
    " pg_catalog.clock_timestamp()::pg_catalog.text"
)
# The run of a call in this session: one that it has recorded, or the one that it has continued.
_RUN = """
SELECT pg_catalog.max(run_id) FROM madlib_mop.run
WHERE caller_pid = pg_catalog.pg_backend_pid()
      AND (created_at >= %s::pg_catalog.timestamptz OR run_id = %s::pg_catalog.int8)
"""


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
    # defence: path-of-commands = _row(connection, "SELECT 'public', ''")
    search_path, _ = _row(connection, PIN_SEARCH_PATH)
    connection.autocommit = False
    return connection, search_path


def train(dsn: str, settings: list[str], function: Function, arguments: Mapping[str, Any]) -> int | None:
    """Call an SQL function that trains; its NOTICEs and WARNINGs go to stderr. Return the run's number, if it has one.

    The session has no timeouts, and its transaction can write, regardless of settings of the database or the role.

    Parameters
    ----------
    dsn : str
    settings : list of str
        ``name=value`` for settings of schema madlib_mop, as by SET.
    function : Function
    arguments : mapping of str to Any
        In JSON form, by name.

    Raises
    ------
    MopError
        For errors of the server. NotReady if the login goes through a connection pool.
    SystemExit
        With 128 + the signal's number, after SIGINT or SIGTERM: committed work of the run is kept.
    """
    connection, search_path = connect_with_path(dsn)
    continued = arguments["run_id"] if function.name == "resume" else None
    try:
        connection.set_client_encoding("UTF8")
        connection.set_session(isolation_level="READ COMMITTED", readonly=False, deferrable=False)
        refuse_pool(connection)
        with connection.cursor() as cursor:
            cursor.execute(LIFT_TIMEOUTS)
            apply_settings(connection, settings)
            _, begun = _row(connection, _BEGUN)
            connection.commit()
            statement = compose(function, arguments, lambda texts: _literals(connection, texts), search_path)
            with _stopped_by_signals(connection) as received:
                try:
                    cursor.execute(statement)
                    connection.commit()
                except psycopg2.Error as error:
                    run_id = _run_of(connection, begun, continued)
                    if received:
                        _print(f"stopped{_resume_hint(run_id or continued)}")
                        sys.exit(128 + received[0])
                    raise _error_of(error, run_id) from None
        return _run_of(connection, begun, continued)
    finally:
        connection.close()


@contextmanager
def _stopped_by_signals(connection: Connection) -> Iterator[list[int]]:
    """Show the session's messages while a statement runs, and cancel the statement at SIGINT or SIGTERM.

    Yields the numbers of the signals that have come. A second signal ends this process at once; the server then stops
    the run.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        _cancel(connection)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    set_wait_callback(lambda session: _wait(session, received))
    try:
        yield received
    finally:
        set_wait_callback(None)
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(connection: Connection, received: list[int]) -> None:
    """Wait for the end of a statement, as psycopg2 asks of a callback, and show the messages of the server."""
    while (state := connection.poll()) != POLL_OK:
        _show_notices(connection)
        fds = [connection.fileno()]
        waiting = ([], fds) if state == POLL_WRITE else (fds, [])
        ready = select.select(*waiting, [], _CANCEL_AGAIN_S if received else None)
        if received and not any(ready):
            _cancel(connection)
    _show_notices(connection)


def _literals(connection: Connection, texts: list[str]) -> list[str]:
    with connection.cursor() as cursor:
        return [cursor.mogrify("%s", [text]).decode() for text in texts]


def _show_notices(connection: Connection) -> None:
    for text in connection.notices:
        for line in text.rstrip("\n").split("\n"):
            _print(clean(line))
    connection.notices.clear()


def _cancel(connection: Connection) -> None:
    with suppress(psycopg2.Error):  # the server is out of reach: then the statement ends too
        connection.cancel()


def _run_of(connection: Connection, begun: str, continued: int | None) -> int | None:
    """Return the run of the call that has just ended; None if there is none, or the session is lost."""
    try:
        connection.rollback()
        (run_id,) = _row(connection, _RUN, begun, continued)
    except psycopg2.Error:
        return None
    return None if run_id is None else int(run_id)


def _error_of(error: psycopg2.Error, run_id: int | None) -> MopError:
    found = read_server_error(error)
    if found.sqlstate is None:
        return connection_lost("Run the command again. If a run began, madlib-mop resume continues it.")
    known = found.as_error()
    if run_id is not None and known.hint is None:
        known.hint = f"Committed work is kept{_resume_hint(run_id)}"
    return known


def apply_settings(connection: Connection, settings: Iterable[str]) -> None:
    """Set settings of schema madlib_mop, ``name=value``, for a session. Raises InvalidParameter."""
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip().isidentifier():
            raise InvalidParameter(
                f"--set takes name=value. Received: {setting!r}", hint="For instance --set trainer_memory_mb=2000."
            )
        _row(connection, "SELECT pg_catalog.set_config(%s, %s, false)", f"madlib_mop.{name.strip()}", value.strip())


def _row(connection: Connection, query: str, *values: object) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return one_row(cursor)


def _resume_hint(run_id: int | None) -> str:
    return "" if run_id is None else f"; madlib-mop resume {run_id} continues the run"


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
