"""Changes of a run's models during the run: its controllers add, clone, extend, end and cross them here.

Changes are recorded in one transaction with their reasons, and then applied. So a run that is killed at any moment
continues with all of them or none. Created by the hopper.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ClonedFrom, ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateSlots
from madlib_mop.driver.evaluation.evaluations import Evaluations
from madlib_mop.models.configuration import Configuration
from madlib_mop.schedule import ModelWork, Scheduler, Visit


@dataclass(frozen=True)
class AddModel:
    """A new model."""

    model: ModelRow


@dataclass(frozen=True)
class ExtendModel:
    """A model that continues to ``last_epoch``."""

    mst_key: int
    last_epoch: int


@dataclass(frozen=True)
class CrossModel:
    """A model that continues to ``last_epoch`` with the newest state of another model, and another configuration.

    Attributes
    ----------
    configuration : Configuration
    keep_optimizer : bool
        Whether the variables of the other's optimizer are also used, except its learning rate.
    """

    mst_key: int
    source: int
    last_epoch: int
    configuration: Configuration
    keep_optimizer: bool


@dataclass(frozen=True)
class EndModel:
    """A model that starts no further epoch; without a complete first epoch, it is stopped at once."""

    mst_key: int
    reason: str


@dataclass(frozen=True)
class ClonedModel:
    """A new model with the newest state of another one.

    Attributes
    ----------
    model : ModelRow
        The clone.
    came_from : ClonedFrom
    keep_optimizer : bool or None
        Whether the optimizer's variables are used too; None if the clone has the same parameters.
    """

    model: ModelRow
    came_from: ClonedFrom
    keep_optimizer: bool | None


Change = AddModel | ExtendModel | CrossModel | EndModel | ClonedModel


class ModelChanges:
    """Changes the models of one run.

    Parameters
    ----------
    record : Record
    run : RunRow
    models : RunModels
    slots : StateSlots
    scheduler : Scheduler
    evaluations : Evaluations
    work_of : callable
        Returns a model for the scheduler, by mst_key.
    on_added : callable
        Called with each model that was added.
    """

    def __init__(
        self,
        record: Record,
        run: RunRow,
        models: RunModels,
        slots: StateSlots,
        scheduler: Scheduler,
        evaluations: Evaluations,
        work_of: Callable[[int], ModelWork],
        on_added: Callable[[ModelRow], None] = lambda model: None,
    ):
        self._record = record
        self._run_id = run.run_id
        self._n_segments = run.n_segments
        self.models = models
        self._slots = slots
        self._scheduler = scheduler
        self._evaluations = evaluations
        self._work_of = work_of
        self._on_added = on_added

    def change(self, changes: Sequence[Change], note: Callable[[], None] = lambda: None) -> None:
        """Record changes and the writes of ``note`` in one transaction; then apply them."""
        copied = [c.mst_key if isinstance(c, CrossModel) else c.model.mst_key
                  for c in changes if isinstance(c, CrossModel | ClonedModel)]  # fmt: skip
        slots = {key: self._slots.begin_write(key) for key in copied}
        obey: list[Callable[[], None]] = []
        with self._record.transaction():
            note()
            added = [c.model for c in changes if isinstance(c, AddModel)]
            if added:
                self.models.added(added)
                obey.append(partial(self._admit, added))
            for c in changes:
                if isinstance(c, ExtendModel):
                    obey.append(self._extend(c))
                elif isinstance(c, CrossModel):
                    obey.append(self._cross(c, slots[c.mst_key]))
                elif isinstance(c, ClonedModel):
                    obey.append(self._clone(c, slots[c.model.mst_key]))
                elif isinstance(c, EndModel):
                    obey.append(self._end(c))
        for step in obey:
            step()

    def _admit(self, models: Sequence[ModelRow]) -> None:
        self._slots.add_models(len(models))
        for model in models:
            self._scheduler.add_model(self._work_of(model.mst_key))
            self._on_added(self.models[model.mst_key])

    def _clone(self, change: ClonedModel, slot: int) -> Callable[[], None]:
        key = change.model.mst_key
        newest = self._record.lock_model(self._run_id, change.came_from.mst_key)
        self.models.cloned(change.model, newest, slot, change.came_from, change.keep_optimizer)

        def obey() -> None:
            self._slots.end_write(slot, key, newest.state_bytes)
            self._admit([self.models[key]])

        return obey

    def _extend(self, change: ExtendModel) -> Callable[[], None]:
        self.models.extended(change.mst_key, change.last_epoch)
        return lambda: self._scheduler.extend(change.mst_key, change.last_epoch)

    def _cross(self, change: CrossModel, slot: int) -> Callable[[], None]:
        copied = self.models.crossed(
            change.mst_key, change.source, slot, change.configuration, change.last_epoch, change.keep_optimizer
        )

        def obey() -> None:
            self._slots.end_write(slot, change.mst_key, copied.state_bytes)
            self._scheduler.extend(change.mst_key, change.last_epoch)

        return obey

    def _end(self, change: EndModel) -> Callable[[], None]:
        """End a model: at once, or at the end of its current epoch."""
        key, model = change.mst_key, self._record.lock_model(self._run_id, change.mst_key)
        if model.state in (ModelState.TRAINED, ModelState.STOPPED, ModelState.FAILED) or model.pinned:
            return lambda: None
        in_visit = self._epoch_in_visit(key)
        begun = max(model.epoch, in_visit or 0)
        complete = begun == model.epoch and model.position in (0, self._n_segments)
        copied = model.is_just_taken_over or (model.cloned_from is not None and not model.has_own_visits)
        untrained = copied and in_visit is None
        if begun < model.first_epoch or (begun == model.first_epoch and not complete) or untrained:
            what = "it was trained with the state that it copied" if untrained else "its first epoch was complete"
            self.models.stopped(key, f"{change.reason} before {what}")
            return lambda: self._scheduler.drop(key)
        self.models.shortened(key, begun)

        def obey() -> None:
            self._scheduler.finish_early(key)
            if complete and in_visit is None:
                self._evaluations.end_epoch(key)

        return obey

    def _epoch_in_visit(self, mst_key: int) -> int | None:
        """Return the epoch of a model's current visit."""
        for segment in self._scheduler.segments:
            task = self._scheduler.in_flight(segment)
            if isinstance(task, Visit) and task.model == mst_key:
                return task.epoch
        return None
