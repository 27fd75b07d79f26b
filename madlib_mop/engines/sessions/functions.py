"""Compiled functions that the trainers of a run hand to each other through the driver.

Called by `madlib_mop.driver.running.workers`. A trainer whose backend compiles (JAX) sends each new function with its
next answer, and gets those of the others with its next task (`mop_backend.functions`). So each function is compiled
once, not once for each segment. They are kept in memory, base64 by key, while the run trains.
"""

from collections.abc import Iterable

from mop_backend.frames import Header

#: Bytes that are kept; further functions are dropped, and each trainer compiles them itself.
_MOST_BYTES = 256 << 20


class CompiledFunctions:
    """The compiled functions of a run, and which of them each segment's trainer has.

    Parameters
    ----------
    segments : iterable of int
    """

    def __init__(self, segments: Iterable[int]):
        self._functions: dict[str, str] = {}
        self._n_bytes = 0
        self._known: dict[int, set[str]] = {segment: set() for segment in segments}

    def with_new(self, segment: int, order: Header) -> Header:
        """Return a task with the functions that the segment's trainer does not have."""
        missing = self._functions.keys() - self._known[segment]
        if not missing:
            return order
        self._known[segment] |= missing
        return {**order, "functions": {key: self._functions[key] for key in missing}}

    def collect(self, segment: int, answer: Header) -> None:
        """Take the functions out of an answer; after one that ends the trainer, the next trainer has none."""
        if answer["outcome"] not in ("done", "failed"):
            self.forget(segment)
        for key, function in answer.pop("functions", {}).items():
            self._known[segment].add(key)
            if key not in self._functions and self._n_bytes + len(function) <= _MOST_BYTES:
                self._functions[key] = function
                self._n_bytes += len(function)

    def forget(self, segment: int) -> None:
        """Note that a segment has, or will have, a new trainer."""
        self._known[segment].clear()
