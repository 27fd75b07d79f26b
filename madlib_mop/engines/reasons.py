"""What a host's server said, without where it is: for messages; called by whoever has a session at a host."""

import re

import psycopg

# psycopg and libpq begin with the address that was tried
_ADDRESS = re.compile(r"^(connection failed: )?(connection to server .*? failed: )?")


def plain_reason(error: psycopg.Error) -> str:
    """Give one line: the server's message, or what libpq said of the last address that it tried."""
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    tried = [line for line in lines if "connection to server" in line]
    line = (tried or lines or [type(error).__name__])[-1]
    return _ADDRESS.sub("", line).removeprefix("FATAL:").strip()
