"""The signal for live pages: a notification soon after a run has changed, and not for each of its visits.

Called by the loop over a run's tasks. What changes the run's own row notifies in its own transaction
(`Record.set_run`), so the last change, the end of a run, is always notified.
"""

import time
from collections.abc import Callable

PAUSE_S = 1.0


class RunSignal:
    """Collects changes, and sends them at most every `PAUSE_S` seconds.

    Parameters
    ----------
    send : callable
        Sends a notification.
    clock : callable
        Returns seconds.
    """

    def __init__(self, send: Callable[[], None], clock: Callable[[], float] = time.monotonic):
        self._send = send
        self._clock = clock
        self._is_pending = False
        self._next = 0.0

    def changed(self) -> None:
        """Note that the run has changed; a transaction that is open now ends before the next `send_due`."""
        self._is_pending = True

    @property
    def seconds_left(self) -> float:
        """Seconds until `send_due` has something to send; infinite if nothing has changed."""
        return max(0.0, self._next - self._clock()) if self._is_pending else float("inf")

    def send_due(self) -> None:
        """Send the changes, unless others were sent just before."""
        if self.seconds_left > 0:
            return
        self._is_pending = False
        self._send()
        self._next = self._clock() + PAUSE_S
