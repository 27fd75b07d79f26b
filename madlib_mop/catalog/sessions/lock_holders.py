"""Ends sessions that hold or wait for a lock that only drivers need; called when such a lock is not available.

In PostgreSQL, every role can take any advisory lock, and lock any role by granting something to it. With one of the
extension's locks, a session could block another user's run, or prevent that a run's login role is dropped. A
waiting session would get the lock next.
"""

from collections.abc import Sequence
from typing import Any

from psycopg2 import sql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection

_SESSIONS = """
SELECT madlib_mop_calls.end_sessions(pg_catalog.array_agg(DISTINCT l.pid), 10000)
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_get_activity(l.pid) a ON true
LEFT JOIN pg_catalog.pg_roles o ON o.oid = a.usesysid
-- defence: waiting-for-locks = WHERE l.granted AND l.pid <> pg_catalog.pg_backend_pid()
WHERE l.pid <> pg_catalog.pg_backend_pid()
      AND o.rolsuper IS NOT TRUE  -- defence: locks-of-autovacuum = AND NOT o.rolsuper
      AND ({lock}) HAVING pg_catalog.count(*) > 0
"""
# A prepared transaction has no process; the lock on its own transaction number identifies it.
_PREPARED = """
SELECT p.gid FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_locks own ON own.virtualtransaction = l.virtualtransaction AND own.locktype = 'transactionid'
JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = own.transactionid
JOIN pg_catalog.pg_roles o ON o.rolname = p.owner
WHERE l.pid IS NULL AND own.pid IS NULL AND NOT o.rolsuper AND p.database = pg_catalog.current_database() AND ({lock})
"""


def end_holders(catalog: connection, lock: str, params: Sequence[Any]) -> None:
    """End the sessions that hold a lock or wait for it, autovacuum's too, and roll back prepared transactions with it.

    Superusers' sessions are not ended. Prepared transactions cannot be rolled back while the catalog session is in a
    transaction.

    Parameters
    ----------
    catalog : psycopg2 connection
        The catalog session.
    lock : str
        A condition on row ``l`` of ``pg_locks``, with the parameters' slots.
    params : sequence
    """
    with catalog.cursor() as cursor:
        cursor.execute(_SESSIONS.format(lock=lock), params)  # defence: holders-of-locks
        if catalog.info.transaction_status != TRANSACTION_STATUS_IDLE:
            return
        cursor.execute(_PREPARED.format(lock=lock), params)
        for (gid,) in cursor.fetchall():  # defence: prepared-holders
            cursor.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
