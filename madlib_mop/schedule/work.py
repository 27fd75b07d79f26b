"""The inputs and outputs of a scheduler: units of models, their work, visits, evaluations, completed epochs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from madlib_mop.errors import InvalidParameter

#: The mst_keys of models that train together: mostly one. A scheduler plans units; it only compares and hashes them, so
#: what is said of a model in this folder holds for a unit of several too.
Unit = tuple[int, ...]


def title(unit: Unit) -> str:
    """Return a unit as messages name it: "model 3", "models 1, 2"."""
    return f"model{'' if len(unit) == 1 else 's'} {', '.join(map(str, unit))}"


@dataclass(frozen=True, slots=True)
class ModelWork:
    """One unit of a run and its progress.

    A run that starts has ``epoch=1`` and ``visited=()``. A resumed run has the model's current epoch and the
    segments already visited in it. A model with nothing left has ``epoch = last_epoch + 1``.

    Attributes
    ----------
    unit : tuple of int
    index : int
        The unit's number c in the rotation, 0-based, unique. It stays the same for the whole run, also after a resume
        from which failed models are left out: the order of its visits is computed from it.
    last_epoch : int
        The last epoch to train; models of one run may differ in it.
    epoch : int
        The epoch that the model is in, 1-based.
    visited : tuple of int
        Segments already visited in that epoch, in the order of the visits.
    s_per_row : float or None
        Seconds that a row cost in this model's earlier visits, where a record of them exists.
    turn : int or None
        The number whose remainder by the number of segments is the first segment of its rotation; its index unless it
        is a clone, which follows the rotation of its original.
    graph : str or None
        Equal for models that take turns in one compiled graph, which a trainer traces at its first visit. Graphs with
        the same first word, a family, have functions in common. None if that does not matter for the run's schedule.
    """

    unit: Unit
    index: int
    last_epoch: int
    epoch: int = 1
    visited: tuple[int, ...] = ()
    s_per_row: float | None = None
    turn: int | None = None
    graph: str | None = None

    @property
    def place(self) -> int:
        """Its number in the rotation."""
        return self.index if self.turn is None else self.turn


@dataclass(frozen=True, slots=True)
class Visit:
    """One unit trains on one segment's shard once.

    ``position`` (1-based) is the visit's place within the unit's ``epoch`` (1-based). ``trainer`` is the segment whose
    trainer does it, if that is not the shard's own; see `scheduler.Trainers`.
    """

    unit: Unit
    segment: int
    epoch: int
    position: int
    trainer: int | None = field(default=None, compare=False)

    @property
    def at(self) -> int:
        """The segment whose trainer does it."""
        return self.segment if self.trainer is None else self.trainer


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One unit, or some of its models, are evaluated on one segment.

    ``payload`` is opaque: it is only compared by equality. ``trainer`` is as in `Visit`.
    """

    unit: Unit
    segment: int
    payload: object = None
    trainer: int | None = field(default=None, compare=False)

    @property
    def at(self) -> int:
        """The segment whose trainer does it."""
        return self.segment if self.trainer is None else self.trainer


Task = Visit | Evaluation


@dataclass(frozen=True, slots=True)
class EpochDone:
    """A unit has visited every segment in ``epoch``; ``last`` is set for its last epoch."""

    unit: Unit
    epoch: int
    last: bool


def check_works(
    works: Sequence[ModelWork],
    segments: Collection[int],
    known: Collection[Unit] = (),
    indices: Collection[int] = (),
) -> None:
    """Check units that come into a run with these segments, and with known units of these indices.

    Raises
    ------
    InvalidParameter
        A unit or an index occurs twice, or a segment was visited that the run does not have.
    """
    units, numbers = [work.unit for work in works], [work.index for work in works]
    if len(set(units)) < len(units) or any(unit in known for unit in units):
        received = ", ".join(map(title, sorted(units)))
        raise InvalidParameter(f"two models of a run have the same mst_key, received {received}")
    if len(set(numbers)) < len(numbers) or any(number in indices for number in numbers):
        raise InvalidParameter(f"two models of a run have the same index, received {sorted(numbers)}")
    unknown = {segment for work in works for segment in work.visited} - set(segments)
    if unknown:
        raise InvalidParameter(
            f"the run has visited segments that its packed table no longer has, received {sorted(unknown)}",
            hint="Restore the packed table as it was when the run began, or start a new run.",
        )
