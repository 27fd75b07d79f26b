"""Early stopping in a run: decided after each computation of metrics, and recorded before it takes effect.

`planning.selection` plans it. A decision is a function of the recorded metrics
(`models.parameters.early_stopping`). The state of a model's best iteration is a second state of the model: a copy of
its newest one, in the run's slots, with a version below 0, which no visit writes. At the model's end, its row
references that state as its newest. Called by the hopper and by model averaging.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.model import STATE_COLUMNS, BestState
from madlib_mop.catalog.rows.run import Metric, RunRow
from madlib_mop.catalog.rows.states import ChangeSource, ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateSlots, best_key
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.models.changes import Stop
from madlib_mop.models.parameters.early_stopping import EarlyStopping, follow


class EarlyStops:
    """The early stopping of one run's models.

    Parameters
    ----------
    record : Record
    run : RunRow
    models : RunModels
    slots : StateSlots
    progress : ProgressReporter
    """

    def __init__(self, record: Record, run: RunRow, models: RunModels, slots: StateSlots, progress: ProgressReporter):
        self._record = record
        self._run_id = run.run_id
        self._n_segments = run.n_segments
        self._models = models
        self._slots = slots
        self._progress = progress
        self._rules = {
            key: EarlyStopping(**m.early_stopping) for key, m in models.items() if m.early_stopping is not None
        }
        self._series: dict[int, list[tuple[int, float]]] = defaultdict(list)
        if self._rules:
            for metric in record.metrics(self._run_id):
                self._add(metric)

    def resume(self) -> list[int]:
        """Make the decisions that a dead driver did not make or apply; return the mst_keys of models that stop.

        At that time, no model had started its next epoch.
        """
        stopped = []
        for key in self._rules:
            model, series = self._models[key], self._series[key]
            complete = model.position == self._n_segments and model.state is ModelState.TRAINING
            if complete and series and series[-1][0] == model.epoch:
                if self._decide(key):
                    stopped.append(key)
                if model.epoch == self._models[key].last_epoch:
                    self.restore(key)
        return stopped

    def add_model(self, mst_key: int) -> None:
        """Watch a model that was added to the run."""
        rule = self._models[mst_key].early_stopping
        if rule is not None:
            self._rules[mst_key] = EarlyStopping(**rule)

    def extended(self, mst_key: int) -> None:
        """Watch a model no longer if it had stopped early and was extended."""
        if self._models[mst_key].early_stopping is None:
            self._rules.pop(mst_key, None)

    def measured(self, mst_key: int, metrics: Sequence[Metric]) -> bool:
        """Process a model's newest metrics; return whether it stops with this epoch."""
        if mst_key not in self._rules:
            return False
        before = len(self._series[mst_key])
        for metric in metrics:
            self._add(metric)
        if len(self._series[mst_key]) == before:
            # a rule of an earlier version, which did not compare the name with those of all outputs
            names = ", ".join(sorted({_prefix(m.data_set) + m.name for m in metrics}))
            wanted = self._rules.pop(mst_key).metric
            self._progress.tell(f"mst_key {mst_key} does not stop early: it has no metric {wanted!r}, only {names}")
            return False
        return self._decide(mst_key)

    def restore_measured(self, mst_key: int) -> None:
        """Restore a model's best iteration if the metrics of its newest one, which is now its last, are known."""
        series = self._series.get(mst_key)
        if series and series[-1][0] == self._models[mst_key].epoch == self._models[mst_key].last_epoch:
            self.restore(mst_key)

    def restore(self, mst_key: int) -> None:
        """Restore a model's best iteration at its end, with restore_best."""
        model = self._models[mst_key]
        best, detail = model.best_state, model.state_detail
        if mst_key not in self._rules or best is None or model.is_restored:
            return
        if best.epoch != model.epoch:
            told = f"the weights are those of iteration {model.iteration(best.epoch)}"
            detail = f"{detail}; {told}" if detail else told
        self._models.restored(mst_key, best, self._slots.slot_of(best_key(mst_key)), detail)
        self._slots.rename(best_key(mst_key), mst_key)

    def fail_damaged(self, mst_key: int, reason: str) -> None:
        """Fail a model whose newest state is damaged; its best state becomes its newest one, so it can be cloned."""
        best = self._models[mst_key].best_state
        assert best is not None, "the caller has seen it"
        with self._record.transaction():
            self._models.restored(mst_key, best, self._slots.slot_of(best_key(mst_key)), None)
            self._models.failed(mst_key, reason)
        self._slots.rename(best_key(mst_key), mst_key)

    def forget(self, mst_key: int) -> None:
        """Release the best state of a model that failed, unless it is the model's newest state now."""
        model = self._models[mst_key]
        if model.best_state is not None and not model.is_restored:
            self._slots.release(best_key(mst_key))

    def _decide(self, mst_key: int) -> bool:
        """Store a model's current state if it is its best; stop the model if its rule requires it."""
        rule, model = self._rules[mst_key], self._models[mst_key]
        epoch = self._series[mst_key][-1][0]
        course = follow(rule, self._series[mst_key])
        if rule.restore_best and course.best_epoch == epoch:
            self._save_best(mst_key, epoch)
        if not course.stops or epoch == model.last_epoch:
            return course.stops
        detail = (
            f"stopped early at iteration {model.iteration(epoch)}: {rule.metric} was best at iteration"
            f" {model.iteration(course.best_epoch)}"
        )
        with self._record.transaction():
            self._models.stopped_early(mst_key, epoch, detail)
            visit = {str(mst_key): [epoch, model.position]}
            row = ChangeRow.made(self._run_id, ChangeSource.EARLY_STOPPING, Stop(mst_key, detail), [mst_key], visit)
            self._record.add_changes([row])
        self._progress.tell(f"mst_key {mst_key} {detail}")
        return True

    def _save_best(self, mst_key: int, epoch: int) -> None:
        """Copy a model's newest state and delete its previous best one, in one transaction."""
        old = self._models[mst_key].best_state
        if old is not None and old.epoch == epoch:
            return
        key = best_key(mst_key)
        old_slot = self._slots.slot_of(key) if old is not None else None
        slot = self._slots.begin_write(key)
        with self._record.transaction():
            newest = self._record.lock_model(self._run_id, mst_key)
            version = -1 - newest.state_version
            self._record.copy_parts(newest, self._run_id, mst_key, slot, version)
            if old is not None:
                self._record.delete_state(replace(newest, state_slot=old_slot, state_version=old.version))
            state = {name: getattr(newest, name) for name in STATE_COLUMNS}
            self._models.best_kept(mst_key, BestState(epoch, slot, version, **state))
        self._slots.end_write(slot, key, newest.state_bytes)

    def _add(self, metric: Metric) -> None:
        rule = self._rules.get(metric.mst_key)
        if rule is not None and (metric.data_set, metric.name) == (rule.data_set, rule.metric_name):
            self._series[metric.mst_key].append((metric.epoch, metric.value))


def _prefix(data_set: str) -> str:
    return "val_" if data_set == "validation" else ""
