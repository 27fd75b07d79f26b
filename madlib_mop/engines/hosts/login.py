"""Opens sessions at segments' hosts: `log_in` is the only way, of the driver (`connections`) and of the relay.

If a caller waits, it fails fast on rejected logins and retries lost connections. libpq has no SQLSTATE for a failed
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
from madlib_mop.catalog.sessions.session_settings import LIFT_NEW_TIMEOUTS, PIN_AND_KEEP_SCHEMAS
from madlib_mop.engines.hosts.versions import check_version
from madlib_mop.engines.sessions.access import OPTIONS_BUT_PATH, SESSION_OPTIONS
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


def log_in(
    options: Mapping[str, Any],
    application_name: str,
    *,
    must_use_password: bool,
    waits: bool = False,
    own_path: bool = False,
    same_version_as: str | None = None,
) -> psycopg.Connection:
    """Open a session, in autocommit; its statements are not prepared, as a user's code could replace a prepared one.

    Parameters
    ----------
    options : mapping of str to object
        libpq's keywords, from the foreign server and the user mapping.
    application_name : str
    must_use_password : bool
        Refuse a host that lets the role in without its password, before any statement: the login would use the
        identity of the server's operating system user.
    waits : bool
        Try again for a while if the host's answer is unknown.
    own_path : bool
        Keep the schemas of the role's own search_path there, to find out where it creates its tables.
    same_version_as : str, optional
        The foreign server's name, if work is to be done there, for which the host must have this version.

    Raises
    ------
    NotLetIn
        If the host lets the role in without its password; with ``waits``, also if it is up and rejects the login.
    NotReady
        For its version.
    psycopg.OperationalError
        If it is not reached, or goes down or comes up; or asks for the password other than by SCRAM.
    psycopg.Error
        If libpq cannot use the options.
    """
    session_options = OPTIONS_BUT_PATH if own_path else SESSION_OPTIONS
    open_session = _opened_in_time if waits else _opened
    connection = open_session(options, application_name, session_options)
    try:
        if must_use_password and not connection.pgconn.used_password:  # defence: used-password
            raise NotLetIn(
                "2F003",
                "it does not request a password, and only superusers may log in without one",
                "Its pg_hba.conf must require a password from the mapping's user (scram-sha-256).",
            )
        if own_path:
            connection.execute(PIN_AND_KEEP_SCHEMAS)
        connection.execute(LIFT_NEW_TIMEOUTS)
        if same_version_as is not None:
            check_version(connection, same_version_as)
    except Exception:
        connection.close()
        raise
    return connection


def _opened(options: Mapping[str, Any], application_name: str, session_options: str) -> psycopg.Connection:
    protected = passwords.protecting(options, pq.version(), may_be_let_in=not options.get("password"))
    keywords: dict[str, Any] = {
        **options,
        **_LIVENESS,
        **protected,  # defence: password-of-a-host
        "client_encoding": "UTF8",
        "application_name": application_name,
        "options": session_options,
        "passfile": _NO_FILE,
    }
    # Never a prepared statement: code of the shard table's owner that ran there could have replaced it.
    # defence: no-prepared-statements = psycopg.connect(**keywords, autocommit=True, prepare_threshold=0)
    return psycopg.connect(**keywords, autocommit=True, prepare_threshold=None)


def _opened_in_time(options: Mapping[str, Any], application_name: str, session_options: str) -> psycopg.Connection:
    """Try again for a while. Raises NotLetIn if the host is up and rejects the login."""
    for pause_s in (*_PAUSES_S, None):
        try:
            return _opened(options, application_name, session_options)
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
    # defence: ping-without-password = pq.PGconn.ping(make_conninfo(**options).encode()) == pq.Ping.OK
    return pq.PGconn.ping(make_conninfo(**without).encode()) == pq.Ping.OK
