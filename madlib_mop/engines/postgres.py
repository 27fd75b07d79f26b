"""The engine postgres: segments are partitions of a packed table, here or at other PostgreSQL servers (hosts)."""

from collections.abc import Callable, Mapping, Sequence

from mop_backend.machine import processors
from psycopg2.extensions import connection as CatalogConnection

from madlib_mop.calls.limits import MAX_SEGMENTS
from madlib_mop.catalog.names import Relation, split_name
from madlib_mop.engines.base.caller import EngineCaller
from madlib_mop.engines.base.dealing import Carrier, deal
from madlib_mop.engines.base.interface import (
    HERE,
    HOSTS,
    SEGMENTS,
    Engine,
    EngineLimits,
    Segment,
    SegmentLocation,
    ShardPlace,
    Store,
)
from madlib_mop.engines.base.system_columns import reads_by_blocks
from madlib_mop.engines.postgres_store import PostgresStore, partition_suffix
from madlib_mop.errors import InvalidParameter

_HERE_NAME = "here"
_UNCOMMITTED = "the segments' workers are separate sessions and can only read committed tables"
_LIMITS = EngineLimits(gpus=None, row_security=None, uncommitted=_UNCOMMITTED, fused_training=None)
_LIMITS_OF_HOSTS = EngineLimits(
    gpus="it has segments on other servers, and only this server's GPUs are known",
    row_security="its segments on other servers read their rows there, where this server's policies do not apply",
    uncommitted=_UNCOMMITTED,
    fused_training="its segments are not on this server",
)
_ADDED = "SELECT server::pg_catalog.text AS server, n_segments FROM madlib_mop.hosts ORDER BY added_at, server"
# Partitions with the same columns as the table on the other server. A foreign table that renames columns is not
# listed; it is read through postgres_fdw.
_PLACES = """
SELECT pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound, s.srvname::pg_catalog.text AS server,
       (SELECT o.option_value FROM pg_catalog.pg_options_to_table(f.ftoptions) o WHERE o.option_name = 'schema_name') AS schema,
       (SELECT o.option_value FROM pg_catalog.pg_options_to_table(f.ftoptions) o WHERE o.option_name = 'table_name') AS name
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_foreign_table f ON f.ftrelid = c.oid
JOIN pg_catalog.pg_foreign_server s ON s.oid = f.ftserver
WHERE i.inhparent = $1::pg_catalog.oid AND s.srvname IN (SELECT h.server FROM madlib_mop.hosts h)
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attfdwoptions IS NOT NULL)
"""  # noqa: E501


class Postgres(Engine):
    """PostgreSQL, with or without hosts.

    Parameters
    ----------
    open_catalog : callable
        Returns the catalog session (psycopg2 connection); called only if there are segments on hosts.
    """

    name = "postgres"

    def __init__(self, open_catalog: Callable[[], CatalogConnection]):
        self._open_catalog = open_catalog

    def check_host(self, server: str) -> None:
        """See `Engine.check_host`; hosts carry segments."""

    def limits(self, places: Sequence[SegmentLocation]) -> EngineLimits:
        """See `Engine.limits`."""
        return _LIMITS if all(place == HERE for place in places) else _LIMITS_OF_HOSTS

    def part_suffixes(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        """See `Engine.part_suffixes`: those of its partitions."""
        return tuple(partition_suffix(segment.number) for segment in segments)

    def segments(self, session: EngineCaller) -> list[Segment]:
        """Distribute the segments of the settings over this server and its hosts.

        Raises
        ------
        InvalidParameter
            If a setting cannot be read, or names a server that was not added.
        """
        segments = deal(_carriers(session), read_total(session))
        if len(segments) > MAX_SEGMENTS:
            raise InvalidParameter(
                f"the hosts hold {len(segments)} segments in total; a table can have at most {MAX_SEGMENTS}",
                hint=f"SET {SEGMENTS} = {MAX_SEGMENTS}; or fewer.",
            )
        return segments

    def check(self, session: EngineCaller, segments: Sequence[Segment]) -> None:
        """Log in to each host once, as for packing, and check that rows can be written there."""
        servers = _servers(segments)
        if servers:
            from madlib_mop.engines.hosts.tables import check_hosts

            check_hosts(self._open_catalog(), servers, session.info.role)

    def store(
        self, session: EngineCaller, table: Relation, columns: Sequence[str], segments: Sequence[Segment]
    ) -> Store:
        """See `Engine.store`."""
        shards = None
        if _servers(segments):
            from madlib_mop.engines.hosts.tables import HostTables

            shards = HostTables(self._open_catalog(), session.info.role, columns)
        return PostgresStore(session, table, columns, segments, shards)

    def reads_by_blocks(self, session: EngineCaller, relation: Relation) -> bool:
        """See `Engine.reads_by_blocks`."""
        return reads_by_blocks(session, relation)

    def shard_places(self, session: EngineCaller, relation: Relation) -> Mapping[int, ShardPlace]:
        """See `Engine.shard_places`."""
        places = {}
        for row in session.execute(_PLACES, [relation.oid], ["bigint"]):
            segment = segment_of_bound(row["bound"])
            if segment is not None and row["schema"] and row["name"]:
                places[segment] = ShardPlace(row["server"], Relation(row["schema"], row["name"]))
        return places


def segment_of_bound(bound: str) -> int | None:
    """Return the segment of a partition by its bound as the server writes it, ``FOR VALUES IN (3)``; else None."""
    digits = bound.partition("(")[2].strip(") '")
    return int(digits) if bound.startswith("FOR VALUES IN") and digits.lstrip("-").isdigit() else None


def count_cores() -> int:
    """Return the number of CPU cores that this server's processes may use."""
    return processors()


def _servers(segments: Sequence[Segment]) -> list[str]:
    """Return the hosts among the segments' places, each once, in the order of the first segment there."""
    return list(dict.fromkeys(s.place.server for s in segments if s.place.server is not None))


def _carriers(session: EngineCaller) -> list[Carrier]:
    """Return the locations of segments: from the setting, else all hosts, else this server only."""
    here = Carrier(HERE, count_cores())
    added = {
        row["server"]: Carrier(SegmentLocation(row["server"]), row["n_segments"]) for row in session.execute(_ADDED)
    }
    text = (session.caller_setting(HOSTS) or "").strip()
    if not text:
        return list(added.values()) or [here]
    carriers = []
    for part in text.split(","):
        schema, name = split_name(part, f"a name in the setting {HOSTS}")
        carrier = here if name == _HERE_NAME else added.get(name)
        if schema is not None or carrier is None:
            known = ", ".join([*added, _HERE_NAME])
            raise InvalidParameter(
                f"the setting {HOSTS} names {part.strip()!r}, which holds no segments. Received: {text!r}",
                hint=f"Hosts: {known}. A superuser can add a server with madlib_mop.add_host.",
            )
        if carrier in carriers:
            raise InvalidParameter(f"the setting {HOSTS} names {name!r} twice. Received: {text!r}")
        carriers.append(carrier)
    return carriers


def read_total(session: EngineCaller) -> int | None:
    """Read the number of segments; None if it is not set.

    Raises
    ------
    InvalidParameter
        If the setting is not a number from 1 to 1024.
    """
    value = session.caller_setting(SEGMENTS)
    if value is None or not value.strip():
        return None
    if not value.strip().isdecimal() or not 1 <= int(value) <= MAX_SEGMENTS:
        raise InvalidParameter(
            f"the setting {SEGMENTS} must be a number from 1 to {MAX_SEGMENTS}. Received: {value!r}",
            hint=f"SET {SEGMENTS} = 2; or RESET it, to use one segment for each core of the server.",
        )
    return int(value)
