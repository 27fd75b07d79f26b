"""Opens sessions at segments' hosts; called by the relay and by `connections`.

`log_in` fails fast on rejected logins and retries lost connections. libpq has no SQLSTATE for a failed
login, and messages can be in any language. So for an unknown message, libpq's ping checks whether the host is up: if
it is up and rejects the login repeatedly, the login is rejected.
"""

import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from madlib_mop.catalog.sessions import passwords
from madlib_mop.engines.sessions.options import SESSION_OPTIONS
from madlib_mop.engines.sessions.reasons import plain_reason

#: Seconds until a host that does not answer counts as lost.
_SILENCE_S = 20
_LIVENESS = {
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": str(_SILENCE_S * 1000),
}

_NO_FILE = "/dev/null"
#: Texts in messages of libpq and of a server (in English) for errors that waiting cannot solve.
_NOT_LET_IN = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "does not exist",
    "permission denied for database",
    "does not support SSL",
    "certificate verify failed",
)
#: Texts in messages of a server (in English) that has no free connection, which waiting can solve.
_FULL = ("too many clients", "too many connections", "connection slots")
#: Pauses before an unknown message counts as a refusal; a server that is full for a moment must not count as one.
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 3.0)


class NotLetIn(Exception):
    """The host is up, but rejects the login.

    Parameters
    ----------
    sqlstate, message, hint : str
    """

    def __init__(self, sqlstate: str, message: str, hint: str):
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint


def connect(
    options: Mapping[str, Any], application_name: str, session_options: str = SESSION_OPTIONS
) -> psycopg.Connection:
    """Open a session, in autocommit; its statements are not prepared, as a user's code could replace a prepared one.

    Parameters
    ----------
    options : mapping of str to object
        libpq's keywords, from the foreign server and the user mapping.
    application_name : str
    session_options : str

    Raises
    ------
    psycopg.Error
        If the host is not reached, rejects the login, or asks for the password other than by SCRAM.
    """
    protected = passwords.protecting(options, pq.version(), may_be_let_in=not options.get("password"))
    keywords: dict[str, Any] = {
        **options,
        **_LIVENESS,
        **protected,
        "client_encoding": "UTF8",
        "application_name": application_name,
        "options": session_options,
        "passfile": _NO_FILE,
    }
    return psycopg.connect(**keywords, autocommit=True, prepare_threshold=None)


def log_in(options: Mapping[str, Any], application_name: str) -> psycopg.Connection:
    """Open a session as `connect` does, and try again for a while.

    Raises
    ------
    NotLetIn
        If the host is up and rejects the login.
    psycopg.OperationalError
        If it is not reached, or goes down or comes up; it may be tried again later.
    psycopg.Error
        If libpq cannot use the options.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            return connect(options, application_name)
        except psycopg.errors.ConnectionTimeout:
            raise
        except psycopg.OperationalError as error:
            message = plain_reason(error)
            is_method = passwords.is_refused(message)
            refused = is_method or any(words in message for words in _NOT_LET_IN)
            if not refused and (any(words in message for words in _FULL) or not _is_up(options)):
                raise
            if refused or pause_s is None:
                hint = "Check the user mapping (pg_user_mappings) and pg_hba.conf there."
                raise NotLetIn("28000", message, passwords.HINT if is_method else hint) from None
        time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")


def _is_up(options: Mapping[str, Any]) -> bool:
    """Return whether a server accepts connections, regardless of authentication.

    libpq's ping answers a server that asks for a password, in any way, so it gets none.
    """
    without = {**options, "password": "", "passfile": _NO_FILE}
    return pq.PGconn.ping(make_conninfo(**without).encode()) == pq.Ping.OK
