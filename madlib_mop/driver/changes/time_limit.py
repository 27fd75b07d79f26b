"""Decides when the time of a run is over (argument max_seconds); called by the hopper and by model averaging.

The time is the training time in the record, without pauses, so a resumed run has what was left. The decision is
recorded with its limit and made once for it: what people ask for later is trained. If the search of a run is not over
then, the decision is an event of the search (`changes.search`), which ends the models alike.
"""

from collections.abc import Callable, Mapping

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ChangeSource, ModelState
from madlib_mop.driver.changes.deciders import Decider, Decision, Decisions
from madlib_mop.models.changes import Finish


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
