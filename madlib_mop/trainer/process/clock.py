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
    """

    def __init__(self, compiling: Callable[[], float]) -> None:
        self.laps: dict[str, float] = {}
        self._compiling = compiling
        self._compiled = compiling()
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the last call to a stage."""
        now, compiled = time.perf_counter(), self._compiling()
        elapsed = now - self._last
        within = min(compiled - self._compiled, elapsed)
        self.laps[name] = self.laps.get(name, 0.0) + elapsed - within
        if within:
            self.laps["trace_s"] = self.laps.get("trace_s", 0.0) + within
        self._last, self._compiled = now, compiled
