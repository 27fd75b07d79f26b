"""Keys of the terminal without Enter, and the terminal as it was at the end; called by `terminal`."""

import os
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

_NAMES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b": "escape", "\r": "enter",
          "\n": "enter", "\x7f": "backspace", "\b": "backspace", "k": "k", "j": "j"}  # fmt: skip
_SUSPEND = termios.VSUSP


class Terminated(Exception):
    """SIGINT, SIGTERM or SIGHUP has come."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Keyboard:
    """The terminal of stdin, in which each key is an input of its own; as a context manager, it restores the terminal.

    A signal wakes the reader too: `fds` has a pipe for it, so a resized window is drawn anew. A signal that ends the
    program is noted, and raised by `read`. If its handler raised, Python could discard the exception: it does so in
    finalizers.
    """

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._wake_out, self._wake_in = os.pipe()
        self._before: Any = None
        self._handlers: dict[int, Any] = {}
        self._ended_by: int | None = None

    @property
    def fds(self) -> tuple[int, int]:
        """Return the descriptors to wait for."""
        return self._fd, self._wake_out

    def __enter__(self) -> "Keyboard":
        self._before = termios.tcgetattr(self._fd)
        for end in (self._wake_in, self._wake_out):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._end)
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, _nothing)
        tty.setcbreak(self._fd)
        now = termios.tcgetattr(self._fd)
        now[6][_SUSPEND] = b"\0"  # a suspended screen would leave the shell without echo
        termios.tcsetattr(self._fd, termios.TCSADRAIN, now)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake_in)
        os.close(self._wake_out)

    def wake(self) -> None:
        """Wake the reader; may be called by another thread."""
        os.write(self._wake_in, b"\0")

    def read(self, ready: Sequence[int]) -> list[str]:
        """Return the keys that were pressed: characters, and the names up, down, enter, escape, backspace.

        Raises
        ------
        Terminated
            If SIGINT, SIGTERM or SIGHUP has come.
        EOFError
            If the terminal is gone.
        """
        if self._wake_out in ready:
            os.read(self._wake_out, 4096)
        if self._ended_by is not None:
            raise Terminated(self._ended_by)
        if self._fd not in ready:
            return []
        text = os.read(self._fd, 4096).decode(errors="ignore")
        if not text:
            raise EOFError
        return keys_of(text)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ended_by = number


def keys_of(text: str) -> list[str]:
    """Return the keys of an input; sequences of other special keys are left out."""
    keys = []
    while text:
        length = 1
        if text[0] == "\x1b" and len(text) > 1 and text[1] in "[O":
            length = next((n for n in range(2, len(text)) if text[n].isalpha() or text[n] == "~"), len(text) - 1) + 1
        key, text = text[:length], text[length:]
        if key in _NAMES:
            keys.append(_NAMES[key])
        elif key.isprintable():
            keys.append(key)
    return keys


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor tells of the signal."""
