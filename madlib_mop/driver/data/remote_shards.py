"""Queries about a packed table with shards on hosts, and their checks; called by `packed`."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from madlib_mop.catalog.names import Relation, Slot, statement
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import not_committed
from madlib_mop.engines.base.interface import ShardPlace
from madlib_mop.errors import InsufficientPrivilege, MopError, NotReady

if TYPE_CHECKING:  # drivers without tables on hosts do not need connections to hosts
    import psycopg
    from psycopg2.extensions import connection as CatalogConnection

    from madlib_mop.engines.hosts.connections import HostLogin

_CHECK_WITHIN_S = 3
_RIGHTS = """
SELECT s.srvname::pg_catalog.text AS server, pg_catalog.has_server_privilege(s.oid, 'USAGE') AS may_use,
       EXISTS (SELECT FROM pg_catalog.pg_user_mappings m WHERE m.srvid = s.oid AND (m.umuser = 0 OR m.usename = current_user))
           AS is_mapped
FROM pg_catalog.pg_foreign_server s WHERE s.srvname = ANY ($1::pg_catalog.text[]) ORDER BY 1
"""  # noqa: E501


def check_reachable(session: CallerSession, relation: Relation, servers: Sequence[str]) -> None:
    """Raise an error if the caller cannot log in to the servers with shards of a table.

    Raises
    ------
    InsufficientPrivilege, NotReady
        For the first server that the caller has no right to use, or no user mapping for.
    """
    if not servers:
        return
    from madlib_mop.engines.hosts.connections import no_mapping, no_usage

    for row in session.execute(_RIGHTS, [list(servers)], ["text[]"]):
        if not row["may_use"]:
            raise no_usage(row["server"], session.info.role)
        if not row["is_mapped"]:
            raise no_mapping(row["server"], session.info.role)


def check_versions(session: CallerSession, catalog: "CatalogConnection", run: RunRow) -> None:
    """Refuse to go on with a run whose hosts have another version of the extension.

    A host that is not reached is left to the run, which waits for it; its workers check the version too.

    Raises
    ------
    NotReady
        For the first host of another version.
    """
    shards = [shard for packed in run.plan.data_sets.values() for shard in packed.segments]
    servers = sorted({shard.server for shard in shards if shard.server is not None})
    if not servers:
        return
    from madlib_mop.engines.hosts.connections import connect_host, read_login
    from madlib_mop.engines.hosts.versions import check_version

    for server in servers:
        try:
            login = read_login(catalog, server, session.info.role)
            connection = connect_host(login, "madlib_mop planning", within_s=_CHECK_WITHIN_S)
        except MopError:
            continue
        with contextlib.closing(connection):
            check_version(connection, server)


class ShardReader:
    """Runs a statement on a packed table's rows at their locations; a context manager.

    Hosts are queried in the driver's own sessions: foreign tables would open a transaction at each host that lasts as
    long as the caller's transaction, so for a whole run, and its loss would abort the caller's.

    Parameters
    ----------
    session : CallerSession
    relation : Relation
        The packed table.
    places : mapping of int to ShardPlace
        Its shards in separate tables, by ``__dist_key__``.
    are_all : bool
        Whether these are all shards; then the table itself, which would read from all hosts, is not queried.
    """

    def __init__(
        self, session: CallerSession, relation: Relation, places: Mapping[int, ShardPlace], are_all: bool = False
    ):
        self._session = session
        self._relation = relation
        self._places = places
        self._are_all = are_all
        self._catalog: CatalogConnection | None = None
        self._hosts: dict[str, tuple[psycopg.Connection, HostLogin]] = {}

    def __enter__(self) -> "ShardReader":
        return self

    def __exit__(self, *exception: object) -> None:
        for connection, _ in self._hosts.values():
            connection.close()
        if self._catalog is not None:
            self._catalog.close()

    def rows(self, template: str, rest: str = "", **names: Slot) -> list[dict[str, Any]]:
        """Run a SELECT up to and including its FROM, and the ``rest`` after its WHERE, on each part of the table.

        Raises
        ------
        InsufficientPrivilege, NotReady
            If a host cannot be reached, or the caller has no right to read the rows.
        """
        if not self._places:
            return self._session.execute(statement(f"{template} {rest}", packed=self._relation, **names))
        rows = []
        if not self._are_all:
            here = f"{template} WHERE __dist_key__ <> ALL ($1::pg_catalog.int4[]) {rest}"
            query = statement(here, packed=self._relation, **names)
            rows = self._session.execute(query, [sorted(self._places)], ["int4[]"])
        for key, place in sorted(self._places.items()):
            query = statement(f"{template} WHERE __dist_key__ = $1 {rest}", packed=place.table, **names)
            if place.server is None:
                rows += self._session.execute(query, [key], ["integer"])
            else:
                rows += self._rows_at(place.server, query, key)
        return rows

    def check_committed(self, what: str) -> None:
        """Raise NotReady if the table was created in the caller's transaction: its shards cannot be read yet."""
        with self._open_catalog().cursor() as cursor:
            cursor.execute("SELECT FROM pg_catalog.pg_class WHERE oid = %s", [self._relation.oid])
            if not cursor.rowcount:
                raise not_committed(what, self._relation)

    def strange_key(self) -> int | None:
        """Return a ``__dist_key__`` of a row that is in the wrong shard's table, if there is any."""
        query = "SELECT __dist_key__ AS strange FROM {packed} WHERE __dist_key__ IS DISTINCT FROM $1 LIMIT 1"
        for key, place in sorted(self._places.items()):
            there = statement(query, packed=place.table)
            if place.server is None:
                found = self._session.execute(there, [key], ["integer"])
            else:
                found = self._rows_at(place.server, there, key)
            if found:
                strange: int | None = found[0]["strange"]
                return strange
        return None

    def _rows_at(self, server: str, query: str, key: int) -> list[dict[str, Any]]:
        import psycopg
        from psycopg.rows import dict_row

        from madlib_mop.engines.hosts.connections import reason

        connection, login = self._host(server)
        try:
            with psycopg.RawCursor(connection, row_factory=dict_row) as cursor:
                return cursor.execute(query, [key]).fetchall()
        except psycopg.Error as error:
            message = f"{self._relation}: {reason(error, login)} (server {server})"
            if error.sqlstate == "42501":
                raise InsufficientPrivilege(
                    message,
                    hint="Its rows on other servers are read as the role in your user mapping: GRANT SELECT there"
                    " too, or pack the table as a role that you are mapped to.",
                ) from None
            raise NotReady(message, hint="madlib_mop.hosts lists the servers.") from None

    def _host(self, server: str) -> "tuple[psycopg.Connection, HostLogin]":
        from madlib_mop.engines.hosts.connections import connect_host, read_login

        if server not in self._hosts:
            login = read_login(self._open_catalog(), server, self._session.info.role)
            self._hosts[server] = connect_host(login, "madlib_mop planning", same_version=True), login
        return self._hosts[server]

    def _open_catalog(self) -> "CatalogConnection":
        from madlib_mop.driver.session.opening import open_record

        if self._catalog is None:
            self._catalog = open_record(self._session.info).raw
        return self._catalog
