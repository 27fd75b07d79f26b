"""The time of each stage of a visit; used by ``visits.py`` and ``fused_visits.py``."""

import time
from collections.abc import Callable


class Stopwatch:
    """Adds up the time between `begin` and `end`, in seconds; a pair within another pair counts once."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._depth = 0
        self._begun = 0.0

    def begin(self) -> None:
        """Start, unless it has been started."""
        if not self._depth:
            self._begun = time.perf_counter()
        self._depth += 1

    def end(self) -> None:
        """Stop, at the end of the first `begin`."""
        self._depth -= 1
        if not self._depth:
            self._seconds += time.perf_counter() - self._begun

    def seconds(self) -> float:
        """Return the sum."""
        return self._seconds


class Clock:
    """Takes the time of each stage of a visit, in seconds; stages that are entered twice add up.

    Parameters
    ----------
    compiling : callable
        Returns the seconds that passes have been compiled in this process until now. What is compiled within a stage
        counts as ``trace_s``.
    waiting : callable
        Returns the seconds that the visit has waited for rows until now, which count as ``rows_s``; those before the
        first stage too.
    """

    def __init__(self, compiling: Callable[[], float], waiting: Callable[[], float] = lambda: 0.0) -> None:
        self.laps: dict[str, float] = {}
        self._others = {"trace_s": compiling, "rows_s": waiting}
        self._spent = {name: seconds() for name, seconds in self._others.items()}
        if waited_s := self._spent["rows_s"]:
            self._add("rows_s", waited_s)
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the last call to a stage."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        for other, seconds in self._others.items():
            spent = seconds()
            within = min(spent - self._spent[other], elapsed)
            self._spent[other] = spent
            if within:
                self._add(other, within)
                elapsed -= within
        self._add(name, elapsed)

    def _add(self, name: str, seconds: float) -> None:
        self.laps[name] = self.laps.get(name, 0.0) + seconds
