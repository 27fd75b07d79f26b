"""Changes of a run's models while it goes on: its controller adds, extends, ends and crosses them here.

Changes are recorded in one transaction together with why they are made, and only then obeyed, so that a run that is
killed at any moment goes on with all of them or none. Made by the hopper.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.state_slots import StateSlots
from madlib_mop.driver.evaluation.evaluations import Evaluations
from madlib_mop.schedule import ModelWork, Scheduler, Visit


@dataclass(frozen=True)
class AddModel:
    """A new model; ``row`` has the columns of `madlib_mop.model` but its run's."""

    row: dict = field(repr=False)


@dataclass(frozen=True)
class ExtendModel:
    """A model that goes on to ``last_epoch``."""

    mst_key: int
    last_epoch: int


@dataclass(frozen=True)
class CrossModel:
    """A model that goes on to ``last_epoch`` with the newest state of another, and with other parameters.

    Attributes
    ----------
    parameters : dict
        Columns of `madlib_mop.model`: compile_params, fit_params and what follows from them.
    keep_optimizer : bool
        Whether the variables of the other's optimizer are gone on with too; its learning rate never is.
    """

    mst_key: int
    source: int
    last_epoch: int
    parameters: dict
    keep_optimizer: bool


@dataclass(frozen=True)
class EndModel:
    """A model that begins no further epoch; one that has not completed its first is stopped where it is."""

    mst_key: int
    reason: str


Change = AddModel | ExtendModel | CrossModel | EndModel


class ModelChanges:
    """Changes the models of one run.

    Parameters
    ----------
    record : Record
    run : dict
        Row of `madlib_mop.run`.
    models : dict of int to dict
        Rows of `madlib_mop.model` by mst_key; shared with the hopper.
    versions : dict of int to int
        Version of each model's newest state; shared with the hopper.
    slots : StateSlots
    scheduler : Scheduler
    evaluations : Evaluations
    """

    def __init__(
        self,
        record: Record,
        run: dict,
        models: dict[int, dict],
        versions: dict[int, int],
        slots: StateSlots,
        scheduler: Scheduler,
        evaluations: Evaluations,
    ):
        self._record = record
        self._run_id = run["run_id"]
        self._n_segments = run["n_segments"]
        self.models = models
        self._versions = versions
        self._slots = slots
        self._scheduler = scheduler
        self._evaluations = evaluations

    def change(self, changes: Sequence[Change], note: Callable[[], None] = lambda: None) -> None:
        """Record changes and what ``note`` writes, in one transaction; then obey them."""
        slots = {c.mst_key: self._slots.begin_write(c.mst_key) for c in changes if isinstance(c, CrossModel)}
        obey = []
        with self._record.transaction():
            note()
            added = [c.row for c in changes if isinstance(c, AddModel)]
            if added:
                self._record.add_models(self._run_id, added)
                obey.append(lambda: self._admit(added))
            for c in changes:
                if isinstance(c, ExtendModel):
                    obey.append(self._extend(c))
                elif isinstance(c, CrossModel):
                    obey.append(self._cross(c, slots[c.mst_key]))
                elif isinstance(c, EndModel):
                    obey.append(self._end(c))
        for step in obey:
            step()

    def _admit(self, rows: list[dict]) -> None:
        keys = {row["mst_key"] for row in rows}
        self._slots.add_models(len(rows))
        for model in self._record.models(self._run_id):
            if model["mst_key"] in keys:
                self.models[model["mst_key"]] = model
                self._versions[model["mst_key"]] = model["state_version"]
                work = ModelWork(model["mst_key"], model["ordinal"], model["last_epoch"], model["first_epoch"])
                self._scheduler.add_model(work)

    def _extend(self, change: ExtendModel) -> Callable[[], None]:
        values = {"last_epoch": change.last_epoch, "state": "training"}
        self._record.set_model(self._run_id, change.mst_key, **values)

        def obey() -> None:
            self.models[change.mst_key].update(values)
            self._scheduler.extend(change.mst_key, change.last_epoch)

        return obey

    def _cross(self, change: CrossModel, slot: int) -> Callable[[], None]:
        old = self._record.lock_model(self._run_id, change.mst_key)
        source = self._record.lock_model(self._run_id, change.source)
        version = old["state_version"] + 1
        self._record.copy_state(self._run_id, change.mst_key, slot, source, version)
        self._record.delete_state(old)
        taken_over = {
            "mst_key": change.source,
            "epoch": source["epoch"],
            "version": version,
            "optimizer": change.keep_optimizer,
        }
        values = {
            **change.parameters,
            "last_epoch": change.last_epoch,
            "state": "training",
            "taken_over": taken_over,
        }
        self._record.set_model(self._run_id, change.mst_key, **values)

        def obey() -> None:
            self._slots.end_write(slot, change.mst_key, source["state_bytes"])
            self.models[change.mst_key].update(values, digest=source["digest"])
            self._versions[change.mst_key] = version
            self._scheduler.extend(change.mst_key, change.last_epoch)

        return obey

    def _end(self, change: EndModel) -> Callable[[], None]:
        """End a model: at once, or with the epoch that it is in, which is complete or can be completed."""
        key, model = change.mst_key, self._record.lock_model(self._run_id, change.mst_key)
        if model["state"] in ("trained", "stopped", "failed"):
            return lambda: None
        in_visit = self._epoch_in_visit(key)
        begun = max(model["epoch"], in_visit or 0)
        complete = begun == model["epoch"] and model["position"] in (0, self._n_segments)
        untrained = _just_taken_over(model) and in_visit is None
        if begun < model["first_epoch"] or (begun == model["first_epoch"] and not complete) or untrained:
            what = "it was trained with the state that it took over" if untrained else "its first epoch was complete"
            values = {"state": "stopped", "state_detail": f"{change.reason} before {what}"}
            then = self._scheduler.drop
        else:
            values = {"last_epoch": begun}
            then = self._scheduler.finish_early
        self._record.set_model(self._run_id, key, **values)

        def obey() -> None:
            self.models[key].update(values)
            then(key)
            if complete and "last_epoch" in values and in_visit is None:
                self._evaluations.settle(key)

        return obey

    def _epoch_in_visit(self, mst_key: int) -> int | None:
        """Return the epoch of the visit that a model is in."""
        for segment in self._scheduler.segments:
            task = self._scheduler.in_flight(segment)
            if isinstance(task, Visit) and task.model == mst_key:
                return task.epoch
        return None


def _just_taken_over(model: dict) -> bool:
    """Return whether a model's newest state is that of another and was not trained since: its metrics are older."""
    taken_over = model["taken_over"]
    return taken_over is not None and taken_over["version"] == model["state_version"]
