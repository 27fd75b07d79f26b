"""A packed table: the table, its summary and its preprocessor, read in the caller's session and checked.

Shards on hosts are asked there.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from madlib_mop.catalog.names import Identifier, Relation, Slot, statement
from madlib_mop.catalog.rows.plan import PackedData, PreprocessorRow, ShardAccess, ShardPlan
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.data.engine import engine_of_table
from madlib_mop.driver.data.gpus import assign_gpus
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import not_committed, not_one_row, wrong_type
from madlib_mop.driver.session.relations import RelationLookup
from madlib_mop.engines.base.interface import HERE, EngineLimits, SegmentLocation, ShardPlace
from madlib_mop.errors import (
    InsufficientPrivilege,
    InvalidParameter,
    MopError,
    NotReady,
    UndefinedColumn,
    UndefinedTable,
    Unsupported,
    shown,
)

if TYPE_CHECKING:  # drivers without tables on hosts do not need connections to hosts
    import psycopg
    from psycopg2.extensions import connection as CatalogConnection

    from madlib_mop.engines.hosts.connections import HostLogin


#: The columns of a summary that hold the preprocessor, with their types.
COLUMNS = (("preprocessor_digest", "text"), ("preprocessor", "text"))


def read_preprocessor_row(
    session: RelationLookup, summary: Relation, types: Mapping[str, str] | None = None
) -> PreprocessorRow | None:
    """Return the preprocessor of a summary; None if it has none.

    Parameters
    ----------
    session : RelationLookup
    summary : Relation
    types : mapping of str to str, optional
        The types of its columns, where the caller of this function has them.

    Raises
    ------
    InvalidParameter
        If the document is not the one that its digest names.
    UnreadableText
        If it is no preprocessor.
    """
    if types is None:
        types = {column.name: column.type_sql for column in session.columns(summary)}
    if any(types.get(name) != sql_type for name, sql_type in COLUMNS):
        return None
    query = "SELECT preprocessor_digest AS digest, preprocessor AS document FROM {summary}"
    rows = session.execute(statement(query, summary=summary))
    if len(rows) != 1 or rows[0]["document"] is None:
        return None
    from madlib_mop.columns.preprocessors.preprocessor import Preprocessor  # imports NumPy

    found = Preprocessor.from_json(rows[0]["document"])
    if found.digest != rows[0]["digest"]:  # defence: digest-of-a-preprocessor
        raise InvalidParameter(
            f"the preprocessor in {summary} was changed: its SHA-256 is {found.digest}, not {rows[0]['digest']}",
            hint="Pack the table again.",
        )
    return PreprocessorRow(found.digest, rows[0]["document"])


PACK_AGAIN = "Pack the data again with training_preprocessor_dl or validation_preprocessor_dl."
#: The column of a summary of `pack_columns` with the inputs that a person should check.
CHECKS = "columns_to_check"
_COLUMNS = (
    "dependent_varname", "independent_varname", "dependent_vartype", "buffer_size", "normalizing_const", "num_classes",
)  # fmt: skip


@dataclass(frozen=True)
class PackedSummary:
    """The summary of a packed table.

    Attributes
    ----------
    relation : Relation
    types : dict of str to str
        The types of its columns.
    row : dict
        The values that all packed tables have, by column.
    """

    relation: Relation
    types: dict[str, str]
    row: dict[str, Any]


def read_summary(session: CallerSession, relation: Relation, name: str | None, what: str) -> PackedSummary:
    """Find and read the summary of a packed table.

    Raises
    ------
    UndefinedTable, UndefinedColumn, InvalidParameter
        If it does not exist, or is not the summary of a preprocessor.
    """
    summary = relation.with_suffix("_summary")
    found = session.existing(summary.sql)
    if found is None:
        raise UndefinedTable(
            f"{what}: table {relation} is not packed: {summary} does not exist. Received: {name!r}",
            hint="Pack it with madlib.validation_preprocessor_dl and the training table as training_preprocessor_table,"
            " so that both have one encoding."
            if what == "validation_table"
            else "Pack the data first, with madlib.training_preprocessor_dl or madlib_mop.pack_columns.",
        )
    types = {column.name: column.type_sql for column in session.columns(found)}
    missing = [column for column in _COLUMNS if column not in types]
    if missing:
        raise UndefinedColumn(
            f"{what}: {summary} has no column {missing[0]!r}; it is not a preprocessor's summary. Received: {name!r}",
            hint=PACK_AGAIN,
        )
    rows = session.execute(statement("SELECT {c} FROM {s}", c=[Identifier(column) for column in _COLUMNS], s=found))
    if len(rows) != 1:
        raise not_one_row(what, summary, len(rows), name, PACK_AGAIN)
    for column in ("dependent_varname", "independent_varname", "dependent_vartype", "normalizing_const"):
        value = rows[0][column]
        if value is None or value == [] or (isinstance(value, list) and None in value):
            raise InvalidParameter(
                f"{what}: {summary} has no value for {column}. Received: {shown(value)}", hint=PACK_AGAIN
            )
    return PackedSummary(found, types, rows[0])


def names_of(value: str | list[str]) -> list[str]:
    """Return a list of one or more names; a summary of one input or output has the name alone."""
    return list(value) if isinstance(value, list) else [value]


def class_values(session: CallerSession, summary: PackedSummary, column: str) -> tuple[str, str | None]:
    """Return the type of an output's class values, and their text; the text is None where there are none."""
    name = f"{column}_class_values"
    sql_type = summary.types.get(name)
    if sql_type is None:
        return "text[]", None
    if not sql_type.endswith("[]"):
        raise InvalidParameter(
            f"column {name!r} of {summary.relation} must be an array. Received: {sql_type}", hint=PACK_AGAIN
        )
    query = "SELECT pg_catalog.textin(pg_catalog.array_out({c})) AS value FROM {s}"
    row = session.only_row(statement(query, c=Identifier(name), s=summary.relation), summary.relation)
    return sql_type, row["value"]


def class_counts(session: CallerSession, summary: PackedSummary, column: str) -> tuple[int, ...] | None:
    """Return the rows of each class of an output; None if the summary does not have them."""
    counts = _cell(session, summary, f"{column}_class_counts", "bigint[]")
    return tuple(counts) if counts and all(count is not None and count >= 0 for count in counts) else None


def index_inputs(session: CallerSession, summary: PackedSummary, independent: Sequence[str]) -> tuple[int, ...]:
    """Return which inputs, by number, hold int32 indices."""
    names = _cell(session, summary, "index_columns", "text[]") or []  # of pack_columns
    return tuple(i for i, name in enumerate(independent) if name in names)


def columns_to_check(session: CallerSession, summary: PackedSummary) -> list[str]:
    """Return the inputs that a person should check, each with the reason."""
    texts = _cell(session, summary, CHECKS, "text[]") or []
    return [text for text in texts if text is not None]


def preprocessor_digest(session: CallerSession, summary: PackedSummary) -> str | None:
    """Return the recorded SHA-256 of the preprocessor; None for a table that `pack_columns` did not make."""
    digest: str | None = _cell(session, summary, "preprocessor_digest", "text")
    return digest


def _cell(session: CallerSession, summary: PackedSummary, column: str, sql_type: str) -> Any:
    """Return the value of a column that not every summary has; None where it is missing or of another type."""
    if summary.types.get(column) != sql_type:
        return None
    query = statement("SELECT {c} FROM {s}", c=Identifier(column), s=summary.relation)
    return session.only_row(query, summary.relation)[column]


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
