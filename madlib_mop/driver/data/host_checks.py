"""Checks of another server as a host of segments; called by add_host and by the doctor."""

from collections.abc import Iterator, Mapping

import psycopg
from mop_backend.keras_backends import OTHERS
from psycopg2.extensions import connection as CatalogConnection

from madlib_mop import __version__
from madlib_mop.catalog.rows.base import one_row
from madlib_mop.engines.hosts.connections import HostLogin, clock_offset_s, reason
from madlib_mop.engines.hosts.versions import other_version
from madlib_mop.errors import NotReady

LEAST_VERSION = 150000
MOST_CLOCK_OFFSET_S = 2.0
#: Packages whose versions affect a run's results bit by bit.
SAME = ("tensorflow", "keras", "numpy")
#: The same, of packages that a server need not have.
OPTIONAL = OTHERS
# Servers with equal system identifiers may be copies of each other; if the start times are equal too, they are one
# server.
_WHICH = """
SELECT c.system_identifier::pg_catalog.text, pg_catalog.pg_postmaster_start_time()::pg_catalog.text
FROM pg_catalog.pg_control_system() c
"""
_FACTS = """
SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4, pg_catalog.current_setting('server_version'),
       pg_catalog.pg_is_in_recovery(), (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user),
       (SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'madlib_mop'),
       (SELECT a.default_version FROM pg_catalog.pg_available_extensions a WHERE a.name = 'madlib_mop')
"""
_COMPARED = (*SAME, *OPTIONAL, "python", "package")
_VERSIONS = f"SELECT {', '.join(_COMPARED)} FROM madlib_mop.version()"
_OURS = "SELECT coordinator, key FROM madlib_mop.host WHERE server = %s"
_THEIRS = "SELECT key FROM madlib_mop.coordinator WHERE coordinator = %s"
_OUR_NAMES = "SELECT server::pg_catalog.text, coordinator FROM madlib_mop.host WHERE server <> %s"


def problems(
    connection: psycopg.Connection,
    login: HostLogin,
    catalog: CatalogConnection,
    ours: Mapping[str, str | None],
    is_paired: bool = False,
) -> Iterator[NotReady]:
    """Yield an error for each reason why a server cannot hold segments; checks that are then impossible are skipped.

    Parameters
    ----------
    connection : psycopg.Connection
        A session there, in autocommit; a superuser's, unless the servers are paired.
    login : HostLogin
        Whose it is.
    catalog : psycopg2 connection
        The catalog session here.
    ours : mapping of str to str
        Versions of the packages here.
    is_paired : bool
        Whether it was added before; then it is checked against both servers' records.
    """
    server = login.server
    number, version, in_recovery, is_superuser, extension, offered = one_row(connection.execute(_FACTS))
    if not is_superuser and not is_paired:
        yield NotReady(
            f"the user mapping of role {login.role} for server {server} names a role that is not a superuser there",
            hint="To pair the two servers, a superuser must be mapped to a superuser; other roles can be mapped to "
            "any role.",
        )
        return
    if number < LEAST_VERSION:
        yield NotReady(
            f"server {server} is PostgreSQL {version}; {LEAST_VERSION // 10000} or newer is required to hold segments",
            hint="Upgrade it.",
        )
    if in_recovery:
        yield NotReady(f"server {server} is a standby, which is read-only", hint="Add its primary.")
    with catalog.cursor() as cursor:
        cursor.execute(_WHICH)
        if cursor.fetchone() == connection.execute(_WHICH).fetchone():
            yield NotReady(
                f"server {server} is this server itself",
                hint="This server holds segments without being added; it is `here` in the setting madlib_mop.hosts.",
            )
            return
    if extension is None:
        missing = "CREATE EXTENSION madlib_mop CASCADE;"
        yield NotReady(
            f"server {server}: its database has no extension madlib_mop",
            hint=f"On that host: {missing}" if offered else f"On that host: make install PG_CONFIG=...; then {missing}",
        )
        return
    if extension != __version__:
        yield other_version(server, extension)
        return
    if is_superuser:
        yield from (_pairing if is_paired else _other_name)(connection, login, catalog)
    try:
        versions: Mapping[str, str | None] = read_versions(connection)
    except psycopg.errors.InsufficientPrivilege:  # the user mapping's role has no right to call the library
        versions = ours
    except psycopg.Error as error:
        yield NotReady(
            f"server {server}: the library of extension madlib_mop does not work there",
            detail=reason(error, login),
            hint="Run `madlib-mop doctor` on that host to see what is missing.",
        )
        return
    names = [*SAME, *(name for name in OPTIONAL if versions[name] and ours[name])]
    other = [f"{name} {versions[name]} (here {ours[name]})" for name in names if versions[name] != ours[name]]
    if other:
        yield NotReady(
            f"server {server} has different versions, which may not compute the same bits: {', '.join(other)}",
            hint="Install the same versions on both: make install rebuilds the library's environment.",
        )
    offset_s = clock_offset_s(connection)
    if abs(offset_s) > MOST_CLOCK_OFFSET_S:
        yield clock_problem(server, offset_s)


def missing_backends(theirs: Mapping[str, str | None], ours: Mapping[str, str | None]) -> str | None:
    """Return in one sentence which backends of Keras a host lacks; None if it has all that are here."""
    missing = [name for name in OPTIONAL if ours[name] and not theirs[name]]
    if not missing:
        return None
    return f"it has no package {', '.join(missing)}, which is installed here: runs with this backend fail there"


def clock_problem(server: str, offset_s: float) -> NotReady:
    """Return the error for a clock that differs too much."""
    off = f"{abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'}"
    return NotReady(
        f"the clock of server {server} is {off} this one's; {MOST_CLOCK_OFFSET_S:g} s are allowed",
        hint="Synchronise both clocks with NTP, so that the record's times are comparable.",
    )


def read_versions(connection: psycopg.Connection) -> dict[str, str | None]:
    """Read the versions of a server's library packages."""
    return dict(zip(_COMPARED, one_row(connection.execute(_VERSIONS)), strict=True))


def _other_name(connection: psycopg.Connection, login: HostLogin, catalog: CatalogConnection) -> Iterator[NotReady]:
    """Find a server that was already added under another name, by this server's name there."""
    with catalog.cursor() as cursor:
        cursor.execute(_OUR_NAMES, [login.server])
        by_name = {coordinator: server for server, coordinator in cursor.fetchall()}
    known = connection.execute("SELECT coordinator FROM madlib_mop.coordinator").fetchall()
    for (coordinator,) in known:
        if coordinator in by_name:
            yield NotReady(
                f"server {login.server} is the same server as {by_name[coordinator]}, which has already been added",
                hint="Add each server once; the segments of one host run in parallel.",
            )
            return


def _pairing(connection: psycopg.Connection, login: HostLogin, catalog: CatalogConnection) -> Iterator[NotReady]:
    """Check that a host has the shared key."""
    with catalog.cursor() as cursor:
        cursor.execute(_OURS, [login.server])
        coordinator, key = one_row(cursor)
    theirs = connection.execute(_THEIRS, [coordinator]).fetchone()
    if theirs is None or bytes(theirs[0]) != bytes(key):
        yield NotReady(
            f"server {login.server} rejects this server's requests: it does not have the shared key",
            hint=f"If it was replaced, or restored from a dump, which has no keys: SELECT"
            f" madlib_mop.add_host('{login.server}'); pairs them again.",
        )
