"""Extracts a server's message without its address: for messages about sessions there."""

import re
from typing import TYPE_CHECKING

from madlib_mop.errors import read_server_error

if TYPE_CHECKING:  # not needed on a single server
    import psycopg

# Messages of psycopg and libpq begin with the address.
_ADDRESS = re.compile(r"^(connection failed: )?(connection to server .*? failed: )?")
_PYTHON_PREFIX = re.compile(r"^(spiexceptions|plpy)\.\w+: ")


def plain_reason(error: "psycopg.Error") -> str:
    """Return one line: the server's message, or libpq's message about the last address that it tried.

    Of libpq's other messages, the first line says what happened; the next ones explain it.
    """
    found = read_server_error(error)
    if found.sqlstate is not None:
        return without_prefix(found.message)
    lines = [line.strip() for line in found.message.splitlines() if line.strip()]
    tried = [line for line in lines if "connection to server" in line]
    line = tried[-1] if tried else (lines or [type(error).__name__])[0]
    return _ADDRESS.sub("", line).removeprefix("FATAL:").strip()


def without_prefix(message: str) -> str:
    """Return a message without the name of the exception that it was in PL/Python."""
    return _PYTHON_PREFIX.sub("", message)
