"""A program in a terminal of its own: what it shows, keys, and how it leaves the terminal."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

from tests.helpers.faults import wait_for

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")


class Terminal:
    """A program in a terminal of 40 lines."""

    def __init__(self, *command: str, columns: int = 140):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._theirs = theirs
        self.before = termios.tcgetattr(theirs)
        self._bytes = b""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, preexec_fn=_own_terminal
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._bytes += os.read(self._ours, 65536)

    @property
    def output(self) -> str:
        """Everything that was written, codes included."""
        return self._bytes.decode(errors="replace")

    @property
    def text(self) -> str:
        """Everything that was written, without codes."""
        return _CODES.sub("", self.output)

    def shows(self, pattern: str, after: int = 0, within_s: float = 60) -> int:
        """Wait until a text is shown after a position; return the position behind it."""
        found = wait_for(lambda: re.search(pattern, self.text[after:]), within_s, f"{pattern!r} in {self.text[-3000:]}")
        return after + found.end()

    def press(self, keys: str) -> int:
        """Press keys; return the position of what is shown then."""
        at = len(self.text)
        os.write(self._ours, keys.encode())
        return at

    def ends(self, within_s: float = 60) -> int:
        """Wait for the end of the program; return its status."""
        return self.process.wait(within_s)

    @property
    def is_restored(self) -> bool:
        """Whether the terminal echoes again and shows its first screen and the cursor."""
        after = termios.tcgetattr(self._theirs)
        screens = re.findall(r"\x1b\[\?1049([hl])", self.output)
        cursor = re.findall(r"\x1b\[\?25([hl])", self.output)
        return after == self.before and screens[-1:] == ["l"] and cursor[-1:] == ["h"]

    def close(self) -> None:
        """End the program."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
