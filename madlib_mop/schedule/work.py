"""The inputs and outputs of a scheduler: a model's work, visits, evaluations, completed epochs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from madlib_mop.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class ModelWork:
    """One configuration of a run and its progress.

    A run that starts has ``epoch=1`` and ``visited=()``. A resumed run has the model's current epoch and the
    segments already visited in it. A model with nothing left has ``epoch = last_epoch + 1``.

    Attributes
    ----------
    key : int
        ``mst_key``.
    index : int
        The model's number c in the rotation, 0-based, unique. It stays the same for the whole run, also after a resume
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

    key: int
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
    """One model trains on one segment's shard once.

    ``position`` (1-based) is the visit's place within the model's ``epoch`` (1-based).
    """

    model: int
    segment: int
    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model is evaluated on one segment.

    ``payload`` is opaque: it is only compared by equality.
    """

    model: int
    segment: int
    payload: object = None


Task = Visit | Evaluation


@dataclass(frozen=True, slots=True)
class EpochDone:
    """A model has visited every segment in ``epoch``; ``last`` is set for the model's last epoch."""

    model: int
    epoch: int
    last: bool


def check_works(
    works: Sequence[ModelWork],
    segments: Collection[int],
    keys: Collection[int] = (),
    indices: Collection[int] = (),
) -> None:
    """Check models that come into a run with these segments, and with models of these keys and indices.

    Raises
    ------
    InvalidParameter
        A key or an index occurs twice, or a segment was visited that the run does not have.
    """
    for what, values, known in (
        ("key", [work.key for work in works], keys),
        ("index", [work.index for work in works], indices),
    ):
        if len(set(values)) < len(values) or any(value in known for value in values):
            raise InvalidParameter(f"two models of a run have the same {what}, received {sorted(values)}")
    unknown = {segment for work in works for segment in work.visited} - set(segments)
    if unknown:
        raise InvalidParameter(
            f"the run has visited segments that its packed table no longer has, received {sorted(unknown)}",
            hint="Restore the packed table as it was when the run began, or start a new run.",
        )
