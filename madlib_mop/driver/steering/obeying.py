"""Applies commands to a run: each is settled in the transaction that changes the record, so it is obeyed exactly once.

The driver of a run obeys them while it trains (`running.steered`), the driver of a call prepares an ended run
(`steering.ended`). What differs between the two is the `RunSide`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod

from madlib_mop.catalog.commands import Outcome
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.command import CommandRow
from madlib_mop.catalog.rows.model import ClonedFrom, ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import CommandState, ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateSlots
from madlib_mop.driver.steering.run_side import NotYet, RunSide
from madlib_mop.driver.steering.verbs import (
    AddModels,
    CloneModel,
    ExtendModels,
    Pause,
    PinModel,
    ResumeModel,
    StopModel,
    Unpause,
    Verb,
    read_verb,
)
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.configuration import Configuration

#: The first key of models that commands add to a search, whose own models have the keys from 1.
FIRST_KEY_IN_SEARCH = 1_000_001
MAX_ITERATIONS = 1_000_000
_GREATEST_KEY = 2**31 - 1
_MODEL_STATES = {
    ModelState.TRAINED: "it has made all its iterations",
    ModelState.STOPPED: "it is stopped already",
    ModelState.FAILED: "it has failed",
}


class CommandRefused(Exception):
    """A command cannot be applied; the message says why, and what to do."""


class _Withdrawn(Exception):
    """The call of a command has ended before it was obeyed."""


@dataclass(frozen=True)
class _Effect:
    """What a command does: ``write`` changes the record and returns the changed models, ``apply`` follows its
    commit."""

    detail: str
    write: Callable[[], Sequence[int]]
    apply: Callable[[], None]
    cleanup: Callable[[], None] = lambda: None


class Steering:
    """Obeys the commands to one run.

    Parameters
    ----------
    record : Record
    run : RunRow
    models : RunModels
    slots : StateSlots
    side : RunSide
    """

    def __init__(self, record: Record, run: RunRow, models: RunModels, slots: StateSlots, side: RunSide):
        self._record = record
        self._run = run
        self._run_id = run.run_id
        self._n_segments = run.n_segments
        self._models = models
        self._slots = slots
        self._side = side
        self._command: CommandRow

    def obey_pending(self) -> None:
        """Obey or refuse the run's pending commands, in their order; those that must wait stay pending.

        A command that waits delays those after it, but for `unpause`: what it waits for may wait for that.
        """
        self._side.looks()
        waits = False
        for command in self._record.commands(self._run_id, CommandState.PENDING):
            if waits and command.command != "unpause":
                continue
            try:
                self.obey(command)
            except NotYet:
                waits = True

    def obey(self, command: CommandRow) -> Outcome | None:
        """Obey or refuse one command; None if it was withdrawn. Raises NotYet if it must wait for a visit."""
        self._command = command
        try:
            effect = self._effect(read_verb(command.command, command.work))
        except (CommandRefused, InvalidParameter) as refusal:
            outcome = Outcome(CommandState.REFUSED, str(refusal))
            return outcome if self._record.record_outcome(command, outcome) else None
        try:
            with self._record.transaction():
                if not self._record.lock_command(command):
                    raise _Withdrawn
                keys = tuple(effect.write())
                visits = {str(key): [self._models[key].epoch, self._models[key].position] for key in keys}
                outcome = Outcome(CommandState.OBEYED, effect.detail, keys, visits)
                self._record.record_outcome(command, outcome)
                self._side.recorded()
        except _Withdrawn:
            effect.cleanup()
            return None
        except NotYet:
            effect.cleanup()
            raise
        effect.apply()
        self._side.tell(f"{command.command} by {_issuer(command)}: {effect.detail}")
        return outcome

    @singledispatchmethod
    def _effect(self, verb: Verb) -> _Effect:
        """Check a command against the run's present state. Raises Refused or NotYet."""
        raise NotImplementedError(verb)

    @_effect.register
    def _(self, verb: StopModel) -> _Effect:
        key, model = verb.mst_key, self._model(verb.mst_key)
        if model.state in _MODEL_STATES:
            raise CommandRefused(f"mst_key {key} cannot be stopped: {_MODEL_STATES[model.state]}")
        if model.epoch == model.last_epoch and model.position == self._n_segments:
            raise CommandRefused(f"mst_key {key} cannot be stopped: it has made its last visit")
        if model.pinned and self._command.source == "policy":
            raise CommandRefused(f"mst_key {key} is pinned. Only people can stop it")
        reason = f": {verb.reason}" if verb.reason else ""
        detail = f"mst_key {key} is stopped {self._where(model)}{reason}"

        def write() -> Sequence[int]:
            self._models.stopped(key, f"stopped by {_issuer(self._command)}{reason}")
            return [key]

        return _Effect(detail, write, lambda: self._side.stopped(key))

    @_effect.register
    def _(self, verb: ResumeModel) -> _Effect:
        key, model = verb.mst_key, self._model(verb.mst_key)
        if model.state is not ModelState.STOPPED:
            why = f"it has failed: {model.state_detail}" if model.state is ModelState.FAILED else "it is not stopped"
            raise CommandRefused(f"mst_key {key} cannot be resumed: {why}")
        self._not_in_search(f"resume mst_key {key}")
        self._side.separate(key)

        def write() -> Sequence[int]:
            self._models.resumed(key)
            return [key]

        return _Effect(f"mst_key {key} continues {self._where(model)}", write, lambda: self._side.resumed(key))

    @_effect.register
    def _(self, verb: ExtendModels) -> _Effect:
        self._not_in_search("extend models")
        if verb.mst_key is None:
            chosen = [m for m in self._models.values() if m.is_alive and not m.is_restored]
            if not chosen:
                raise CommandRefused(
                    "no model can be extended: all have failed, were stopped, or are at their best iteration"
                )
        else:
            chosen = [self._extendable(verb.mst_key)]
        for model in chosen:
            if model.iteration(model.last_epoch) + verb.num_iterations > MAX_ITERATIONS:
                raise CommandRefused(f"mst_key {model.mst_key} would make more than {MAX_ITERATIONS:,} iterations")
        for model in chosen:
            if self._side.trains and model.early_stopping is not None and self._awaits_end(model):
                raise NotYet  # whether it stops early is decided first, as in a replay
            self._side.separate(model.mst_key)
        keys = [model.mst_key for model in chosen]

        def write() -> Sequence[int]:
            for model in chosen:
                self._models.extended(model.mst_key, model.last_epoch + verb.num_iterations)
            return keys

        def apply() -> None:
            for key in keys:
                self._side.extended(key)

        many = f"mst_key {keys[0]} makes" if len(keys) == 1 else f"{len(keys)} models make"
        detail = f"{many} {verb.num_iterations} more iteration{'' if verb.num_iterations == 1 else 's'}"
        return _Effect(detail, write, apply)

    @_effect.register
    def _(self, verb: CloneModel) -> _Effect:
        source = self._model(verb.mst_key)
        has_state = verb.from_state and source.digest is not None
        has_failed = source.state is ModelState.FAILED
        if has_failed and verb.from_state and not source.is_restored:
            raise CommandRefused(
                f"mst_key {verb.mst_key} cannot be cloned: it has failed: {source.state_detail}. With from_state =>"
                " false, a clone begins from its start"
            )
        if has_failed and not has_state and source.first_epoch > 1 and source.start_weights is None:
            raise CommandRefused(
                f"mst_key {verb.mst_key} began with a state of an earlier run. Call the training function again, with"
                " warm_start => true"
            )
        old = source.configuration
        new = verb.configuration or old
        same = new.equals(old)
        first = self._complete_epochs(source) if has_state else source.first_epoch - 1
        last_epoch = source.last_epoch if verb.num_iterations is None else first + verb.num_iterations
        if last_epoch <= first:
            raise CommandRefused(
                f"mst_key {verb.mst_key} has no iteration left that a clone could make. Pass num_iterations"
            )
        if last_epoch - source.first_epoch + 1 > MAX_ITERATIONS:
            raise CommandRefused(
                f"a clone of mst_key {verb.mst_key} would make more than {MAX_ITERATIONS:,} iterations"
            )
        if same and source.is_alive and last_epoch == source.last_epoch and verb.keep_optimizer:
            raise CommandRefused(
                f"a clone of mst_key {verb.mst_key} with the same parameters would repeat it. Pass other parameters or"
                " another num_iterations"
            )
        model = self._new_model(new, source.start_weights, last_epoch)
        model = replace(model, first_epoch=source.first_epoch, epoch=source.first_epoch - 1,
                        early_stopping=source.early_stopping)  # fmt: skip
        if not has_state:
            self._refuse_duplicate(new, source.start_weights)
            return self._adding([model], f"mst_key {model.mst_key} begins as a clone of mst_key {source.mst_key}")
        keep = verb.keep_optimizer and new.has_optimizer_of(old)
        slot = self._slots.begin_write(model.mst_key)

        def write() -> Sequence[int]:
            newest = self._record.lock_model(self._run_id, source.mst_key)
            is_told = newest.has_new_optimizer == source.has_new_optimizer
            if self._complete_epochs(newest) >= last_epoch or not is_told:  # a visit of it has just been committed
                raise NotYet
            self._models.cloned(model, newest, slot, self._came_from(newest), None if same and keep else keep)
            return [model.mst_key]

        def apply() -> None:
            self._slots.end_write(slot, model.mst_key, self._models[model.mst_key].state_bytes)
            self._side.added([self._models[model.mst_key]])

        optimizer = ", with a new optimizer" if not keep or source.has_new_optimizer else ""
        detail = f"mst_key {model.mst_key} is a clone of mst_key {source.mst_key} {self._where(source)}{optimizer}"
        return _Effect(detail, write, apply, lambda: self._slots.end_write(slot, model.mst_key))

    @_effect.register
    def _(self, verb: AddModels) -> _Effect:
        models: list[ModelRow] = []
        for new in verb.models:
            origin = new.start_weights and f"command {self._command.command_id}, {new.start_weights}"
            self._refuse_duplicate(new.configuration, origin)
            model = self._new_model(new.configuration, origin, self._run.num_iterations, len(models))
            models.append(replace(model, early_stopping=new.early_stopping))
        keys = ", ".join(str(model.mst_key) for model in models)
        return self._adding(models, f"new: mst_key {keys}")

    @_effect.register
    def _(self, verb: Pause) -> _Effect:
        if not self._side.trains:
            raise CommandRefused("the run is not training")
        if self._run.paused_by is not None:
            raise CommandRefused(f"the run is paused already, by {self._run.paused_by}")
        return self._pausing(str(self._command.issued_by), "paused", self._side.paused)

    @_effect.register
    def _(self, verb: Unpause) -> _Effect:
        if self._run.paused_by is None:
            raise CommandRefused("the run is not paused")
        return self._pausing(None, "continues", self._side.unpaused)

    @_effect.register
    def _(self, verb: PinModel) -> _Effect:
        key = self._model(verb.mst_key).mst_key

        def write() -> Sequence[int]:
            self._models.pinned(key, verb.pinned)
            return [key]

        what = "pinned: only people stop it" if verb.pinned else "no longer pinned"
        return _Effect(f"mst_key {key} is {what}", write, lambda: None)

    def _model(self, mst_key: int) -> ModelRow:
        model = self._models.get(mst_key)
        if model is None:
            raise CommandRefused(
                f"run {self._run_id} has no mst_key {mst_key}; madlib_mop.leaderboard shows its models"
            )
        return model

    def _extendable(self, mst_key: int) -> ModelRow:
        model = self._model(mst_key)
        if not model.is_alive:
            hint = "; resume it first" if model.state is ModelState.STOPPED else ""
            raise CommandRefused(f"mst_key {mst_key} cannot be extended: {_MODEL_STATES[model.state]}{hint}")
        if model.is_restored:
            raise CommandRefused(
                f"mst_key {mst_key} cannot be extended: its weights are those of its best iteration."
                f" clone_model({self._run_id}, {mst_key}, num_iterations => ...) continues from them"
            )
        return model

    def _not_in_search(self, what: str) -> None:
        if self._side.in_search:
            raise CommandRefused(
                f"cannot {what}: a search decides on the models of this run. clone_model trains beside it"
            )

    def _complete_epochs(self, model: ModelRow) -> int:
        """Return the last epoch that a model's newest state contains completely."""
        if model.best_epoch is not None:
            return model.best_epoch
        return model.epoch if model.position == self._n_segments else max(model.epoch, model.first_epoch) - 1

    def _awaits_end(self, model: ModelRow) -> bool:
        """Return whether a model has made its last visit and is being evaluated."""
        made_all = (model.epoch, model.position) == (model.last_epoch, self._n_segments)
        return made_all and model.state is ModelState.TRAINING

    def _where(self, model: ModelRow) -> str:
        if model.epoch < model.first_epoch:
            return "before its first visit"
        if model.best_epoch is not None:
            return f"after iteration {model.iteration(model.best_epoch)}, its best"
        return f"after visit {model.position} of {self._n_segments} in iteration {model.iteration(model.epoch)}"

    def _came_from(self, newest: ModelRow) -> ClonedFrom:
        """Return the origin of a clone of a model in its locked row."""
        key, epoch = newest.mst_key, newest.epoch
        turn = self._side.turn_of(key)
        best = newest.best_state
        if newest.state is ModelState.FAILED and best is not None:
            # A replay makes the clone when its original has just made that iteration: then the state is the newest one.
            return ClonedFrom(key, best.epoch, self._n_segments, (), turn, version=-1 - best.version)
        visits = [v for v in self._record.visits(self._run_id) if (v.mst_key, v.epoch) == (key, epoch)]
        segments = (*newest.visited(newest.position), *(v.segment_id for v in sorted(visits, key=lambda v: v.position)))
        complete = newest.position == self._n_segments
        epoch = newest.best_epoch or epoch
        segments = () if complete else segments
        return ClonedFrom(key, epoch, newest.position, segments, turn, newest.is_restored, newest.state_version)

    def _new_model(self, new: Configuration, origin: str | None, last_epoch: int, offset: int = 0) -> ModelRow:
        first_key = FIRST_KEY_IN_SEARCH if self._run.is_search else 1
        mst_key = max(first_key, max(self._models, default=0) + 1) + offset
        if mst_key > _GREATEST_KEY:
            raise CommandRefused(
                f"no model can be added: mst_key {_GREATEST_KEY} is in use, and there is no greater one"
            )
        return ModelRow(
            mst_key=mst_key,
            ordinal=max(first_key, max((m.ordinal for m in self._models.values()), default=-1) + 1) + offset,
            start_weights=origin,
            last_epoch=last_epoch,
            command_id=self._command.command_id,
            **new.columns(),
        )

    def _adding(self, models: Sequence[ModelRow], detail: str) -> _Effect:
        keys = [model.mst_key for model in models]

        def write() -> Sequence[int]:
            self._models.added(models)
            return keys

        return _Effect(detail, write, lambda: self._side.added([self._models[key] for key in keys]))

    def _pausing(self, by: str | None, detail: str, apply: Callable[[], None]) -> _Effect:
        def write() -> Sequence[int]:
            self._record.set_run(self._run_id, paused_by=by)
            self._run = replace(self._run, paused_by=by)
            return ()

        return _Effect(detail, write, apply)

    def _refuse_duplicate(self, new: Configuration, origin: str | None) -> None:
        for model in self._models.values():
            if not model.is_alive or model.cloned_from is not None or not self._begins_with(model, origin):
                continue
            if new.equals(model.configuration):
                raise CommandRefused(
                    f"mst_key {model.mst_key} has the same configuration already. Stop it first, or change a parameter"
                )

    def _begins_with(self, model: ModelRow, origin: str | None) -> bool:
        if model.start_weights is None or origin is None:
            return model.start_weights == origin
        return self._record.has_same_start_weights(self._run_id, model.start_weights, origin)


def _issuer(command: CommandRow) -> str:
    return "the policy" if command.source == "policy" else str(command.issued_by)
