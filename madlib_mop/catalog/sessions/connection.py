"""The driver's own session: over the local socket as the operating system user that owns the cluster (peer).

Large values are read through COPY in its binary format: psycopg2 reads the results of queries as text, which takes
about three times as long.
"""

import io
import struct
from collections.abc import Callable, Sequence
from typing import Any

import psycopg2
from psycopg2.extensions import connection
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.pool import StaticPool

from madlib_mop.catalog.rows.base import one_row
from madlib_mop.catalog.sessions.login_failures import diagnose
from madlib_mop.catalog.sessions.lost_segments import lost_at_segment
from madlib_mop.catalog.sessions.session_settings import AS_SUPERUSER, CATALOG_OPTIONS, LIFT_NEW_TIMEOUTS
from madlib_mop.errors import NotReady, read_server_error

_HEADER = struct.Struct(">11s i i")  # of the format: signature, flags, length of an extension, which no server sends
_ROW = struct.Struct(">h i")  # number of fields, length of the first; or -1 after the last row


def read_value(session: connection, query: str, params: Sequence[int | None]) -> bytes | None:
    """Return the value of a query.

    Parameters
    ----------
    session : psycopg2 connection
    query : str
        A SELECT of one column of type bytea, which is never NULL, with ``%s`` for parameters; it returns at most one
        row.
    params : sequence of int or None

    Returns
    -------
    bytes or None
        None if there is no row.
    """
    copied = io.BytesIO()
    with session.cursor() as cursor:
        statement = cursor.mogrify(f"COPY ({query}) TO STDOUT (FORMAT binary)", params)
        cursor.copy_expert(statement, copied)
    content = copied.getbuffer()
    start = _HEADER.size
    if struct.unpack_from(">h", content, start) == (-1,):
        return None
    _, n_bytes = _ROW.unpack_from(content, start)
    start += _ROW.size
    return bytes(content[start : start + n_bytes])


_DIRECT = "This command needs a session of its own: pass the server's own address and port, not those of a pool."


def connect_catalog(sockets: str, port: str, database: str) -> tuple[Engine, connection]:
    """Open the catalog session, which touches only the extension's tables, never users' relations.

    Parameters
    ----------
    sockets, port : str
        The server's ``unix_socket_directories`` and ``port``.
    database : str
        The database that the extension lives in.

    Returns
    -------
    tuple of (sqlalchemy.Engine, psycopg2 connection)
        An engine over the one connection, which is in autocommit (see `Record.transaction`), and that connection, for
        LISTEN, advisory locks and DDL.

    Raises
    ------
    NotReady
        If the server rejects its own owner's login by peer authentication.
    """
    try:
        return _session(**local_keywords(sockets, port, database))
    except psycopg2.OperationalError as error:
        raise NotReady(
            "the driver cannot open its catalog session as the server's own operating system user",
            detail=str(error).strip(),
            hint=diagnose(str(error), read_server_error(error).sqlstate, "local all all peer").hint,
        ) from None


def local_keywords(sockets: str, port: str, database: str) -> dict[str, str]:
    """Return psycopg2's keywords of a login by peer authentication as the server's own operating system user."""
    return {"host": sockets.split(",")[0].strip(), "port": port, "dbname": database}


def connect_by_dsn(dsn: str) -> tuple[Engine, connection]:
    """Open the catalog session by a superuser's DSN, as `connect_catalog` does it for the server's own user.

    Raises
    ------
    NotReady
        If it cannot be opened, is not a superuser's, or goes through a connection pool.
    """
    try:
        engine, raw = _session(dsn)
    except psycopg2.Error as error:
        text = str(error).strip().splitlines()[0]
        raise NotReady(
            f"the catalog session cannot be opened: {text}", hint=_DIRECT if "startup parameter" in text else None
        ) from None
    refuse_pool(raw)
    with raw.cursor() as cursor:
        cursor.execute("SELECT rolsuper, rolname FROM pg_roles WHERE rolname = current_user")
        is_superuser, role = one_row(cursor)
    if not is_superuser:
        raw.close()
        raise NotReady(
            f"the session that writes the record of runs must be a superuser's. Received role {role}",
            hint="Pass a superuser's login with --dsn, or run this as the server's own operating system user.",
        )
    return engine, raw


def refuse_pool(raw: connection) -> None:
    """Close a session that a pooler such as pgbouncer may take to another backend, which has not its settings.

    Raises
    ------
    NotReady
        If the backend is not the process that the client was told at the login: poolers invent that number.
    """
    with raw.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.pg_backend_pid()")
        (pid,) = one_row(cursor)
    if pid != raw.info.backend_pid:
        raw.close()
        raise NotReady("the login goes through a connection pool, such as pgbouncer", hint=_DIRECT)


def _session(dsn: str | None = None, **keywords: Any) -> tuple[Engine, connection]:
    raw = psycopg2.connect(
        dsn,
        **keywords,
        application_name="madlib_mop driver",
        connect_timeout=10,
        client_encoding="UTF8",
        options=CATALOG_OPTIONS,
    )
    raw.autocommit = True
    with raw.cursor() as cursor:
        cursor.execute(LIFT_NEW_TIMEOUTS)
        cursor.execute(AS_SUPERUSER)
    engine = engine_over(lambda: raw)
    event.listen(engine, "handle_error", _keep_session)
    event.listen(engine, "handle_error", _note_lost_segment)
    return engine, raw


def engine_over(session: Callable[[], connection]) -> Engine:
    """Return an engine over one session, which it asks for when it needs it."""
    return create_engine("postgresql+psycopg2://", creator=session, poolclass=StaticPool, pool_reset_on_return=None)


def _keep_session(context: ExceptionContext) -> None:
    """Keep the session open if a signal's exception interrupts a statement: the driver uses it for cleanup.

    SQLAlchemy treats any such exception as a lost connection. But libpq has ended the statement before Python runs the
    handler.
    """
    if not isinstance(context.original_exception, Exception):
        context.is_disconnect = False


def _note_lost_segment(context: ExceptionContext) -> None:
    """Raise one clear error in place of Greenplum's, if this session has lost its process at a segment."""
    error = context.original_exception
    if isinstance(error, psycopg2.Error) and lost_at_segment(error):
        raise NotReady(
            "the driver's own session has lost its process at a segment",
            detail=str(error).strip(),
            hint="Greenplum restarts the segment; then madlib_mop.resume continues the run.",
        ) from None
