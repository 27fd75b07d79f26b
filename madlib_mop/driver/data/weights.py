"""The weights in a table of models: in the field of a row, or in parts in a table beside; checked against the SHA-256
that the row has. Tables of earlier versions have none."""

from collections.abc import Iterable

from mop_backend.weights import PARTS_SUFFIX, WEIGHTS_DAMAGED, WRITE_AGAIN, are_damaged

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.session.relations import Column, RelationLookup
from madlib_mop.errors import DataDamaged

#: The last column of a table of models, name and SQL type: the SHA-256 of its weights. NULL: they are not checked.
DIGEST = ("weights_digest", "text")
#: The expression of the recorded SHA-256 where a table has none.
NO_DIGEST = "NULL::pg_catalog.text"
#: Columns of the table with the parts of weights that do not fit into a field. Where a table has one model, it has no
#: keys.
PARTS = (("mst_key", "integer"), ("part", "integer"), ("data", "bytea"))
#: The largest weights in a field. Tables of earlier versions have NULL in place of larger ones, and no parts.
MAX_FIELD_BYTES = 1_000_000_000
_PARTS_OF_OWNER = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class t JOIN pg_catalog.pg_class p ON p.oid = pg_catalog.to_regclass($2)
    WHERE t.oid = pg_catalog.to_regclass($1)
          AND p.relowner = t.relowner  -- defence: owner-of-parts
) AS found, EXISTS (
    SELECT FROM pg_catalog.pg_attribute
    WHERE attrelid = pg_catalog.to_regclass($1) AND attname = 'mst_key' AND NOT attisdropped
) AS has_keys
"""
#: Bytes of a part: processes that handle one have several copies of it.
PART_BYTES = 16 << 20


def recorded_digest(columns: Iterable[Column]) -> str:
    """Return the expression of the SHA-256 that is recorded for the weights in a table with these columns."""
    return DIGEST[0] if DIGEST in [(column.name, column.type_sql) for column in columns] else NO_DIGEST


def present_digest(columns: Iterable[Column]) -> str:
    """Return the expression of the SHA-256 of the weights in a table with these columns: the recorded one, if they are
    in parts."""
    return f"coalesce(pg_catalog.encode(pg_catalog.sha256(model_weights), 'hex'), {recorded_digest(columns)})"


def find_parts(session: RelationLookup, table: Relation) -> Relation | None:
    """Return the table with the parts of weights that do not fit into a field of a table of models; None without.

    Most tables of models have none, and any role could make one of that name: it must have the owner of the table.
    """
    (row,) = session.execute(_PARTS_OF_OWNER, [table.sql, table.with_suffix(PARTS_SUFFIX).sql])
    if not row["found"]:
        return None
    found = session.relation(table.with_suffix(PARTS_SUFFIX).sql, any_type=True)  # those that are read are checked here
    types = {column.name: column.type_sql for column in session.columns(found)}
    expected = PARTS if row["has_keys"] else PARTS[1:]
    return found if all(types.get(name) == type_sql for name, type_sql in expected) else None


def are_parts(columns: Iterable[Column]) -> bool:
    """Return whether a table with these columns is one of parts of weights, and not one of users with such a name."""
    found = {(column.name, column.type_sql) for column in columns}
    return set(PARTS[1:]) <= found <= set(PARTS)


def check_weights(weights: bytes, digest: str | None, label: str) -> bytes:
    """Return weights that were read. Raises DataDamaged if they are not those of the recorded digest."""
    if are_damaged(weights, digest):
        raise damaged(label)
    return weights


def damaged(label: str) -> DataDamaged:
    """Return the error for a model of an output table whose weights are not those that were written."""
    return DataDamaged(f"{label} is damaged: {WEIGHTS_DAMAGED}", hint=WRITE_AGAIN)
