"""Runs one statement and returns its rows, for commands that only query."""

from typing import Any


def query(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run one statement in its own session and return its rows. Raises MopError for errors of the server."""
    import psycopg2

    from madlib_mop.cli.sessions import connect
    from madlib_mop.errors import read_server_error

    connection = connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows
    except psycopg2.Error as error:
        raise read_server_error(error).as_error() from None
    finally:
        connection.close()
