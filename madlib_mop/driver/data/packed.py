"""A packed table for a run: read from the table and its summary in the caller's session, and checked."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.catalog.rows.packed import PackedData, ShardAccess, ShardPlan
from madlib_mop.driver.data.engine import engine_of_table
from madlib_mop.driver.data.gpus import assign_gpus
from madlib_mop.driver.data.remote_shards import ShardReader, check_reachable
from madlib_mop.driver.data.summaries import (
    PACK_AGAIN,
    PackedSummary,
    class_counts,
    class_values,
    index_inputs,
    names_of,
    read_summary,
)
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import wrong_type
from madlib_mop.engines.base.interface import HERE, EngineLimits, SegmentLocation, ShardPlace
from madlib_mop.errors import InvalidParameter, NotReady, UndefinedColumn, Unsupported

_KEY_TYPES = ("integer", "smallint")
_SHAPE_TYPES = ("integer[]", "smallint[]", "bigint[]")


@dataclass(frozen=True)
class PackedShard:
    """One segment's shard of a packed table.

    Attributes
    ----------
    segment_id, n_rows, n_bytes : int
    elsewhere : ShardPlace or None
        Its location, if not on this server.
    key : int or None
        Its ``__dist_key__``, if that is not the segment's number.
    """

    segment_id: int
    n_rows: int
    n_bytes: int
    elsewhere: ShardPlace | None = None
    key: int | None = None

    @property
    def key_there(self) -> int:
        """Its ``__dist_key__``."""
        return self.segment_id if self.key is None else self.key

    @property
    def place(self) -> SegmentLocation:
        """Its location."""
        return SegmentLocation(self.elsewhere.server) if self.elsewhere else HERE


@dataclass(frozen=True)
class PackedTable:
    """A packed table and its summary.

    Attributes
    ----------
    relation : Relation
    independent, dependent : list of str
        Column names of the inputs and outputs.
    dependent_vartype : list of str
    class_values : list of (str, str or None)
        For each output the type of its ``<dep>_class_values`` column, and the value in PostgreSQL's text form.
    num_classes : list of int
    normalizing_const : float
    shards : list of PackedShard
        In the order of their segments; a segment without rows has none and is not used.
    shapes : list of list of int
        Shape of one row of each input, then of each output.
    engine : str
        Name of its engine.
    limits : EngineLimits
        Its limits.
    row_security : bool
        Whether policies can hide rows from the caller.
    summary : PackedSummary
    class_counts : tuple of (tuple of int, or None)
        For each output the rows of each class; None if its summary has no counts.
    index_inputs : tuple of int
        Which inputs, by number, hold int32 indices.
    """

    relation: Relation
    independent: list[str]
    dependent: list[str]
    dependent_vartype: list[str]
    class_values: list[tuple[str, str | None]]
    num_classes: list[int]
    normalizing_const: float
    shards: list[PackedShard]
    shapes: list[list[int]]
    engine: str
    limits: EngineLimits
    row_security: bool
    summary: PackedSummary

    @property
    def columns(self) -> list[str]:
        """Inputs, then outputs."""
        return [*self.independent, *self.dependent]

    @property
    def n_rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.n_rows for shard in self.shards)

    @property
    def query(self) -> str:
        """The SELECT by which a worker reads one segment's buffers: columns b0, s0, b1, s1, ...; $1 is the segment."""
        return shard_query(self.relation, self.columns, self._has_key)

    @property
    def n_here(self) -> int:
        """The number of shards on this server; 1 if there are none."""
        return max(1, sum(shard.place.server is None for shard in self.shards))

    @property
    def n_at_hosts(self) -> dict[str, int]:
        """The number of shards on each other server with shards."""
        return dict(Counter(shard.place.server for shard in self.shards if shard.place.server is not None))

    class_counts: tuple[tuple[int, ...] | None, ...] = ()
    index_inputs: tuple[int, ...] = ()
    _has_key: bool = True
    _feed_query: str | None = None

    def as_plan(self) -> PackedData:
        """Return the table's data for workers."""
        return PackedData(
            table=str(self.relation),
            sql_name=self.relation.sql,
            oid=self.relation.oid,
            query=self.query,
            n_x=len(self.independent),
            n_y=len(self.dependent),
            normalizing_const=self.normalizing_const,
            segments=tuple(map(self._shard_plan, self.shards)),
            index_inputs=self.index_inputs,
        )

    def _shard_plan(self, shard: PackedShard) -> ShardPlan:
        there = shard.elsewhere
        place = ShardAccess(shard_query(there.table, self.columns, True), there.server) if there else None
        if self._feed_query is not None:
            place = ShardAccess(self._feed_query, key=shard.key_there)
        return ShardPlan(shard.segment_id, shard.n_rows, shard.n_bytes, place, shard.key)


def shard_query(relation: Relation, columns: list[str], has_key: bool) -> str:
    """Return the query of one segment's buffers in order."""
    items, names = [], {}
    for number, column in enumerate(columns):
        items.append(f"{{b{number}}} AS b{number}, {{s{number}}} AS s{number}")
        names[f"b{number}"] = Identifier(column)
        names[f"s{number}"] = Identifier(f"{column}_shape")
    where = "__dist_key__ = $1" if has_key else "$1::pg_catalog.int4 IS NOT NULL"
    return statement(
        f"SELECT {', '.join(items)} FROM {{packed}} WHERE {where} ORDER BY buffer_id", packed=relation, **names
    )


def read_packed_table(session: CallerSession, name: str | None, what: str) -> PackedTable:
    """Find a packed table and read its summary.

    Parameters
    ----------
    session : CallerSession
    name : str
        As written by the caller.
    what : str
        The argument's name, for messages.

    Raises
    ------
    UndefinedTable, UndefinedColumn, InvalidParameter
        If it does not exist, was not created by a preprocessor, or has no rows.
    """
    relation = session.relation(name, what)
    summary = read_summary(session, relation, name, what)
    row = summary.row
    independent, dependent = names_of(row["independent_varname"]), names_of(row["dependent_varname"])
    types = {column.name: column.type_sql for column in session.columns(relation)}
    has_key = "__dist_key__" in types
    _check_types(relation, types, [*independent, *dependent], name, what)
    engine = engine_of_table(session, relation)
    of_keys = engine.shard_keys(session, relation, what)
    places = engine.shard_places(session, relation)
    elsewhere = {key: place for key, place in places.items() if place.server is not None}
    servers = sorted({place.server for place in places.values() if place.server is not None})
    check_reachable(session, relation, servers)
    columns = [*independent, *dependent]
    are_all = bool(places) and places.keys() == of_keys.keys()
    with ShardReader(session, relation, places, are_all) as reader:
        if servers:
            reader.check_committed(what)
        if are_all and (strange := reader.strange_key()) is not None:
            raise InvalidParameter(
                f"{what}: {relation} has a shard with more than one value of __dist_key__, among them {strange}; each"
                f" shard must have one value. Received: {name!r}",
                hint=PACK_AGAIN,
            )
        shards = [
            replace(shard, elsewhere=elsewhere.get(shard.segment_id))
            for shard in _read_shards(reader, relation, columns, has_key, what)
        ]
        if of_keys:
            shards = [replace(s, segment_id=of_keys[s.segment_id], key=s.segment_id) for s in shards]
            shards.sort(key=lambda shard: shard.segment_id)
        if not sum(shard.n_rows for shard in shards):
            hint = "If it was packed in this transaction: COMMIT first." if elsewhere else "Pack a table that has rows."
            raise InvalidParameter(f"{what}: packed table {relation} has no rows. Received: {name!r}", hint=hint)
        shapes = _read_shapes(reader, relation, columns)
    return PackedTable(
        relation,
        independent,
        dependent,
        names_of(row["dependent_vartype"]),
        [class_values(session, summary, column) for column in dependent],
        list(row["num_classes"] or []),
        float(row["normalizing_const"]),
        shards,
        shapes,
        engine.name,
        engine.limits([shard.place for shard in shards]),
        _has_row_security(session, relation),
        summary,
        tuple(class_counts(session, summary, column) for column in dependent),
        index_inputs(session, summary, independent),
        has_key,
        engine.feed_query(relation, columns),
    )


def new_segments(session: CallerSession, plan: PackedData) -> list[int]:
    """Return the segments of a packed table that have rows on this server and are not in a run's plan.

    Hosts are not queried: a transaction there would stay open for the whole run.
    """
    relation = session.existing(plan.sql_name)
    if relation is None or "__dist_key__" not in {column.name for column in session.columns(relation)}:
        return []
    engine = engine_of_table(session, relation)
    if engine.moves_shards:  # its shards are always those that the engine created with the table
        return []
    elsewhere = sorted(engine.shard_places(session, relation))
    of_keys = engine.shard_keys(session, relation, "source_table")
    query = statement(
        "SELECT DISTINCT __dist_key__ AS segment_id FROM {packed} WHERE __dist_key__ <> ALL ($1::pg_catalog.int4[])",
        packed=relation,
    )
    keys = [row["segment_id"] for row in session.execute(query, [elsewhere], ["int4[]"])]
    present = [of_keys.get(key, key) for key in keys]
    return sorted({*present} - {shard.segment_id for shard in plan.segments})


def _check_types(relation: Relation, types: dict[str, str], columns: list[str], name: str | None, what: str) -> None:
    """Check the columns of a packed table; user-defined types could run user code."""
    expected: dict[str, tuple[str, ...]] = {}
    for column in columns:
        expected |= {column: ("bytea",), f"{column}_shape": _SHAPE_TYPES}
    expected |= {"buffer_id": (*_KEY_TYPES, "bigint")}
    if "__dist_key__" in types:
        expected["__dist_key__"] = _KEY_TYPES
    for column, kinds in expected.items():
        if column not in types:
            raise UndefinedColumn(
                f"{what}: table {relation} has no column {column!r}, which its summary lists. Received: {name!r}",
                hint=PACK_AGAIN,
            )
        if types[column] not in kinds:
            raise wrong_type(what, relation, column, kinds[0], types[column], PACK_AGAIN)


def _read_shards(
    reader: ShardReader, relation: Relation, columns: Sequence[str], has_key: bool, what: str
) -> list[PackedShard]:
    key = "__dist_key__" if has_key else "0"
    slots = {f"c{n}": Identifier(part) for n, part in enumerate(p for c in columns for p in (c, f"{c}_shape"))}
    n_bytes = " + ".join(f"pg_catalog.octet_length({{c{2 * n}}})::pg_catalog.int8" for n in range(len(columns)))
    rows = reader.rows(
        f"SELECT {key} AS segment_id, sum({{c1}}[1]) AS n_rows, sum({n_bytes}) AS n_bytes,"
        f" count(*) FILTER (WHERE {' OR '.join(f'{{{slot}}} IS NULL' for slot in slots)}) AS n_null"
        " FROM {packed}",
        "GROUP BY 1",
        **slots,
    )
    n_null = sum(row.pop("n_null") for row in rows)
    if n_null or any(row["segment_id"] is None for row in rows):
        column = "a packed column" if n_null else "__dist_key__"
        raise InvalidParameter(
            f"{what}: {relation} has rows where {column} is NULL. Received: {relation.name!r}", hint=PACK_AGAIN
        )
    shards = [
        PackedShard(row["segment_id"], int(row["n_rows"]), int(row["n_bytes"] or 0)) for row in rows if row["n_rows"]
    ]
    return sorted(shards, key=lambda shard: shard.segment_id)


def _has_row_security(session: CallerSession, relation: Relation) -> bool:
    (row,) = session.execute(
        "SELECT pg_catalog.row_security_active($1::pg_catalog.oid) AS active", [relation.oid], ["bigint"]
    )
    return bool(row["active"])


def _read_shapes(reader: ShardReader, relation: Relation, columns: Sequence[str]) -> list[list[int]]:
    rows = reader.rows(
        "SELECT " + ", ".join(f"{{s{n}}} AS s{n}" for n in range(len(columns))) + " FROM {packed}",
        "LIMIT 1",
        **{f"s{n}": Identifier(f"{column}_shape") for n, column in enumerate(columns)},
    )
    if not rows:
        raise NotReady(f"{relation} had rows, and now has none: it was changed while it was being read")
    return [list(rows[0][f"s{n}"])[1:] for n in range(len(columns))]


def gpus_of_run(n_gpus: int, packed: PackedTable) -> dict[int, int]:
    """Return the GPU of each segment's trainer, of so many; see `assign_gpus`. With 0, none has any.

    Raises
    ------
    Unsupported
        If the engine does not know the GPUs of some segments.
    """
    if not n_gpus:
        return {}
    if packed.limits.gpus is not None:
        raise Unsupported(
            f"use_gpus => true cannot be used with {packed.relation}: {packed.limits.gpus}",
            hint="Omit use_gpus, or pack into segments on this server: SET madlib_mop.hosts = 'here';",
        )
    return assign_gpus(n_gpus, [shard.segment_id for shard in packed.shards])
