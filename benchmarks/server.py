"""The server of the benchmarks, as helpers of the tests that write records take a database."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg2


class Server:
    """A database by its DSN; the role must be a superuser."""

    def __init__(self, dsn: str):
        self._dsn = dsn

    def connect(self):
        """Open a session."""
        connection = psycopg2.connect(self._dsn)
        connection.autocommit = True
        return connection

    def rows(self, statement: str, values: Any = None) -> Sequence[tuple]:
        """Run a statement in a session of its own; return its rows."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []
