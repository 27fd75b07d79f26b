"""Tables at hosts that hold shards of a packed table: made, filled by binary COPY, committed; and swept once unused.

Each host gets one session and one transaction. `madlib_mop.host_shard` gets the row of a table before it is created,
so a later sweep finds unused tables regardless of how the caller's transaction ends.
"""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from mop_backend.rights import OWNER_OF_SCHEMA
from psycopg import sql
from psycopg2.extensions import connection as CatalogConnection

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.base import one_row
from madlib_mop.engines.base.interface import Segment
from madlib_mop.engines.hosts.connections import HostLogin, connect_host, read_login, reason
from madlib_mop.errors import InsufficientPrivilege, MopError, NotReady

_NAME_BYTES = 40  # bytes of the packed table's name that start the name of a shard's table
_SWEEP_WITHIN_S = 3
# The owner of a schema can put another table in the place of one, so superusers use superusers' schemas only.
_ROOM = f"""
SELECT (SELECT s.name
        FROM pg_catalog.unnest(pg_catalog.current_setting('madlib_mop.own_schemas')::pg_catalog.text[])
            WITH ORDINALITY AS s (name, ordinal)
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = s.name
        JOIN pg_catalog.pg_roles AS o ON o.oid = {OWNER_OF_SCHEMA}
        JOIN pg_catalog.pg_roles AS u ON u.rolname = current_user
        WHERE pg_catalog.has_schema_privilege(n.oid, 'CREATE') AND (o.rolsuper OR NOT u.rolsuper)
        ORDER BY s.ordinal LIMIT 1)::pg_catalog.text,
       coalesce((SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_namespace n
                 WHERE n.nspname = 'madlib_mop_calls'), false)
"""
_ENDED = """
SELECT server, table_schema, table_name FROM madlib_mop.host_shard
WHERE pg_catalog.pg_xact_status(xid) IS DISTINCT FROM 'in progress'
"""
# Run after _ENDED, with a later snapshot, which contains what those transactions have committed.
_UNUSED = """
SELECT h.server, h.table_schema, h.table_name, pg_catalog.pg_get_userbyid(h.role), s.oid IS NOT NULL
FROM madlib_mop.host_shard h LEFT JOIN pg_catalog.pg_foreign_server s ON s.srvname = h.server
WHERE NOT EXISTS (
    SELECT FROM pg_catalog.pg_foreign_table f WHERE f.ftserver = s.oid
    AND f.ftoptions @> ARRAY['schema_name=' || h.table_schema, 'table_name=' || h.table_name])
"""
_FORGET = "DELETE FROM madlib_mop.host_shard WHERE server = %s AND table_schema = %s AND table_name = %s"


@dataclass(frozen=True)
class _Shard:
    """One segment's table at a host."""

    segment: int
    server: str
    table: Relation


class HostTables:
    """The tables that one call creates on hosts.

    Parameters
    ----------
    catalog : psycopg2 connection
        The catalog session.
    role : str
        Whose user mappings are used.
    columns : sequence of str
        Inputs, then outputs.
    """

    def __init__(self, catalog: CatalogConnection, role: str, columns: Sequence[str]):
        self._catalog = catalog
        self._role = role
        self._columns = columns
        self._hosts: dict[str, _Host] = {}
        self._shards: dict[int, _Shard] = {}
        self._filling: int | None = None

    def add(self, segment: Segment, packed: Relation) -> Relation:
        """Choose the name of a segment's table at its host, and log in there if this is the first one."""
        server = segment.place.server
        assert server is not None, "only segments at hosts have tables there"
        if server not in self._hosts:
            self._hosts[server] = _Host(read_login(self._catalog, server, self._role))
        base = packed.name.encode()[:_NAME_BYTES].decode(errors="ignore")
        name = f"{base}_seg{segment.number}_{secrets.token_hex(4)}"
        shard = _Shard(segment.number, server, Relation(self._hosts[server].schema, name))
        self._shards[segment.number] = shard
        return shard.table

    def register(self, segment: Segment, packed_oid: int, xid: str) -> None:
        """Record a table before it is created, with its foreign table and the creating transaction."""
        shard = self._shards[segment.number]
        with self._catalog.cursor() as cursor:
            cursor.execute(
                "INSERT INTO madlib_mop.host_shard (server, table_schema, table_name, packed_oid, role, xid)"
                " VALUES (%s, %s, %s, %s, "
                " (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = %s), %s::pg_catalog.xid8)",
                [shard.server, shard.table.schema, shard.table.name, packed_oid, self._role, xid],
            )

    def create(self) -> None:
        """Make the tables."""
        for shard in self._shards.values():
            self._hosts[shard.server].create(shard.table, self._columns)

    def write(self, segment: int, row: Sequence[Any]) -> None:
        """Send one row to a segment's table; tables are filled one at a time."""
        shard = self._shards[segment]
        host = self._hosts[shard.server]
        if self._filling != segment:
            if self._filling is not None:
                self._hosts[self._shards[self._filling].server].end_copy()
            host.begin_copy(shard.table, len(self._columns))
            self._filling = segment
        host.write(row)

    def commit(self) -> None:
        """Commit at every host."""
        for host in self._hosts.values():
            host.end_copy()
        for host in self._hosts.values():
            host.commit()

    def close(self) -> None:
        """End the sessions; uncommitted work is rolled back."""
        for host in self._hosts.values():
            host.close()


class _Host:
    """A session at one host, with one transaction."""

    def __init__(self, login: HostLogin):
        self._login = login
        self._connection = connect_host(login, "madlib_mop packing", autocommit=False, own_path=True, same_version=True)
        self._copying = contextlib.ExitStack()
        self._copy: psycopg.Copy | None = None
        self.schema = _room(self._connection, login)

    def create(self, table: Relation, columns: Sequence[str]) -> None:
        names = [sql.Identifier(column) for column in columns]
        shapes = [sql.Identifier(f"{column}_shape") for column in columns]
        declared = [sql.SQL("{} pg_catalog.bytea").format(name) for name in names]
        declared += [sql.SQL("{} pg_catalog.int4[]").format(name) for name in shapes]
        here = sql.SQL(table.sql)
        storage = [sql.SQL("ALTER COLUMN {} SET STORAGE EXTERNAL").format(name) for name in names]
        with self._clear_errors() as cursor:
            cursor.execute(
                sql.SQL(
                    "CREATE TABLE {} (__dist_key__ pg_catalog.int4, {}, buffer_id pg_catalog.int4) USING heap"
                ).format(here, sql.SQL(", ").join(declared))
            )
            cursor.execute(sql.SQL("ALTER TABLE {} {}").format(here, sql.SQL(", ").join(storage)))

    def begin_copy(self, table: Relation, n_columns: int) -> None:
        with self._clear_errors():
            cursor = self._copying.enter_context(self._connection.cursor())
            command = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(sql.SQL(table.sql))
            self._copy = self._copying.enter_context(cursor.copy(command))
            self._copy.set_types(["int4", *["bytea"] * n_columns, *["int4[]"] * n_columns, "int4"])

    def write(self, row: Sequence[Any]) -> None:
        assert self._copy is not None, "begin_copy comes before"
        with self._clear_errors():
            self._copy.write_row(row)

    def end_copy(self) -> None:
        with self._clear_errors():
            self._copying.close()
            self._copy = None

    def commit(self) -> None:
        with self._clear_errors():
            self._connection.commit()

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            if self._copy is not None:  # tells the server that the COPY is incomplete
                self._connection.pgconn.finish()
            self._connection.close()

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[psycopg.Cursor]:
        """Return a cursor; errors of the host become one clear error."""
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except psycopg.Error as error:
            raise NotReady(
                f"server {self._login.server} could not store its part of the packed table",
                detail=reason(error, self._login),
                hint="Nothing was packed. Call again when the host works, or exclude it with the setting"
                " madlib_mop.hosts.",
            ) from None


def check_hosts(catalog: CatalogConnection, servers: Sequence[str], role: str) -> None:
    """Log in to each server with a role's user mapping, check that it can create tables there, and drop unused tables.

    Raises
    ------
    MopError
        For the first server where a check fails.
    """
    for server in servers:
        login = read_login(catalog, server, role)
        connection = connect_host(login, "madlib_mop packing", own_path=True, same_version=True)
        with contextlib.closing(connection):
            _room(connection, login)
    sweep(catalog, servers)


def _room(connection: psycopg.Connection, login: HostLogin) -> str:
    """Return the schema for tables on a host: the first one of the search_path where the user can create tables."""
    with connection.cursor() as cursor:
        cursor.execute(_ROOM)
        schema, may_use = one_row(cursor)
        if schema is None:
            raise InsufficientPrivilege(
                f"the user mapping of role {login.role} for server {login.server} names a role that cannot create"
                " tables in any schema of its search_path there",
                hint="At that host, for the role that the user mapping names: CREATE SCHEMA AUTHORIZATION ...;",
            )
        if not may_use:
            raise InsufficientPrivilege(
                f"the user mapping of role {login.role} for server {login.server} names a role that has no"
                " right to use extension madlib_mop there",
                hint="At that host, for the role that the user mapping names: SELECT madlib_mop.grant_use('...');",
            )
    return str(schema)


@dataclass(frozen=True)
class UnusedTable:
    """A table on a host that no foreign table uses; ``role`` packed it."""

    server: str
    schema: str
    name: str
    role: str
    has_server: bool  # whether the foreign server still exists


def unused_tables(catalog: CatalogConnection) -> list[UnusedTable]:
    """Return the unused tables on hosts: their packed tables were dropped or rolled back."""
    with catalog.cursor() as cursor:
        cursor.execute(_ENDED)
        ended = set(cursor.fetchall())
        if not ended:
            return []
        cursor.execute(_UNUSED)
        return [UnusedTable(*row) for row in cursor.fetchall() if row[:3] in ended]


def sweep(catalog: CatalogConnection, servers: Sequence[str] | None = None) -> int:
    """Drop tables on hosts that no foreign table uses; return the number of remaining ones.

    Tables that cannot be dropped now (the host is down, the role has no user mapping) are left to a later sweep.

    Parameters
    ----------
    catalog : psycopg2 connection
    servers : sequence of str or None
        Only these; None: all.
    """
    left: dict[tuple[str, str], list[tuple[str, str]]] = {}
    with catalog.cursor() as cursor:
        for table in unused_tables(catalog):
            if servers is not None and table.server not in servers:
                continue
            if table.has_server:
                left.setdefault((table.server, table.role), []).append((table.schema, table.name))
            else:  # its location is no longer known
                cursor.execute(_FORGET, [table.server, table.schema, table.name])
        n_left = 0
        for (server, role), names in left.items():
            dropped = _drop(catalog, server, role, names)
            for schema, name in dropped:
                cursor.execute(_FORGET, [server, schema, name])
            n_left += len(names) - len(dropped)
    return n_left


def _drop(catalog: CatalogConnection, server: str, role: str, names: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Drop tables on one host as one role; return the dropped ones."""
    dropped = []
    with contextlib.suppress(MopError, psycopg.Error):
        login = read_login(catalog, server, role)
        with contextlib.closing(connect_host(login, "madlib_mop packing", within_s=_SWEEP_WITHIN_S)) as connection:
            for schema, name in names:
                with connection.cursor() as cursor:
                    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))
                dropped.append((schema, name))
    return dropped
