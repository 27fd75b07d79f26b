"""Drops a library table after the deletion of its last row, as in MADlib; called by commands."""

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.session.call import Call

# Reasons not to drop an emptied table: another role owns it, a row policy may hide rows, or a view depends on it.
_MAY_DROP = """
SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_owner,
       pg_catalog.row_security_active(c.oid) AS hides_rows,
       EXISTS (SELECT FROM pg_catalog.pg_depend d
               WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = c.oid
                     AND d.deptype = 'n') AS is_used
FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid AND c.relkind IN ('r', 'p')
"""


def drop_if_empty(call: Call, table: Relation, rows: str) -> None:
    """Drop a table without rows, if it is the caller's; a table with dependent views is kept.

    Parameters
    ----------
    call : Call
    table : Relation
    rows : str
        The name of a row, for the NOTICE, e.g. ``model``.
    """
    session = call.session
    if session.execute(statement("SELECT 1 AS found FROM {table} LIMIT 1", table=table)):
        return
    state = session.execute(_MAY_DROP, [table.oid], ["bigint"])
    if not state or state[0]["hides_rows"] or not state[0]["is_owner"]:
        return
    if state[0]["is_used"]:
        session.warning(
            f"{call.function}: {table} is empty, but was not dropped: a view or another object depends on it"
        )
        return
    session.execute(statement("DROP TABLE {table}", table=table))
    session.notice(f"{call.function}: {table} was dropped, because it had no other {rows}")
