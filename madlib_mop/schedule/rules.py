"""The four schedules: for a model that is ready, which segment it must visit next, or that it may choose; called by the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from madlib_mop.errors import InvalidParameter

from .costs import MeasuredCosts
from .progress import Progress, first_from
from .work import Visit

SCHEDULES = ("auto", "rotation", "longest_first", "recorded")


class Rotation:
    """Configuration c visits segment (c + k) mod p at its k-th visit, whatever the timing."""

    name = "rotation"

    def __init__(self, n_segments: int):
        self.n_segments = n_segments
        self._all = (1 << n_segments) - 1

    def last_epoch(self, model: Progress) -> int:
        """Give the last epoch in which the model has visits to make."""
        return model.last_epoch

    def segments_of(self, model: Progress, epoch: int) -> int:
        """Give the set of segments that the model visits in an epoch."""
        return self._all

    def roams(self, model: Progress, costs: MeasuredCosts) -> bool:
        """Say whether the model may choose freely among the segments left in its epoch."""
        return False

    def next_segment(self, model: Progress) -> int:
        """Give the number of the one segment that a model that does not roam visits next.

        Segments visited out of order before a resume, under another schedule, are passed over.
        """
        return first_from(model.left, model.index % self.n_segments)


class LongestFirst(Rotation):
    """Any segment left in the epoch; the model with most work left comes first."""

    name = "longest_first"

    def roams(self, model: Progress, costs: MeasuredCosts) -> bool:
        return True


class Auto(Rotation):
    """Rotation while measured costs are alike or n = p, else longest first; decided for each model anew.

    An order is a matter of one epoch of one model, so a change needs no agreement between models.
    """

    name = "auto"

    def __init__(self, n_segments: int, n_models: int):
        super().__init__(n_segments)
        self._square = n_models == n_segments

    def roams(self, model: Progress, costs: MeasuredCosts) -> bool:
        return not self._square and not costs.alike


class Recorded(Rotation):
    """The visits of a record again, each model's in its recorded order."""

    name = "recorded"

    def __init__(self, numbers: Mapping[int, int], recorded: Iterable[Visit]):
        super().__init__(len(numbers))
        self._orders: dict[tuple[int, int], list[int]] = {}  # (model, epoch) -> segment numbers by position
        self._last: dict[int, int] = {}
        for visit in sorted(recorded, key=lambda v: (v.model, v.epoch, v.position)):
            order = self._orders.setdefault((visit.model, visit.epoch), [])
            number = numbers.get(visit.segment)
            if number is None or number in order or visit.position != len(order) + 1:
                raise InvalidParameter(
                    f"the recorded visits of model {visit.model} cannot be repeated: epoch {visit.epoch}, position"
                    f" {visit.position}, segment {visit.segment} is missing its predecessor, is there twice, or names an unknown segment",
                    hint="Replay needs the complete record of a run and its packed table with the same segments.",
                )
            order.append(number)
            self._last[visit.model] = visit.epoch
        for model, epoch in self._orders:
            if epoch < self._last[model] and len(self._orders[model, epoch]) < self.n_segments:
                raise InvalidParameter(
                    f"the recorded visits of model {model} cannot be repeated: its epoch {epoch} is not complete",
                    hint="Replay needs the complete record of a run.",
                )

    def last_epoch(self, model: Progress) -> int:
        return min(model.last_epoch, self._last.get(model.key, 0))

    def segments_of(self, model: Progress, epoch: int) -> int:
        return sum(1 << number for number in self._orders.get((model.key, epoch), ()))

    def next_segment(self, model: Progress) -> int:
        return self._orders[model.key, model.epoch][model.position]


def make_rule(schedule: str, n_models: int, numbers: Mapping[int, int], recorded: Iterable[Visit] | None) -> Rotation:
    """Make the rule of a schedule by its name, which may be a user's.

    Raises
    ------
    InvalidParameter
        The name is not one of the four, or the record cannot be repeated.
    """
    if schedule == "rotation":
        return Rotation(len(numbers))
    if schedule == "longest_first":
        return LongestFirst(len(numbers))
    if schedule == "auto":
        return Auto(len(numbers), n_models)
    if schedule == "recorded":
        return Recorded(numbers, recorded or ())
    raise InvalidParameter(
        f"unknown schedule, received {schedule!r}", hint="The schedules are 'auto', 'rotation' and 'longest_first'."
    )
