"""Logins and sessions on other PostgreSQL servers; called by add_host, packing, the doctor and relays.

Host, port, user and password come from CREATE SERVER and CREATE USER MAPPING of a postgres_fdw server, for the calling
role. They are read again for each login and never appear in messages.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg
from psycopg2.extensions import connection as CatalogConnection

from madlib_mop.catalog.names import quote
from madlib_mop.catalog.rows.base import one_row
from madlib_mop.catalog.sessions import passwords
from madlib_mop.engines.hosts.login import NotLetIn, log_in
from madlib_mop.engines.sessions.reasons import plain_reason
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter, MopError, NotReady

WRAPPER = "postgres_fdw"
_CONNECT_WITHIN_S = 10
# Those options of postgres_fdw that define the connection; host_access (sql/25-segments.sql) has the same list.
_CONNECTING = frozenset(
    "host hostaddr port dbname user password sslmode sslrootcert sslcert sslkey sslpassword sslcrl sslcrldir sslsni"
    " ssl_min_protocol_version ssl_max_protocol_version requirepeer gssencmode krbsrvname require_auth channel_binding"
    " connect_timeout".split()
)
_LOGIN = """
SELECT w.fdwname, r.rolsuper, pg_catalog.has_server_privilege(r.oid, s.oid, 'USAGE'),
       (SELECT pg_catalog.json_object_agg(o.option_name, o.option_value) FROM pg_catalog.pg_options_to_table(s.srvoptions) o),
       m.umid IS NOT NULL,
       (SELECT pg_catalog.json_object_agg(o.option_name, o.option_value) FROM pg_catalog.pg_options_to_table(m.umoptions) o)
FROM pg_catalog.pg_foreign_server s
JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = s.srvfdw
CROSS JOIN pg_catalog.pg_roles r
LEFT JOIN LATERAL (
    SELECT u.oid AS umid, u.umoptions FROM pg_catalog.pg_user_mapping u
    WHERE u.umserver = s.oid AND u.umuser IN (r.oid, 0) ORDER BY u.umuser = 0 LIMIT 1) m ON true
WHERE s.srvname = %s AND r.rolname = %s
"""  # noqa: E501


@dataclass(frozen=True)
class HostLogin:
    """The login of one role on one server.

    Attributes
    ----------
    server, role : str
        The foreign server, and the role here whose user mapping it is.
    options : mapping of str to str
        libpq's keywords.
    must_use_password : bool
        Required for roles that are not superusers, as in postgres_fdw: otherwise the login could succeed with the
        identity of the server's operating system user, which opens the session.
    """

    server: str
    role: str
    options: Mapping[str, str] = field(repr=False)
    must_use_password: bool


def read_login(catalog: CatalogConnection, server: str, role: str) -> HostLogin:
    """Read how a role logs in at a foreign server.

    Parameters
    ----------
    catalog : psycopg2 connection
        The catalog session, a superuser's.
    server, role : str

    Raises
    ------
    InvalidParameter
        If there is no such server, or it is not postgres_fdw's.
    InsufficientPrivilege
        If the role may not use it.
    NotReady
        If the role has no user mapping for it, or one without the password that it needs.
    """
    with catalog.cursor() as cursor:
        cursor.execute(_LOGIN, [server, role])
        row = cursor.fetchone()
    if row is None:
        raise unknown_server(server)
    wrapper, is_superuser, may_use, server_options, is_mapped, user_options = row
    if wrapper != WRAPPER:
        raise InvalidParameter(
            f"server {server} uses {wrapper}; segments can only be on servers that use {WRAPPER}. Received: {server!r}",
            hint=f"CREATE SERVER ... FOREIGN DATA WRAPPER {WRAPPER} OPTIONS (host '...', dbname '...');",
        )
    if not may_use:
        raise no_usage(server, role)
    if not is_mapped:
        raise no_mapping(server, role)
    options = {**(server_options or {}), **(user_options or {})}
    must = not is_superuser and options.get("password_required", "true").lower() not in ("false", "off", "no", "0")
    if must and not options.get("password"):
        raise NotReady(
            f"the user mapping of role {role} for server {server} has no password: only superusers may omit it",
            hint=f"ALTER USER MAPPING FOR {quote(role)} SERVER {quote(server)} OPTIONS (ADD password '...');",
        )
    return HostLogin(server, role, options, must)


def unknown_server(server: str) -> MopError:
    """Return the error for a server that is not there."""
    return InvalidParameter(
        f"there is no foreign server of that name. Received: {server!r}",
        hint=f"CREATE EXTENSION {WRAPPER}; CREATE SERVER {quote(server)} FOREIGN DATA WRAPPER {WRAPPER}"
        " OPTIONS (host '...', dbname '...');",
    )


def no_usage(server: str, role: str) -> MopError:
    """Return the error for a role that may not use a server."""
    return InsufficientPrivilege(
        f"role {role} has no right to use server {server}, which holds segments",
        hint=f"GRANT USAGE ON FOREIGN SERVER {quote(server)} TO {quote(role)}; or for segments on this server only:"
        " SET madlib_mop.hosts = 'here';",
    )


def no_mapping(server: str, role: str) -> MopError:
    """Return the error for a role that cannot log in at a server."""
    return NotReady(
        f"role {role} has no user mapping for server {server}, which holds segments",
        hint=f"CREATE USER MAPPING FOR {quote(role)} SERVER {quote(server)} OPTIONS (user '...', password '...');",
    )


def connect_host(
    login: HostLogin,
    application_name: str,
    *,
    within_s: int = _CONNECT_WITHIN_S,
    autocommit: bool = True,
    own_path: bool = False,
    same_version: bool = False,
) -> psycopg.Connection:
    """Log in at a host.

    Parameters
    ----------
    login : HostLogin
    application_name : str
    within_s : int
        Seconds that the login may take, at least 2.
    autocommit : bool
    own_path : bool
        Keep the schemas of the role's own search_path there, to find out where it creates its tables.
    same_version : bool
        Work is to be done there, for which the host must have this version of the extension.

    Raises
    ------
    NotReady
        If the host refuses it, or is not reached, without host, port, user and password; or for its version.
    """
    try:
        options = {**connecting(login), "connect_timeout": str(within_s)}
        connection = log_in(
            options,
            application_name,
            must_use_password=login.must_use_password,
            own_path=own_path,
            same_version_as=login.server if same_version else None,
        )
        connection.autocommit = autocommit
        return connection
    except NotLetIn:
        raise NotReady(
            f"server {login.server} accepted role {login.role} without the password of its user mapping",
            hint="A role that is not a superuser must log in with a password: use scram-sha-256 in the host's "
            "pg_hba.conf.",
        ) from None
    except psycopg.Error as error:
        found = reason(error, login)
        where = f"The options of CREATE SERVER {quote(login.server)} and of the user mapping define the address and "
        raise NotReady(
            f"server {login.server} cannot be reached, or rejects the login of role {login.role} by its user mapping",
            detail=found,
            hint=passwords.HINT if passwords.is_refused(found) else f"{where}the role.",
        ) from None


def connecting(login: HostLogin) -> dict[str, str]:
    """Return the connection options of a login."""
    return {name: value for name, value in login.options.items() if name in _CONNECTING}


def reason(error: psycopg.Error, login: HostLogin) -> str:
    """Return a host's message in one line, without values of the server's and the mapping's options."""
    line = plain_reason(error)
    for name in ("password", "host", "hostaddr", "port", "user", "dbname"):
        value = login.options.get(name)
        if value:
            line = line.replace(f'"{value}"', f"<{name}>")
            if name in ("password", "host", "hostaddr"):
                line = line.replace(value, f"<{name}>")
    return line


def clock_offset_s(connection: psycopg.Connection, n_tries: int = 3) -> float:
    """Return how many seconds a host's clock is ahead of ours (negative: behind), less the time of the way there."""
    offsets = []
    for _ in range(n_tries):
        before = time.time()
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM pg_catalog.clock_timestamp())::pg_catalog.float8")
            there = one_row(cursor)[0]
        offsets.append(offset_beyond(before, there, time.time()))
    return min(offsets, key=abs)


def offset_beyond(before_s: float, there_s: float, after_s: float) -> float:
    """Return how far a remote time lies outside the interval of two local times; 0 inside."""
    if there_s < before_s:
        return there_s - before_s
    return max(0.0, there_s - after_s)
