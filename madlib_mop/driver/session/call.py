"""One call of an SQL function, as a command of the driver receives it; its catalog session, and the run it names."""

import time
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from sqlalchemy.exc import SQLAlchemyError

from madlib_mop.calls import find_function, read_arguments
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.sessions.connection import connect_catalog
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.errors import InsufficientPrivilege, NotReady, not_your_run


@dataclass(frozen=True)
class Call:
    """The input of a command.

    Attributes
    ----------
    function : str
        SQL name of the function, for messages.
    arguments : dict
        Every argument of the function by name, checked by its specification (`madlib_mop.calls`); JSON types, and
        ``bytes`` for bytea.
    session : CallerSession
        Runs SQL as the caller, in the caller's transaction.
    continue_run : int or None
        Set if a driver of this call was killed: the run to continue.
    """

    function: str
    arguments: dict[str, Any]
    session: CallerSession
    continue_run: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, function: str, given: Any, session: CallerSession, continue_run: int | None = None) -> "Call":
        """Return a call with its arguments checked, and defaults for missing ones.

        Raises
        ------
        Unsupported, InvalidParameter
            If there is no such function, or an argument is wrong.
        """
        return cls(function, read_arguments(find_function(function), given), session, continue_run)

    @property
    def info(self) -> SessionInfo:
        """The caller."""
        return self.session.info

    def need_superuser(self, why: str, hint: str) -> None:
        """Raise InsufficientPrivilege unless the role that calls is a superuser."""
        (row,) = self.session.execute("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")
        if not row["rolsuper"]:
            raise InsufficientPrivilege(f"{why}. Received a call by role {self.info.role}", hint=hint)


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
