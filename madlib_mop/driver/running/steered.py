"""A running run as commands see it: they change its scheduler, evaluations and slots after they were recorded."""

from collections.abc import Callable, Iterable, Sequence

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateSlots
from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.evaluation.evaluations import Evaluations
from madlib_mop.driver.planning.fused_groups import FusedGroups
from madlib_mop.driver.running.pausing import RunPause
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.driver.steering.controller import RunController
from madlib_mop.driver.steering.run_side import NotYet
from madlib_mop.schedule import ModelWork, Scheduler


class SteeredRun:
    """The `RunSide` of a run that trains.

    Parameters
    ----------
    models : RunModels
    scheduler : Scheduler
    slots : StateSlots
    evaluations : Evaluations
    stops : EarlyStops
    groups : FusedGroups
    progress : ProgressReporter
    controller : RunController
    works : callable
        Returns the scheduler's models of given keys with their progress.
    separate : callable
        Called with a group's key and a reason: its members train separately from now on.
    pause : RunPause
    """

    trains = True

    def __init__(
        self,
        models: RunModels,
        scheduler: Scheduler,
        slots: StateSlots,
        evaluations: Evaluations,
        stops: EarlyStops,
        groups: FusedGroups,
        progress: ProgressReporter,
        controller: RunController,
        works: Callable[[Iterable[int]], list[ModelWork]],
        separate: Callable[[int, str], None],
        pause: RunPause,
    ):
        self._models = models
        self._scheduler = scheduler
        self._slots = slots
        self._evaluations = evaluations
        self._stops = stops
        self._groups = groups
        self._progress = progress
        self._controller = controller
        self._works = works
        self._separate = separate
        self._pause = pause
        self._held: set[int] = set()  # fused groups for which a command waits

    def looks(self) -> None:
        """Let fused groups go on for which no command waits any more; called before each look at the commands."""
        for key in self._held:
            self._scheduler.release(key)
        self._held.clear()

    @property
    def in_search(self) -> bool:
        """Whether a search still decides on the models."""
        return self._controller.decides

    def separate(self, mst_key: int) -> None:
        """Let a model of a fused group train alone. Raises NotYet while the group is in a visit."""
        key = self._groups.key_of(mst_key)
        if not self._groups.is_group(key):
            return
        if self._scheduler.is_busy(key):
            self._scheduler.hold(key)
            self._held.add(key)
            raise NotYet
        self._separate(key, f"a command changes mst_key {mst_key}")

    def turn_of(self, mst_key: int) -> int:
        """Return a model's number in the rotation."""
        came_from = self._models[mst_key].cloned_from
        if came_from is not None:
            return came_from.turn
        return self._groups.indices(list(self._models.values()))[self._groups.key_of(mst_key)]

    def stopped(self, mst_key: int) -> None:
        """Continue after a model was stopped; a fused group continues while one of its members does."""
        key = self._groups.key_of(mst_key)
        if not any(self._models[member].is_alive for member in self._groups.members(key)):
            self._scheduler.drop(key)
        self._evaluations.forget(mst_key)
        self._progress.model_stopped(mst_key, self._scheduler)
        self._controller.failed(mst_key)

    def resumed(self, mst_key: int) -> None:
        """Continue after a model was resumed; metrics of an epoch that it completed meanwhile are computed."""
        if self._scheduler.has_model(mst_key):
            self._scheduler.revive(mst_key)
        else:
            self._schedule(mst_key)
        self._progress.model_added(self._models[mst_key])
        self._evaluations.end_epoch(mst_key)

    def added(self, models: Sequence[ModelRow]) -> None:
        """Continue after models were added."""
        self._slots.add_models(len(models))
        for model in models:
            self._stops.add_model(model.mst_key)
            self._progress.model_added(model)
            self._schedule(model.mst_key)

    def extended(self, mst_key: int) -> None:
        """Continue after a model was extended."""
        self._stops.extended(mst_key)
        self._scheduler.extend(mst_key, self._models[mst_key].last_epoch)
        self._progress.model_added(self._models[mst_key])

    def paused(self) -> None:
        """Continue after the run was paused."""
        self._pause.begin()

    def unpaused(self) -> None:
        """Continue after a pause has ended."""
        self._pause.end()

    def recorded(self) -> None:
        """Do nothing: the run trains."""

    def tell(self, sentence: str) -> None:
        """Write a NOTICE."""
        self._progress.tell(sentence)

    def _schedule(self, mst_key: int) -> None:
        (work,) = self._works([mst_key])
        self._scheduler.add_model(work)
