"""Handles stop requests: SIGTERM, sent when the backend dies, unwinds the driver once, and never during cleanup.

Also the errors of a run that its caller stops or that somebody cancels.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from mop_backend.frames import Channel, PeerGone

from madlib_mop.errors import Cancelled

#: A backend that was terminated or that crashed sends no message.
SESSION_ENDED = "the caller's session was terminated or has crashed"


class Stopped(BaseException):
    """The backend has ended or has requested a stop."""


_delayed = False
_pending = False


def raise_on_sigterm() -> None:
    """Let SIGTERM raise `Stopped` in the main thread."""
    signal.signal(signal.SIGTERM, _handle)


@contextmanager
def sigterm_delayed() -> Iterator[None]:
    """Delay a SIGTERM until the end of a block that must complete, such as cleanup."""
    global _delayed
    before, _delayed = _delayed, True
    try:
        yield
    finally:
        _delayed = before
    if _pending and not _delayed:
        _raise()


def ignore_from_now_on() -> None:
    """Ignore further SIGTERMs: the work is already being stopped."""
    global _delayed
    _delayed = True


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


def _handle(signum: int, frame: FrameType | None) -> None:
    global _pending
    if _delayed:
        _pending = True
    else:
        _raise()


def _raise() -> NoReturn:
    ignore_from_now_on()
    raise Stopped
