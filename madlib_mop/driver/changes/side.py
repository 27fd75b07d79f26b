"""What changes touch of a run besides its record: nothing while it does not train; `RunningModels` while it trains."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow, SearchEvent
from madlib_mop.catalog.rows.states import ModelState, RunState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateSlots, best_states, newest_states
from madlib_mop.driver.changes.deciders import Decider
from madlib_mop.driver.planning.fused_groups import FusedGroups


class NotYet(Exception):
    """A command is applied after the visit in flight."""


class RunSide:
    """A run that does not train: changes prepare it, and `resume` trains what they ask for.

    The methods after `recorded` are called after a change was committed.

    Parameters
    ----------
    record : Record
    run : RunRow
    models : RunModels, optional
        Those of the record if omitted.
    slots : StateSlots, optional
    deciders : sequence of Decider, optional

    Attributes
    ----------
    trains : bool
        Whether a driver trains the run.
    """

    trains = False

    def __init__(
        self,
        record: Record,
        run: RunRow,
        models: RunModels | None = None,
        slots: StateSlots | None = None,
        deciders: Sequence[Decider] = (),
    ):
        self.record = record
        self.run = run
        self.models = models if models is not None else RunModels(record, run.run_id)
        if slots is None:
            rows = self.models.values()
            slots = StateSlots(record, run.run_id, [*newest_states(rows), *best_states(rows)])
        self.slots = slots
        self.groups = FusedGroups(run.plan.fused_training)
        self.deciders = deciders
        # a search that has ended with its run decides no more; one that was interrupted goes on with the run
        self._has_open_search = run.is_search and not run.state.is_trained and not run.reopened

    @property
    def in_search(self) -> bool:
        """Whether a search still decides on the models."""
        return self._has_open_search

    def set_run(self, **columns: Any) -> None:
        """Record columns of the run, and update its row here."""
        self.record.set_run(self.run.run_id, **columns)
        self.run = replace(self.run, **columns)

    def release_held(self) -> None:
        """Called before pending commands are read: let fused groups go on for which no command waits any more."""

    def separate(self, mst_key: int) -> None:
        """Let a model of a fused group train alone; `recorded` dissolves groups of a run that does not train.

        Raises
        ------
        NotYet
            While the group is in a visit.
        """

    def bring_home(self, mst_key: int) -> bool:
        """Have the newest state of a model in a slot, to copy it; return False if a host holds it, and it cannot be
        fetched now."""
        return self.record.lock_model(self.run.run_id, mst_key).state_server is None

    def turn_of(self, mst_key: int) -> int:
        """Return a model's number in the rotation."""
        came_from = self.models[mst_key].cloned_from
        if came_from is not None:
            return came_from.turn
        return self.groups.indices(list(self.models.values()))[self.groups.unit_of(mst_key)]

    def epoch_in_visit(self, mst_key: int) -> int | None:
        """Return the epoch of a model's visit in flight."""
        return None

    def recorded(self) -> None:
        """Called in the transaction of each command, after its changes.

        Dissolve groups whose members a command has made unequal; let `resume` train a run that was trained, if models
        have visits left now.
        """
        for unit in self.groups.unequal(self.models):
            self.set_run(plan=self.run.plan.without_groups(self.groups.dissolve(unit)))
        has_work = any(m.state in (ModelState.WAITING, ModelState.TRAINING) for m in self.models.values())
        if self.run.state.is_trained and has_work:
            detail = f"SELECT madlib_mop.resume({self.run.run_id}); trains what commands have asked for"
            plan = replace(self.run.plan, time_limit_s=None)  # what is asked for after the run takes its own time
            self.set_run(state=RunState.INTERRUPTED, state_detail=detail, reopened=True, plan=plan)

    def added(self, models: Sequence[ModelRow]) -> None:
        """Train models that were added."""

    def extended(self, mst_key: int) -> None:
        """Train a model until its new last epoch."""

    def shortened(self, mst_key: int, evaluates: bool) -> None:
        """Train a model no further than its new last epoch; if that is complete, ``evaluates`` computes its metrics."""

    def stopped(self, mst_key: int) -> None:
        """Start no further visit of a stopped model."""

    def resumed(self, mst_key: int) -> None:
        """Continue a model that was resumed."""

    def paused(self) -> None:
        """Start no further task."""

    def unpaused(self) -> None:
        """Continue after a pause."""

    def tell(self, sentence: str) -> None:
        """Write a NOTICE to the session that trains the run; one that issues a command tells its outcome itself."""

    def decided(self, event: SearchEvent) -> None:
        """Tell the caller what a search has decided."""
