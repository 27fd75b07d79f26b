"""Ends the loop of a worker at SIGTERM and SIGINT, at the next moment when it waits."""

import os
import select
import signal
from types import FrameType


class StopSignals:
    """Notes SIGTERM and SIGINT; ``fileno`` becomes readable then."""

    def __init__(self) -> None:
        self.is_set = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def install(self) -> None:
        """Receive the signals from now on, in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._read

    def wait(self, seconds: float) -> None:
        """Wait for a signal, for some seconds at most."""
        select.select([self._read], [], [], seconds)

    def set(self) -> None:
        """Stop as a signal does."""
        self.is_set = True
        os.write(self._write, b"x")

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.set()
