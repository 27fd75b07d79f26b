"""Being told to stop: SIGTERM, sent when the backend dies, unwinds the driver once, and never while it cleans up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Stopped(BaseException):
    """The backend has ended or wants the work to stop."""


_held = False
_pending = False


def obey_sigterm() -> None:
    """Let SIGTERM raise `Stopped` in the main thread."""
    signal.signal(signal.SIGTERM, _handle)


def obey_sigint() -> None:
    """Let Ctrl-C do the same, once."""
    signal.signal(signal.SIGINT, _handle)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a SIGTERM that comes now take effect afterwards: around what must be done whole, such as cleaning up."""
    global _held
    before, _held = _held, True
    try:
        yield
    finally:
        _held = before
    if _pending and not _held:
        _raise()


def ignore_from_now_on() -> None:
    """Let no SIGTERM raise any more: the work is being stopped already."""
    global _held
    _held = True


def _handle(signum: int, frame: FrameType | None) -> None:
    global _pending
    if _held:
        _pending = True
    else:
        _raise()


def _raise() -> NoReturn:
    ignore_from_now_on()
    raise Stopped
