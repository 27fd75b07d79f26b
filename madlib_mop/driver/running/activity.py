"""What each segment is doing, written to the record for people who watch; called by the loop over a run's tasks.

Only tasks that have lasted for a second are written, and at most once a second. So a run of short tasks writes nothing.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mop_backend.messages import AverageStates, ComputeMetrics, Evaluate, Order, Train

LEAST_S = PAUSE_S = 1.0


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

    def write_due(self, flights: Mapping[int, tuple[float, Order]]) -> bool:
        """Write what has changed, unless that was done just before; return whether anything was written.

        Parameters
        ----------
        flights : mapping of int to (float, Order)
            For each segment with a task, when it began, and the order for its writer.
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


def task_of(order: Order) -> dict[str, Any]:
    """Return a task as the record has it: ``kind``, ``mst_keys``, and ``epoch`` unless it is an evaluation."""
    match order:
        case Train(members=members, epoch=epoch):
            return {"kind": "visit", "mst_keys": [write.mst_key for write in members if write], "epoch": epoch}
        case AverageStates(write=write, epoch=epoch):
            return {"kind": "average", "mst_keys": [write.mst_key], "epoch": epoch}
        case Evaluate(members=keys):
            return {"kind": "evaluation", "mst_keys": [key for key in keys if key is not None]}
        case ComputeMetrics(mst_key=mst_key):
            return {"kind": "evaluation", "mst_keys": [mst_key]}
    raise TypeError(f"segments are given no such order as a task: {order}")
