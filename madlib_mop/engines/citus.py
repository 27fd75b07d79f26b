"""The engine Citus: a segment is one shard of a distributed packed table, processed on the node that stores it.

A packed table is distributed by ``__dist_key__``, with exactly one key for each shard, and segment i is the i-th shard
in the order of their hash ranges. Workers connect directly to the shard's node, as to a host (`postgres`), with the
logins of foreign servers and user mappings; add_host has paired each node with this server. Citus places and
moves shards; their locations are read from its metadata whenever a run is planned or resumed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psycopg2.extensions import connection as CatalogConnection

from madlib_mop.calls.limits import MAX_SEGMENTS
from madlib_mop.catalog.names import Relation, split_name
from madlib_mop.engines.base.caller import EngineCaller
from madlib_mop.engines.base.interface import (
    HERE,
    Engine,
    EngineLimits,
    Segment,
    SegmentLocation,
    ShardPlace,
    Store,
)
from madlib_mop.engines.base.keyed_store import KeyedStore
from madlib_mop.engines.citus_nodes import Added, Node, servers_of
from madlib_mop.engines.postgres import count_cores, read_total
from madlib_mop.errors import InvalidParameter, NotReady

_LIMITS = EngineLimits(
    gpus="it has segments on the nodes of a Citus cluster, and only this server's GPUs are known",
    row_security="its segments on other nodes read their rows there, as the role in the user mapping",
    uncommitted="the segments' workers are separate sessions and can only read committed tables",
    fused_training="its segments are not on this server",
)
_IS_HERE = "SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_node') IS NOT NULL AS yes"
#: The coordinator has group 0.
_GROUP = "SELECT groupid AS number FROM pg_catalog.pg_dist_local_group"
#: Nodes that get shards of new tables.
NODES = """
SELECT nodename::pg_catalog.text AS host, nodeport AS port,
       groupid = (SELECT g.groupid FROM pg_catalog.pg_dist_local_group g) AS is_here
FROM pg_catalog.pg_dist_node WHERE noderole::pg_catalog.text = 'primary' AND isactive AND shouldhaveshards
ORDER BY nodename, nodeport
"""
_HAS_WORKERS = "SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_node WHERE groupid <> 0) AS yes"
ADDED = "SELECT server::pg_catalog.text AS server, host, port, dbname, n_segments FROM madlib_mop.hosts"
_METHOD = """
SELECT p.partmethod::pg_catalog.text AS method,
       pg_catalog.column_to_column_name(p.logicalrelid, p.partkey) AS distributed_by
FROM pg_catalog.pg_dist_partition p WHERE p.logicalrelid = $1::pg_catalog.oid::pg_catalog.regclass
"""
_REPLICATION = """
SELECT p.repmodel::pg_catalog.text = 't' AS is_reference
FROM pg_catalog.pg_dist_partition p WHERE p.logicalrelid = $1::pg_catalog.oid::pg_catalog.regclass
"""
# Chooses one placement for each shard, because shards may be replicated.
_SHARDS = """
SELECT DISTINCT ON (s.shardminvalue::pg_catalog.int4) s.shardid AS id,
       pg_catalog.shard_name(s.logicalrelid, s.shardid) AS name,
       n.nodename::pg_catalog.text AS host, n.nodeport AS port,
       n.groupid = (SELECT g.groupid FROM pg_catalog.pg_dist_local_group g) AS is_here
FROM pg_catalog.pg_dist_shard s
JOIN pg_catalog.pg_dist_placement p ON p.shardid = s.shardid AND p.shardstate = 1
JOIN pg_catalog.pg_dist_node n ON n.groupid = p.groupid AND n.noderole::pg_catalog.text = 'primary'
WHERE s.logicalrelid = $1::pg_catalog.oid::pg_catalog.regclass
ORDER BY s.shardminvalue::pg_catalog.int4, p.placementid
"""
_NUMBERS = """
SELECT shardid AS id, pg_catalog.row_number() OVER (ORDER BY shardminvalue::pg_catalog.int4) - 1 AS number
FROM pg_catalog.pg_dist_shard WHERE logicalrelid = $1::pg_catalog.oid::pg_catalog.regclass
"""
_KEYS = """
SELECT pg_catalog.get_shard_id_for_distribution_column($1::pg_catalog.oid::pg_catalog.regclass, k) AS id,
       pg_catalog.min(k) AS key
FROM pg_catalog.generate_series(0, $2 - 1) AS k GROUP BY 1
"""
_MOST_KEYS = 1 << 22
_PACK_AGAIN = "Pack the data with training_preprocessor_dl, or validation_preprocessor_dl, on this cluster."


def is_citus(session: EngineCaller) -> bool:
    """Return whether a session's database is the coordinator of a Citus cluster with other nodes.

    Raises
    ------
    NotReady
        If it is another node of the cluster, where runs cannot be started.
    """
    if not has_citus(session):
        return False
    if session.execute(_GROUP)[0]["number"] != 0:
        raise NotReady(
            "this server is a worker node of a Citus cluster; pack tables and start runs on its coordinator",
            hint="SELECT nodename, nodeport FROM pg_dist_node WHERE groupid = 0;",
        )
    return bool(session.execute(_HAS_WORKERS)[0]["yes"])


def is_worker_node(session: EngineCaller) -> bool:
    """Return whether a session's server is a node of a Citus cluster other than the coordinator."""
    return has_citus(session) and session.execute(_GROUP)[0]["number"] != 0


def has_rows_elsewhere(session: EngineCaller, relation: Relation) -> bool:
    """Return whether a query of a relation at a worker node can read other nodes: any of Citus' tables but a reference
    table, and any view."""
    if relation.kind == "v":
        return True
    return any(not row["is_reference"] for row in session.execute(_REPLICATION, [relation.oid], ["bigint"]))


def has_citus(session: EngineCaller) -> bool:
    """Return whether the extension citus is in a session's database."""
    return bool(session.execute(_IS_HERE)[0]["yes"])


def is_distributed(session: EngineCaller, relation: Relation) -> bool:
    """Return whether a relation has shards of Citus' by the hash of a column."""
    return has_citus(session) and any(
        row["method"] == "h" for row in session.execute(_METHOD, [relation.oid], ["bigint"])
    )


class Citus(Engine):
    """A Citus cluster, asked at its coordinator.

    Parameters
    ----------
    open_catalog : callable
        Returns the catalog session (psycopg2 connection); called only for packing.
    """

    name = "citus"
    moves_shards = True
    keeps_order = False

    def __init__(self, open_catalog: Callable[[], CatalogConnection]):
        self._open_catalog = open_catalog

    def check_host(self, server: str) -> None:
        """See `Engine.check_host`; hosts carry segments."""

    def limits(self, places: Sequence[SegmentLocation]) -> EngineLimits:
        """See `Engine.limits`."""
        return _LIMITS

    def naming_columns(self, session: EngineCaller, relation: Relation) -> tuple[str, ...]:
        """See `Engine.naming_columns`; ctids repeat in each shard, and no column identifies the shard."""
        return ()

    def version_columns(self, session: EngineCaller, relation: Relation) -> tuple[str, ...]:
        """See `Engine.version_columns`; each shard has versions of its own."""
        return ()

    def segments(self, session: EngineCaller) -> list[Segment]:
        """Return the number of segments in the setting, or the total of the nodes that hold shards.

        Citus chooses their nodes when the table is distributed.

        Raises
        ------
        InvalidParameter
            If the setting is no number from 1 to 1024, or the nodes carry more together.
        NotReady
            If nodes were not added as hosts.
        """
        total = read_total(session)
        if total is None:
            nodes, added = self._nodes(session), _added(session)
            known = {one.server: one.n_segments for one in added}
            servers = servers_of(nodes, added, session.info.database)
            total = sum(count_cores() if server is None else known[server] for server in servers.values())
            if total > MAX_SEGMENTS:
                raise InvalidParameter(
                    f"the nodes hold {total} segments in total; a table can have at most {MAX_SEGMENTS}",
                    hint=f"SET madlib_mop.segments = {MAX_SEGMENTS}; or fewer.",
                )
        return [Segment(number, HERE) for number in range(total)]

    def check(self, session: EngineCaller, segments: Sequence[Segment]) -> None:
        """Check that each node that holds shards is a host that the caller may use; Citus itself sends the rows
        there."""
        servers = servers_of(self._nodes(session), _added(session), session.info.database)
        others = [server for server in servers.values() if server is not None]
        if others:
            from madlib_mop.engines.hosts.connections import read_login

            catalog = self._open_catalog()
            for server in others:
                read_login(catalog, server, session.info.role)

    def store(
        self, session: EngineCaller, table: Relation, columns: Sequence[str], segments: Sequence[Segment]
    ) -> Store:
        """See `Engine.store`."""
        return CitusStore(session, table, columns, max(segment.number for segment in segments) + 1)

    def shard_places(self, session: EngineCaller, relation: Relation) -> Mapping[int, ShardPlace]:
        """See `Engine.shard_places`: all of them, those of this server too.

        Raises
        ------
        NotReady
            If a shard is at a node that was not added as a host.
        """
        keys = {number: key for key, number in _numbers(session, relation).items()}
        rows = session.execute(_SHARDS, [relation.oid], ["bigint"])
        nodes = [_node(row) for row in rows]
        servers = servers_of(nodes, _added(session), session.info.database)
        return {
            keys[number]: ShardPlace(servers[node], Relation(relation.schema, split_name(row["name"])[1]))
            for number, (row, node) in enumerate(zip(rows, nodes, strict=True))
        }

    def shard_keys(self, session: EngineCaller, relation: Relation, what: str) -> Mapping[int, int]:
        """See `Engine.shard_keys`; the rows themselves are not read.

        Raises
        ------
        InvalidParameter
            If the table is not distributed by ``__dist_key__``.
        """
        (row,) = session.execute(_METHOD, [relation.oid], ["bigint"])
        if row["distributed_by"] != "__dist_key__":
            raise InvalidParameter(
                f"{what}: {relation} is distributed by {row['distributed_by']!r}, not by '__dist_key__'."
                f" Received: {relation.name!r}",
                hint=_PACK_AGAIN,
            )
        return _numbers(session, relation)

    def _nodes(self, session: EngineCaller) -> list[Node]:
        return [_node(row) for row in session.execute(NODES)]


class CitusStore(KeyedStore):
    """A packed table on Citus while it is filled; see `Store`.

    Parameters
    ----------
    session, table, columns
        See `KeyedStore`.
    n_shards : int
    """

    def __init__(self, session: EngineCaller, table: Relation, columns: Sequence[str], n_shards: int):
        super().__init__(session, table, columns)
        self._n_shards = n_shards

    def _distribute(self) -> Mapping[int, int]:
        (row,) = self._session.execute(
            "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid::pg_catalog.int8 AS oid", [self._table.sql]
        )
        self._session.execute(
            "SELECT pg_catalog.create_distributed_table($1::pg_catalog.oid::pg_catalog.regclass, '__dist_key__',"
            " shard_count := $2, colocate_with := 'none') IS NULL AS done",
            [row["oid"], self._n_shards],
            ["bigint", "integer"],
        )
        made = Relation(self._table.schema, self._table.name, row["oid"])
        return {number: key for key, number in _numbers(self._session, made).items()}


def _numbers(session: EngineCaller, relation: Relation) -> dict[int, int]:
    """Return the segment of each key of a distributed table: a shard's key is the smallest number that hashes to it."""
    of_shard = {row["id"]: row["number"] for row in session.execute(_NUMBERS, [relation.oid], ["bigint"])}
    n_tried = 32 * len(of_shard) + 32
    while True:
        keys = session.execute(_KEYS, [relation.oid, n_tried], ["bigint", "integer"])
        if len(keys) == len(of_shard):
            return {row["key"]: of_shard[row["id"]] for row in keys}
        n_tried *= 2
        if n_tried > _MOST_KEYS:
            raise NotReady(f"{relation}: no __dist_key__ was found for some of its shards", hint=_PACK_AGAIN)


def _node(row: dict[str, Any]) -> Node:
    return Node(row["host"], row["port"], row["is_here"])


def _added(session: EngineCaller) -> list[Added]:
    """Read the servers that were added as hosts."""
    return [Added(**row) for row in session.execute(ADDED)]
