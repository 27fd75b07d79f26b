"""The catalog session of a call, and the run that a call names; called by every command that reads the record."""

import time

import psycopg2
from sqlalchemy.exc import SQLAlchemyError

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.sessions.connection import connect_catalog
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.errors import NotReady, not_your_run

_REOPEN_WITHIN_S = 8.0
_PAUSE_S = 0.1


def open_record(info: SessionInfo) -> Record:
    """Open the catalog session for a call."""
    return Record(*connect_catalog(info.sockets, info.port, info.database))


def reopened(info: SessionInfo, lost: Record) -> Record:
    """Open the catalog session again after it was lost; return the lost one if the server does not answer in time."""
    deadline = time.monotonic() + _REOPEN_WITHIN_S
    while True:
        try:
            return open_record(info)
        except (NotReady, psycopg2.Error, SQLAlchemyError):  # the server restarts
            if time.monotonic() > deadline:
                return lost
        time.sleep(_PAUSE_S)


def find_run(record: Record, call: Call) -> RunRow:
    """Return the run that a call names, if the caller may see it.

    Raises
    ------
    InvalidParameter
        If there is no such run, or it belongs to another role.
    """
    return visible_run(record, call.info, call.arguments.get("run_id"))


def visible_run(record: Record, caller: SessionInfo, run_id: int | None, what: str = "") -> RunRow:
    """Return a run that the caller may see.

    Parameters
    ----------
    record : Record
    caller : SessionInfo
    run_id : int or None
    what : str
        The beginning of the message.

    Raises
    ------
    InvalidParameter
        If there is no such run, or it belongs to another role.
    """
    run = record.run(run_id) if isinstance(run_id, int) else None
    if run is None or not record.may_see(caller.role_oid, run.owner_oid):
        raise not_your_run(run_id, what)
    return run
