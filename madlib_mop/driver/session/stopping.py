"""Handles stop requests: SIGTERM, sent when the backend dies, unwinds the driver once, and never during cleanup."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Stopped(BaseException):
    """The backend has ended or has requested a stop."""


_delayed = False
_pending = False


def obey_sigterm() -> None:
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


def _handle(signum: int, frame: FrameType | None) -> None:
    global _pending
    if _delayed:
        _pending = True
    else:
        _raise()


def _raise() -> NoReturn:
    ignore_from_now_on()
    raise Stopped
