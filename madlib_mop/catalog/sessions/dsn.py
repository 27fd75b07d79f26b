"""Checks a DSN before libpq reads it, so that no error shows a part of a password."""

import re

from madlib_mop.errors import InvalidParameter

_URI = re.compile(r"(?:postgres|postgresql(?P<driver>\+\w+)?)://(?P<rest>.*)", re.DOTALL)
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def check_dsn(dsn: str) -> None:
    """Raise InvalidParameter if a URI has an @ that does not end a user and a password, or a % that begins no escape.

    libpq ends the password at the first @, and reads no password at all if a / comes before. The rest of the password
    would then be a part of the host, the port or the database, which errors show. They show a wrong escape, too.

    Parameters
    ----------
    dsn : str
        A URI or keywords of libpq, or a URL of SQLAlchemy, such as ``postgresql+psycopg2://...``.
    """
    uri = _URI.match(dsn)
    if uri is None:
        return
    rest, end = uri["rest"], "@" if uri["driver"] else "[@/]"
    found = re.search(end, rest)
    behind = rest[found.end() :] if found and found[0] == "@" else rest
    is_cut = "@" in behind.partition("?")[0]  # defence: cut-dsn = False
    if is_cut or (uri["driver"] is None and _NO_ESCAPE.search(rest)):
        raise InvalidParameter(  # without the DSN, which may have a password
            "the DSN cannot be read: it has an @ or a % that is not written as an escape",
            hint="In a password or a name of a URI, write @ as %40, / as %2F, : as %3A, and % as %25.",
        )
