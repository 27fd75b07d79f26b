"""The engine Greenplum: a segment is one of the cluster's, its number the ``gp_segment_id``; and which product has
Greenplum's catalogs: Greenplum, or one made from it.

A packed table is DISTRIBUTED BY (__dist_key__) with exactly one key a segment; madlib_mop.segment_key has the segment
of each key. A worker reaches its trainer by queries for that key (mop_backend.dispatch).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.names import Identifier, Relation, quote, statement
from madlib_mop.engines.base.caller import EngineCaller
from madlib_mop.engines.base.interface import HERE, Engine, EngineLimits, Segment, SegmentLocation, ShardPlace, Store
from madlib_mop.engines.base.keyed_store import KeyedStore
from madlib_mop.errors import InvalidParameter, NotReady, Unsupported


@dataclass(frozen=True)
class Product:
    """A server with Greenplum's catalogs.

    Attributes
    ----------
    name : str
        As engines and dialects are named.
    title : str
        As messages name it.
    major : int
        Major version of the first PostgreSQL in it that can be used.
    first : str
        The version of the product that has it.
    """

    name: str
    title: str
    major: int
    first: str


GREENPLUM = Product("greenplum", "Greenplum", 12, "Greenplum 7")
CLOUDBERRY = Product("cloudberry", "Cloudberry", 14, "Cloudberry 1")

#: Returns one row; `product_of` takes its columns.
PRODUCT = (
    "SELECT pg_catalog.to_regclass('pg_catalog.gp_segment_configuration') IS NOT NULL AS has_segments,"
    " pg_catalog.version() AS version"
)
# "PostgreSQL 14.4 (Apache Cloudberry 2.0.0-incubating build 1) on ..."; before it joined Apache, "(Cloudberry Database"
_CLOUDBERRY = re.compile(r"\((?:Apache )?Cloudberry\b")


def product_of(has_segments: bool, version: str) -> Product | None:
    """Return the product that a server is, by its catalogs and its version(); None for PostgreSQL without segments."""
    if not has_segments:
        return None
    return CLOUDBERRY if _CLOUDBERRY.search(version) else GREENPLUM


_SEGMENTS = "madlib_mop.segments"
_SHOWN = 5
_LIMITS = EngineLimits(
    gpus="the GPUs of the segments' hosts are not known to the coordinator",
    row_security=None,
    uncommitted="the segments' workers are separate sessions and can only read committed tables",
    fused_training="its segments are not on this server",
)
_PRIMARIES = "SELECT dbid, number FROM madlib_mop_calls.cluster_segments() ORDER BY number"
_KEYS = (
    "SELECT gp_segment_id AS number, pg_catalog.min(__dist_key__) AS key FROM madlib_mop.segment_key"
    " GROUP BY 1 ORDER BY 1"
)
_DISTRIBUTION = """
SELECT a.attname::pg_catalog.text AS name FROM pg_catalog.gp_distribution_policy p
JOIN pg_catalog.pg_attribute a ON a.attrelid = p.localoid AND a.attnum = p.distkey[0]
WHERE p.localoid = $1::pg_catalog.oid AND p.policytype = 'p' AND pg_catalog.array_length(p.distkey, 1) = 1
"""
_IS_REPLICATED = """
SELECT EXISTS (
    SELECT FROM pg_catalog.gp_distribution_policy p WHERE p.localoid = $1::pg_catalog.oid AND p.policytype = 'r'
) AS yes
"""


def find_product(session: EngineCaller) -> Product | None:
    """Return which product with Greenplum's catalogs a session's server is; None for other servers."""
    (row,) = session.execute(PRODUCT)
    return product_of(**row)


class Greenplum(Engine):
    """Greenplum 7; what else has its catalogs, and no engine of its own, is taken for it."""

    name = GREENPLUM.name
    product = GREENPLUM
    keeps_order = False

    def limits(self, places: Sequence[SegmentLocation]) -> EngineLimits:
        """See `Engine.limits`."""
        return _LIMITS

    def naming_columns(self, session: EngineCaller, relation: Relation) -> tuple[str, ...]:
        """See `Engine.naming_columns`; a ctid names a row of one segment."""
        return self._at_segments(session, relation, super().naming_columns(session, relation))

    def version_columns(self, session: EngineCaller, relation: Relation) -> tuple[str, ...]:
        """See `Engine.version_columns`; each segment counts its own transactions."""
        return self._at_segments(session, relation, super().version_columns(session, relation))

    def distribution(self, columns: Sequence[str]) -> str:
        """See `Engine.distribution`."""
        return f" DISTRIBUTED BY ({', '.join(map(quote, columns))})" if columns else " DISTRIBUTED RANDOMLY"

    def segments(self, session: EngineCaller) -> list[Segment]:
        """Return the cluster's segments; the setting madlib_mop.segments may not contradict it.

        Raises
        ------
        InvalidParameter
            If the setting requests another number.
        """
        numbers = [row["number"] for row in session.execute(_PRIMARIES)]
        value = session.caller_setting(_SEGMENTS)
        if value is not None and value.strip() not in ("", str(len(numbers))):
            raise InvalidParameter(
                f"the setting {_SEGMENTS} must be the number of the cluster's segments, {len(numbers)}."
                f" Received: {value!r}",
                hint=f"RESET {_SEGMENTS}; to choose the segments that get data, pass a table as distribution_rules.",
            )
        return [Segment(number, HERE) for number in numbers]

    def check_host(self, server: str) -> None:
        """See `Engine.check_host`."""
        raise Unsupported(
            f"on {self.product.title} segments are the cluster's own. Received: {server!r}",
            hint="gpexpand adds hosts to the cluster;"
            f" madlib-mop install --{self.product.name} brings the library there.",
        )

    def check(self, session: EngineCaller, segments: Sequence[Segment]) -> None:
        """Raise NotReady unless a key is known for each segment."""
        known = {row["number"] for row in session.execute(_KEYS)}
        missing = [segment.number for segment in segments if segment.number not in known]
        if missing:
            raise NotReady(
                f"no __dist_key__ is recorded for segments {missing[:_SHOWN]}",
                hint="Finish the expansion of the cluster: ALTER TABLE madlib_mop.segment_key EXPAND TABLE;",
            )

    def store(
        self, session: EngineCaller, table: Relation, columns: Sequence[str], segments: Sequence[Segment]
    ) -> Store:
        """See `Engine.store`."""
        return GreenplumStore(session, table, columns)

    def shard_places(self, session: EngineCaller, relation: Relation) -> Mapping[int, ShardPlace]:
        """See `Engine.shard_places`; the coordinator reads all rows."""
        return {}

    def shard_keys(self, session: EngineCaller, relation: Relation, what: str) -> Mapping[int, int]:
        """See `Engine.shard_keys`.

        Raises
        ------
        InvalidParameter
            If the table is not distributed by ``__dist_key__``, with one value a segment.
        """
        hint = "Pack the data with training_preprocessor_dl, or validation_preprocessor_dl, on this cluster."
        columns = [row["name"] for row in session.execute(_DISTRIBUTION, [relation.oid], ["bigint"])]
        if columns != ["__dist_key__"]:
            raise InvalidParameter(
                f"{what}: {relation} is not DISTRIBUTED BY (__dist_key__). Received: {relation.name!r}",
                hint=hint,
            )
        query = (
            "SELECT DISTINCT gp_segment_id AS number, __dist_key__ AS key FROM {packed} WHERE __dist_key__ IS NOT NULL"
        )
        numbers = {row["key"]: row["number"] for row in session.execute(statement(query, packed=relation))}
        if len(set(numbers.values())) != len(numbers):
            raise InvalidParameter(
                f"{what}: {relation} has {len(numbers)} values of __dist_key__ on {len(set(numbers.values()))}"
                f" segments; it must have one on each. Received: {relation.name!r}",
                hint=hint,
            )
        return numbers

    def feed_query(self, relation: Relation, columns: Sequence[str]) -> str | None:
        """Return the query by which a segment sends its shard to its trainer; ``$1`` is the key, ``$2`` the ticket."""
        slots = {f"b{i}": Identifier(column) for i, column in enumerate(columns)}
        slots |= {f"s{i}": Identifier(f"{column}_shape") for i, column in enumerate(columns)}
        shapes = ", ".join(f"{{s{i}}}" for i in range(len(columns)))
        tensors = ", ".join(f"{{b{i}}}" for i in range(len(columns)))
        return statement(
            f"SELECT madlib_mop_calls.dispatch_rows($2, pg_catalog.json_build_array({shapes}), ARRAY[{tensors}]"
            " ORDER BY buffer_id) AS n FROM {packed} WHERE __dist_key__ = $1 GROUP BY __dist_key__",
            packed=relation,
            **slots,
        )

    @staticmethod
    def _at_segments(session: EngineCaller, relation: Relation, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns with the segment's number; () if the table is replicated: its rows have none of them."""
        if not columns or session.execute(_IS_REPLICATED, [relation.oid], ["bigint"])[0]["yes"]:
            return ()
        return ("gp_segment_id", *columns)

    def dbids(self, session: EngineCaller, segments: Sequence[Segment]) -> Mapping[int, Segment]:
        """See `Engine.dbids`: those of gp_segment_configuration."""
        known = {segment.number: segment for segment in segments}
        return {row["dbid"]: known[row["number"]] for row in session.execute(_PRIMARIES) if row["number"] in known}


class GreenplumStore(KeyedStore):
    """A packed table on Greenplum while it is filled; see `Store`."""

    def _form_clause(self) -> str:
        return " USING heap DISTRIBUTED BY (__dist_key__)"

    def _distribute(self) -> Mapping[int, int]:
        return {row["number"]: row["key"] for row in self._session.execute(_KEYS)}
