"""Addresses of tracking servers and storages: without passwords, and reached before any work; called by trackers."""

import re
from typing import Any

from madlib_mop.catalog.live.words import clean
from madlib_mop.errors import InvalidParameter, NotReady

_CONNECT_S = 10
_DATABASES = ("sqlite", "postgresql", "mysql", "mariadb", "mssql", "oracle")
# up to the last @, because a password that was not quoted can have any character
_USER_INFO = re.compile(r"//\S*@")
_SECRET = re.compile(r"(\w*(?:password|passwd|pwd|token|secret)\w*)=[^&\s]*", re.IGNORECASE)


def refuse_password(address: str, option: str, instead: str) -> None:
    """Raise InvalidParameter if an argument of the command line has a password: other users can list arguments.

    Parameters
    ----------
    address : str
    option : str
        Its name, such as ``--storage``.
    instead : str
        What to do, for the hint.
    """
    # defence: no-password-in-arguments = _SECRET.search(address) is not None
    has_password = ":" in address.partition("://")[2].rpartition("@")[0] or _SECRET.search(address) is not None
    if has_password:
        raise InvalidParameter(
            f"{option} must not have a password: other users of this machine can see arguments."
            f" Received: {shown(address)}",
            hint=instead,
        )


def shown(address: str) -> str:
    """Return an address or a message of a library for a person: without users and passwords of the addresses in it."""
    # defence: no-password-in-messages = clean(_SECRET.sub(r"\1=***", address))
    return clean(_SECRET.sub(r"\1=***", _USER_INFO.sub("//", address)))


def is_database(address: str) -> bool:
    """Return whether an address is a URL of SQLAlchemy."""
    scheme = address.partition("://")[0].partition("+")[0]
    return "://" in address and scheme in _DATABASES


def connect_options(address: str) -> dict[str, Any]:
    """Return arguments of ``create_engine`` with which a host that does not answer is an error after 10 seconds."""
    scheme = address.partition("://")[0].partition("+")[0]
    return {"connect_args": {"connect_timeout": _CONNECT_S}} if scheme in ("postgresql", "mysql", "mariadb") else {}


def reach_database(address: str, option: str) -> None:
    """Connect to a database once; the trackers' libraries repeat a failed connection for minutes.

    Raises
    ------
    NotReady
        If that fails.
    """
    import sqlalchemy
    from sqlalchemy.exc import SQLAlchemyError

    try:
        engine = sqlalchemy.create_engine(address, **connect_options(address))
        try:
            engine.connect().close()
        finally:
            engine.dispose()
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise unreachable(address, option, error) from None


def unreachable(address: str, option: str, error: Exception) -> NotReady:
    """Return the error of an address that cannot be reached, with the first line of a library's reason."""
    reason = shown((str(error).strip().splitlines() or [type(error).__name__])[0])
    return NotReady(
        f"{option} cannot be reached: {reason[:300]}. Received: {shown(address)}",
        hint=f"Check {option}, and that the server or the file is there.",
    )
