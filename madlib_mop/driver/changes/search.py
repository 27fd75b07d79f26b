"""Decides on the models of a run with a search: passes it the results, and returns what it proposes.

Every call of the search is an event, which is recorded with its decision in one transaction with the models that it
adds or changes. A search has no other state than its calls: a resumed run creates it again, repeats the recorded calls,
and delivers results that it had not yet received before the fault.

An event ``budget`` without an epoch says that the time budget was used up; its change has the limit. With one, it says
how many iterations a new model can make before that, by the time of the fastest model so far.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import SearchPlan
from madlib_mop.catalog.rows.run import Metric, RunRow, SearchEvent
from madlib_mop.catalog.rows.states import ChangeSource, ChangeState, ModelState
from madlib_mop.driver.changes.deciders import Decider, Decision, Decisions, TimeLimit, make_time_limit
from madlib_mop.driver.changes.replay import RecordedSearch
from madlib_mop.driver.experience.configurations import past_trials
from madlib_mop.errors import MopError, NotReady
from madlib_mop.models.changes import Add, Change, EndAlike, Exploit, Extend, Finish, Stop
from madlib_mop.search import GivenPoint, SearchSpace, make_search, parse_params
from madlib_mop.search.base import Search

_BUDGET = "the time budget was used up"


@dataclass(frozen=True)
class SearchHistory:
    """What the record has of a search before this driver.

    Attributes
    ----------
    events : sequence of SearchEvent
        In order.
    metrics : sequence of Metric
        All of the run, if there are events.
    stopped : set of int
        The models that commands have stopped.
    """

    events: Sequence[SearchEvent] = ()
    metrics: Sequence[Metric] = ()
    stopped: frozenset[int] = frozenset()


def read_history(record: Record, run_id: int) -> SearchHistory:
    """Read what the record has of a run's search."""
    events = record.search_events(run_id)
    if not events:
        return SearchHistory()
    obeyed = record.commands(run_id, ChangeState.OBEYED)
    stopped = frozenset(command.work["mst_key"] for command in obeyed if command.command == Stop.function)
    return SearchHistory(events, record.metrics(run_id), stopped)


def make_searcher(record: Record, run: RunRow, elapsed_s: Callable[[], float]) -> "Searcher":
    """Create the decider of a run that is a search, or the replay of one."""
    history = read_history(record, run.run_id)
    if run.kind == "replay":
        parent = run.parent_run_id
        assert parent is not None, "a replay repeats a run"
        recorded = RecordedSearch(record.search_events(parent), record.models(parent))
        return Searcher(run, recorded, history, elapsed_s, limit=make_time_limit(record, run, elapsed_s))
    search = search_of(run.search_plan)
    limit = make_time_limit(record, run, elapsed_s, search.params.budget_s)
    return Searcher(run, search, history, elapsed_s, limit.limit_s, limit)


def search_of(plan: SearchPlan) -> Search:
    """Return the search of a plan, at its beginning."""
    params = parse_params(plan.method, plan.params)
    space = SearchSpace.read(plan.model_ids, plan.compile_params_grid, plan.fit_params_grid, plan.drawing)
    past = past_trials(plan.past, space, plan.custom_names)
    given = [GivenPoint(one.model_id, (one.compile_params, one.fit_params)) for one in plan.given]
    costs = {int(model_id): tuple(values) for model_id, values in plan.costs.items()}
    return make_search(plan.method, params, space, plan.random_state, past, plan.is_paced, given, costs)


class Searcher(Decider):
    """Decides on one run.

    Parameters
    ----------
    run : RunRow
    search : Search or RecordedSearch
    history : SearchHistory
    elapsed_s : callable
        Returns the seconds of training so far.
    budget_s : float or None
        Seconds of training after which the search is finished.
    limit : TimeLimit, optional
        Ends the models of commands when the search is over before the time of the run.
    """

    def __init__(
        self,
        run: RunRow,
        search: Search | RecordedSearch,
        history: SearchHistory,
        elapsed_s: Callable[[], float],
        budget_s: float | None = None,
        limit: TimeLimit | None = None,
    ):
        self._run_id = run.run_id
        self._n_slots = run.n_segments
        self._is_reopened = run.reopened
        self._began_with = run.search_plan.sampler_version
        self._is_spent = False  # the time budget
        self._search = search
        self._history = history
        self._elapsed_s = elapsed_s
        self._budget_s = budget_s
        self._limit = TimeLimit(budget_s, elapsed_s) if limit is None else limit
        self._n_events = len(history.events)
        self._reported_left = search.enough_iterations
        self._begun: dict[int, tuple[float, int]] = {}  # of models in training: seconds of training, epoch
        self._iteration_s = math.inf  # of the fastest model, from its start to its result
        self._models: Mapping[int, ModelRow] = {}  # set by `begin`

    def begin(self, models: Mapping[int, ModelRow]) -> Decisions:
        """Start the search, or restore its recorded state.

        Raises
        ------
        NotReady
            If its decisions differ from the recorded ones.
        """
        self._models = self._limit.models = models
        for event in self._history.events:
            self._repeat(event)
        self._notices()  # an earlier driver has told them
        if not self._history.events:
            yield self._report("start")
        elif not any(isinstance(change, Finish) for event in self._history.events for change in event.changes):
            yield from self._catch_up()
        if self._over:
            yield from self._limit.tick()

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> Decisions:
        """Report to the search the loss of a model at its last epoch."""
        if not self._over and self._is_own(mst_key):
            self._measure(mst_key, epoch)
            yield from self._report_time_left()
            yield self._report("result", mst_key, epoch, loss_of(metrics))

    def failed(self, mst_key: int) -> Decisions:
        """Report to the search that a model has failed, or was stopped by a command."""
        if not self._over and self._is_own(mst_key):
            yield from self._report_time_left()
            yield self._report("failed", mst_key)

    def tick(self) -> Decisions:
        """Finish the search when its time budget is used up; if the search is over, end what commands have added."""
        if self._over:
            yield from self._limit.tick()
        elif self._budget_s is not None and self._elapsed_s() >= self._budget_s:
            self._limit.is_over = True
            yield self._report("budget", limit_s=self._budget_s)

    def ended(self) -> Decisions:
        """Check that the search has nothing more to propose."""
        if not self._over:
            raise MopError(
                f"run {self._run_id}: its search waits for results, but no task is left to produce them",
                hint="In a replay, this means that a model failed which did not fail in the original run. Otherwise, "
                "please report it.",
            )
        if isinstance(self._search, RecordedSearch):
            ended = sorted(self._search.untrained & self._models.keys())
            if ended:
                yield Decision(ChangeSource.REPLAY, [EndAlike(key) for key in ended])

    @property
    def decides(self) -> bool:
        return not self._over

    @property
    def time_over(self) -> str | None:
        by_search = self._is_spent and self._limit.is_over and not self._is_reopened
        return _BUDGET if by_search else self._limit.time_over

    @property
    def _over(self) -> bool:
        return self._search.done

    def _is_own(self, mst_key: int) -> bool:
        """Return whether the search has added a model, not a command."""
        return self._models[mst_key].command_id is None

    def _measure(self, mst_key: int, epoch: int) -> None:
        """Measure the seconds of an iteration of a model that this driver has started."""
        if mst_key in self._begun:
            began_s, first_epoch = self._begun.pop(mst_key)
            each_s = (self._elapsed_s() - began_s) / (epoch - first_epoch)
            self._iteration_s = min(self._iteration_s, each_s)

    def _report_time_left(self) -> Decisions:
        """Report how many iterations a new model can make before the budget ends, if that has changed."""
        enough = self._search.enough_iterations
        if self._budget_s is None or not enough or not math.isfinite(self._iteration_s):
            return
        left_s = max(0.0, self._budget_s - self._elapsed_s())
        left = enough if left_s >= enough * self._iteration_s else int(left_s / self._iteration_s)
        if left != self._reported_left:
            yield self._report("budget", epoch=left)

    def _report(
        self,
        event: str,
        mst_key: int | None = None,
        epoch: int | None = None,
        loss: float | None = None,
        limit_s: float | None = None,
    ) -> Decision:
        """Report an event to the search; return its decision."""
        changes = self._call(event, mst_key, epoch, loss, limit_s)
        row = SearchEvent(
            run_id=self._run_id,
            ordinal=self._n_events,
            event=event,
            mst_key=mst_key,
            epoch=epoch,
            loss=loss,
            changes=changes,
        )
        self._n_events += 1
        self._note_starts(changes)
        return Decision(ChangeSource.SEARCH, changes, row, self._notices())

    def _notices(self) -> list[str]:
        """Return what the search says of its last decision."""
        said, self._search.notices = self._search.notices, []
        return said

    def _note_starts(self, changes: Iterable[Change]) -> None:
        if self._budget_s is None:  # in a replay, one decision can add a model and extend it
            return
        for change in changes:
            if isinstance(change, Add):
                # one that was written by hand says nothing about the time that those of the space need
                if not self._search.is_given(change.proposal.mst_key):
                    self._begun[change.proposal.mst_key] = self._elapsed_s(), 0
            elif isinstance(change, Extend | Exploit):
                assert change.mst_key is not None, "a search extends one model"
                self._begun[change.mst_key] = self._elapsed_s(), self._models[change.mst_key].epoch

    def _call(
        self, event: str, mst_key: int | None, epoch: int | None, loss: float | None, limit_s: float | None
    ) -> Sequence[Change]:
        match event:
            case "start":
                return self._search.start(self._n_slots)
            case "result":
                assert mst_key is not None and epoch is not None and loss is not None, "a result has them"
                return self._search.result(mst_key, epoch, math.inf if math.isnan(loss) else loss)
            case "failed":
                assert mst_key is not None, "it is a model that failed"
                return self._search.failed(mst_key)
            case "budget" if epoch is not None:
                self._reported_left = epoch
                return self._search.time_left(epoch)
        self._is_spent = True
        self._search.finish(_BUDGET)
        return [Finish(_BUDGET, limit_s)]

    def _repeat(self, event: SearchEvent) -> None:
        spent_s = next((change.limit_s for change in event.changes if isinstance(change, Finish)), None)
        changes = self._call(event.event, event.mst_key, event.epoch, event.loss, spent_s)
        if event.event == "budget" and event.epoch is None:
            by_older = spent_s is None and not self._is_reopened  # older versions did not record the limit
            self._limit.is_over |= by_older or (spent_s is not None and spent_s == self._limit.limit_s)
        if list(changes) != list(event.changes):
            raise NotReady(
                f"run {self._run_id}: the search's decision differs from the recorded one at event"
                f" {event.ordinal} ({event.event})",
                hint=_why_other_decisions(self._began_with, self._search.sampler_version),
            )

    def _catch_up(self) -> Decisions:
        """Report to the search what was recorded but not reported when the last driver died."""
        events = self._history.events
        received = {(event.mst_key, event.epoch) for event in events if event.event == "result"}
        told_failed = {event.mst_key for event in events if event.event == "failed"}
        metrics: dict[tuple[int, int], list[Metric]] = {}
        for metric in self._history.metrics:
            metrics.setdefault((metric.mst_key, metric.epoch), []).append(metric)
        models = list(self._models.values())
        untold = [
            (metrics[m.mst_key, m.epoch][0].elapsed_s, m.mst_key, m.epoch)
            for m in models
            if m.state is ModelState.TRAINED and (m.mst_key, m.epoch) in metrics.keys() - received
        ]
        for _, mst_key, epoch in sorted(untold):
            yield from self.reached(mst_key, epoch, metrics[mst_key, epoch])
        for m in models:
            by_command = m.state is ModelState.STOPPED and m.mst_key in self._history.stopped
            if (m.state is ModelState.FAILED or by_command) and m.mst_key not in told_failed:
                yield from self.failed(m.mst_key)


def _why_other_decisions(began_with: str | None, now: str | None) -> str:
    """Return what to do if a search decides otherwise than recorded; the arguments are its `sampler_version`."""
    if None in (began_with, now) or began_with == now:
        return "The version of a library such as Optuna may have changed; restore that version, or start a new search."
    return f"The search began with {began_with}, and now has {now}: install {began_with}, or start a new search."


def loss_of(metrics: Sequence[Metric]) -> float:
    """Return the loss that a search uses: on validation data if there are any, else on training data.

    Parameters
    ----------
    metrics : sequence of Metric
        Of one model at one epoch.
    """
    losses = {metric.data_set: metric.value for metric in metrics if metric.ordinal == 0}
    return losses["validation"] if "validation" in losses else losses["training"]
