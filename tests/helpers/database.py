"""What the tests call on a database, whichever engine has it."""

from abc import ABC, abstractmethod


class SqlSessions(ABC):
    """Statements in sessions of their own."""

    @abstractmethod
    def connect(self, role: str | None = None, autocommit: bool = True):
        """Open a psycopg2 connection, as the superuser or as a role."""

    def rows(self, query: str, parameters=None, role: str | None = None) -> list[tuple]:
        """Run one statement in a session of its own and give its rows ([] when it has none)."""
        connection = self.connect(role)
        try:
            with connection.cursor() as cursor:
                cursor.execute(query, parameters)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def value(self, query: str, parameters=None, role: str | None = None):
        """Run one statement and give the one value that it returns."""
        ((value,),) = self.rows(query, parameters, role)
        return value
