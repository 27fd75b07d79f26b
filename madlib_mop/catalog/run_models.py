"""The models of a run: their recorded rows, and the code of the driver that changes their states while it trains.

The hopper, model averaging and their shared parts (evaluations, early stopping, changes by a search) read the models
here and report changes. A change is recorded first; inside a caller's transaction it is recorded at its commit, and a
failed commit ends the driver.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import STATE_COLUMNS, BestState, ClonedFrom, ModelRow, TakenOver
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.errors import MopError
from madlib_mop.models.configuration import Configuration


class RunModels(Mapping[int, ModelRow]):
    """A run's models by mst_key, in the order of their ordinals.

    Parameters
    ----------
    record : Record
    run_id : int
    changed : callable
        Called after each change.
    """

    def __init__(self, record: Record, run_id: int, changed: Callable[[], None] = lambda: None):
        self._record = record
        self._run_id = run_id
        self._changed_one = changed
        self._models = {model.mst_key: model for model in record.models(run_id)}

    def __getitem__(self, mst_key: int) -> ModelRow:
        return self._models[mst_key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    # Updates after a worker's commit

    def visit_kept(self, mst_key: int, digest: str, epoch: int, position: int, server: str | None = None) -> None:
        """Update a model after a visit, which a worker has recorded; a model that ended during the visit stays
        ended. ``server`` is the one that holds its new state, if this one does not."""
        model = self._models[mst_key]
        state = ModelState.TRAINING if model.state is ModelState.WAITING else model.state
        version = model.state_version + 1
        self._note(
            mst_key, state=state, digest=digest, epoch=epoch, position=position, state_version=version,
            state_server=server,
        )  # fmt: skip
        if not model.is_alive:
            self._record.set_model(self._run_id, mst_key, state=model.state)

    def part_kept(self, mst_key: int) -> None:
        """Update a model after a visit of model averaging, which a worker has recorded; the model's state does not
        change."""
        self._note(mst_key, state=ModelState.TRAINING)

    def average_kept(self, mst_key: int, epoch: int, n_segments: int) -> None:
        """Update a model after the average of an epoch, which a worker has recorded as its newest state."""
        version = self._models[mst_key].state_version + 1
        self._note(mst_key, epoch=epoch, position=n_segments, state_version=version)

    def failure_kept(self, mst_key: int, reason: str) -> None:
        """Mark a member of a fused group as failed, which a worker has recorded."""
        self._note(mst_key, state=ModelState.FAILED, state_detail=reason)

    # Decisions of the driver

    def failed(self, mst_key: int, reason: str) -> None:
        """Mark a model as failed."""
        self._change(mst_key, state=ModelState.FAILED, state_detail=reason)

    def trained(self, mst_key: int) -> None:
        """End a model after its last epoch. A crash may undo it: a resumed run ends a model without visits left."""
        self._change(mst_key, waits=False, state=ModelState.TRAINED)

    # Decisions of a search

    def added(self, models: Sequence[ModelRow]) -> None:
        """Add models."""
        self._record.add_models(self._run_id, models)
        for model in models:
            self._models[model.mst_key] = replace(model, run_id=self._run_id)
        self._changed_one()

    def extended(self, mst_key: int, last_epoch: int) -> None:
        """Extend a model; one that has stopped early continues without early stopping."""
        model = self._models[mst_key]
        if not model.is_alive:
            raise self._impossible(model, ModelState.TRAINING)
        changed: dict[str, Any] = {"last_epoch": last_epoch, "state_detail": None}
        if model.state is ModelState.TRAINED:
            changed |= {"state": ModelState.TRAINING, "early_stopping": None}
        self._change(mst_key, **changed)

    def crossed(
        self, mst_key: int, source: int, slot: int, configuration: Configuration, last_epoch: int, keep_optimizer: bool
    ) -> ModelRow:
        """Continue a model with a copy of another model's newest state, written to a slot, and another configuration.

        Returns
        -------
        ModelRow
            The other model, as copied; until the transaction's end, no visit of either can be committed.
        """
        old = self._record.lock_model(self._run_id, mst_key)
        copied = self._record.lock_model(self._run_id, source)
        version = old.state_version + 1
        self._record.copy_state(self._run_id, mst_key, slot, copied, version)
        if old.home_state is not None:
            old = replace(old, state_slot=old.home_state.slot, state_version=old.home_state.version)
        if old.state_slot is not None:
            self._record.delete_state(old)
        self._change(
            mst_key,
            **configuration.columns(),
            last_epoch=last_epoch,
            state=ModelState.TRAINING,
            taken_over=TakenOver(source, copied.epoch, version, keep_optimizer and not copied.has_new_optimizer),
        )
        self._note(mst_key, digest=copied.digest, state_version=version)
        return copied

    def shortened(self, mst_key: int, last_epoch: int, reason: str) -> None:
        """End a model after its current epoch or an earlier one."""
        model = self._models[mst_key]
        detail = model.state_detail
        if last_epoch < model.last_epoch:
            made, planned = model.iteration(last_epoch), model.iteration(model.last_epoch)
            detail = f"ended after iteration {made} of {planned}: {reason}"
        self._change(mst_key, last_epoch=last_epoch, state_detail=detail)

    def stopped(self, mst_key: int, reason: str) -> None:
        """Stop a model that has no complete epoch."""
        self._change(mst_key, state=ModelState.STOPPED, state_detail=reason)

    def ended_as(self, mst_key: int, state: ModelState, detail: str | None) -> None:
        """End a model of a replay like the model that it repeats, regardless of its own result."""
        self._record.set_model(self._run_id, mst_key, state=state, state_detail=detail)
        self._changed_one()

    # Commands

    def cloned(
        self, clone: ModelRow, source: ModelRow, slot: int, came_from: ClonedFrom, keep_optimizer: bool | None
    ) -> None:
        """Add a model with a copy of another model's newest state, written to a slot.

        If that state was itself copied and not trained since, the clone takes it over as its original would.

        Parameters
        ----------
        clone : ModelRow
        source : ModelRow
            The other model's locked row.
        slot : int
        came_from : ClonedFrom
        keep_optimizer : bool or None
            Whether the optimizer's variables are used too; None if the clone has the same parameters.
        """
        takes = None
        if keep_optimizer is not None or source.is_just_taken_over:
            keep = keep_optimizer is not False and not source.has_new_optimizer
            takes = TakenOver(source.mst_key, came_from.epoch, 0, keep)
        state = {name: getattr(source, name) for name in STATE_COLUMNS}
        clone = replace(
            clone,
            epoch=came_from.epoch,
            position=came_from.position,
            seed_key=source.mst_key if source.seed_key is None else source.seed_key,
            cloned_from=came_from,
            taken_over=takes,
        )
        self._record.add_models(self._run_id, [clone])
        self._record.copy_state(self._run_id, clone.mst_key, slot, source)
        self._models[clone.mst_key] = replace(clone, run_id=self._run_id, state_slot=slot, **state)
        self._changed_one()

    def resumed(self, mst_key: int) -> None:
        """Let a stopped model continue."""
        # a visit that was in flight when it was stopped may be committed, and not be known here yet
        has_visits = self._record.lock_model(self._run_id, mst_key).has_own_visits
        state = ModelState.TRAINING if has_visits else ModelState.WAITING
        self._change(mst_key, state=state, state_detail=None)

    def pinned(self, mst_key: int, pinned: bool) -> None:
        """Pin a model, or undo it."""
        self._change(mst_key, pinned=pinned)

    # Decisions of early stopping

    def best_kept(self, mst_key: int, best: BestState) -> None:
        """Record the copied state of an epoch as the model's best."""
        self._change(mst_key, best_state=best)

    def stopped_early(self, mst_key: int, last_epoch: int, detail: str) -> None:
        """End a model with its newest complete epoch."""
        self._change(mst_key, last_epoch=last_epoch, state_detail=detail)

    def restored(self, mst_key: int, best: BestState, slot: int, detail: str | None) -> None:
        """Make a model's best state, stored in a slot, its newest one; the previous newest one is deleted."""
        with self._record.transaction():
            newest = self._record.lock_model(self._run_id, mst_key)
            if newest.home_state is not None:
                newest = replace(newest, state_slot=newest.home_state.slot, state_version=newest.home_state.version)
            if newest.state_slot is not None:
                self._record.delete_state(newest)
            self._record.release_copies(self._run_id, mst_key)
            self._change(
                mst_key,
                state_server=None,
                home_state=None,
                state_slot=slot,
                state_version=best.version,
                state_detail=detail,
                **{name: getattr(best, name) for name in STATE_COLUMNS},
            )

    def _change(self, mst_key: int, waits: bool = True, **columns: Any) -> None:
        """Record columns of a model and update its row here."""
        changed = self._changed(mst_key, columns)
        self._record.set_model(self._run_id, mst_key, waits, **columns)
        self._models[mst_key] = changed
        self._changed_one()

    def _note(self, mst_key: int, **columns: Any) -> None:
        """Update a model's row with columns that another process has recorded."""
        self._models[mst_key] = self._changed(mst_key, columns)
        self._changed_one()

    def _changed(self, mst_key: int, columns: Mapping[str, Any]) -> ModelRow:
        model = self._models[mst_key]
        state = columns.get("state", model.state)
        if not model.state.may_become(state):
            raise self._impossible(model, state)
        return replace(model, **columns)

    def _impossible(self, model: ModelRow, state: ModelState) -> MopError:
        return MopError(
            f"internal error: run {self._run_id}, mst_key {model.mst_key} is {model.state} and cannot become {state}",
            hint="Please report it.",
        )
