"""The methods that the tests call on a database of any engine."""

from abc import ABC, abstractmethod


class SqlSessions(ABC):
    """Statements in sessions of their own."""

    @abstractmethod
    def connect(self, role: str | None = None, autocommit: bool = True):
        """Open a psycopg2 connection, as the superuser or as a role."""

    def rows(self, query: str, parameters=None, role: str | None = None) -> list[tuple]:
        """Run one statement in a session of its own and return its rows ([] if it has none)."""
        connection = self.connect(role)
        try:
            with connection.cursor() as cursor:
                cursor.execute(query, parameters)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def value(self, query: str, parameters=None, role: str | None = None):
        """Run one statement and return its only value."""
        ((value,),) = self.rows(query, parameters, role)
        return value
