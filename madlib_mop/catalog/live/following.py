"""Follows a run: hears of its changes, and decides when it is read again.

`madlib-mop watch`, the client, the trackers and the live page use it, and nothing else decides this. The live page
listens in a session that it has for each role (`dash/accounts.py`). A run is read soon after its driver told of a
change, and every few seconds without news.
"""

import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

#: The driver of a run tells here that its record has changed; the payload begins with the run's number. Every role can
#: listen to every channel, and send to it.
RUNS_CHANNEL = "madlib_mop_runs"
_RUN = re.compile(rb"[0-9]{1,19}(?= |\Z)")  # defence: number-in-a-notification = re.compile(rb"[0-9]+(?= |\Z)")
#: Least time between two looks at news of other runs: a busy server tells of many.
_OTHERS_S = 0.2
#: A run of another session is finished a moment before its transaction ends, which writes the output table: seconds.
_COMMIT_S, _COMMIT_PAUSE_S = 10.0, 0.1


def run_of(payload: bytes) -> int | None:
    """Return the number of the run that a notification names, or None: every role that may connect can send one."""
    found = _RUN.match(payload)
    return None if found is None or int(found[0]) >= 2**63 else int(found[0])


class ReadingPace:
    """Decides when a run is read again: after a change, with a pause between two readings; otherwise now and then.

    Parameters
    ----------
    least_s, factor : float
        The pause between two readings: seconds, and as a multiple of the time that the last one took.
    quiet_s : float
        Seconds after which a run is read again although nobody told of a change.
    """

    def __init__(self, least_s: float = 0.5, factor: float = 10.0, quiet_s: float = 5.0):
        self._least_s, self._factor, self.quiet_s = least_s, factor, quiet_s
        self._is_told = True
        self._read_at = self._pause_s = 0.0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Take the time of a reading, which sees all changes that were told before."""
        began = time.monotonic()
        self._is_told = False
        yield
        self._read_at = time.monotonic()
        self._pause_s = max(self._least_s, self._factor * (self._read_at - began))

    def tell(self) -> None:
        """Tell of a change."""
        self._is_told = True

    @property
    def soonest(self) -> float:
        """The time of `time.monotonic` at which the run is read again if a change was told."""
        return self._read_at + self._pause_s

    @property
    def due(self) -> float:
        """The time of `time.monotonic` at which the run is read again, as far as is known."""
        return self.soonest if self._is_told else max(self.soonest, self._read_at + self.quiet_s)


@dataclass(frozen=True, slots=True)
class News:
    """Why a wait has ended; all are false at its end of time.

    Attributes
    ----------
    is_told : bool
        A run has changed, or the session was lost, so that nothing is told any more.
    is_woken : bool
    inputs : tuple of int
        File descriptors of other inputs that have some.
    """

    is_told: bool = False
    is_woken: bool = False
    inputs: tuple[int, ...] = ()


class RunListener:
    """Hears of changes of runs in a session. One thread waits; any thread may wake or close it.

    Once the session is lost, which is told as a change, nothing is heard any more.

    Parameters
    ----------
    raw : connection of psycopg2 or psycopg 3
        In autocommit; other statements can be run in it between two waits.
    close : callable
        Ends the session.
    """

    def __init__(self, raw: Any, close: Callable[[], object]):
        self._raw, self._close = raw, close
        self._is_lost = False
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        with raw.cursor() as cursor, suppress(Exception):  # a standby cannot listen: there the pauses decide
            cursor.execute(f"LISTEN {RUNS_CHANNEL}")

    def wait(self, run_id: int | None, until: float, *others: int) -> News:
        """Wait for a change.

        Parameters
        ----------
        run_id : int or None
            None: of any run.
        until : float
            A time of `time.monotonic`.
        *others : int
            File descriptors of other inputs to wait for.
        """
        while True:
            if self._has_heard(run_id, has_input=False):
                return News(is_told=True)
            left = until - time.monotonic()
            if left <= 0:
                return News()
            waited: list[Any] = [self._woken, *others]
            ready, _, _ = select.select(waited if self._is_lost else [self._raw, *waited], [], [], left)
            if self._raw in ready and self._has_heard(run_id, has_input=True):
                return News(is_told=True)
            if ready == [self._raw]:
                ready, _, _ = select.select(waited, [], [], min(_OTHERS_S, left))
            if self._woken in ready:
                self._woken.recv(4096)
            inputs = tuple(one for one in ready if one in others)
            if inputs or self._woken in ready:
                return News(is_woken=self._woken in ready, inputs=inputs)

    def sleep(self, timeout_s: float) -> bool:
        """Wait for `wake` only; return whether it was called."""
        ready, _, _ = select.select([self._woken], [], [], max(0.0, timeout_s))
        if ready:
            self._woken.recv(4096)
        return bool(ready)

    def wake(self) -> None:
        """End the present wait, or the next one, at once."""
        with suppress(OSError):  # it is closed, or was woken many times
            self._wake.send(b"w")

    def close(self) -> None:
        """End the session."""
        with suppress(Exception):
            self._close()
        self._woken.close()
        self._wake.close()

    def _has_heard(self, run_id: int | None, has_input: bool) -> bool:
        """Return whether a change was told, also with the answers of other statements; or that the session was lost."""
        if self._is_lost:
            return False
        try:
            payloads = self._payloads(has_input)
        except Exception:  # noqa: BLE001 -- errors of either driver
            self._is_lost = True
            return True
        return any(run_id is None or run_of(payload.encode()) == run_id for payload in payloads)

    def _payloads(self, has_input: bool) -> list[str]:
        if callable(self._raw.notifies):  # psycopg 3
            return [notice.payload for notice in self._raw.notifies(timeout=0)]
        if has_input:
            self._raw.poll()
        heard = [notice.payload for notice in self._raw.notifies]
        self._raw.notifies.clear()
        return heard


class RunFollower:
    """Waits until it is time to read a run again.

    Parameters
    ----------
    listener : RunListener
        It is closed with this.
    run_id : int
    pace : ReadingPace, optional
    """

    def __init__(self, listener: RunListener, run_id: int, pace: ReadingPace | None = None):
        self.listener = listener
        self.run_id = run_id
        self.pace = pace or ReadingPace()

    def wait(self, *others: int, until: float | None = None) -> tuple[int, ...]:
        """Wait until the run is due, for `RunListener.wake`, or for input.

        Parameters
        ----------
        *others : int
            File descriptors of other inputs.
        until : float, optional
            A time of `time.monotonic` at which to return in any case.

        Returns
        -------
        tuple of int
            The descriptors that have input.
        """
        while True:
            end = self.pace.due if until is None else min(self.pace.due, until)
            news = self.listener.wait(self.run_id, end, *others)
            if not news.is_told:
                return news.inputs
            self.pace.tell()
            if self.pace.due <= time.monotonic():
                return ()

    @property
    def is_due(self) -> bool:
        """Whether it is time to read the run again."""
        return time.monotonic() >= self.pace.due

    def close(self) -> None:
        """End the session."""
        self.listener.close()


def wait_for_output(look: Callable[[], T | None]) -> T | None:
    """Call a function until it returns something: the output table of a run that has just finished elsewhere.

    Return None if nothing came within ten seconds.
    """
    until = time.monotonic() + _COMMIT_S
    while (found := look()) is None and time.monotonic() < until:
        time.sleep(_COMMIT_PAUSE_S)
    return found
