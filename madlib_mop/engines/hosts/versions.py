"""The version of the extension at a host, which must be this server's; called wherever a session there begins work."""

from typing import LiteralString

import psycopg

from madlib_mop import __version__
from madlib_mop.errors import NotReady

_INSTALLED: LiteralString = "SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'madlib_mop'"


def check_version(connection: psycopg.Connection, server: str) -> None:
    """Check that a host has this version of the extension, and else close the session.

    A host without the extension fails later, where it is used.

    Parameters
    ----------
    connection : psycopg.Connection
        A session there.
    server : str
        The foreign server's name.

    Raises
    ------
    NotReady
        If it has another version.
    """
    row = connection.execute(_INSTALLED, prepare=False).fetchone()
    if row is not None and row[0] != __version__:
        connection.close()
        raise other_version(server, row[0])


def other_version(server: str, theirs: str) -> NotReady:
    """Return the error for a host that has another version; its hint is for the older side."""
    update = "make install PG_CONFIG=...; then, in the database: ALTER EXTENSION madlib_mop UPDATE;"
    is_older = _numbers(theirs) < _numbers(__version__)
    return NotReady(
        f"server {server} has version {theirs} of extension madlib_mop; this server has {__version__}",
        hint=f"At that host: {update}" if is_older else f"On this server: {update}",
    )


def _numbers(version: str) -> list[int]:
    return [int(number) if number.isdigit() else 0 for number in version.split(".")]
