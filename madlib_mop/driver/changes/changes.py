"""Makes changes of a run's models: checks them, writes them in one transaction, and applies them after its commit.

Commands of people and policies were recorded as pending; each is settled in the transaction that changes the record, so
it is applied exactly once. Decisions of searches and replays are recorded in the transaction of their changes, so a run
that is killed at any moment continues with all of them or none. The hopper makes changes while a run trains, the driver
of a call prepares a run that does not train. What differs between the two is the `RunSide`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, singledispatchmethod

from madlib_mop.catalog.changes import Outcome
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.model import ClonedFrom, ModelRow
from madlib_mop.catalog.rows.states import ChangeSource, ChangeState, ModelState
from madlib_mop.driver.changes.deciders import Decision, Decisions
from madlib_mop.driver.changes.proposed import ProposedModels
from madlib_mop.driver.changes.side import NotYet, RunSide
from madlib_mop.driver.planning.replay import untrained
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.changes import (
    Add,
    Change,
    Clone,
    EndAlike,
    Exploit,
    Extend,
    Finish,
    NewModel,
    Pause,
    Pin,
    Proposal,
    Resume,
    Stop,
    Unpause,
)
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
    """The call of a command has ended before it was applied."""


#: What the apply step of a change does.
_Apply = Callable[[], None]


@dataclass(frozen=True)
class _Issuer:
    """Who asked for a change; a command has a number and a name of its issuer."""

    source: ChangeSource
    command_id: int | None = None
    name: str = ""


@dataclass(frozen=True)
class _Effect:
    """What a change does.

    ``write`` changes the record, in a transaction; it returns the models that it changed or added, and what follows the
    commit. ``cleanup`` follows if it was not committed.
    """

    write: Callable[[], tuple[Sequence[int], _Apply]]
    detail: str = ""
    cleanup: Callable[[], None] = lambda: None


class Changes:
    """Makes the changes of one run.

    Parameters
    ----------
    side : RunSide
        The run: its record, its models, and what else changes touch.
    """

    def __init__(self, side: RunSide):
        self._side = side
        self._record = side.record
        self._run_id = side.run.run_id
        self._n_segments = side.run.n_segments
        self._models = side.models
        self._slots = side.slots

    def make_all(self, decisions: Decisions) -> None:
        """Make what a decider decides, one decision after the other."""
        for decision in decisions:
            self.make(decision)

    def make(self, decision: Decision) -> None:
        """Record a decision with its changes in one transaction, and apply them; new models come first."""
        issuer = _Issuer(decision.source)
        numbered = list(enumerate(decision.changes, 1))
        adds = [(number, change) for number, change in numbered if isinstance(change, Add)]
        new = Add(tuple(model for _, change in adds for model in change.models))  # all are one INSERT
        steps: list[tuple[Sequence[tuple[int, Change]], _Effect]] = [(adds, self._effect(new, issuer))] if adds else []
        steps += [([one], self._effect(one[1], issuer)) for one in numbered if not isinstance(one[1], Add)]
        rows, applies = [], []
        with self._record.transaction():
            if decision.event is not None:
                self._record.add_search_event(decision.event)
            for changes, effect in steps:
                keys, apply = effect.write()
                applies.append(apply)
                rows += [self._row(decision, number, change, keys) for number, change in changes]
            self._record.add_changes(rows)
        for apply in applies:
            apply()
        if decision.event is not None:
            self._side.decided(decision.event)
        for sentence in decision.notices:
            self._side.tell(sentence)

    def _row(self, decision: Decision, number: int, change: Change, keys: Sequence[int]) -> ChangeRow:
        """Return the row of one change of a decision."""
        of_event = (decision.event.ordinal, number) if decision.event is not None else ()
        if isinstance(change, Add):
            keys, visits = [change.proposal.mst_key], {}
        else:
            visits = self._visits_of(keys)
        return ChangeRow.made(self._run_id, decision.source, change, keys, visits, *of_event)

    def _visits_of(self, mst_keys: Sequence[int]) -> dict[str, Sequence[int]]:
        """Return epoch and position of the newest visit of each model."""
        return {str(key): [self._models[key].epoch, self._models[key].position] for key in mst_keys}

    def apply(self, commands: Sequence[ChangeRow]) -> None:
        """Apply or refuse pending commands of the run, in their order; those that must wait stay pending.

        A command that waits delays those after it, but for `unpause`: what it waits for may wait for that.
        """
        waits = False
        for command in commands:
            if waits and command.command != Unpause.function:
                continue
            try:
                self.apply_command(command)
            except NotYet:
                waits = True

    def apply_command(self, command: ChangeRow) -> Outcome | None:
        """Apply or refuse one command; None if it was withdrawn. Raises NotYet if it must wait for a visit."""
        name = "the policy" if command.source is ChangeSource.POLICY else str(command.issued_by)
        try:
            effect = self._effect(command.read(), _Issuer(command.source, command.change_id, name))
        except (CommandRefused, InvalidParameter) as refusal:
            outcome = Outcome(ChangeState.REFUSED, str(refusal))
            return outcome if self._record.record_outcome(command, outcome) else None
        try:
            with self._record.transaction():
                if not self._record.lock_command(command):
                    raise _Withdrawn
                keys, apply = effect.write()
                outcome = Outcome(ChangeState.OBEYED, effect.detail, tuple(keys), self._visits_of(keys))
                self._record.record_outcome(command, outcome)
                self._side.recorded()
        except _Withdrawn:
            effect.cleanup()
            return None
        except NotYet:
            effect.cleanup()
            raise
        apply()
        self._side.tell(f"{command.command} by {name}: {effect.detail}")
        return outcome

    @singledispatchmethod
    def _effect(self, change: Change, issuer: _Issuer) -> _Effect:
        """Check a change against the run's present state. Raises CommandRefused or NotYet."""
        raise NotImplementedError(change)

    @_effect.register
    def _(self, change: Stop, issuer: _Issuer) -> _Effect:
        if not change.at_once:
            return self._stop_with_epoch(change.mst_key, change.reason or "")
        key, model = change.mst_key, self._model(change.mst_key)
        if model.state in _MODEL_STATES:
            raise CommandRefused(f"mst_key {key} cannot be stopped: {_MODEL_STATES[model.state]}")
        if model.epoch == model.last_epoch and model.position == self._n_segments:
            raise CommandRefused(f"mst_key {key} cannot be stopped: it has made its last visit")
        if model.pinned and issuer.source is ChangeSource.POLICY:
            raise CommandRefused(f"mst_key {key} is pinned. Only people can stop it")
        reason = f": {change.reason}" if change.reason else ""

        def write() -> tuple[Sequence[int], _Apply]:
            self._models.stopped(key, f"stopped by {issuer.name}{reason}")
            return [key], apply

        def apply() -> None:
            self._side.stopped(key)
            for decider in self._side.deciders:
                self.make_all(decider.failed(key))

        return _Effect(write, f"mst_key {key} is stopped {self._where(model)}{reason}")

    def _stop_with_epoch(self, key: int, reason: str) -> _Effect:
        """End a model with its current epoch; without a complete first epoch, it is stopped at once."""

        def write() -> tuple[Sequence[int], _Apply]:
            model = self._record.lock_model(self._run_id, key)
            if model.state in _MODEL_STATES or self._is_pinned(key):
                return [], lambda: None
            in_visit = self._side.epoch_in_visit(key)
            begun = max(model.epoch, in_visit or 0)
            complete = begun == model.epoch and model.position in (0, self._n_segments)
            copied = model.is_just_taken_over or (model.cloned_from is not None and not model.has_own_visits)
            untrained_copy = copied and in_visit is None
            if begun < model.first_epoch or (begun == model.first_epoch and not complete) or untrained_copy:
                complete_before = "its first epoch was complete"
                what = "it was trained with the state that it copied" if untrained_copy else complete_before
                self._models.stopped(key, f"{reason} before {what}")
                return [key], lambda: self._side.stopped(key)
            self._models.shortened(key, begun, reason)
            return [key], lambda: self._side.shortened(key, complete and in_visit is None)

        return _Effect(write)

    def _is_pinned(self, key: int) -> bool:
        """Return whether a model is pinned, or one that trains with it: then all of them go on."""
        unit = [self._models[member] for member in self._side.groups.unit_of(key)]
        return any(model.pinned and model.is_alive for model in unit)

    @_effect.register
    def _(self, change: Finish, issuer: _Issuer) -> _Effect:
        going_on = [key for key, model in self._models.items() if model.state not in _MODEL_STATES]
        effects = [self._stop_with_epoch(key, change.reason) for key in going_on]

        def write() -> tuple[Sequence[int], _Apply]:
            written = [effect.write() for effect in effects]

            def apply() -> None:
                for _, then in written:
                    then()

            return [key for keys, _ in written for key in keys], apply

        return _Effect(write)

    @_effect.register
    def _(self, change: EndAlike, issuer: _Issuer) -> _Effect:
        repeated = self._repeated[change.mst_key]

        def write() -> tuple[Sequence[int], _Apply]:
            self._models.ended_as(change.mst_key, repeated.state, repeated.state_detail)
            return [change.mst_key], lambda: None

        return _Effect(write)

    @_effect.register
    def _(self, change: Resume, issuer: _Issuer) -> _Effect:
        key, model = change.mst_key, self._model(change.mst_key)
        if model.state is not ModelState.STOPPED:
            why = f"it has failed: {model.state_detail}" if model.state is ModelState.FAILED else "it is not stopped"
            raise CommandRefused(f"mst_key {key} cannot be resumed: {why}")
        self._not_in_search(f"resume mst_key {key}")
        self._side.separate(key)

        def write() -> tuple[Sequence[int], _Apply]:
            self._models.resumed(key)
            return [key], lambda: self._side.resumed(key)

        return _Effect(write, f"mst_key {key} continues {self._where(model)}")

    @_effect.register
    def _(self, change: Extend, issuer: _Issuer) -> _Effect:
        if change.num_iterations is None:
            assert change.mst_key is not None and change.last_epoch is not None, "a search says both"
            return self._extending({change.mst_key: change.last_epoch}, "")
        self._not_in_search("extend models")
        if change.mst_key is None:
            chosen = [m for m in self._models.values() if m.is_alive and not m.is_restored]
            if not chosen:
                raise CommandRefused(
                    "no model can be extended: all have failed, were stopped, or are at their best iteration"
                )
        else:
            chosen = [self._extendable(change.mst_key)]
        for model in chosen:
            if model.iteration(model.last_epoch) + change.num_iterations > MAX_ITERATIONS:
                raise CommandRefused(f"mst_key {model.mst_key} would make more than {MAX_ITERATIONS:,} iterations")
        for model in chosen:
            if self._side.trains and model.early_stopping is not None and self._awaits_end(model):
                raise NotYet  # whether it stops early is decided first, as in a replay
            self._side.separate(model.mst_key)
        many = f"mst_key {chosen[0].mst_key} makes" if len(chosen) == 1 else f"{len(chosen)} models make"
        detail = f"{many} {change.num_iterations} more iteration{'' if change.num_iterations == 1 else 's'}"
        return self._extending({m.mst_key: m.last_epoch + change.num_iterations for m in chosen}, detail)

    def _extending(self, last_epochs: Mapping[int, int], detail: str) -> _Effect:
        def write() -> tuple[Sequence[int], _Apply]:
            for key, last_epoch in last_epochs.items():
                self._models.extended(key, last_epoch)
            return list(last_epochs), apply

        def apply() -> None:
            for key in last_epochs:
                self._side.extended(key)

        return _Effect(write, detail)

    @_effect.register
    def _(self, change: Exploit, issuer: _Issuer) -> _Effect:
        new = self._proposed.configuration(change.model_id, change.compile_params, change.fit_params)
        keep = new.has_optimizer_of(self._models[change.source].configuration)
        self._bring_home(change.source)
        slot = self._slots.begin_write(change.mst_key)

        def write() -> tuple[Sequence[int], _Apply]:
            copied = self._models.crossed(change.mst_key, change.source, slot, new, change.last_epoch, keep)
            return [change.mst_key], lambda: apply(copied)

        def apply(copied: ModelRow) -> None:
            self._slots.end_write(slot, change.mst_key, copied.state_bytes)
            self._side.extended(change.mst_key)

        return _Effect(write)

    @_effect.register
    def _(self, change: Clone, issuer: _Issuer) -> _Effect:
        if change.repeated is not None:
            return self._clone_again(self._repeated[change.repeated])
        source = self._model(change.mst_key)
        has_state = change.from_state and source.digest is not None
        has_failed = source.state is ModelState.FAILED
        if has_failed and change.from_state and not source.is_restored:
            raise CommandRefused(
                f"mst_key {change.mst_key} cannot be cloned: it has failed: {source.state_detail}. With from_state =>"
                " false, a clone begins from its start"
            )
        if has_failed and not has_state and source.first_epoch > 1 and source.start_weights is None:
            raise CommandRefused(
                f"mst_key {change.mst_key} began with a state of an earlier run. Call the training function again, with"
                " warm_start => true"
            )
        old = source.configuration
        new = change.configuration or old
        same = new.equals(old)
        first = self._complete_epochs(source) if has_state else source.first_epoch - 1
        last_epoch = source.last_epoch if change.num_iterations is None else first + change.num_iterations
        if last_epoch <= first:
            raise CommandRefused(
                f"mst_key {change.mst_key} has no iteration left that a clone could make. Pass num_iterations"
            )
        if last_epoch - source.first_epoch + 1 > MAX_ITERATIONS:
            raise CommandRefused(
                f"a clone of mst_key {change.mst_key} would make more than {MAX_ITERATIONS:,} iterations"
            )
        if same and source.is_alive and last_epoch == source.last_epoch and change.keep_optimizer:
            raise CommandRefused(
                f"a clone of mst_key {change.mst_key} with the same parameters would repeat it. Pass other parameters"
                " or another num_iterations"
            )
        model = self._new_model(issuer, new, source.start_weights, last_epoch)
        model = replace(model, first_epoch=source.first_epoch, epoch=source.first_epoch - 1,
                        early_stopping=source.early_stopping)  # fmt: skip
        if not has_state:
            self._refuse_duplicate(new, source.start_weights)
            return self._adding([model], f"mst_key {model.mst_key} begins as a clone of mst_key {source.mst_key}")
        keep = change.keep_optimizer and new.has_optimizer_of(old)
        self._bring_home(source.mst_key)

        def write(slot: int) -> None:
            newest = self._record.lock_model(self._run_id, source.mst_key)
            if newest.state_version != source.state_version:  # a visit was committed: the driver has no answer yet
                raise NotYet
            self._models.cloned(model, newest, slot, self._came_from(newest), None if same and keep else keep)

        optimizer = ", with a new optimizer" if not keep or source.has_new_optimizer else ""
        detail = f"mst_key {model.mst_key} is a clone of mst_key {source.mst_key} {self._where(source)}{optimizer}"
        return self._cloning(model.mst_key, write, detail)

    def _clone_again(self, clone: ModelRow) -> _Effect:
        came_from = clone.cloned_from
        assert came_from is not None, "a replay clones what was cloned"
        takes = clone.taken_over
        keep = takes.optimizer if takes is not None and takes.mst_key == came_from.mst_key else None
        self._bring_home(came_from.mst_key)

        def write(slot: int) -> None:
            newest = self._record.lock_model(self._run_id, came_from.mst_key)
            self._models.cloned(untrained(clone), newest, slot, came_from, keep)

        return self._cloning(clone.mst_key, write, "")

    def _bring_home(self, mst_key: int) -> None:
        """Have the newest state of a model on this server. Raises NotYet if its host is away, and CommandRefused if no
        driver trains the run."""
        if self._side.bring_home(mst_key):
            return
        if not self._side.trains:
            raise CommandRefused(
                f"a host holds the state of mst_key {mst_key}, and the run is not training: resume the run first"
            )
        raise NotYet

    def _cloning(self, key: int, clone: Callable[[int], None], detail: str) -> _Effect:
        """Add a clone that ``clone`` writes, with its state in the slot that it is given."""
        slot = self._slots.begin_write(key)

        def write() -> tuple[Sequence[int], _Apply]:
            clone(slot)
            return [key], apply

        def apply() -> None:
            self._slots.end_write(slot, key, self._models[key].state_bytes)
            self._side.added([self._models[key]])

        return _Effect(write, detail, lambda: self._slots.end_write(slot, key))

    @_effect.register
    def _(self, change: Add, issuer: _Issuer) -> _Effect:
        models: list[ModelRow] = []
        for new in change.models:
            if isinstance(new, Proposal):
                models.append(self._proposed.added(new))
            else:
                models.append(self._commanded(issuer, new, len(models)))
        return self._adding(models, f"new: mst_key {', '.join(str(model.mst_key) for model in models)}")

    def _commanded(self, issuer: _Issuer, new: NewModel, offset: int) -> ModelRow:
        origin = new.start_weights and f"command {issuer.command_id}, {new.start_weights}"
        self._refuse_duplicate(new.configuration, origin)
        model = self._new_model(issuer, new.configuration, origin, self._side.run.num_iterations, offset)
        return replace(model, early_stopping=new.early_stopping)

    def _adding(self, models: Sequence[ModelRow], detail: str) -> _Effect:
        keys = [model.mst_key for model in models]

        def write() -> tuple[Sequence[int], _Apply]:
            self._models.added(models)
            return keys, lambda: self._side.added([self._models[key] for key in keys])

        return _Effect(write, detail)

    @_effect.register
    def _(self, change: Pause, issuer: _Issuer) -> _Effect:
        if not self._side.trains:
            raise CommandRefused("the run is not training")
        if self._side.run.paused_by is not None:
            raise CommandRefused(f"the run is paused already, by {self._side.run.paused_by}")
        return self._pausing(issuer.name, "paused", self._side.paused)

    @_effect.register
    def _(self, change: Unpause, issuer: _Issuer) -> _Effect:
        if self._side.run.paused_by is None:
            raise CommandRefused("the run is not paused")
        return self._pausing(None, "continues", self._side.unpaused)

    def _pausing(self, by: str | None, detail: str, apply: _Apply) -> _Effect:
        def write() -> tuple[Sequence[int], _Apply]:
            self._side.set_run(paused_by=by)
            return (), apply

        return _Effect(write, detail)

    @_effect.register
    def _(self, change: Pin, issuer: _Issuer) -> _Effect:
        key = self._model(change.mst_key).mst_key

        def write() -> tuple[Sequence[int], _Apply]:
            self._models.pinned(key, change.pinned)
            return [key], lambda: None

        what = "pinned: only people stop it" if change.pinned else "no longer pinned"
        return _Effect(write, f"mst_key {key} is {what}")

    @cached_property
    def _proposed(self) -> ProposedModels:
        """The models that the search of the run proposes."""
        return ProposedModels(self._side.run.search_plan, self._side.run.plan.class_weight)

    @cached_property
    def _repeated(self) -> Mapping[int, ModelRow]:
        """The models of the run that a replay repeats, as they are at its end."""
        parent = self._side.run.parent_run_id
        assert parent is not None, "a replay repeats a run"
        return {model.mst_key: model for model in self._record.models(parent)}

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

    def _new_model(
        self, issuer: _Issuer, new: Configuration, origin: str | None, last_epoch: int, offset: int = 0
    ) -> ModelRow:
        first_key = FIRST_KEY_IN_SEARCH if self._side.run.is_search else 1
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
            command_id=issuer.command_id,
            **new.columns(),
        )

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
