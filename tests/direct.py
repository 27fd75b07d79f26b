"""A caller's session in the test's own process: the driver's code runs against a server without a driver process."""

import itertools

import psycopg2
from psycopg2 import sql
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from madlib_mop.catalog.record import Record
from madlib_mop.driver.caller import SessionInfo
from madlib_mop.driver.relations import RelationLookup
from madlib_mop.errors import from_dict

_numbers = itertools.count()


class DirectSession(RelationLookup):
    """Runs the statements that a command gives to its caller's session on a psycopg2 connection; streams are not there.

    Parameters
    ----------
    connection : psycopg2 connection
        Not in autocommit: a caller's function runs in one transaction.
    search_path : str
        The caller's; the session's own is pinned, as in our functions.
    """

    def __init__(self, connection, search_path: str = "public"):
        self.connection = connection
        self.notices: list[str] = []
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL search_path = pg_catalog, pg_temp; SELECT current_user, current_database()")
            role, database = cursor.fetchone()
        self.info = SessionInfo(role, role, database, connection.info.backend_pid, "0", "", search_path)

    def execute(self, statement: str, params=(), types=()) -> list[dict]:
        """Run one statement with ``$1`` ... parameters; give its rows. Raises MopError."""
        name = sql.Identifier(f"direct_{next(_numbers)}")
        all_types = [*types, *["pg_catalog.text"] * (len(params) - len(types))]
        listed = f"({', '.join(all_types)})" if all_types else ""
        values = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, params))) if params else sql.SQL("")
        with self.connection.cursor() as cursor:
            cursor.execute("SAVEPOINT statement")
            try:
                prepare = sql.SQL("PREPARE {} {} AS {}").format(name, sql.SQL(listed), sql.SQL(statement))
                cursor.execute(prepare)
                cursor.execute(sql.SQL("EXECUTE {}{}").format(name, values))
                rows = cursor.fetchall() if cursor.description else []
                names = [column.name for column in cursor.description or ()]
            except psycopg2.Error as error:
                cursor.execute("ROLLBACK TO statement")
                fields = {"sqlstate": error.pgcode, "message": error.diag.message_primary}
                raise from_dict({**fields, "hint": error.diag.message_hint}) from None
        return [dict(zip(names, map(_plain, row), strict=True)) for row in rows]

    def notice(self, text: str) -> None:
        """Keep a NOTICE."""
        self.notices.append(text)

    warning = notice


def record_on(connection) -> Record:
    """Give the record as a driver has it, on a superuser's connection in autocommit."""
    engine = create_engine(
        "postgresql+psycopg2://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
    )
    return Record(engine, connection)


def _plain(value):
    return bytes(value) if isinstance(value, memoryview) else value
