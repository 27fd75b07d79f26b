"""The events that the driver of a run waits for: the workers' sockets, the catalog session and the caller's backend.

Shared by the hopper and by model averaging.
"""

import select
import time

from mop_backend.frames import Channel, PeerGone

from madlib_mop.catalog.record import Record
from madlib_mop.driver.running.workers import Workers
from madlib_mop.driver.session.stopping import ignore_from_now_on
from madlib_mop.engines.sessions.session import WorkerSession
from madlib_mop.errors import Cancelled

_TICK_S = 1.0
#: A backend that was terminated or that crashed sends no message.
SESSION_ENDED = "the caller's session was terminated or has crashed"


class EventLoop:
    """Waits, without polling, for the next event.

    Parameters
    ----------
    record : Record
    workers : Workers
    run_id : int
    stdin_fd : int or None
        Readable, at end of file, when the caller's backend wants the run to stop.
    """

    def __init__(self, record: Record, workers: Workers, run_id: int, stdin_fd: int | None):
        self._record = record
        self._workers = workers
        self._run_id = run_id
        self._stdin_fd = stdin_fd
        self._look_at = 0.0

    def wait(self, at_most_s: float = _TICK_S) -> list[tuple[int | None, WorkerSession]]:
        """Wait for at most a second; return the sessions with new data, with their segments, None for a policy's.

        Parameters
        ----------
        at_most_s : float
            Seconds after which it returns, if that is sooner.

        Raises
        ------
        Cancelled
            If the caller's session wants the run to stop.
        """
        poller = select.poll()
        by_fd = {}
        for segment, session in self._workers.sessions():
            poller.register(session.fileno(), session.events)
            by_fd[session.fileno()] = (segment, session)
        poller.register(self._record.raw.fileno(), select.POLLIN)
        if self._stdin_fd is not None:
            poller.register(self._stdin_fd, select.POLLIN)
        ready = []
        for fd, _ in poller.poll(min(_TICK_S, at_most_s, self._workers.seconds_to_reopen()) * 1000):
            if fd == self._stdin_fd:
                ignore_from_now_on()
                raise Cancelled(stop_reason(fd))
            if fd in by_fd:
                ready.append(by_fd[fd])
        return ready

    def look_for_cancel(self) -> bool:
        """Raise Cancelled if the run was cancelled; checks after each notification, and once a second.

        The first call finds cancels that were committed before this session started to listen. Return whether it has
        looked.
        """
        raw = self._record.raw
        raw.poll()
        if not raw.notifies and time.monotonic() < self._look_at:
            return False
        raw.notifies.clear()
        self._look_at = time.monotonic() + _TICK_S
        if (by := self._record.cancelled_by(self._run_id)) is not None:
            raise was_cancelled(self._run_id, by)
        return True


def was_cancelled(run_id: int, by: str) -> Cancelled:
    """Return the error of a cancelled run."""
    return Cancelled(f"run {run_id} was cancelled by {by}", hint=f"SELECT madlib_mop.resume({run_id}); continues it.")


def stop_reason(fd: int) -> str:
    """Return why the caller's backend stops the work: its last message on the pipe, if any."""
    try:
        header, _ = Channel(fd, -1).receive()
    except (PeerGone, OSError, ValueError):
        return SESSION_ENDED
    return str(header.get("stop", SESSION_ENDED))
