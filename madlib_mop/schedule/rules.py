"""The schedules: which segment a model must visit next, or that it may choose; and what they know of a model: its
progress, the measured costs of its visits, and its remaining work. Called by the scheduler.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log

from madlib_mop.errors import InvalidParameter

from .work import ModelWork, Unit, Visit, title

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
    in_flight, held, lacks_state, dropped : bool
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
        *("in_flight", "held", "lacks_state", "dropped", "n_evaluations", "roams", "bound_to", "entry"),
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
        self.in_flight = self.held = self.lacks_state = self.dropped = self.roams = False
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
        return not (self.in_flight or self.held or self.lacks_state or self.n_evaluations or self.over)


ALIKE = 1.1  # rates that differ by at most this factor count as equal
_STEP = log(1.25)  # slowness is a power of 1.25: noise does not reach the first one, and changes are rare
_MIN_CHANGE = 0.75  # fraction of a step: a larger difference changes the slowness in use


class MeasuredCosts:
    """Seconds a row of every model measured so far, and seconds spent on every segment.

    A model's rate is the mean over its own visits, weighted by their rows; a model not measured yet counts as
    the mean of the others. A segment's *slowness* is the ratio of the measured to the expected time of its visits, by
    their models' rates. It is 1 until models measured on other segments have visited it, and while the ratio is near
    1.

    Parameters
    ----------
    rows : sequence of int
        By segment number, at least 1.
    """

    def __init__(self, rows: Sequence[int]):
        self.weights = [float(n_rows) for n_rows in rows]  # by segment number: rows times slowness
        self._rows = rows
        self._steps = [0] * len(rows)  # by segment number: slowness is 1.25 to this power
        # by segment number: visits of models with a known rate, their seconds, the expected seconds
        self._compared = [(0, 0.0, 0.0)] * len(rows)
        self._spent_s = [0.0] * len(rows)
        self._n_visits_each = 0  # visits planned on each segment
        self._rates: list[float] = []  # of the models measured, sorted
        self._sum = 0.0

    def plan(self, n_epochs: int) -> None:
        """Count the epochs that a model will make."""
        self._n_visits_each += n_epochs

    def known(self, model: ModelProgress, rate: float, visited: Sequence[int]) -> None:
        """Take over a rate (seconds a row) from an earlier record; it weighs as much as one row measured now.

        ``visited`` are the numbers of the segments that the model has visited in its epoch.
        """
        for number in visited:
            self._spent_s[number] += rate * self._rows[number]
        model.measured_s, model.measured_rows = rate, 1.0
        self._set_rate(model, rate)

    def add(self, model: ModelProgress, number: int, seconds: float) -> bool:
        """Add a finished visit on a segment; return whether its slowness has changed."""
        self._spent_s[number] += seconds
        is_other = model.rate is not None and self._compare(number, seconds, model.rate * self._rows[number])
        model.measured_s += seconds
        model.measured_rows += self.weights[number]
        self._set_rate(model, model.measured_s / model.measured_rows)
        return is_other

    def _compare(self, number: int, seconds: float, expected_s: float) -> bool:
        n_before, seconds_before, expected_before = self._compared[number]
        n, total, expected = n_before + 1, seconds_before + seconds, expected_before + expected_s
        self._compared[number] = n, total, expected
        if n < 2 or total <= 0.0 or expected <= 0.0:
            return False
        steps = log(total / expected) / _STEP
        if abs(steps - self._steps[number]) <= _MIN_CHANGE:
            return False
        self._steps[number] = round(steps)
        self.weights[number] = self._rows[number] * exp(_STEP * round(steps))
        return True

    def _set_rate(self, model: ModelProgress, rate: float) -> None:
        if model.rate is not None:
            del self._rates[bisect_left(self._rates, model.rate)]
            self._sum -= model.rate
        insort(self._rates, rate)
        self._sum += rate
        model.rate = rate

    @property
    def mean_rate(self) -> float | None:
        """Return the mean of the models' rates, seconds a row; None before the first measure."""
        return self._sum / len(self._rates) if self._rates else None

    @property
    def alike(self) -> bool:
        """Return whether the models measured cost about the same, as they do before any measure."""
        return not self._rates or self._rates[-1] <= ALIKE * self._rates[0]

    def left(self, model: ModelProgress) -> float:
        """Return the work left of a model, seconds; 0 before the first measure of any model."""
        rate = self.mean_rate if model.rate is None else model.rate
        return model.rows_left * (rate or 0.0)

    def visit_s(self, model: ModelProgress) -> float:
        """Return the seconds of a model's visit, the mean over the segments; 0 before the first measure."""
        rate = self.mean_rate if model.rate is None else model.rate
        return sum(self.weights) / len(self.weights) * (rate or 0.0)

    def most_left(self, numbers: Iterable[int]) -> int:
        """Return the segment with most work left, up to a constant where shards are even; of equals the first.

        That is what was planned, at the mean rate, less what was spent; so it needs no sum over the models.
        """
        planned, weights, spent = self._n_visits_each * (self.mean_rate or 0.0), self.weights, self._spent_s
        return max(numbers, key=lambda number: planned * weights[number] - spent[number])


class Rotation:
    """Configuration c visits segment (c + k) mod p at its k-th visit, k from 0, whatever the timing."""

    name = "rotation"
    #: Whether a segment prefers, among models of equal rank, one whose graph its trainer has.
    groups_graphs = False
    #: Whether models with fewer visits go first where the order of models does not change the end of the run.
    compares_early = False
    #: One line for the help text and the manual.
    summary = (
        "model number i (from 0, by mst_key) starts each iteration at segment i modulo the number of segments, and"
        " visits the segments in a circle: the same seed and data give the same bits"
    )

    def __init__(self, n_segments: int, n_models: int = 0):
        self.n_segments = n_segments
        self.n_models = n_models  # number of models of the run until now
        self._all = (1 << n_segments) - 1

    @classmethod
    def depends_on_timing(cls, n_models: int, n_segments: int) -> bool:
        """Return whether the order of a model's visits can depend on how long visits take."""
        return False

    def last_epoch(self, model: ModelProgress, wanted: int) -> int:
        """Return the last epoch in which the model has visits to make, ``wanted`` or before."""
        return wanted

    def segments_of(self, model: ModelProgress, epoch: int) -> int:
        """Return the set of segments that the model visits in an epoch."""
        return self._all

    def left_after(self, model: ModelProgress, visited: Sequence[int]) -> int:
        """Return the set of segments that remain in the model's epoch after those visited.

        Raises
        ------
        InvalidParameter
            The model cannot have made these visits.
        """
        left = 0 if model.over else self.segments_of(model, model.epoch)
        for number in visited:
            if not left & (1 << number):
                raise InvalidParameter(
                    f"the visits of {title(model.unit)} in epoch {model.epoch} have a segment twice, or one too many",
                    hint="The run's record is damaged: drop the run and start it again.",
                )
            left &= ~(1 << number)
        return left

    def roams(self, costs: MeasuredCosts) -> bool:
        """Return whether a model may now choose any of the segments left in its epoch."""
        return False

    def next_segment(self, model: ModelProgress) -> int:
        """Return the number of the segment that a model that does not roam visits next.

        Segments that it has visited out of order, under another schedule, are skipped.
        """
        return first_from(model.left, model.turn % self.n_segments)

    def rank(self, model: ModelProgress) -> tuple[bool, float, int, int]:
        """Return the sort key of models that could start: the smallest starts first.

        Models that are not measured yet come first (one may be the longest), then those with most work left.
        """
        work = model.rows_left if model.rate is None else model.rows_left * model.rate
        return (model.rate is not None, -work, model.n_visits, model.index)


class LongestFirst(Rotation):
    """A model goes to any free segment left in its epoch; the model with the most remaining work goes first."""

    name = "longest_first"
    summary = (
        "a model goes to any free segment; the model with the most remaining work goes first. This depends on timing,"
        " so the order is recorded for replay"
    )

    @classmethod
    def depends_on_timing(cls, n_models: int, n_segments: int) -> bool:
        return True

    def roams(self, costs: MeasuredCosts) -> bool:
        return True


class BreadthFirst(Rotation):
    """A model goes to any free segment left in its epoch; the model with the fewest visits goes first.

    So each model makes its first visit before any makes its second, and models can be compared early. A trainer's first
    visit of a graph takes seconds, so the models of a graph make their first visits at few segments. Until the last of
    them has ended, graphs are traced at no more segments at once than can compute at the same time.
    """

    name = "breadth_first"
    groups_graphs = True
    summary = (
        "a model goes to any free segment; the model with the fewest visits goes first, so all models can be compared"
        " early. This depends on timing, so the order is recorded for replay"
    )

    @classmethod
    def depends_on_timing(cls, n_models: int, n_segments: int) -> bool:
        return True

    def roams(self, costs: MeasuredCosts) -> bool:
        return True

    def rank(self, model: ModelProgress) -> tuple[bool, float, int, int]:
        return (False, float(model.n_visits), model.n_visits, model.index)


class Auto(Rotation):
    """Rotation while measured costs are alike or n <= p, else longest first; chosen again in each epoch of each model.

    With n <= p, rotation stays within 1.01 of the lower bound whatever the costs, and longest first does not
    (tests/unit/schedule/test_quality.py). The choice applies to one epoch of one model, so models may differ.
    """

    name = "auto"
    compares_early = True
    summary = (
        "rotation if visits of all models take about the same time, or if there are no more models than segments;"
        " otherwise longest_first. With either, if each trainer has room for all rows, a model that would delay the"
        " end of the run goes first, then models with fewer visits"
    )

    @classmethod
    def depends_on_timing(cls, n_models: int, n_segments: int) -> bool:
        return n_models > n_segments

    def roams(self, costs: MeasuredCosts) -> bool:
        return self.depends_on_timing(self.n_models, self.n_segments) and not costs.alike


class Recorded(Rotation):
    """Repeats recorded visits, those of each model in their recorded order."""

    name = "recorded"

    def __init__(self, numbers: Mapping[int, int], recorded: Iterable[Visit]):
        super().__init__(len(numbers))
        self._orders: dict[tuple[Unit, int], list[int]] = {}  # (unit, epoch) -> segment numbers by position
        self._sets: dict[tuple[Unit, int], int] = {}
        self._last: dict[Unit, int] = {}
        for visit in sorted(recorded, key=lambda v: (v.unit, v.epoch, v.position)):
            self._append(visit, numbers.get(visit.segment))

    def _append(self, visit: Visit, number: int | None) -> None:
        """Append a visit, which must be the next position of its unit's epoch or the first one of the next epoch."""
        key = (visit.unit, visit.epoch)
        order, seen = self._orders.setdefault(key, []), self._sets.get(key, 0)
        last = self._last.get(visit.unit, visit.epoch)
        complete = last == visit.epoch or self._sets[visit.unit, last] == self._all
        follows = last in (visit.epoch, visit.epoch - 1) and visit.position == len(order) + 1
        if number is None or seen & (1 << number) or not follows or not complete:
            raise InvalidParameter(
                f"the record cannot be replayed: {title(visit.unit)}, epoch {visit.epoch}, position {visit.position},"
                f" segment {visit.segment} does not follow from the previous visits, or its segment is unknown",
                hint="Replay needs the complete record of a run, and its packed table with the same segments.",
            )
        order.append(number)
        self._sets[key] = seen | (1 << number)
        self._last[visit.unit] = visit.epoch

    def last_epoch(self, model: ModelProgress, wanted: int) -> int:
        return min(wanted, self._last.get(model.unit, 0))

    def segments_of(self, model: ModelProgress, epoch: int) -> int:
        return self._sets.get((model.unit, epoch), 0)

    def left_after(self, model: ModelProgress, visited: Sequence[int]) -> int:
        left = super().left_after(model, visited)
        if list(visited) != self._orders.get((model.unit, model.epoch), [])[: len(visited)]:
            raise InvalidParameter(
                f"the visits of {title(model.unit)} in epoch {model.epoch} differ from the recorded ones",
                hint="Drop the replay and start it again.",
            )
        return left

    def next_segment(self, model: ModelProgress) -> int:
        return self._orders[model.unit, model.epoch][model.position]


#: The schedules that a user may choose, by name. A new schedule is a subclass of `Rotation` and an entry here.
SCHEDULES: dict[str, type[Rotation]] = {rule.name: rule for rule in (Auto, Rotation, LongestFirst, BreadthFirst)}


def make_rule(schedule: str, n_models: int, numbers: Mapping[int, int], recorded: Iterable[Visit] | None) -> Rotation:
    """Return the rule of a schedule by its name, which may be a user's input.

    Raises
    ------
    InvalidParameter
        The schedule is unknown, or the record cannot be repeated.
    """
    if schedule == Recorded.name:
        return Recorded(numbers, recorded or ())
    if schedule in SCHEDULES:
        return SCHEDULES[schedule](len(numbers), n_models)
    raise InvalidParameter(f"unknown schedule, received {schedule!r}", hint=f"Choose one of {', '.join(SCHEDULES)}.")
