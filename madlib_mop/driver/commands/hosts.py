"""The commands add_host and remove_host: the hosts of segments. For superusers.

The calling superuser's own user mapping is used once, as a superuser there. Afterwards, the servers share a key,
which is generated at the host and sent as a row of a result, so it is not in statement logs.
"""

import contextlib
import json
import secrets

import psycopg
from psycopg2.extensions import connection as CatalogConnection

from madlib_mop.calls.limits import MAX_SEGMENTS
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.base import one_row
from madlib_mop.driver.commands.installation import version
from madlib_mop.driver.data.engine import engine_of
from madlib_mop.driver.data.host_checks import missing_backends, problems, read_versions
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.opening import open_record
from madlib_mop.driver.session.settings import read_settings
from madlib_mop.engines.hosts.connections import HostLogin, connect_host, connecting, read_login, reason
from madlib_mop.engines.hosts.tables import sweep
from madlib_mop.errors import InvalidParameter, MopError, NotReady

_SESSION = "madlib_mop add_host"
_SUPERUSERS_ONLY = (
    "only superusers may add or remove hosts", "Ask a superuser; SELECT * FROM madlib_mop.hosts; lists the hosts."
)  # fmt: skip
# Hashes 488 random bits to the length of a key.
_DRAW = """
INSERT INTO madlib_mop.coordinator (coordinator, key)
SELECT %s, pg_catalog.sha256(pg_catalog.string_agg(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), ''))
FROM pg_catalog.generate_series(1, 4) ON CONFLICT (coordinator) DO UPDATE SET key = excluded.key RETURNING key
"""
_OURS = "SELECT coordinator, pg_catalog.encode(key, 'hex') AS key, n_segments FROM madlib_mop.host WHERE server = $1"
_THEIRS = "SELECT pg_catalog.encode(key, 'hex') FROM madlib_mop.coordinator WHERE coordinator = %s"
_FORGET = "DELETE FROM madlib_mop.coordinator WHERE coordinator = %s"
_ADD = """
INSERT INTO madlib_mop.host (server, n_segments, coordinator, key, versions)
VALUES ($1::pg_catalog.name, $2, $3, $4, $5::pg_catalog.jsonb)
ON CONFLICT (server) DO UPDATE SET n_segments = excluded.n_segments, key = excluded.key, versions = excluded.versions
"""
_TABLES_THERE = """
SELECT DISTINCT coalesce(i.inhparent, f.ftrelid)::pg_catalog.regclass::pg_catalog.text AS name
FROM madlib_mop.host_shard h
JOIN pg_catalog.pg_foreign_server s ON s.srvname = h.server
JOIN pg_catalog.pg_foreign_table f ON f.ftserver = s.oid
     AND f.ftoptions @> ARRAY['schema_name=' || h.table_schema, 'table_name=' || h.table_name]
LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = f.ftrelid
WHERE h.server = $1 ORDER BY 1
"""
_OPEN_TRANSACTIONS = """
SELECT count(*) AS n FROM madlib_mop.host_shard h
WHERE h.server = $1 AND pg_catalog.pg_xact_status(h.xid) = 'in progress'
      AND h.xid IS DISTINCT FROM pg_catalog.pg_current_xact_id_if_assigned()
"""


def add_host(call: Call) -> None:
    """Check a foreign server, pair with it, and add it as a host; pair again with one that has lost the key, because it
    was restored from a dump or replaced."""
    call.need_superuser(*_SUPERUSERS_ONLY)
    session, server = call.session, call.arguments["server"]
    engine_of(session).check_host(server)
    asked = call.arguments.get("n_segments")
    added = next(iter(session.execute(_OURS, [server])), None)
    record = open_record(call.info)
    catalog = record.raw
    login = read_login(catalog, server, call.info.role)
    ours = version(call)
    with contextlib.closing(connect_host(login, _SESSION)) as connection:
        try:
            for problem in problems(connection, login, catalog, ours):
                raise problem
            if added and connection.execute(_THEIRS, [added["coordinator"]]).fetchone() == (added["key"],):
                raise NotReady(
                    f"server {server} has already been added. Received: {server!r}",
                    hint=f"To pair again, or with another n_segments: SELECT madlib_mop.remove_host('{server}');"
                    " first.",
                )
            n_segments = asked or (added and added["n_segments"])
            n_segments = n_segments or one_row(connection.execute("SELECT madlib_mop_calls.count_cores()"))[0]
            versions = read_versions(connection)
            coordinator = added["coordinator"] if added else secrets.token_hex(16)
            key = one_row(connection.cursor(binary=True).execute(_DRAW, [coordinator]))[0]
            try:
                _try_trainer(session, record, login, coordinator, key)
                session.execute(
                    _ADD,
                    [server, min(n_segments, MAX_SEGMENTS), coordinator, key, json.dumps(versions)],
                    ["text", "integer", "text", "bytea", "text"],
                )
            except BaseException:
                connection.execute(_FORGET, [coordinator])
                raise
        except psycopg.Error as error:
            raise _failed(error, login) from None
    session.notice(f"{call.function}: server {server} now holds {n_segments} segments")
    if missing := missing_backends(versions, ours):
        session.notice(f"{call.function}: server {server}: {missing}")


def remove_host(call: Call) -> None:
    """Remove a host, also if the caller's transaction is rolled back; fails while it has shards of packed tables."""
    call.need_superuser(*_SUPERUSERS_ONLY)
    session, server = call.session, call.arguments["server"]
    rows = session.execute("SELECT coordinator FROM madlib_mop.host WHERE server = $1", [server])
    if not rows:
        raise InvalidParameter(
            f"no host of that name was added. Received: {server!r}", hint="SELECT server FROM madlib_mop.hosts;"
        )
    catalog = open_record(call.info).raw
    n_left = sweep(catalog, [server])
    tables = [row["name"] for row in session.execute(_TABLES_THERE, [server])]
    if tables:
        raise NotReady(
            f"server {server} has shards of packed tables: {', '.join(tables)}",
            hint="DROP them, or pack them again without it, by the setting madlib_mop.hosts.",
        )
    if session.execute(_OPEN_TRANSACTIONS, [server])[0]["n"]:
        raise NotReady(
            f"a transaction that has not ended is packing to server {server}",
            hint="Call again when it has ended.",
        )
    if not _delete(catalog, server):  # the caller's transaction has added it
        session.execute("DELETE FROM madlib_mop.host WHERE server = $1", [server])
    if n_left:
        session.warning(f"{call.function}: {n_left} unused tables remain at server {server}")
    try:
        _unpair(catalog, server, call.info.role, rows[0]["coordinator"])
    except MopError as error:
        session.warning(
            f"{call.function}: server {server} could not be updated: {error.message}. On that server, run DELETE FROM "
            f"madlib_mop.coordinator"
            f" WHERE coordinator = '{rows[0]['coordinator']}' to revoke this server's right to run segments there"
        )


def _delete(catalog: CatalogConnection, server: str) -> bool:
    """Delete a host from the record at once, as its key is deleted; return False if no committed row has it."""
    with catalog.cursor() as cursor:
        cursor.execute("DELETE FROM madlib_mop.host_shard WHERE server = %s", [server])
        cursor.execute("DELETE FROM madlib_mop.host WHERE server = %s", [server])
        return cursor.rowcount > 0


def _unpair(catalog: CatalogConnection, server: str, role: str, coordinator: str) -> None:
    login = read_login(catalog, server, role)
    with contextlib.closing(connect_host(login, _SESSION)) as connection:
        try:
            connection.execute(_FORGET, [coordinator])
        except psycopg.Error as error:
            raise _failed(error, login) from None


def _try_trainer(session: CallerSession, record: Record, login: HostLogin, coordinator: str, key: bytes) -> None:
    """Start a trainer on the host, like a worker; it ends with the session."""
    from madlib_mop.engines.hosts.relay import Relay

    access = {
        "server": login.server,
        "run_id": "none",
        "options": connecting(login),
        "needs_password": login.must_use_password,
        "coordinator": coordinator,
        "key": key.hex(),
    }
    relay = Relay()
    try:
        relay.do({"op": "connect", **access}, [])
        start = read_settings(record, session, 1, use_caching=False).trainer_start()
        frame = relay.do({"op": "start", **start, "gpus": []}, [])
    finally:
        relay.close()
    assert frame is not None, "a trainer answers to start"
    answer, _ = frame
    told = answer.get("error") or answer.get("host_refused") or answer.get("host_lost") or answer.get("died")
    if told is not None:
        raise NotReady(
            f"server {login.server} cannot start a trainer",
            detail=told.get("message") or f"it ended with status {told.get('status')}: {told.get('stderr')}",
            hint="Run `madlib-mop doctor` on that host to see what is missing.",
        )


def _failed(error: psycopg.Error, login: HostLogin) -> MopError:
    return NotReady(
        f"server {login.server} was lost, or rejected a request",
        detail=reason(error, login),
        hint="Run `madlib-mop doctor` on that host to find the cause.",
    )
