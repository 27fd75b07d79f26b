"""The time of each stage of a visit; used by ``visits.py`` and ``fused_visits.py``."""

import time


class Clock:
    """Takes the time of each stage of a visit, in seconds; stages that are entered twice add up."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the last call to a stage."""
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now
