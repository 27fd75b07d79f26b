"""Reserves the names of a run's output tables while it trains.

Without that, two runs with the same output table would both train to the end, and one in vain. So the caller's
transaction holds each name until it ends.
"""

from collections.abc import Sequence

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.outputs.search import SELECTION_SUFFIXES, selection_relation
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import session_lost
from madlib_mop.errors import NotReady, may_not_create

_RUN = "SELECT max(run_id) FROM madlib_mop.run WHERE caller_pid = %s AND state = 'running'"


def reserve_outputs(session: CallerSession, record: Record, run: RunRow, suffixes: Sequence[str]) -> None:
    """Reserve the names of a run's output tables, until the caller's transaction ends.

    Parameters
    ----------
    session : CallerSession
    record : Record
    run : RunRow
        A recorded run, or one to record.
    suffixes : sequence of str

    Raises
    ------
    NotReady
        If another session has reserved one of them.
    InsufficientPrivilege
        If the caller cannot write a table of this name, so the name cannot be blocked for others.
    """
    tables = [table for table in _tables(run, suffixes) if not table.is_temp]
    for table in tables:
        if not record.may_write(session.info.role_oid, table):  # defence: reserved-names
            raise may_not_create(session.info.role, table.schema, str(table))
    if tables:
        session.check_tablespace(str(tables[0]))
    holder = record.holder(session.info.pid)
    if holder is None:
        raise session_lost()
    taken = record.reserve(tables, holder)
    if taken is None:
        return
    table, pid = taken
    ((run_id,),) = record.execute(_RUN, [pid])
    whose = f"run {run_id}" if run_id is not None else "another session's call"
    raise NotReady(
        f"table {table} is being written by {whose}, in the session with process ID {pid}."
        f" Received: {run.plan.output.relation}",
        hint=f"Choose another name, or wait until it ends; SELECT madlib_mop.cancel({run_id}); stops it."
        if run_id is not None
        else "Choose another name, or wait until that session's transaction has ended.",
    )


def keep_when_prepared(session: CallerSession, record: Record) -> None:
    """Keep the names reserved if the caller's transaction, which has written the tables, is prepared (PREPARE
    TRANSACTION)."""
    holder = record.holder(session.info.pid)
    if holder is not None:
        (row,) = session.execute("SELECT pg_catalog.txid_current() AS txid")
        record.note_transaction(holder, row["txid"])


def _tables(run: RunRow, suffixes: Sequence[str]) -> list[Relation]:
    """Return the tables that a run will write."""
    tables = [run.plan.output.relation.with_suffix(suffix) for suffix in suffixes]
    if (selection := selection_relation(run)) is not None:
        tables += [selection.with_suffix(suffix) for suffix in SELECTION_SUFFIXES]
    return tables
