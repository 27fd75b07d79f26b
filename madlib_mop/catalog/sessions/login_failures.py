"""Classifies the reasons of failed logins of the catalog session and runs' sessions, with a hint for each.

libpq has no SQLSTATE for a failed login, so the server's message is parsed if there is none. For messages in other
languages, only the SQLSTATE is used.
"""

import re
from dataclasses import dataclass
from enum import Enum


class LoginFailure(Enum):
    """The reason of a failed login."""

    NO_ENTRY = "no entry"  # pg_hba.conf has no line for it
    REJECTED = "rejected"  # a line of pg_hba.conf rejects the login
    WRONG_PASSWORD = "wrong password"  # or an expired one: the server does not report which
    OTHER_METHOD = "other method"  # a line of pg_hba.conf requires another method than the client's
    NO_ROLE = "no role"
    NO_LOGIN = "no login"  # the role is NOLOGIN
    EXPIRED = "expired"  # reported by proxies and by servers that are compatible with PostgreSQL
    ROLE_FULL = "role full"  # CONNECTION LIMIT of the role
    DATABASE_FULL = "database full"  # CONNECTION LIMIT of the database
    SERVER_FULL = "server full"  # max_connections
    NO_DATABASE = "no database"
    CLOSED_DATABASE = "closed database"  # ALLOW_CONNECTIONS false
    NO_CONNECT_RIGHT = "no right to connect"
    NOT_UP = "not up"  # starting, stopping or in recovery
    UNREACHABLE = "unreachable"  # no server listens there
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Diagnosis:
    """The reason of a failed login, whether a retry can help, and the hint."""

    failure: LoginFailure
    may_pass: bool
    hint: str


_WORDS = (
    (LoginFailure.NO_ENTRY, r"no pg_hba\.conf entry"),
    (LoginFailure.REJECTED, r"pg_hba\.conf rejects"),
    (LoginFailure.EXPIRED, r"(password|role|account|user).* (has )?expired"),
    (LoginFailure.WRONG_PASSWORD, r"password authentication failed|no password supplied|empty password"),
    (LoginFailure.OTHER_METHOD, r"\b\w+ authentication failed|authentication method|SCRAM|SSL connection is required"),
    (LoginFailure.NO_ROLE, r"role .* does not exist"),
    (LoginFailure.NO_LOGIN, r"role .* is not permitted to log in"),
    (LoginFailure.ROLE_FULL, r"too many connections for role"),
    (LoginFailure.DATABASE_FULL, r"too many connections for database"),
    (LoginFailure.SERVER_FULL, r"too many clients|too many connections|connection slots are reserved"),
    (LoginFailure.CLOSED_DATABASE, r"database .* is not currently accepting connections"),
    (LoginFailure.NO_DATABASE, r"database .* does not exist"),
    (LoginFailure.NO_CONNECT_RIGHT, r"permission denied for database|User does not have CONNECT privilege"),
    (LoginFailure.NOT_UP, r"the database system is|not yet accepting connections"),
    (LoginFailure.UNREACHABLE, r"onnection refused|No such file or directory|timeout expired|could not translate host"
                               r"|No route to host|Network is unreachable"),
)  # fmt: skip
_STATES = {
    "28P01": LoginFailure.WRONG_PASSWORD,
    "3D000": LoginFailure.NO_DATABASE,
    "42501": LoginFailure.NO_CONNECT_RIGHT,
    "53300": LoginFailure.SERVER_FULL,
    "57P03": LoginFailure.NOT_UP,
    "08001": LoginFailure.UNREACHABLE,
}
_PASSING = (
    LoginFailure.ROLE_FULL,
    LoginFailure.DATABASE_FULL,
    LoginFailure.SERVER_FULL,
    LoginFailure.NOT_UP,
    LoginFailure.UNREACHABLE,
    LoginFailure.UNKNOWN,
)
_THEN = "then SELECT pg_reload_conf();"
_HINTS = {
    LoginFailure.NO_ENTRY: f"Add the line `{{line}}` to pg_hba.conf, {_THEN} `madlib-mop doctor` checks it.",
    LoginFailure.REJECTED: f"A line of pg_hba.conf rejects this login. Put `{{line}}` above it, {_THEN}",
    LoginFailure.WRONG_PASSWORD: "The server rejects the password, or it has expired (VALID UNTIL); the server's log"
    f" shows which. The first matching line of pg_hba.conf must be `{{line}}`, not a line for ldap or pam; {_THEN}",
    LoginFailure.OTHER_METHOD: "The first matching line of pg_hba.conf requires another authentication method. Put"
    f" `{{line}}` above it, {_THEN}",
    LoginFailure.NO_ROLE: "The role was dropped while the run used it. Call again; the server's log shows who dropped "
    "it.",
    LoginFailure.NO_LOGIN: "The role cannot log in: someone ran ALTER ROLE ... NOLOGIN. Call again.",
    LoginFailure.EXPIRED: "ALTER ROLE ... VALID UNTIL 'infinity'; or set a new password for the role.",
    LoginFailure.ROLE_FULL: "Close sessions of that role, or raise its limit: ALTER ROLE ... CONNECTION LIMIT.",
    LoginFailure.DATABASE_FULL: "Close sessions of the database, or raise its limit:"
    " ALTER DATABASE ... CONNECTION LIMIT.",
    LoginFailure.SERVER_FULL: "Close idle sessions, or raise max_connections.",
    LoginFailure.NO_DATABASE: "The database was dropped or renamed.",
    LoginFailure.CLOSED_DATABASE: "ALTER DATABASE ... ALLOW_CONNECTIONS true;",
    LoginFailure.NO_CONNECT_RIGHT: "GRANT CONNECT ON DATABASE ... TO the calling role.",
    LoginFailure.NOT_UP: "Wait until the server is up; its log shows the progress.",
    LoginFailure.UNREACHABLE: "No server answers there: check listen_addresses, the port and firewalls.",
    LoginFailure.UNKNOWN: "The server's log has the reason; `madlib-mop doctor` tries the same login.",
}


def diagnose(message: str, sqlstate: str | None, line: str) -> Diagnosis:
    """Return the reason of a failed login.

    Parameters
    ----------
    message : str
        The message of libpq or the server.
    sqlstate : str or None
        If the server sent one.
    line : str
        The line of pg_hba.conf that accepts such a session, for the hint.
    """
    failure = next((kind for kind, words in _WORDS if re.search(words, message)), None)
    failure = failure or _STATES.get(sqlstate or "", LoginFailure.UNKNOWN)
    return Diagnosis(failure, failure in _PASSING, _HINTS[failure].format(line=line))
