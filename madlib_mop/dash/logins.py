"""Logs in as a role with a password that a person typed, and with nothing else; called by `accounts`.

The operating system user of the live page must help nobody: its password file, certificates, Kerberos tickets, services
and environment are not used, and logins that the server accepts because of that user are refused.
"""

import logging
import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

from madlib_mop.catalog.sessions import passwords
from madlib_mop.dash.settings import DashServer
from madlib_mop.errors import InsufficientPrivilege, NotReady

_LOG = logging.getLogger("madlib_mop.dash")
#: A path that can never exist.
_NO_FILE = "/dev/null/none"
_NOTHING_OF_OURS = {
    # defence: no-password-file
    "passfile": _NO_FILE, "sslcert": _NO_FILE, "sslkey": _NO_FILE, "sslcertmode": "disable", "gssencmode": "disable",
    "client_encoding": "UTF8", "application_name": "madlib-mop dash",
}  # fmt: skip
_OPTIONS = (
    "-c search_path=pg_catalog,pg_temp -c jit=off -c statement_timeout=60000 -c lock_timeout=20000"
    " -c idle_in_transaction_session_timeout=60000 -c default_transaction_isolation=read\\ committed"
)
_READ_ONLY = " -c default_transaction_read_only=on"
_FACTS = """
SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'madlib_mop'
"""
#: What everybody is told about a login that failed, whatever the reason is.
FAILED = "The server does not accept this role with this password."
TOO_MANY = "Too many logins have failed. Wait a minute, and try again."
#: The longest name of a role.
MAX_ROLE_BYTES = 63
_OF_LIBPQ = re.compile(r"PG[A-Z]+|KRB5\w+")  # PG_CONFIG is not libpq's


class LoginFailed(Exception):
    """The login did not succeed; the reason is for the log only."""


class TooManyLogins(Exception):
    """Logins of this role, or at this address, have failed too often lately."""


class LoginLimits:
    """Slows down guesses, by person and by address, so that one who guesses does not lock out others.

    Each failure of a role from an address after the third doubles the wait of this role there. Failures of all roles
    from one address have a limit, and failures of one role from all addresses have another. The latter does not count
    where the role has logged in before.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    _free, _longest_wait_s, _per_minute, _most_kept = 3, 60.0, 30, 10_000

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._of_address: OrderedDict[str, deque[float]] = OrderedDict()
        self._of_role: OrderedDict[str, deque[float]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def check(self, role: str, address: str) -> None:
        """Raise TooManyLogins if this role has to wait at this address."""
        now = self._clock()
        # defence: failures-elsewhere = max([n for key, n in self._failures.items() if key[0] == role] or [(0, 0.0)])
        n, last = self._failures.get((role, address), (0, 0.0))
        wait_s = 0.0 if n < self._free else min(self._longest_wait_s, 2.0 ** min(n - self._free, 10))
        is_known = (role, address) in self._known  # defence: known-addresses = False
        if (
            now < last + wait_s  # defence: wait-after-failures
            or self._is_full(self._of_address.get(address))  # defence: failures-of-an-address
            or (not is_known and self._is_full(self._of_role.get(role)))  # defence: failures-of-a-role
        ):
            raise TooManyLogins

    def failed(self, role: str, address: str) -> None:
        """Count a failure."""
        now = self._clock()
        n, last = self._failures.pop((role, address), (0, now))
        self._failures[role, address] = (1 if now > last + 3600 else n + 1, now)
        for counted, key in ((self._of_address, address), (self._of_role, role)):
            times = counted.pop(key, deque[float](maxlen=self._per_minute))
            times.append(now)
            counted[key] = times
        self._forget_oldest()

    def succeeded(self, role: str, address: str) -> None:
        """Forget the failures of a role at an address, and remember that it has logged in there."""
        self._failures.pop((role, address), None)
        self._known.pop((role, address), None)
        self._known[role, address] = None
        self._forget_oldest()

    def _is_full(self, times: deque[float] | None) -> bool:
        """Return whether there were as many failures in the last minute as there may be."""
        return times is not None and len(times) == self._per_minute and times[0] > self._clock() - 60

    def _forget_oldest(self) -> None:
        kept: tuple[OrderedDict[Any, Any], ...] = (self._failures, self._of_address, self._of_role, self._known)
        for each in kept:
            while len(each) > self._most_kept:
                each.popitem(last=False)


def forget_environment() -> None:
    """Remove the variables of libpq from this process, so that none supplies a password or a service."""
    for name in [name for name in os.environ if _OF_LIBPQ.fullmatch(name)]:
        del os.environ[name]


def log_in(server: DashServer, role: str, password: str, is_read_only: bool = True) -> psycopg.Connection[Any]:
    """Open a session of a role.

    Parameters
    ----------
    server : DashServer
    role, password : str
        As typed.
    is_read_only : bool
        Whether its transactions can write.

    Raises
    ------
    LoginFailed
        If the server does not accept it, or accepts it because of the operating system user of this process.
    """
    # libpq has a default for an empty role
    # defence: login-has-a-role = "\0" in role + password or len(role.encode()) > MAX_ROLE_BYTES
    if not role or "\0" in role + password or len(role.encode()) > MAX_ROLE_BYTES:
        raise LoginFailed("no name of a role")
    forget_environment()  # defence: no-environment
    options = _OPTIONS + (_READ_ONLY if is_read_only else "")
    words: dict[str, Any] = {**server.keywords, **_NOTHING_OF_OURS}
    words |= {"user": role, "password": password, "options": options}
    words |= passwords.protecting(words, pq.version(), never=("gss", "sspi"))  # defence: password-of-a-login
    try:
        connection = psycopg.connect(**words, autocommit=True)
    except (psycopg.Error, UnicodeError) as error:
        reason = str(error).strip()
        if passwords.is_refused(reason):  # for the administrator: the person is told what all are told
            _LOG.warning("a login failed, because the server did not ask for the password by SCRAM. %s", passwords.HINT)
        raise LoginFailed(reason) from None
    try:
        if not _is_of_the_person(connection):
            raise LoginFailed("the server accepted the operating system user of the live page, not a password")
    except BaseException:
        connection.close()
        raise
    return connection


def check_rights(connection: psycopg.Connection[Any]) -> None:
    """Check that the extension is there, that the role may use it, and that the session is the server's own.

    Raises
    ------
    NotReady
        If the extension is not in the database, or the login goes through a connection pool.
    InsufficientPrivilege
        If the role has no rights on it.
    """
    found = connection.execute(_FACTS).fetchone()
    if found is None:
        raise NotReady(f"The extension madlib_mop is not in database {connection.info.dbname}.")
    if not found[0]:
        raise InsufficientPrivilege("This role may not use madlib_mop: it needs grant_use or grant_read.")
    (pid,) = connection.execute("SELECT pg_catalog.pg_backend_pid()").fetchone() or (None,)
    if pid != connection.info.backend_pid:
        raise NotReady("The live page cannot log in through a connection pool: its --dsn must be the server's own.")


def _is_of_the_person(connection: psycopg.Connection[Any]) -> bool:
    """Return whether a password was used, or the server asks nobody for one (trust).

    Since PostgreSQL 16, SYSTEM_USER is NULL for trust, and tells of ident, peer and certificates. Older servers do not
    tell: there, a password is needed.
    """
    if connection.pgconn.used_password:
        return True
    if connection.info.server_version < 160000:
        return False
    (system_user,) = connection.execute("SELECT SYSTEM_USER").fetchone() or (None,)
    return system_user is None  # defence: no-system-user = True
