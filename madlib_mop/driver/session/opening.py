"""The catalog session of a call, and the run that a call names; called by every command that reads the record."""

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import Run
from madlib_mop.catalog.sessions.connection import connect_by_dsn, connect_catalog
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.errors import not_your_run


def open_record(info: SessionInfo) -> Record:
    """Open the catalog session for a call."""
    if info.catalog_dsn is not None:
        return Record(*connect_by_dsn(info.catalog_dsn))
    return Record(*connect_catalog(info.sockets, info.port, info.database))


def find_run(record: Record, call: Call) -> Run:
    """Return the run that a call names, if the caller may see it.

    Raises
    ------
    InvalidParameter
        If there is no such run, or it belongs to another role.
    """
    return visible_run(record, call.info, call.arguments.get("run_id"))


def visible_run(record: Record, caller: SessionInfo, run_id: int | None, what: str = "") -> Run:
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
