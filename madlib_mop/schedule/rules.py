"""The schedules: which segment a model must visit next, or that it may choose; called by the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from madlib_mop.errors import InvalidParameter

from .costs import MeasuredCosts
from .progress import ModelProgress, first_from
from .work import Unit, Visit, title


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
        " otherwise longest_first. If each trainer has room for all rows, models with fewer visits go first, unless the"
        " run would end later"
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
