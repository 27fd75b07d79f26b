"""A run without a driver as commands see it: they prepare it, and `resume` trains what they ask for."""

from collections.abc import Sequence
from dataclasses import replace

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ModelState, RunState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateSlots, best_states, newest_states
from madlib_mop.driver.planning.fused_groups import FusedGroups
from madlib_mop.driver.steering.obeying import Steering


class EndedRun:
    """The `RunSide` of a run that does not train.

    Parameters
    ----------
    record : Record
    run : RunRow
    models : RunModels
    """

    trains = False

    def __init__(self, record: Record, run: RunRow, models: RunModels):
        # a search that has ended with its run decides no more; one that was interrupted goes on with the run
        self.in_search = run.is_search and not run.state.is_trained and not run.reopened
        self._record = record
        self._run = run
        self._models = models
        self._groups = FusedGroups(run.plan.fused_training)

    def looks(self) -> None:
        """Do nothing: nothing is held."""

    def separate(self, mst_key: int) -> None:
        """Do nothing: `recorded` dissolves groups whose members cannot continue together."""

    def turn_of(self, mst_key: int) -> int:
        """Return a model's number in the rotation."""
        came_from = self._models[mst_key].cloned_from
        if came_from is not None:
            return came_from.turn
        return self._groups.indices(list(self._models.values()))[self._groups.key_of(mst_key)]

    def stopped(self, mst_key: int) -> None:
        """Do nothing: the record has it."""

    def resumed(self, mst_key: int) -> None:
        """Do nothing: the record has it."""

    def added(self, models: Sequence[ModelRow]) -> None:
        """Do nothing: the record has them."""

    def extended(self, mst_key: int) -> None:
        """Do nothing: the record has it."""

    def paused(self) -> None:
        """Do nothing: the record has it."""

    def unpaused(self) -> None:
        """Do nothing: the record has it."""

    def recorded(self) -> None:
        """Dissolve groups whose members a command has made unequal; let `resume` train a run that was trained, if
        models have visits left now."""
        for key in self._groups.unequal(self._models):
            plan = self._run.plan.without_groups(self._groups.dissolve(key))
            self._record.set_run(self._run.run_id, plan=plan)
            self._run = replace(self._run, plan=plan)
        run = self._run
        has_work = any(m.state in (ModelState.WAITING, ModelState.TRAINING) for m in self._models.values())
        if not run.state.is_trained or not has_work:
            return
        detail = f"SELECT madlib_mop.resume({run.run_id}); trains what commands have asked for"
        self._record.set_run(run.run_id, state=RunState.INTERRUPTED, state_detail=detail, reopened=True)
        self._run = replace(run, state=RunState.INTERRUPTED, reopened=True)

    def tell(self, sentence: str) -> None:
        """Write nothing: the session that issues the command tells its outcome."""


def obey_without_driver(record: Record, run: RunRow) -> None:
    """Obey the pending commands of a run whose driver this process is, without training it."""
    models = RunModels(record, run.run_id)
    slots = StateSlots(record, run.run_id, [*newest_states(models.values()), *best_states(models.values())])
    Steering(record, run, models, slots, EndedRun(record, run, models)).obey_pending()
