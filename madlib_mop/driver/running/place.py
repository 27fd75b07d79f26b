"""The place of a run among those that train at once (admission); watched by the run's workers."""

import time
from collections.abc import Callable

from madlib_mop.catalog.record import Record


class Place:
    """The place of a run among those that train at once; given back while the run does nothing but read rows for long.

    A view can take any time for a row, so a few runs whose views sleep could keep all others from training.

    Parameters
    ----------
    record : Record
    run_id : int
    limit_s : float
    tell : callable
        Called with a sentence when the place is given back.
    """

    def __init__(self, record: Record, run_id: int, limit_s: float, tell: Callable[[str], None]):
        self._record = record
        self._run_id = run_id
        self._limit_s = limit_s
        self._tell = tell
        self._reads_since: float | None = None
        self._is_given_back = False

    def poll(self, only_reads: bool) -> None:
        """Give the place back if the run has only read rows for too long; take it again when it does something else."""
        now = time.monotonic()
        if not only_reads:
            self._reads_since = None
            if self._is_given_back:
                self._is_given_back = False
                self._record.mark_admitted(self._run_id)
            return
        if self._reads_since is None:
            self._reads_since = now
        if not self._is_given_back and now - self._reads_since >= self._limit_s:
            self._is_given_back = True
            self._record.give_place_back(self._run_id)  # defence: places-of-sleepers
            self._record.wake_waiting()
            self._tell(
                f"all segments have waited for rows of the source table for {self._limit_s:g} s: another run may"
                " train meanwhile"
            )
