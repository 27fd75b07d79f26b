"""Runs one statement and returns its rows, for commands that only query."""

from collections.abc import Sequence
from typing import Any


def query(
    dsn: str,
    statement: str,
    *values: object,
    with_path: bool = False,
    settings: Sequence[str] = (),
    in_turn: bool = False,
) -> list[tuple[Any, ...]]:
    """Run one statement in its own session and return its rows.

    Parameters
    ----------
    dsn : str
    statement : str
        With ``%s`` for each value.
    *values : object
    with_path : bool
        Whether the last ``%s`` is the search_path of the login, for a function that takes names of tables.
    settings : sequence of str
        Settings of the session, ``name=value``.
    in_turn : bool
        Whether rows are fetched one after the other, because they are large.

    Raises
    ------
    MopError
        For errors of the server.
    """
    import psycopg2

    from madlib_mop.cli.sessions import apply_settings, connect_with_path
    from madlib_mop.errors import read_server_error

    connection, search_path = connect_with_path(dsn)
    try:
        apply_settings(connection, settings)
        with connection, connection.cursor("mop" if in_turn else None) as cursor:
            cursor.itersize = 1
            cursor.execute(statement, (*values, search_path) if with_path else values)
            rows: list[tuple[Any, ...]] = list(cursor) if in_turn else cursor.fetchall()
            return rows
    except psycopg2.Error as error:
        raise read_server_error(error).as_error() from None
    finally:
        connection.close()
