"""Early stopping in a run: decided after each computation of metrics, recorded before it is obeyed.

`planning.early_stopping` plans it. A decision is a function of the recorded metrics
(`models.parameters.early_stopping`). The state of a model's best iteration is a second state of the model: a copy of
its newest one, in the run's slots, under a version below 0, which no visit writes. At its end the model's row names
that one as its newest. Called by the hopper and by model averaging.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.state_slots import StateSlots
from madlib_mop.driver.session.progress import Progress
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.early_stopping import EarlyStopping, follow

_STATE = ("state_bytes", "model_bytes", "forward_parts", "digest", "weights_digest")


def is_restored(model: dict) -> bool:
    """Return whether a model's state is that of its best iteration; ``model`` is a row of `madlib_mop.model`."""
    return model["best_state"] is not None and model["best_state"]["version"] == model["state_version"]


def best_epoch(model: dict) -> int | None:
    """Return the epoch that a model's state is of, where that is not its newest one."""
    return model["best_state"]["epoch"] if is_restored(model) else None


def best_states(models: Iterable[dict]) -> list[dict]:
    """List the states of best iterations that are kept beside newest ones, in the words of `StateSlots`."""
    return [
        {
            "mst_key": best_key(m["mst_key"]),
            "state_slot": m["best_state"]["slot"],
            "state_bytes": m["best_state"]["state_bytes"],
        }
        for m in models
        if m["best_state"] is not None and not is_restored(m) and m["state"] != "failed"
    ]


def best_key(mst_key: int) -> tuple[str, int]:
    """Return the key of a model's best state in `StateSlots`."""
    return "best", mst_key


class EarlyStops:
    """The early stopping of one run's models.

    Parameters
    ----------
    record : Record
    run : dict
        Row of `madlib_mop.run`.
    models : dict of int to dict
        Rows of `madlib_mop.model` by mst_key; shared with the loop that trains them.
    slots : StateSlots
    progress : Progress
    """

    def __init__(self, record: Record, run: dict, models: dict[int, dict], slots: StateSlots, progress: Progress):
        self._record = record
        self._run_id = run["run_id"]
        self._n_segments = run["n_segments"]
        self._models = models
        self._slots = slots
        self._progress = progress
        self._rules = {
            key: EarlyStopping(**m["early_stopping"]) for key, m in models.items() if m["early_stopping"] is not None
        }
        self._series: dict[int, list[tuple[int, float]]] = defaultdict(list)
        if self._rules:
            for row in record.metrics(self._run_id):
                self._add(row)

    def resume(self) -> None:
        """Decide what a driver that died had not decided or obeyed; nothing of a model's next epoch was begun then."""
        for key in self._rules:
            model, series = self._models[key], self._series[key]
            complete = model["position"] == self._n_segments and model["state"] == "training"
            if complete and series and series[-1][0] == model["epoch"]:
                self._decide(key)
                if model["epoch"] == model["last_epoch"]:
                    self.restore(key)

    def measured(self, mst_key: int, metrics: Sequence[dict]) -> bool:
        """Take a model's newest metrics, rows of `madlib_mop.metric`; tell whether it stops with this epoch."""
        if mst_key not in self._rules:
            return False
        before = len(self._series[mst_key])
        for row in metrics:
            self._add(row)
        if len(self._series[mst_key]) == before:
            names = ", ".join(sorted({_prefix(row["data_set"]) + row["name"] for row in metrics}))
            raise InvalidParameter(
                f"early_stopping: mst_key {mst_key} has no such metric. Received: {self._rules[mst_key].metric!r}",
                hint=f"Its metrics are {names}. Begin a new run.",
            )
        return self._decide(mst_key)

    def restore(self, mst_key: int) -> None:
        """Let a model that ends have the state of its best iteration, if that is wanted."""
        model = self._models[mst_key]
        if mst_key not in self._rules or model["best_state"] is None or is_restored(model):
            return
        best = {**model["best_state"], "slot": self._slots.slot_of(best_key(mst_key))}
        detail = model["state_detail"]
        if best["epoch"] != model["epoch"]:
            told = f"the weights are those of iteration {self._iteration(model, best['epoch'])}"
            detail = f"{detail}; {told}" if detail else told
        values = {
            "state_slot": best["slot"],
            "state_version": best["version"],
            "state_detail": detail,
            **{name: best[name] for name in _STATE},
        }
        with self._record.transaction():
            self._record.delete_state(self._record.lock_model(self._run_id, mst_key))
            self._record.set_model(self._run_id, mst_key, **values)
        model.update(values)
        self._slots.rename(best_key(mst_key), mst_key)

    def forget(self, mst_key: int) -> None:
        """Give up the best state of a model that failed."""
        if self._models[mst_key]["best_state"] is not None:
            self._slots.release(best_key(mst_key))

    def _decide(self, mst_key: int) -> bool:
        """Keep the state that a model has now, if it is its best; stop the model, if it is to stop."""
        rule, model = self._rules[mst_key], self._models[mst_key]
        epoch = self._series[mst_key][-1][0]
        course = follow(rule, self._series[mst_key])
        if rule.restore_best and course.best_epoch == epoch:
            self._keep(mst_key, epoch)
        if not course.stops or epoch == model["last_epoch"]:
            return course.stops
        detail = (
            f"stopped early at iteration {self._iteration(model, epoch)}: {rule.metric} was best at iteration"
            f" {self._iteration(model, course.best_epoch)}"
        )
        values = {"last_epoch": epoch, "state_detail": detail}
        self._record.set_model(self._run_id, mst_key, **values)
        model.update(values)
        self._progress.tell(f"mst_key {mst_key} {detail}")
        return True

    def _keep(self, mst_key: int, epoch: int) -> None:
        """Copy a model's newest state, and forget what was its best before; all in one transaction."""
        old = self._models[mst_key]["best_state"]
        if old is not None and old["epoch"] == epoch:
            return
        key = best_key(mst_key)
        old_slot = self._slots.slot_of(key) if old is not None else None
        slot = self._slots.begin_write(key)
        with self._record.transaction():
            newest = self._record.lock_model(self._run_id, mst_key)
            version = -1 - newest["state_version"]
            self._record.copy_parts(newest, self._run_id, mst_key, slot, version)
            if old is not None:
                self._record.delete_state({**newest, "state_slot": old_slot, "state_version": old["version"]})
            best = {"epoch": epoch, "slot": slot, "version": version, **{name: newest[name] for name in _STATE}}
            self._record.set_model(self._run_id, mst_key, best_state=best)
        self._slots.end_write(slot, key, newest["state_bytes"])
        self._models[mst_key]["best_state"] = best

    def _add(self, row: Mapping) -> None:
        rule = self._rules.get(row["mst_key"])
        if rule is not None and (row["data_set"], row["name"]) == (rule.data_set, rule.metric_name):
            self._series[row["mst_key"]].append((row["epoch"], row["value"]))

    @staticmethod
    def _iteration(model: dict, epoch: int) -> int:
        return epoch - model["first_epoch"] + 1


def _prefix(data_set: str) -> str:
    return "val_" if data_set == "validation" else ""
