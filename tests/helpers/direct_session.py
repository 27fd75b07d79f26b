"""A caller's session on a connection of this process: plans of the driver's commands without a backend."""

import decimal
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import psycopg2
import psycopg2.extras
from mop_backend.rights import CallerRoles, MixedRoles, caller_roles
from psycopg2 import sql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from madlib_mop.catalog.rows.base import one_row
from madlib_mop.catalog.sessions.session_settings import TEXT_SETTINGS
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.driver.session.messages import session_lost
from madlib_mop.driver.session.relations import RelationLookup
from madlib_mop.errors import Unsupported, from_dict, read_server_error

_numbers = itertools.count()


class DirectSession(RelationLookup):
    """Runs a command's statements in its caller's session; streaming of rows (predict) is not supported.

    Parameters
    ----------
    connection : psycopg2 connection
        Not in autocommit. The session's own search_path is pinned in its transactions, as our SQL functions do.
    search_path : str
        The search_path of names without a schema.
    say : callable or None
        Called with every NOTICE and WARNING.
    """

    def __init__(
        self,
        connection: psycopg2.extensions.connection,
        search_path: str = "public",
        say: Callable[[str], None] | None = None,
    ):
        self.connection = connection
        self.notices: list[str] = []
        self._write_line = say
        psycopg2.extras.register_default_json(connection, loads=str)
        with connection.cursor() as cursor:
            self._pin(cursor)
            cursor.execute(
                "SELECT pg_catalog.current_database(), pg_catalog.current_setting('port'), pg_catalog.pg_backend_pid()"
            )
            database, port, pid = one_row(cursor)
            roles = _roles(cursor)
        self.info = SessionInfo(
            **roles, database=database, pid=pid, port=port, sockets="", search_path=search_path
        )

    def execute(self, statement: str, params: Sequence[Any] = (), types: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Run one statement with ``$1`` ... parameters; return its rows. As `CallerSession.execute`.

        Raises
        ------
        MopError
            The server's error; the statement is rolled back.
        """
        try:
            with self.connection.cursor() as cursor:
                if self.connection.info.transaction_status == TRANSACTION_STATUS_IDLE:
                    self._pin(cursor)
                cursor.execute("SAVEPOINT statement")
                try:
                    _run(cursor, statement, params, types)
                    rows = cursor.fetchall() if cursor.description else []
                    names = [column.name for column in cursor.description or ()]
                    cursor.execute("RELEASE statement")
                except psycopg2.Error as error:
                    cursor.execute("ROLLBACK TO statement")
                    raise read_server_error(error).as_error() from None
        except (psycopg2.InterfaceError, psycopg2.OperationalError) as error:
            raise session_lost(str(error).strip()) from None
        return [dict(zip(names, map(_plain, row), strict=True)) for row in rows]

    def registered(self, function: str, model: str, right: str = "PREDICT") -> NoReturn:
        """Raise Unsupported: the content of a version does not leave the server's own processes."""
        raise Unsupported(f"{function}: registered models can be used in SQL only. Received: {model!r}")

    def notice(self, text: str) -> None:
        """Store a NOTICE, and report it."""
        self._print("NOTICE", text)

    def warning(self, text: str) -> None:
        """Store a WARNING, and report it."""
        self._print("WARNING", text)

    def _pin(self, cursor: psycopg2.extensions.cursor) -> None:
        """Apply the settings of the extension's SQL functions to the new transaction."""
        cursor.execute("SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL jit = off")
        for name, value in TEXT_SETTINGS.items():
            cursor.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])

    def _print(self, level: str, text: str) -> None:
        self.notices.append(text)
        if self._write_line is not None:
            self._write_line(f"{level}:  {text}")


def _roles(cursor: psycopg2.extensions.cursor) -> CallerRoles:
    """Return the roles of the session. Raises InsufficientPrivilege if only some of them are superusers."""

    def execute(query: str) -> list[dict[str, Any]]:
        cursor.execute(query)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    try:
        return caller_roles(execute)
    except MixedRoles as error:
        raise from_dict(error.fields) from None


def _run(cursor: psycopg2.extensions.cursor, statement: str, params: Sequence[Any], types: Sequence[str]) -> None:
    """Run a statement; with parameters, it is prepared, because ``$1`` is valid in prepared statements only."""
    if not params:  # CREATE TABLE and other statements that cannot be prepared
        cursor.execute(statement)
        return
    name = sql.Identifier(f"direct_{next(_numbers)}")
    all_types = [*types, *["pg_catalog.text"] * (len(params) - len(types))]
    # Each literal gets its type at once: a literal of type text would be converted by any cast that a user has defined.
    values = sql.SQL(", ").join(
        sql.SQL("CAST({} AS {})").format(sql.Literal(value), sql.SQL(type_name))
        for value, type_name in zip(params, all_types, strict=True)
    )
    cursor.execute(sql.SQL("PREPARE {} ({}) AS {}").format(name, sql.SQL(", ".join(all_types)), sql.SQL(statement)))
    cursor.execute(sql.SQL("EXECUTE {} ({})").format(name, values))


def _plain(value: Any) -> Any:
    """Return a value in the form that frames between processes have."""
    if isinstance(value, memoryview):
        return bytes(value)
    return str(value) if isinstance(value, decimal.Decimal) else value
