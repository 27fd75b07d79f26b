"""Checks of the hosts of segments, with the user mappings of the role that the doctor logged in as."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg2
from mop_backend.keras_backends import BackendName

from madlib_mop.catalog.rows.base import one_row
from madlib_mop.cli.doctor.context import CheckContext, message_of
from madlib_mop.cli.doctor.findings import CheckState, Finding
from madlib_mop.driver.data.host_checks import OPTIONAL, SAME, missing_backends, problems, read_versions
from madlib_mop.engines.hosts.connections import connect_host, read_login, reason
from madlib_mop.engines.hosts.tables import unused_tables
from madlib_mop.errors import MopError, read_server_error

_ADDED = """
SELECT h.server::text, EXISTS (
    SELECT FROM pg_catalog.pg_user_mappings m
    WHERE m.srvname = h.server AND (m.umuser = 0 OR m.usename = current_user)),
    EXISTS (SELECT FROM pg_catalog.pg_foreign_server s WHERE s.srvname = h.server)
FROM madlib_mop.host h ORDER BY h.added_at, h.server
"""


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield one finding or more for each host, and one for leftover tables; none without hosts."""
    if not context.is_superuser or context.extension_version is None:
        return
    with context.session.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.to_regclass('madlib_mop.host') IS NOT NULL")
        if not one_row(cursor)[0]:
            return
        cursor.execute(_ADDED)
        added = cursor.fetchall()
    yield from _leftovers(context, {server for server, *_ in added})
    if not added:
        return
    try:
        with context.session.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(SAME + OPTIONAL)} FROM madlib_mop.version()")
            ours = dict(zip(SAME + OPTIONAL, one_row(cursor), strict=True))
    except psycopg2.Error as error:
        found = f"not compared with this server: {message_of(error)}"
        yield Finding("hosts", CheckState.FAIL, found, read_server_error(error).hint)
        return
    for server, is_mapped, is_there in added:
        name = f"host {server}"
        if is_there and not is_mapped:
            found = f"role {context.role} has no user mapping for it, so it cannot be checked"
            yield Finding(
                name, CheckState.SKIP, found, f"CREATE USER MAPPING FOR {context.role} SERVER {server} OPTIONS ..."
            )
            continue
        yield from _check_one(context, name, server, ours)


def _leftovers(context: CheckContext, added: set[str]) -> Iterator[Finding]:
    """Find unused tables on hosts, and report how to drop them."""
    if not context.value("SELECT EXISTS (SELECT FROM madlib_mop.host_shard)"):
        return
    tables = Counter((t.server, t.role) for t in unused_tables(context.session))
    for (server, role), n in sorted(tables.items()):
        found = f"{n} table(s) with shards of role {role} are left there; no packed table uses them now"
        mend = "The next call by that role that packs to this host drops them; madlib_mop.remove_host also drops them."
        if server not in added:
            mend = "It carries segments no more: drop them there; SELECT * FROM madlib_mop.host_shard; has names."
        yield Finding(f"shards at {server}", CheckState.WARN, found, mend)


def _check_one(context: CheckContext, name: str, server: str, ours: dict[str, Any]) -> Iterator[Finding]:
    try:
        login = read_login(context.session, server, context.role)
        connection = connect_host(login, "madlib-mop doctor")
    except MopError as error:
        yield _failed(name, error)
        return
    found, missing = [], None
    with contextlib.closing(connection):
        try:
            found = list(problems(connection, login, context.session, ours, is_paired=True))
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                missing = missing_backends(read_versions(connection), ours) if not found else None
        except psycopg.Error as error:
            yield Finding(
                name,
                CheckState.FAIL,
                f"the connection was lost: {reason(error, login)}",
                "See the log of the server there.",
            )
            return
    yield from (_failed(name, error) for error in found)
    if missing:
        mend = f"At that host: make install PG_CONFIG=... BACKENDS='{' '.join(BackendName)}'"
        yield Finding(name, CheckState.WARN, missing, mend)
    elif not found:
        yield Finding(
            name, CheckState.OK, "it accepts the login, is paired with this server, and has the same versions"
        )


def _failed(name: str, error: MopError) -> Finding:
    return Finding(name, CheckState.FAIL, error.message + (f": {error.detail}" if error.detail else ""), error.hint)
