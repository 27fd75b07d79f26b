"""Errors of the client: those of `madlib_mop.errors`, whose hint is also a note, so that tracebacks show it."""

from typing import Any, TypeVar

from madlib_mop.errors import InvalidParameter, MopError, cannot_log_in, connection_lost, read_server_error

_Error = TypeVar("_Error", bound=MopError)
#: Classes of both drivers whose errors without SQLSTATE are of the driver itself, not of a lost connection (PEP 249).
_OF_VALUES = frozenset(("ProgrammingError", "DataError", "NotSupportedError"))


def noted(error: _Error) -> _Error:
    """Return an error whose hint is also a note (PEP 678)."""
    note = f"Hint: {error.hint}"
    if error.hint and note not in getattr(error, "__notes__", []):
        error.add_note(note)
    return error


def bad_input(message: str, hint: str | None = None) -> InvalidParameter:
    """Return the error for input that cannot be used: what is wrong, which value was received; what to do."""
    return noted(InvalidParameter(message, hint=hint))


def of_server(error: Any) -> MopError:
    """Return an error of psycopg2 or psycopg as one of ours.

    It has the server's sentence, hint and detail. The text of the statement and its values are not in it.
    """
    found = read_server_error(error)
    if found.sqlstate is None and _OF_VALUES & {cls.__name__ for cls in type(error).__mro__}:
        return misfit(error)
    if found.sqlstate is None:
        return noted(connection_lost("Call again. A run that trained is interrupted: run.resume()."))
    return noted(found.as_error())


def misfit(error: Exception) -> InvalidParameter:
    """Return the error for a statement that the driver did not send, or for values of its result."""
    return bad_input(
        f"the driver of PostgreSQL cannot convert a value: {(str(error).strip().splitlines() or ['no reason'])[0]}",
        "Pass a value of Python for each %s. In a statement with values, write a percent sign as %%.",
    )


def of_login(error: Exception) -> MopError:
    """Return the error of a login that failed; libpq's text names the server and the role, never the password."""
    hint = "Pass server and role, for example connect('postgresql://analyst@db.example.org/mydb'), or set PGHOST."
    return noted(cannot_log_in(error, hint))
