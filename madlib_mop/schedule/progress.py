"""The scheduler's private record of one model: its progress, and the reasons why it cannot start a visit."""

from __future__ import annotations

from collections.abc import Iterator

from .work import ModelWork, Unit

Rank = tuple[bool, float, int, int]  # the smallest starts first
Entry = tuple[bool, float, int, int, "ModelProgress"]  # (*rank, model)


def bits(mask: int) -> Iterator[int]:
    """Return the numbers of the bits set in ``mask``, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def first_from(mask: int, start: int) -> int:
    """Return the first bit set in ``mask`` (not 0) at ``start`` or, cyclically, after it."""
    above = mask >> start
    if above:
        return start + (above & -above).bit_length() - 1
    return (mask & -mask).bit_length() - 1


class ModelProgress:
    """One unit's state. Segments are bits: segment number j of the run is ``1 << j``; a set of them is an int.

    Attributes
    ----------
    turn : int
        Its number in the rotation.
    unit, graph
        As in `ModelWork`.
    left : int
        Segments still to visit in ``epoch``.
    rows_left : float
        Rows still to train on, this epoch's and the later ones'; those of slow segments count for more.
    n_visits : int
        Visits finished since epoch 1, those before a resume included.
    in_flight, held, dropped : bool
        A visit is in progress; the driver holds it back; it failed or was stopped.
    n_evaluations : int
        Its evaluations queued and in flight; it does not train before there are none.
    roams : bool
        It may visit the segments left in its epoch in any order.
    bound_to : int or None
        While it waits and does not roam: the number of the segment that it waits for.
    entry : tuple or None
        While it waits: its rank, and itself.
    rate : float or None
        Seconds a row in its visits so far, rows of slow segments counted for more; ``measured_s`` and
        ``measured_rows`` are the sums that it comes from.
    """

    __slots__ = (
        *("unit", "index", "turn", "graph", "epoch", "last_epoch", "position", "left", "rows_left", "n_visits"),
        *("in_flight", "held", "dropped", "n_evaluations", "roams", "bound_to", "entry"),
        *("rate", "measured_s", "measured_rows"),
    )

    def __init__(self, work: ModelWork):
        self.unit: Unit = work.unit
        self.index = work.index
        self.turn = work.place
        self.graph = work.graph
        self.epoch = work.epoch
        self.last_epoch = work.last_epoch
        self.position = len(work.visited)
        self.left = 0
        self.rows_left = 0.0
        self.n_visits = 0
        self.in_flight = self.held = self.dropped = self.roams = False
        self.n_evaluations = 0
        self.bound_to: int | None = None
        self.entry: Entry | None = None
        self.rate: float | None = None
        self.measured_s = 0.0
        self.measured_rows = 0.0

    @property
    def over(self) -> bool:
        """Return whether no visit of it is left to start or to finish."""
        return self.dropped or self.epoch > self.last_epoch

    @property
    def ready(self) -> bool:
        """Return whether a visit of it may start as soon as a segment is free."""
        return not (self.in_flight or self.held or self.n_evaluations or self.over)
