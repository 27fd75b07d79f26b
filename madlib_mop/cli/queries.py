"""Runs one statement and returns its rows, for commands that only query."""

from typing import Any


def query(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run one statement in its own session and return its rows. Raises MopError for errors of the server."""
    import psycopg2

    from madlib_mop.cli.sessions import connect
    from madlib_mop.errors import from_dict

    connection = connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows
    except psycopg2.Error as error:
        fields = {"sqlstate": error.pgcode, "message": error.diag.message_primary or str(error).strip()}
        raise from_dict({**fields, "hint": error.diag.message_hint}) from None
    finally:
        connection.close()
