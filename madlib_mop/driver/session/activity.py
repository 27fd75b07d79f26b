"""What each segment is doing, written to the record for people who watch; called by the loop over a run's tasks.

Only tasks that have lasted for a second are written, and at most once a second. So a run of short tasks writes nothing.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mop_backend.frames import Header

LEAST_S = PAUSE_S = 1.0
_KINDS = {"train": "visit", "evaluate": "evaluation", "average": "average"}


class Activity:
    """Writes the tasks of segments that have changed.

    Parameters
    ----------
    write : callable
        Writes a sequence of (segment, task as JSON or None, seconds since it began).
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        write: Callable[[Sequence[tuple[int, str | None, float]]], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._write = write
        self._clock = clock
        self._next = 0.0
        self._written: dict[int, float] = {}

    def write_due(self, flights: Mapping[int, tuple[float, Header]]) -> bool:
        """Write what has changed, unless that was done just before; return whether anything was written.

        Parameters
        ----------
        flights : mapping of int to (float, dict)
            For each segment with a task, when it began, and the message for its worker.
        """
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + PAUSE_S
        lasting = {s: (began, order) for s, (began, order) in flights.items() if now - began >= LEAST_S}
        ended = [(segment, None, 0.0) for segment in self._written if segment not in lasting]
        begun = [
            (segment, json.dumps(task_of(order)), now - began)
            for segment, (began, order) in lasting.items()
            if self._written.get(segment) != began
        ]
        self._written = {segment: began for segment, (began, _) in lasting.items()}
        if ended or begun:
            self._write([*ended, *begun])
        return bool(ended or begun)


def task_of(order: Header) -> dict[str, Any]:
    """Return a task as the record has it: ``kind``, ``mst_keys``, and ``epoch`` unless it is an evaluation."""
    task = {"kind": _KINDS[order["do"]], "mst_keys": list(_keys(order))}
    return task | {"epoch": order["epoch"]} if "epoch" in order else task


def _keys(order: Header) -> Iterator[int]:
    for member in order.get("members") or [order]:
        if isinstance(member, Mapping):
            yield member["mst_key"]
        elif member is not None:
            yield member
