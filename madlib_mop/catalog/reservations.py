"""The names of output tables that sessions have reserved; mixed into `Record`.

A reservation is a committed row that only drivers write. It is valid as long as the caller's transaction exists, which
is checked on the server when another call wants the name. So it ends with the transaction, also after a crash, and
there is no lock that another role could take.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, insert, select, update

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record_session import RecordSession

_SESSION = "SELECT backend_start FROM pg_catalog.pg_stat_get_activity(%s)"
# A transaction holds the lock on its own virtual number until it ends; the number identifies its session.
_TRANSACTION = """
SELECT virtualxid FROM pg_catalog.pg_locks
WHERE pid = %s AND locktype = 'virtualxid' AND virtualxid = virtualtransaction AND granted
"""
_IS_PREPARED = "SELECT pg_catalog.txid_status(%s) = 'in progress'"
# Roles that may create a table of a name, or insert into the existing one, as a warm start does.
_MAY_WRITE = """
SELECT pg_catalog.has_schema_privilege(%s::pg_catalog.oid, n.oid, 'CREATE')
       OR coalesce(pg_catalog.has_table_privilege(%s::pg_catalog.oid, c.oid, 'INSERT'), false)
FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = %s
WHERE n.nspname = %s
"""


@dataclass(frozen=True)
class ReservationHolder:
    """The holder of a reserved name: a transaction of a session."""

    pid: int
    session_start: datetime
    virtualxid: str


class ReservedTables(RecordSession):
    """The reservations of names; mixed into `Record`."""

    def holder(self, pid: int) -> ReservationHolder | None:
        """Return the holder for a session with this process ID; None if the session does not exist."""
        sessions = self.execute(_SESSION, [pid])
        transactions = self.execute(_TRANSACTION, [pid])
        if not sessions or not transactions:
            return None
        return ReservationHolder(pid, sessions[0][0], transactions[0][0])

    def reserve(self, tables: Sequence[Relation], holder: ReservationHolder) -> tuple[Relation, int] | None:
        """Reserve all names, or none.

        Returns
        -------
        tuple of Relation and int, or None
            A name that another session has reserved, and its process ID; None if all were free.
        """
        with self.transaction():
            self.execute("LOCK TABLE madlib_mop.reserved_table IN EXCLUSIVE MODE")
            active = self._active()
            for table in tables:
                if (other := active.get((table.schema, table.name), holder)) != holder:
                    return table, other.pid
            for table in tables:
                if (table.schema, table.name) not in active:
                    self._do(insert(t.reserved_table).values(_key(table) | vars(holder)))
        return None

    def note_transaction(self, holder: ReservationHolder, txid: int) -> None:
        """Store the number of the transaction that reserves names, which identifies it after PREPARE TRANSACTION."""
        r = t.reserved_table.c
        of_holder = r.pid == holder.pid, r.session_start == holder.session_start, r.virtualxid == holder.virtualxid
        self._do(update(t.reserved_table).where(*of_holder).values(txid=txid))

    def may_write(self, role: int, table: Relation) -> bool:
        """Return whether a role (an oid) can create a table of this name, or write into the existing one.

        If the schema does not exist, return True, because no role can use the name.
        """
        rows = self.execute(_MAY_WRITE, [role, role, table.name, table.schema])
        return not rows or bool(rows[0][0])

    def _active(self) -> dict[tuple[str, str], ReservationHolder]:
        """Return the holders of reserved names; delete reservations that have ended."""
        active: dict[tuple[str, str], ReservationHolder] = {}
        is_active: dict[ReservationHolder, bool] = {}
        for row in self._rows(select(t.reserved_table)):
            name = row["table_schema"], row["table_name"]
            holder = ReservationHolder(row["pid"], row["session_start"], row["virtualxid"])
            if holder not in is_active:  # look up each holder once: a run reserves several names
                is_active[holder] = holder == self.holder(holder.pid)  # defence: reservations-after-a-crash = True
            if is_active[holder] or self._is_prepared(row["txid"]):
                active[name] = holder
            else:
                r = t.reserved_table.c
                self._do(delete(t.reserved_table).where(r.table_schema == name[0], r.table_name == name[1]))
        return active

    def _is_prepared(self, txid: int | None) -> bool:
        """Return whether a transaction has not ended, even if its session has."""
        return txid is not None and bool(self.execute(_IS_PREPARED, [txid])[0][0])


def _key(table: Relation) -> dict[str, str]:
    return {"table_schema": table.schema, "table_name": table.name}
