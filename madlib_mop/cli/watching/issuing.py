"""Issues a command in a session and a thread of its own, so that the screen goes on meanwhile; called by `terminal`."""

import threading
from collections.abc import Callable

import psycopg2

from madlib_mop.cli.sessions import connect
from madlib_mop.cli.watching.session import mop_error
from madlib_mop.dash.commands import Command
from madlib_mop.errors import MopError

_TIMEOUT = "SET statement_timeout = '60s'"


class Issued:
    """A command that was issued.

    Parameters
    ----------
    dsn : str
    command : Command
    wake : callable
        Called when its outcome is known.
    """

    def __init__(self, dsn: str, command: Command, wake: Callable[[], None]):
        self._dsn = dsn
        self._command = command
        self._wake = wake
        self._outcome: str | None = None
        threading.Thread(target=self._issue, daemon=True).start()

    @property
    def outcome(self) -> str | None:
        """What became of it, in words; None while that is not known."""
        return self._outcome

    def _issue(self) -> None:
        try:
            connection = connect(self._dsn)
            try:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute(_TIMEOUT)
                    cursor.execute(self._command.statement, self._command.values)
                    (value,) = cursor.fetchone() or (None,)
            finally:
                connection.close()
            self._outcome = f"{self._command.name}: done{f', model {value}' if isinstance(value, int) else ''}"
        except psycopg2.Error as error:
            self._outcome = f"{self._command.name}: {mop_error(error)}"
        except MopError as error:
            self._outcome = f"{self._command.name}: {error.message}"
        self._wake()
