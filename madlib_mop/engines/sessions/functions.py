"""Compiled functions that the trainers of a run hand to each other through the driver.

Called by `madlib_mop.driver.running.workers`. A trainer whose backend compiles (JAX) sends each new function with its
next answer, and gets those of the others with its next task (`mop_backend.functions`). So most functions are compiled
once, not once for each segment. They are kept in memory, base64 by key, while the run trains. Only trainers on this
server take part.
"""

from collections.abc import Iterable

from mop_backend.frames import Header

#: Bytes that are kept, as many as a trainer holds; each trainer compiles further functions itself.
_MOST_BYTES = 64 << 20


class CompiledFunctions:
    """The compiled functions of a run, and which of them each segment's trainer has.

    Parameters
    ----------
    segments : iterable of int
        Those with a trainer on this server.
    """

    def __init__(self, segments: Iterable[int]):
        self._functions: dict[str, str] = {}
        self._n_bytes = 0
        self._known: dict[int, set[str]] = {segment: set() for segment in segments}
        self._pids: dict[int, int] = {}  # of the trainers

    def with_new(self, segment: int, order: Header) -> Header:
        """Return a task with the functions that the segment's trainer does not have."""
        if segment not in self._known:
            return order
        missing = [key for key in self._functions if key not in self._known[segment]]
        if not missing:
            return order
        self._known[segment].update(missing)
        return {**order, "functions": {key: self._functions[key] for key in missing}}

    def collect(self, segment: int, answer: Header) -> None:
        """Take the functions out of an answer; note if the segment has a new trainer, or will have one."""
        functions = answer.pop("functions", {})
        if segment not in self._known:
            return
        if answer["outcome"] == "done":
            pid = answer["versions"]["pid"]
            if self._pids.setdefault(segment, pid) != pid:
                self.forget(segment)
                self._pids[segment] = pid
        elif answer["outcome"] != "failed":
            self.forget(segment)
        for key, function in functions.items():
            self._known[segment].add(key)
            if key not in self._functions and self._n_bytes + len(key) + len(function) <= _MOST_BYTES:
                self._functions[key] = function
                self._n_bytes += len(key) + len(function)

    def forget(self, segment: int) -> None:
        """Note that a segment's next trainer has no functions."""
        if segment in self._known:
            self._known[segment].clear()
            self._pids.pop(segment, None)
