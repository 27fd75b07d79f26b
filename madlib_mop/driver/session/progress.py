"""The progress messages of a run: a NOTICE at its start, for each iteration and for each failed model."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Protocol

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import Metric, RunRow, SearchEvent
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.models.parameters.parser import higher_is_better


@dataclass(frozen=True)
class _Figures:
    """One model's figures after one iteration: its loss, and its first metric (the loss again if it has none)."""

    data_set: str
    loss: float
    metric_name: str | None
    metric: float


class TimeLeft(Protocol):
    """The interface for estimating a run's time: `Scheduler` and `BulkSynchronous`."""

    def seconds_left(self) -> float | None:
        """Return an estimate of the seconds until the run's end; None if unknown."""


class ProgressReporter:
    """Reports a run to the caller by NOTICEs.

    Parameters
    ----------
    session : CallerSession
    run : RunRow
    models : list of ModelRow
    """

    def __init__(self, session: CallerSession, run: RunRow, models: list[ModelRow]):
        self._session = session
        self._run = run
        self._begun = time.monotonic()
        self._paused_since: float | None = None
        self._left = {m.mst_key: m for m in models if m.state is not ModelState.FAILED}
        self._n_models = len(models)
        self._n_failed = self._n_models - len(self._left)
        self._iterations: dict[int, int] = {
            key: m.epoch - m.first_epoch + (1 if m.position == run.n_segments else 0)
            for key, m in self._left.items()
            if m.is_alive
        }
        self._reported = min(self._iterations.values(), default=0)
        self._figures: dict[int, dict[int, _Figures]] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds of training so far, those of earlier drivers of the run included."""
        return self._run.training_s + self.spent_s

    @property
    def spent_s(self) -> float:
        """Seconds of training of this driver, without pauses."""
        return (self._paused_since or time.monotonic()) - self._begun

    def pause(self) -> None:
        """Count no time until `resume`."""
        self._paused_since = time.monotonic()

    def resume(self) -> None:
        """Count the time again, after a pause."""
        if self._paused_since is not None:
            self._begun += time.monotonic() - self._paused_since
            self._paused_since = None

    def started(self, expected: str | None = None) -> None:
        """Write a NOTICE about the start; ``expected`` says how long the run will take."""
        run = self._run
        self._session.notice(
            f"run {run.run_id}: {_count(run.n_models, 'configuration')} on"
            f" {_count(run.n_segments, 'segment')},"
            f" {_count(run.num_iterations, 'iteration')}, schedule {run.schedule}, seed {run.seed};{takes(expected)}"
            " the trainers are starting"
        )

    def tell(self, sentence: str) -> None:
        """Write a NOTICE about the run."""
        self._session.notice(f"run {self._run.run_id}: {sentence}")

    def metrics_known(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> None:
        """Record a model's metrics."""
        data_sets = {metric.data_set for metric in metrics}
        data_set = "validation" if "validation" in data_sets else "training"
        values = {metric.ordinal: metric for metric in metrics if metric.data_set == data_set}
        loss, first = values[0].value, values.get(1)
        iteration = self._left[mst_key].iteration(epoch)
        figures = _Figures(data_set, loss, first.name if first else None, first.value if first else loss)
        self._figures.setdefault(iteration, {})[mst_key] = figures

    def epoch_over(self, mst_key: int, epoch: int, scheduler: TimeLeft) -> None:
        """Record a model's complete epoch; report the iteration when all its models have completed it."""
        self._iterations[mst_key] = self._left[mst_key].iteration(epoch)
        self._report(scheduler)

    def stopped_early(self, mst_key: int, scheduler: TimeLeft) -> None:
        """Record that a model has no further iterations, so that later ones are not counted for it."""
        self._iterations.pop(mst_key, None)
        self._report(scheduler)

    def model_failed(self, mst_key: int, reason: str, scheduler: TimeLeft) -> None:
        """Warn that a model has failed."""
        self._session.warning(f"run {self._run.run_id}: mst_key {mst_key} failed: {reason}")
        self._left.pop(mst_key, None)
        self._iterations.pop(mst_key, None)
        self._n_failed += 1
        self._report(scheduler)

    def model_stopped(self, mst_key: int, scheduler: TimeLeft) -> None:
        """Record that a command has stopped a model, so that the iterations of the others count."""
        self._iterations.pop(mst_key, None)
        self._report(scheduler)

    def model_added(self, model: ModelRow) -> None:
        """Record a model that a command has added, resumed or extended."""
        self._n_models += model.mst_key not in self._left
        self._left[model.mst_key] = model
        complete = model.position == self._run.n_segments
        self._iterations[model.mst_key] = model.epoch - model.first_epoch + (1 if complete else 0)

    def decided(self, event: SearchEvent) -> None:
        """Write nothing: the run is no search."""

    def run_over(self) -> None:
        """Called when no task is left."""

    def versions_changed(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Warn that the weights may differ in some bits from those of an uninterrupted run."""
        changed = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in now if before.get(name) != now[name])
        self._session.warning(
            f"run {self._run.run_id}: {changed} since the start of the run; its weights may differ in some bits from "
            f"those of an uninterrupted run"
        )

    def _report(self, scheduler: TimeLeft) -> None:
        done = min(self._iterations.values(), default=0)
        if done <= self._reported or not self._iterations:
            return
        self._reported = done
        failed = f", {self._n_failed} failed" if self._n_failed else ""
        left = scheduler.seconds_left()
        eta = f", about {left:.0f} s left" if left and done < self._run.num_iterations else ""
        self._session.notice(
            f"run {self._run.run_id}: iteration {done} of {self._run.num_iterations} done by"
            f" {len(self._iterations)} of {self._n_models} models{failed}{self._best_of(done)},"
            f" {self.elapsed_s:.1f} s{eta}"
        )

    def _best_of(self, iteration: int) -> str:
        """Return the best model by the rule of view `leaderboard`: by the first metric if all models have the same
        one, else by loss."""
        found = {key: figures for key, figures in self._figures.pop(iteration, {}).items() if key in self._left}
        names = {figures.metric_name for figures in found.values()}
        by_metric = next(iter(names)) if len(names) == 1 else None
        scores = {key: figures.metric if by_metric else figures.loss for key, figures in found.items()}
        sign = -1 if by_metric and higher_is_better(by_metric) else 1
        losses = {key: inf if isnan(figures.loss) else figures.loss for key, figures in found.items()}
        finite = [(sign * score, losses[key], key) for key, score in scores.items() if isfinite(score)]
        if not finite:
            return ""
        mst_key = min(finite)[-1]
        return f", best {found[mst_key].data_set} {by_metric or 'loss'} {scores[mst_key]:.4f} (mst_key {mst_key})"


def takes(expected: str | None) -> str:
    """Return the part of the first NOTICE that says how long a run will take; empty if that is not known."""
    return "" if expected is None else f" it should take {expected};"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
