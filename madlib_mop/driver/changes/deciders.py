"""Deciders on a run's models: events of the run in, changes out. They have no session, and write nothing.

The hopper notifies the deciders of its run, and has `Changes` make what they decide. A run whose set of models is fixed
has none, or the one that ends it when its time is over.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import Metric, RunRow, SearchEvent
from madlib_mop.catalog.rows.states import ChangeSource, ModelState
from madlib_mop.models.changes import Change, Finish


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
    """The base of deciders: it decides nothing."""

    def begin(self, models: Mapping[int, ModelRow]) -> Decisions:
        """Called once, while the segments are opened; a resumed run has recorded decisions.

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


class TimeLimit(Decider):
    """Ends the models with their current iterations when the time is over.

    Parameters
    ----------
    limit_s : float or None
        Seconds of training; None: no limit.
    elapsed_s : callable
        Returns the seconds of training so far.
    is_over : bool
        Whether an earlier driver has recorded that the time is over.

    Attributes
    ----------
    limit_s : float or None
    is_over : bool
        Whether it is decided; set by a search that has decided it.
    models : mapping of int to ModelRow
        The run's models by mst_key, set by `begin`, or by a search that is not over.
    """

    def __init__(self, limit_s: float | None, elapsed_s: Callable[[], float], is_over: bool = False):
        self.limit_s = limit_s
        self._elapsed_s = elapsed_s
        self.is_over = is_over
        self.models: Mapping[int, ModelRow] = {}

    def begin(self, models: Mapping[int, ModelRow]) -> Decisions:
        """End the models at once if earlier drivers have used up the time."""
        self.models = models
        yield from self.tick()

    def tick(self) -> Decisions:
        """End the models when the time is over, unless all have ended."""
        if self.limit_s is None or self.is_over or self._elapsed_s() < self.limit_s:
            return
        if any(m.state in (ModelState.WAITING, ModelState.TRAINING) for m in self.models.values()):
            self.is_over = True
            told = f"{self._reason}; the models complete their current iterations"
            yield Decision(ChangeSource.TIME_LIMIT, [Finish(self._reason, self.limit_s)], notices=[told])

    @property
    def time_over(self) -> str | None:
        return self._reason if self.is_over else None

    @property
    def _reason(self) -> str:
        return f"max_seconds ({self.limit_s:g} s) was over"


def make_time_limit(
    record: Record, run: RunRow, elapsed_s: Callable[[], float], budget_s: float | None = None
) -> TimeLimit:
    """Create the decider of a run; it decides nothing if the run has no limit.

    ``budget_s`` is that of its search. A call of resume replaces it, and a reopened run has used it.
    """
    limit_s = run.plan.time_limit_s
    if limit_s is None and not run.reopened:
        limit_s = budget_s
    return TimeLimit(limit_s, elapsed_s, limit_s is not None and limit_s in record.time_limits_over(run.run_id))
