"""The methods that the tests call on a database of any engine."""

import re
import threading
from abc import ABC, abstractmethod

import psycopg2

from madlib_mop.catalog.sessions.lost_segments import lost_at_segment

_RELATION = re.compile(r"\b(?:FROM|JOIN)\s+(?!\()([\w.\"]+)", re.IGNORECASE)
_CALLED = re.compile(r"([\w.]+)\s*\(")
_HARMLESS = {
    "and", "array", "array_agg", "bool_and", "coalesce", "count", "current_database", "exists", "extract", "from", "in",
    "jsonb_array_elements", "max", "min", "not", "or", "select", "string_agg", "sum", "where",
}  # fmt: skip
_PLAIN = re.compile(
    r"\s*(INSERT|UPDATE|DELETE|TRUNCATE|GRANT|REVOKE|ANALYZE|SELECT|(CREATE|DROP) (TABLE|VIEW|SCHEMA)|ALTER TABLE)\b",
    re.IGNORECASE,
)
_NAMES_A_TABLE = re.compile(r"\bINSERT INTO [\w.\"]+|\bUPDATE [\w.\"]+( AS)?( \w+)? SET\b", re.IGNORECASE)
# What depends on the session or stays in it, and calls of our functions.
_OF_THE_SESSION = re.compile(
    r"\b(SET|RESET|SHOW|TEMP|TEMPORARY|BEGIN|COMMIT|ROLLBACK|LISTEN|PREPARE|DECLARE|LOCK|DO|CALL|set_config|currval"
    r"|current_setting|(pg|txid)_\w+|ROLE|DATABASE|OWNED)\b|\bmadlib\w*\.\w+\s*\(",
    re.IGNORECASE,
)
# Changes what a session begins with: sessions that are kept would not know of it.
_SETS_DEFAULTS = re.compile(r"\bALTER (ROLE|USER|DATABASE|SYSTEM)\b", re.IGNORECASE)
_SETS = re.compile(r"\s*(SET|ALTER (ROLE|USER|DATABASE|SYSTEM))\b", re.IGNORECASE)


class SqlSessions(ABC):
    """Statements in sessions of their own."""

    @abstractmethod
    def connect(self, role: str | None = None, autocommit: bool = True):
        """Open a psycopg2 connection, as the superuser or as a role."""

    def rows(self, query: str, parameters=None, role: str | None = None) -> list[tuple]:
        """Run one statement in a session of its own and return its rows ([] if it has none).

        The superuser's statements that only look at the record or at the server share a session, because tests wait by
        repeating them; and those that depend on no session and leave nothing in it, because there are thousands.
        """
        if isinstance(query, str) and _SETS_DEFAULTS.search(query):
            self.__dict__.pop("_callers", None)
        if role is None and isinstance(query, str):
            if only_looks(query):
                return self._look(query, parameters)
            if is_plain(query):
                return self._do(query, parameters)
        connection = self.connect(role)
        try:
            return _rows(connection, query, parameters)
        finally:
            connection.close()

    def value(self, query: str, parameters=None, role: str | None = None):
        """Run one statement and return its only value."""
        ((value,),) = self.rows(query, parameters, role)
        return value

    def _look(self, query: str, parameters) -> list[tuple]:
        kept = self.__dict__.setdefault("_kept", threading.local())
        connection = getattr(kept, "connection", None)
        if connection is not None:
            try:
                return _rows(connection, query, parameters)
            except psycopg2.Error as error:
                if error.pgcode is not None and not connection.closed and not lost_at_segment(error):
                    raise
        kept.connection = self.connect()  # the first, or the test has ended the one before, or the server
        return _rows(kept.connection, query, parameters)

    def _do(self, query: str, parameters) -> list[tuple]:
        try:
            self._look("RESET ALL", None)  # what a trigger has set, say; has the session ended?
        except psycopg2.Error:
            self._kept.connection = self.connect()
        return _rows(self._kept.connection, query, parameters)

    def caller(self, role: str | None = None):
        """Return a session that is kept, in autocommit, for calls that leave nothing in it but settings.

        The first call of a session takes 60 ms more, in which the backend imports the library. Defaults of roles and
        databases are those of the session's start; `rows` ends the use of all sessions if it changes them.
        """
        callers = self.__dict__.setdefault("_callers", {})
        key = threading.get_ident(), role
        try:
            callers[key].cursor().execute("ROLLBACK; RESET SESSION AUTHORIZATION; RESET ALL")
        except (KeyError, psycopg2.Error):  # the first, or the test has ended the one before, or the server
            callers[key] = self.connect(role)
        callers[key].notices.clear()
        return callers[key]


class OneSession(SqlSessions):
    """A database whose statements run in one session, but those of other roles and those that begin with SET.

    For modules that are not about sessions: the first call of our functions takes longer in each than many a test.
    """

    def __init__(self, sessions: SqlSessions):
        self._sessions = sessions
        self._session = None

    def __getattr__(self, name: str):
        return getattr(self._sessions, name)

    def connect(self, role: str | None = None, autocommit: bool = True):
        return self._sessions.connect(role, autocommit)

    def rows(self, query: str, parameters=None, role: str | None = None) -> list[tuple]:
        """Run one statement and return its rows ([] if it has none)."""
        if role is not None or (isinstance(query, str) and (only_looks(query) or _SETS.match(query))):
            return self._sessions.rows(query, parameters, role)
        if self._session is None or self._session.closed:
            self._session = self.connect()
        return _rows(self._session, query, parameters)

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()


def only_looks(query: str) -> bool:
    """Return whether a statement reads only the record and the server's views, and calls none of our functions."""
    relations, called = _RELATION.findall(query), {name.lower() for name in _CALLED.findall(query)}
    return (
        query.lstrip().upper().startswith("SELECT")
        and ";" not in query
        and bool(relations)
        and all(name.startswith(("madlib_mop.", "pg_")) for name in relations)
        and called <= _HARMLESS
    )


def is_plain(query: str) -> bool:
    """Return whether a statement calls none of our functions, depends on no session, and leaves nothing in it."""
    return (
        _PLAIN.match(query) is not None
        and _OF_THE_SESSION.search(_NAMES_A_TABLE.sub("", query)) is None
        and (query.lstrip()[:6].upper() != "SELECT" or {name.lower() for name in _CALLED.findall(query)} <= _HARMLESS)
    )


def _rows(connection, query: str, parameters) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return cursor.fetchall() if cursor.description else []
