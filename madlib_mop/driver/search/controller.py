"""Controls a run with a search: passes it the results, records its decisions, and applies them with `ModelChanges`.

Every call of the search is written to `madlib_mop.search_event` with its decisions, in one transaction with the models
that these add or change. A search has no other state than its calls: a resumed run creates it again, repeats the
recorded calls, and delivers results that it had not yet received before the fault.

An event ``budget`` without an epoch says that the time budget was used up. With one, it says how many iterations a new
model can make before that, by the time of the fastest model so far.
"""

import math
from collections.abc import Iterable, Sequence

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.of_run import Metric, SearchEvent
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import CommandState, ModelState
from madlib_mop.driver.experience.configurations import past_trials
from madlib_mop.driver.search.actions import to_json
from madlib_mop.driver.search.models import SearchModels
from madlib_mop.driver.search.progress import SearchProgress
from madlib_mop.driver.search.recorded import RecordedSearch
from madlib_mop.driver.steering.controller import RunController
from madlib_mop.driver.steering.model_changes import AddModel, Change, CrossModel, EndModel, ExtendModel, ModelChanges
from madlib_mop.errors import MopError, NotReady
from madlib_mop.search import SearchSpace, make_search, parse_params
from madlib_mop.search.base import Action, Add, Exploit, Extend, Finish, Search, Stop

_BUDGET = "the time budget was used up"


def make_searcher(record: Record, run: RunRow, progress: SearchProgress) -> "Searcher":
    """Create the controller of a run that is a search, or the replay of one."""
    plan = run.search_plan
    params = parse_params(plan.method, plan.params)
    if run.kind == "replay":
        parent = run.parent_run_id
        assert parent is not None, "a replay repeats a run"
        recorded = RecordedSearch(record.search_events(parent), record.models(parent))
        return Searcher(record, run, recorded, progress)
    space = SearchSpace.read(plan.model_ids, plan.compile_params_grid, plan.fit_params_grid, plan.drawing)
    past = past_trials(plan.past, space, plan.custom_names)
    search = make_search(plan.method, params, space, plan.random_state, past)
    return Searcher(record, run, search, progress, params.budget_s)


class Searcher(RunController):
    """Controls one run.

    Parameters
    ----------
    record : Record
    run : RunRow
    search : Search or RecordedSearch
    progress : SearchProgress
        Notified of decisions.
    budget_s : float or None
        Seconds of training after which the search is finished.
    """

    def __init__(
        self,
        record: Record,
        run: RunRow,
        search: Search | RecordedSearch,
        progress: SearchProgress,
        budget_s: float | None = None,
    ):
        self._record = record
        self._run_id = run.run_id
        self._n_slots = run.n_segments
        self._rows = SearchModels(run.search_plan, run.plan.class_weight)
        self._search = search
        self._progress = progress
        self._budget_s = budget_s
        self._n_events = 0
        self._reported_left = search.enough_iterations
        self._begun: dict[int, tuple[float, int]] = {}  # of models in training: seconds of training, epoch
        self._iteration_s = math.inf  # of the fastest model, from its start to its result
        self._model_changes: ModelChanges  # set by `begin`

    def begin(self, model_changes: ModelChanges) -> None:
        """Start the search, or restore its recorded state.

        Raises
        ------
        NotReady
            If its decisions differ from the recorded ones.
        """
        self._model_changes = model_changes
        events = self._record.search_events(self._run_id)
        for event in events:
            self._repeat(event)
        self._n_events = len(events)
        if not events:
            self._report("start")
            return
        if not any(item["do"] == "finish" for event in events for item in event.actions):
            self._catch_up(events)

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> None:
        """Report to the search the loss of a model at its last epoch."""
        if not self._over and self._is_own(mst_key):
            self._measure(mst_key, epoch)
            self._report_time_left()
            self._report("result", mst_key, epoch, loss_of(metrics))

    def failed(self, mst_key: int) -> None:
        """Report to the search that a model has failed, or was stopped by a command."""
        if not self._over and self._is_own(mst_key):
            self._report_time_left()
            self._report("failed", mst_key)

    def tick(self) -> None:
        """Finish the search when its time budget is used up."""
        spent = self._budget_s is not None and self._progress.elapsed_s >= self._budget_s
        if spent and not self._over:
            self._report("budget")

    def ended(self) -> None:
        """Check that the search has nothing more to propose."""
        if not self._over:
            raise MopError(
                f"run {self._run_id}: its search waits for results, but no task is left to produce them",
                hint="In a replay, this means that a model failed which did not fail in the original run. Otherwise, "
                "please report it.",
            )
        if isinstance(self._search, RecordedSearch):
            for mst_key in self._search.untrained.keys() & self._model_changes.models.keys():
                repeated = self._search.untrained[mst_key]
                self._model_changes.models.ended_as(mst_key, repeated.state, repeated.state_detail)
        self._progress.search_over()

    @property
    def decides(self) -> bool:
        return not self._over

    @property
    def _over(self) -> bool:
        return self._search.done

    def _is_own(self, mst_key: int) -> bool:
        """Return whether the search has added a model, not a command."""
        return self._model_changes.models[mst_key].command_id is None

    def _measure(self, mst_key: int, epoch: int) -> None:
        """Measure the seconds of an iteration of a model that this driver has started."""
        if mst_key in self._begun:
            began_s, first_epoch = self._begun.pop(mst_key)
            each_s = (self._progress.elapsed_s - began_s) / (epoch - first_epoch)
            self._iteration_s = min(self._iteration_s, each_s)

    def _report_time_left(self) -> None:
        """Report how many iterations a new model can make before the budget ends, if that has changed."""
        enough = self._search.enough_iterations
        if self._budget_s is None or not enough or not math.isfinite(self._iteration_s):
            return
        left_s = max(0.0, self._budget_s - self._progress.elapsed_s)
        left = enough if left_s >= enough * self._iteration_s else int(left_s / self._iteration_s)
        if left != self._reported_left:
            self._report("budget", epoch=left)

    def _report(
        self, event: str, mst_key: int | None = None, epoch: int | None = None, loss: float | None = None
    ) -> None:
        """Report an event to the search; record it with the decisions, then apply them."""
        actions = self._call(event, mst_key, epoch, loss)
        row = SearchEvent(
            run_id=self._run_id,
            ordinal=self._n_events,
            event=event,
            mst_key=mst_key,
            epoch=epoch,
            loss=loss,
            actions=to_json(actions),
        )
        self._model_changes.change(self._changes(actions), lambda: self._record.add_search_event(row))
        self._n_events += 1
        self._note_starts(actions)
        self._progress.decided(row, actions)

    def _note_starts(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Add | Extend | Exploit):
                key = action.proposal.mst_key if isinstance(action, Add) else action.mst_key
                self._begun[key] = self._progress.elapsed_s, self._model_changes.models[key].epoch

    def _call(self, event: str, mst_key: int | None, epoch: int | None, loss: float | None) -> list[Action]:
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
        return self._search.finish(_BUDGET)

    def _repeat(self, event: SearchEvent) -> None:
        actions = self._call(event.event, event.mst_key, event.epoch, event.loss)
        if to_json(actions) != event.actions:
            raise NotReady(
                f"run {self._run_id}: the search's decision differs from the recorded one at event"
                f" {event.ordinal} ({event.event})",
                hint="The version of a library such as Optuna may have changed; restore that version, or start a new "
                "search.",
            )
        self._progress.repeated(event, actions)

    def _catch_up(self, events: Sequence[SearchEvent]) -> None:
        """Report to the search what was recorded but not reported when the last driver died."""
        received = {(event.mst_key, event.epoch) for event in events if event.event == "result"}
        told_failed = {event.mst_key for event in events if event.event == "failed"}
        metrics: dict[tuple[int, int], list[Metric]] = {}
        for metric in self._record.metrics(self._run_id):
            metrics.setdefault((metric.mst_key, metric.epoch), []).append(metric)
        models = list(self._model_changes.models.values())
        untold = [
            (metrics[m.mst_key, m.epoch][0].elapsed_s, m.mst_key, m.epoch)
            for m in models
            if m.state is ModelState.TRAINED and (m.mst_key, m.epoch) in metrics.keys() - received
        ]
        for _, mst_key, epoch in sorted(untold):
            self.reached(mst_key, epoch, metrics[mst_key, epoch])
        stopped = {command.work["mst_key"] for command in self._record.commands(self._run_id, CommandState.OBEYED)
                   if command.command == "stop_model"}  # fmt: skip
        for m in models:
            has_ended = m.state is ModelState.FAILED or (m.state is ModelState.STOPPED and m.mst_key in stopped)
            if has_ended and m.mst_key not in told_failed:
                self.failed(m.mst_key)

    def _changes(self, actions: Iterable[Action]) -> list[Change]:
        changes: list[Change] = []
        for action in actions:
            match action:
                case Add(proposal):
                    changes.append(AddModel(self._rows.added(proposal)))
                case Extend(mst_key, last_epoch):
                    changes.append(ExtendModel(mst_key, last_epoch))
                case Exploit():
                    changes.append(self._crossed(action))
                case Stop(mst_key, reason):
                    changes.append(EndModel(mst_key, reason))
                case Finish(reason):
                    changes += [EndModel(key, reason) for key in self._model_changes.models]
        return changes

    def _crossed(self, action: Exploit) -> CrossModel:
        source = self._model_changes.models[action.source]
        new = self._rows.configuration(action.model_id, action.compile_params, action.fit_params)
        keep = new.has_optimizer_of(source.configuration)
        return CrossModel(action.mst_key, action.source, action.last_epoch, new, keep)


def loss_of(metrics: Sequence[Metric]) -> float:
    """Return the loss that a search uses: on validation data if there are any, else on training data.

    Parameters
    ----------
    metrics : sequence of Metric
        Of one model at one epoch.
    """
    losses = {metric.data_set: metric.value for metric in metrics if metric.ordinal == 0}
    return losses["validation"] if "validation" in losses else losses["training"]
