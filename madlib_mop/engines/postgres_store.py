"""A packed table on PostgreSQL while it is filled: one partition for each segment, a foreign table if the segment is
on a host.

Everything that the caller can name is created in the caller's session, with the caller's rights. Rows of local segments
are inserted there too; those of other segments are sent directly to their host (`hosts.tables.HostTables`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from madlib_mop.catalog.names import Relation, quote, statement
from madlib_mop.engines.base.caller import EngineCaller
from madlib_mop.engines.base.interface import Segment, Store
from madlib_mop.engines.base.packed_form import PackedForm

if TYPE_CHECKING:  # imports psycopg, which only tables with hosts need
    from madlib_mop.engines.hosts.tables import HostTables


class PostgresStore(Store):
    """See `Store`.

    Parameters
    ----------
    session : EngineCaller
    table : Relation
        Its name.
    columns : sequence of str
        Inputs, then outputs.
    segments : sequence of Segment
    shards : HostTables or None
        The tables on hosts, if any segment is on a host.
    """

    def __init__(
        self,
        session: EngineCaller,
        table: Relation,
        columns: Sequence[str],
        segments: Sequence[Segment],
        shards: "HostTables | None",
    ):
        self._session = session
        self._table = table
        self._segments = segments
        self._shards = shards
        self._form = PackedForm(session, table, columns)
        self._remote = {s.number for s in segments if s.place.server is not None}

    def create(self) -> None:
        """Make the table and its partitions."""
        self._form.create(" PARTITION BY LIST (__dist_key__)")
        for segment in self._segments:
            part = self._table.with_suffix(partition_suffix(segment.number))
            if segment.number in self._remote:
                self._create_remote(segment, part)
            else:
                template = f"CREATE TABLE {{part}} PARTITION OF {{table}} FOR VALUES IN ({segment.number:d}) USING heap"
                self._session.execute(statement(template, part=part, table=self._table))
        if self._shards is not None:
            self._shards.create()

    def insert(self, segment: int, buffer_id: int, values: Sequence[bytes], shapes: Sequence[Sequence[int]]) -> None:
        """See `Store.insert`."""
        if segment in self._remote:
            self._at_hosts.write(segment, [segment, *values, *map(list, shapes), buffer_id])
            return
        self._form.insert(segment, buffer_id, values, shapes)

    def finish(self) -> None:
        """Wait for the last buffer, then commit at the hosts."""
        self._form.finish()
        if self._shards is not None:
            self._shards.commit()

    def close(self) -> None:
        """See `Store.close`."""
        if self._shards is not None:
            self._shards.close()

    def _create_remote(self, segment: Segment, part: Relation) -> None:
        """Create the foreign table of a segment on a host, and its table there.

        Buffers can have megabytes, so they are fetched one at a time.
        """
        there = self._at_hosts.add(segment, self._table)
        assert segment.place.server is not None, "this segment is at a host"
        (row,) = self._session.execute(
            "SELECT pg_catalog.format('CREATE FOREIGN TABLE %s PARTITION OF %s FOR VALUES IN (%s) SERVER %s"
            " OPTIONS (schema_name %L, table_name %L, fetch_size %L)', $1, $2, $3, $4, $5, $6, '1') AS command",
            [part.sql, self._table.sql, str(segment.number), quote(segment.place.server), there.schema, there.name],
        )
        self._session.execute(row["command"])
        (row,) = self._session.execute(
            "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid::bigint AS oid,"
            " pg_catalog.pg_current_xact_id()::pg_catalog.text AS xid",
            [part.sql],
        )
        self._at_hosts.register(segment, row["oid"], row["xid"])

    @property
    def _at_hosts(self) -> "HostTables":
        assert self._shards is not None, "it is given where any segment is at a host"
        return self._shards


def partition_suffix(segment: int) -> str:
    """Return the suffix of the packed table's name for the partition of one segment."""
    return f"_seg{segment:d}"
