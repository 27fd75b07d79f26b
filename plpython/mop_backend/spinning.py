"""Waits that spin before they sleep, for a peer that answers within microseconds; used at both ends of a row's
prediction.

To wake a sleeping process, the kernel sends an interrupt to another processor. In a virtual machine that takes as long
as the work on one row. ``predict.py`` waits in this way for a row's answer, ``trainer/process/lifetime.py`` and
``trainer/process/seats.py`` for the next request.
"""

from __future__ import annotations

import select
import time

from mop_backend.machine import processors

#: Maximum time in seconds that a wait spins before it sleeps: several times what a row takes on either side.
SPIN_S = 200e-6
#: Maximum number of waits that sleep at once, after a wait that spun in vain.
_MOST_SKIPPED = 64


class Spinner:
    """Waits as a poll object does, and spins first if that has helped.

    After a spin in vain the next wait sleeps at once; after another one in vain the next two waits do, and so on. So
    waiting for a slow peer, or one without a processor, costs almost nothing, and an idle process spins for at most
    `SPIN_S`. A process that may use one processor only never spins.
    """

    def __init__(self) -> None:
        self._several_processors = processors() > 1
        self._to_skip = self._skipped_last = 0

    def poll(self, poller: select.poll, timeout_ms: float | None) -> list[tuple[int, int]]:
        """Return the result of ``poller.poll(timeout_ms)``.

        Parameters
        ----------
        poller : select.poll
        timeout_ms : float or None
        """
        if self._to_skip:
            self._to_skip -= 1
        elif self._several_processors:
            spin_until = time.monotonic() + SPIN_S
            while time.monotonic() < spin_until:
                events = poller.poll(0)
                if events:
                    self._skipped_last = 0
                    return events
            self._to_skip = self._skipped_last = min(2 * self._skipped_last or 1, _MOST_SKIPPED)
        return poller.poll(timeout_ms)
