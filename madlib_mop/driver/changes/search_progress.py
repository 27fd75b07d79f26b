"""The progress messages of a search: decisions, best model so far, trained models, time."""

import math
import time
from collections import Counter
from collections.abc import Sequence

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import Metric, RunRow, SearchEvent
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.progress import ProgressReporter, TimeLeft, takes
from madlib_mop.models.changes import Add, Change, Exploit, Extend, Finish, Stop

_LEAST_PAUSE_S = 1.0
_WORDS: dict[type[Change], str] = {Add: "new", Extend: "going on", Stop: "stopped", Exploit: "copying a better one"}


class SearchProgress(ProgressReporter):
    """Reports a search to the caller by NOTICEs, at most one a second.

    Parameters
    ----------
    session : CallerSession
    run : RunRow
    models : list of ModelRow
        None of a new run.
    events : sequence of SearchEvent
        Those of earlier drivers of the run.
    """

    def __init__(
        self, session: CallerSession, run: RunRow, models: list[ModelRow], events: Sequence[SearchEvent] = ()
    ):
        super().__init__(session, run, models)
        self._data_set = "validation" if run.plan.validation else "training"
        self._losses: dict[int, tuple[float, int]] = {}  # by mst_key: (loss, epoch)
        self._n_added = self._n_results = 0
        self._counts: Counter[str] = Counter()
        self._notified_at = -math.inf
        for event in events:
            self._repeated(event)

    def started(self, expected: str | None = None) -> None:
        """Write a NOTICE about the start."""
        run, plan = self._run, self._run.search_plan
        what = f"replay of {plan.method}" if run.kind == "replay" else plan.method
        self._session.notice(
            f"run {run.run_id}: {what} ({plan.params}) on {run.n_segments} segments, random_state"
            f" {plan.random_state}, seed {run.seed}, schedule {run.schedule};{takes(expected)}"
            " the trainers are starting"
        )

    def metrics_known(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> None:
        """Record a model's newest loss."""
        losses = {metric.data_set: metric.value for metric in metrics if metric.ordinal == 0}
        self._note_loss(mst_key, epoch, losses[self._data_set])

    def epoch_over(self, mst_key: int, epoch: int, scheduler: TimeLeft) -> None:
        """Write nothing about single epochs: a search reports its decisions."""

    def model_stopped(self, mst_key: int, scheduler: TimeLeft) -> None:
        """Write nothing about single iterations."""

    def model_failed(self, mst_key: int, reason: str, scheduler: TimeLeft) -> None:
        """Warn that a model has failed."""
        self._session.warning(f"run {self._run.run_id}: mst_key {mst_key} failed: {reason}")
        self._losses.pop(mst_key, None)

    def _repeated(self, event: SearchEvent) -> None:
        """Record an event of a search, and its decision, before this driver."""
        self._n_results += event.event in ("result", "failed")
        self._n_added += sum(isinstance(change, Add) for change in event.changes)
        if event.event == "result":
            assert event.mst_key is not None and event.epoch is not None and event.loss is not None, "a result has them"
            self._note_loss(event.mst_key, event.epoch, event.loss)

    def decided(self, event: SearchEvent) -> None:
        """Write a NOTICE about a search's decision."""
        self._repeated(event)
        for change in event.changes:
            if isinstance(change, Finish):
                self._session.notice(
                    f"run {self._run.run_id}: {change.reason}; the models stop at the end of their current epochs"
                )
            else:
                self._counts[_WORDS[type(change)]] += 1
        if self._counts and time.monotonic() - self._notified_at >= _LEAST_PAUSE_S:
            self._notify()

    def run_over(self) -> None:
        """Write a NOTICE about the end of the search."""
        self._counts["the search is over"] = 0
        self._notify()

    def _note_loss(self, mst_key: int, epoch: int, loss: float) -> None:
        if math.isfinite(loss):
            self._losses[mst_key] = (loss, epoch)
        else:
            self._losses.pop(mst_key, None)

    def _notify(self) -> None:
        self._notified_at = time.monotonic()
        what = ", ".join(f"{n} {word}" if n else word for word, n in self._counts.items())
        self._counts.clear()
        budget = self._run.plan.time_limit_s or self._run.search_plan.budget_s
        of = f" of {budget:g}" if budget else ""
        self._session.notice(
            f"run {self._run.run_id}: {self._n_results} results of {self._n_added} models; {what}{self._best_now()};"
            f" {self.elapsed_s:.1f}{of} s"
        )

    def _best_now(self) -> str:
        if not self._losses:
            return ""
        mst_key = min(self._losses, key=lambda key: (self._losses[key][0], key))
        loss, epoch = self._losses[mst_key]
        return f"; best so far mst_key {mst_key}: {self._data_set} loss {loss:.4f} after epoch {epoch}"
