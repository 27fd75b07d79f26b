"""The worker sessions of a run, one a segment: opened, lost and opened again. Called by the hopper."""

import time

from madlib_mop.catalog.record import Record
from madlib_mop.engines.login import RunLogin, Token, renew_login
from madlib_mop.engines.session import Address, Answer, Failure, Opened, SessionState, WorkerSession
from madlib_mop.errors import NotReady, OutOfResources

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_MAX_FAILED_OPENINGS = 8  # in a row
_MAX_LOST_AT_WORK = 100  # in a row
_FULL = ("too many connections", "too many clients", "connection slots")
_REFUSED_STATES = ("28", "3D", "42")  # not let in, no such database, no right


class Workers:
    """Sessions by segment.

    Parameters
    ----------
    record : Record
    address : Address
    login : RunLogin
    caller : str
        The role that the sessions take on.
    run_id : int
    segments : list of int
    """

    def __init__(
        self, record: Record, address: Address, login: RunLogin, caller: str, run_id: int, segments: list[int]
    ):
        self._record = record
        self._address = address
        self._login = login
        self._caller = caller
        self._run_id = run_id
        self._sessions: dict[int, WorkerSession | None] = dict.fromkeys(segments)
        self._failed_openings = dict.fromkeys(segments, 0)
        self._lost_at_work = dict.fromkeys(segments, 0)
        self._reopen_at: dict[int, float] = {}

    def open_all(self) -> None:
        """Begin to open every session."""
        for segment in self._sessions:
            self._open(segment)

    def sessions(self) -> list[tuple[int, WorkerSession]]:
        """Give the sessions that something may come from."""
        quiet = (SessionState.BROKEN,)
        return [(segment, s) for segment, s in self._sessions.items() if s is not None and s.state not in quiet]

    def begin(self, segment: int, order: dict) -> None:
        """Give a segment's session a task."""
        self._sessions[segment].begin(order)

    def advance(self, segment: int):
        """Move a session on; see `WorkerSession.advance`."""
        event = self._sessions[segment].advance()
        if isinstance(event, Opened):
            self._failed_openings[segment] = 0
        elif isinstance(event, Answer):
            self._lost_at_work[segment] = 0
        return event

    def lost(self, segment: int, failure: Failure) -> None:
        """Plan to open a lost session again.

        Raises
        ------
        NotReady, OutOfResources
            If the server refuses it for good, or it was lost too many times in a row.
        """
        self._failed_openings[segment] += 1
        self._lost_at_work[segment] += 1
        refused = (failure.sqlstate or "")[:2] in _REFUSED_STATES or "no pg_hba.conf entry" in failure.message
        if self._lost_at_work[segment] > _MAX_LOST_AT_WORK:
            raise NotReady(
                f"the worker session of segment {segment} was lost {_MAX_LOST_AT_WORK} times in a row at its work",
                detail=failure.message,
                hint=f"The server's log says why; SELECT madlib_mop.resume({self._run_id}); goes on with the run.",
            )
        if self._failed_openings[segment] > _MAX_FAILED_OPENINGS and any(words in failure.message for words in _FULL):
            raise OutOfResources(
                f"the worker session of segment {segment} found no free connection"
                f" at {self._address.host}:{self._address.port}",
                detail=failure.message,
                hint="Close idle sessions, or raise max_connections or the database's CONNECTION LIMIT.",
            )
        if refused or self._failed_openings[segment] > _MAX_FAILED_OPENINGS:
            raise NotReady(
                f"the worker session of segment {segment} cannot be opened"
                f" at {self._address.host}:{self._address.port}",
                detail=failure.message,
                hint="pg_hba.conf needs `host all all 127.0.0.1/32 scram-sha-256`; `madlib-mop doctor` checks it.",
            )
        self._record.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_catalog.pg_stat_activity WHERE pid = %s AND usename = %s",
            [self._sessions[segment].pid, self._login.role],
        )
        pause = min(_FIRST_PAUSE_S * 2 ** (self._failed_openings[segment] - 1), _LONGEST_PAUSE_S)
        self._reopen_at[segment] = time.monotonic() + pause

    def seconds_to_reopen(self) -> float:
        """Give the time until the next session is to be opened again; infinite if none is."""
        return max(0.0, min(self._reopen_at.values(), default=float("inf")) - time.monotonic())

    def reopen_lost(self) -> None:
        """Open again what is due."""
        now = time.monotonic()
        for segment in [segment for segment, at in self._reopen_at.items() if at <= now]:
            del self._reopen_at[segment]
            renew_login(self._record.raw, self._login.role)
            self._open(segment)

    def close_all(self) -> None:
        """Close every session."""
        for session in self._sessions.values():
            if session is not None:
                session.close()

    def _open(self, segment: int) -> None:
        self._sessions[segment] = WorkerSession(self._address, self._login, self._caller, self._run_id, self._admit)

    def _admit(self, pid: int) -> str:
        token = Token.draw(pid)
        self._record.admit_worker(self._run_id, token.digest)
        return token.text
