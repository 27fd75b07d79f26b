"""Deciders on a run's models: events of the run in, changes out. They have no session, and write nothing.

The hopper notifies the decider of its run, and has `Changes` make what it decides. A run whose set of models is fixed
has the decider of this module, which decides nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.of_run import Metric, SearchEvent
from madlib_mop.catalog.rows.states import ChangeSource
from madlib_mop.models.changes import Change


@dataclass(frozen=True)
class Decision:
    """Changes that are made together or not at all.

    Attributes
    ----------
    source : ChangeSource
        Who decided.
    changes : sequence of Change
    event : SearchEvent or None
        What a search was told; recorded with its decision, which may be to change nothing.
    notices : sequence of str
        Sentences for the caller.
    """

    source: ChangeSource
    changes: Sequence[Change]
    event: SearchEvent | None = None
    notices: Sequence[str] = ()


#: Each is made before the next is asked for, so a decider sees the models that it has changed.
Decisions = Iterator[Decision]


class Decider:
    """No-op decider: the set of models is fixed."""

    def begin(self, models: Mapping[int, ModelRow]) -> Decisions:
        """Called once, while the workers are opened; a resumed run has recorded decisions.

        Parameters
        ----------
        models : mapping of int to ModelRow
            The run's models by mst_key, always as they are at the moment.
        """
        yield from ()

    def visited(self, mst_key: int) -> Decisions:
        """Called when a visit of a model was committed, before its next one starts."""
        yield from ()

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> Decisions:
        """Called when a model's last epoch is complete, with its metrics if they were due."""
        yield from ()

    def failed(self, mst_key: int) -> Decisions:
        """Called when a model has failed, or a command has stopped it."""
        yield from ()

    @property
    def decides(self) -> bool:
        """Whether it will still change models; commands must not extend or resume models then."""
        return False

    @property
    def time_over(self) -> str | None:
        """Why the models end early: the time of the run is over, so its policy is not evaluated any more."""
        return None

    def tick(self) -> Decisions:
        """Called after every event, and at least once a second."""
        yield from ()

    def ended(self) -> Decisions:
        """Called when no task is left."""
        yield from ()


class Deciders(Decider):
    """Several deciders of one run, such as a search and the replay of commands."""

    def __init__(self, *deciders: Decider):
        self._all = deciders

    def begin(self, models: Mapping[int, ModelRow]) -> Decisions:
        for each in self._all:
            yield from each.begin(models)

    def visited(self, mst_key: int) -> Decisions:
        for each in self._all:
            yield from each.visited(mst_key)

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> Decisions:
        for each in self._all:
            yield from each.reached(mst_key, epoch, metrics)

    def failed(self, mst_key: int) -> Decisions:
        for each in self._all:
            yield from each.failed(mst_key)

    @property
    def decides(self) -> bool:
        return any(each.decides for each in self._all)

    @property
    def time_over(self) -> str | None:
        return next((why for each in self._all if (why := each.time_over) is not None), None)

    def tick(self) -> Decisions:
        for each in self._all:
            yield from each.tick()

    def ended(self) -> Decisions:
        for each in self._all:
            yield from each.ended()
