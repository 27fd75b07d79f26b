"""System columns that identify a row of a relation or its version; used by the engines, in any session."""

import struct
from collections.abc import Mapping
from typing import Any

from madlib_mop.catalog.names import Relation
from madlib_mop.engines.base.caller import EngineCaller

_WITH_ROWS = ("r", "p", "m")  # tables, partitioned tables, materialized views; not views or foreign tables
# A table's rows are stored in the table and in those that inherit from it, including partitions.
_STORAGE = """
WITH RECURSIVE tree (oid) AS (
    SELECT $1::pg_catalog.oid
    UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
)
SELECT count(*) > 1 AS is_tree,
       pg_catalog.bool_and(coalesce(c.relkind = 'p' OR a.amname = 'heap', false)) AS is_heap
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
"""

_MAY_READ = "SELECT pg_catalog.has_table_privilege($1::pg_catalog.oid, 'SELECT') AS all"

# Ranges of ctid are scanned in tables of the access method heap only. With row security, the policies' conditions come
# first, and every range would read the whole table. Values that are stored out of line could make a range too large.
# Only who may read all columns may read a ctid.
_BY_BLOCKS = """
SELECT c.relkind IN ('r', 'm') AND a.amname = 'heap' AND NOT c.relhassubclass AND NOT c.relrowsecurity
       AND pg_catalog.current_setting('enable_tidscan')::pg_catalog.bool
       AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
       AND (c.reltoastrelid = 0 OR pg_catalog.pg_relation_size(c.reltoastrelid) = 0) AS yes
FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam WHERE c.oid = $1::pg_catalog.oid
"""

_SENT = {
    "ctid": "pg_catalog.tidsend({})",
    "gp_segment_id": "pg_catalog.int4send({})",
    "tableoid": "pg_catalog.textsend({}::pg_catalog.regclass::pg_catalog.text)",
}


def naming_columns(session: EngineCaller, relation: Relation) -> tuple[str, ...]:
    """Return the system columns that together identify one row within one server.

    () if there are none, or if the user may read some columns only: system columns need the right to the whole table.
    """
    if relation.kind not in _WITH_ROWS or not session.execute(_MAY_READ, [relation.oid], ["bigint"])[0]["all"]:
        return ()
    return ("tableoid", "ctid") if _storage(session, relation)["is_tree"] else ("ctid",)


def version_columns(session: EngineCaller, relation: Relation) -> tuple[str, ...]:
    """Return the system columns that differ between any two versions of rows; () if there are none.

    Only the access method heap guarantees an ``xmin``: append-optimized and columnar tables have none. Within a
    transaction that truncates a table, the first row after it has the place and the ``xmin`` of an earlier one.
    """
    if relation.kind not in _WITH_ROWS or not _storage(session, relation)["is_heap"]:
        return ()
    return ("tableoid", "ctid", "xmin", "cmin")


def reads_by_blocks(session: EngineCaller, relation: Relation) -> bool:
    """Return whether ranges of a table's ``ctid`` are scanned for the cost of their own blocks, each of them small."""
    (row,) = session.execute(_BY_BLOCKS, [relation.oid], ["bigint"])
    return bool(row["yes"])


def ranges_of_blocks(relation: Relation, n_blocks: int) -> str:
    """Return the FROM item ``g`` with the first block of each range of a table's blocks, as of the query's start."""
    size = f"pg_catalog.pg_relation_size({relation.oid:d}::pg_catalog.oid::pg_catalog.regclass)"
    last = f"{size} / pg_catalog.current_setting('block_size')::pg_catalog.int8"
    return f"pg_catalog.generate_series(0, {last}, {n_blocks:d}) AS g"


def in_range(alias: str, n_blocks: int) -> str:
    """Return the condition that a row is in the range of blocks that begins with ``g``, as a table may have too."""
    first, end = (f"pg_catalog.format('(%s,0)', g.g{more})::pg_catalog.tid" for more in ("", f" + {n_blocks:d}"))
    return f"{alias}.ctid OPERATOR(pg_catalog.>=) {first} AND {alias}.ctid OPERATOR(pg_catalog.<) {end}"


def sent(value: str, column: str) -> str:
    """Return the SQL expression that converts a value of an identifying system column to bytes, for `row_name`."""
    return _SENT[column].format(value)


def row_name(columns: Mapping[str, Any], row: int) -> str:
    """Describe a row by its identifying system columns.

    Parameters
    ----------
    columns : mapping of str to column
        By their names; each has ``data`` and ``lengths`` of the values that `sent` made, as `BytesColumn` has them.
    row : int
        The row's number in these columns.
    """
    block, offset = struct.unpack_from(">IH", columns["ctid"].data, 6 * row)
    name = f"row with ctid ({block},{offset})"
    if tables := columns.get("tableoid"):
        start = sum(tables.lengths[:row])
        name += f" of {tables.data[start : start + tables.lengths[row]].decode()}"
    if segments := columns.get("gp_segment_id"):
        name += " at gp_segment_id {}".format(*struct.unpack_from(">i", segments.data, 4 * row))
    return name


def _storage(session: EngineCaller, relation: Relation) -> dict[str, Any]:
    return session.execute(_STORAGE, [relation.oid], ["bigint"])[0]
