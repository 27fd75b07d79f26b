"""What commands, failures and replays do at rare moments: while a visit or an evaluation is in flight, or unread."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.model import ClonedFrom, TakenOver
from madlib_mop.catalog.rows.run import Metric
from madlib_mop.catalog.rows.states import ChangeSource, ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.driver.changes.changes import Changes, CommandRefused, _Issuer
from madlib_mop.driver.changes.deciders import Decision
from madlib_mop.driver.changes.replay import RepeatedCommands
from madlib_mop.driver.changes.side import NotYet, RunSide
from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.planning.replay import untrained
from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.driver.running.loop import RetryDecision
from madlib_mop.models.changes import Clone, Extend, Finish, Stop
from madlib_mop.schedule import Visit
from tests.helpers.unit.memory_runs import ARCH, COMPILE
from tests.helpers.unit.rows import a_model, a_plan, a_run

RULE = {"patience": 1, "metric": "val_loss", "mode": "min", "restore_best": True}


class Replayed:
    """The models of a replay, and the clones that were made in it."""

    def __init__(self, clone, *models):
        self.clone = clone
        self.models = {model.mst_key: model for model in models}
        self.decider = RepeatedCommands([clone])
        self.made = []

    def make(self, decisions):
        """Make clones as soon as they are decided."""
        for decision in decisions:
            assert decision.changes == [Clone(self.clone.cloned_from.mst_key, repeated=self.clone.mst_key)]
            self.made.append((self.clone.mst_key, self.models[self.clone.cloned_from.mst_key].state_version))
            self.models[self.clone.mst_key] = self.clone


def test_a_clone_of_a_model_that_was_just_crossed_is_repeated_after_the_crossing():
    """The crossing changes the state, and not the place of the newest visit."""
    clone = a_model(5, cloned_from=ClonedFrom(1, 2, 2, (), 0, False, version=5))
    replayed = Replayed(clone, a_model(1, epoch=2, position=2, state_version=4))
    replayed.make(replayed.decider.begin(replayed.models))
    replayed.make(replayed.decider.visited(1))
    replayed.make(replayed.decider.tick())
    assert replayed.made == []
    replayed.models[1] = replace(replayed.models[1], state_version=5, taken_over=TakenOver(3, 2, 5, True))
    replayed.make(replayed.decider.tick())
    replayed.make(replayed.decider.tick())
    assert replayed.made == [(5, 5)]


def test_a_clone_that_was_recorded_without_the_version_of_its_state_is_repeated():
    found = ClonedFrom.from_json(
        {"mst_key": 1, "epoch": 2, "position": 2, "segments": [], "turn": 0, "is_best": False}
    )
    replayed = Replayed(a_model(5, cloned_from=found), a_model(1, epoch=2, position=2, state_version=4))
    replayed.make(replayed.decider.begin(replayed.models))
    assert replayed.made == [(5, 4)]


@pytest.mark.parametrize("state, expected", [(ModelState.TRAINED, RULE), (ModelState.STOPPED, None)])
def test_a_replay_does_not_restore_the_best_state_of_a_model_that_was_stopped(state, expected):
    assert untrained(a_model(1, state=state, early_stopping=RULE)).early_stopping == expected


@pytest.mark.parametrize(
    "position, rule, trains, waits",
    [(2, RULE, True, True), (1, RULE, True, False), (2, None, True, False), (2, RULE, False, False)],
)
def test_a_model_is_extended_after_its_last_metrics_have_decided(position, rule, trains, waits):
    """Whether they are due depends on its last iteration, which a replay knows from the start."""
    model = a_model(1, epoch=2, position=position, state=ModelState.TRAINING, early_stopping=rule)
    separated = []
    side = a_side(SimpleNamespace(), {1: model})
    side.trains, side.separate = trains, separated.append
    with pytest.raises(NotYet) if waits else nullcontext():
        Changes(side)._effect(Extend(num_iterations=1), _Issuer(ChangeSource.PERSON))
    assert separated == [1] * (not waits)


@pytest.mark.parametrize("has_newer_visit", [False, True])
def test_a_clone_waits_for_the_answer_of_a_committed_visit_and_gives_its_slot_back(has_newer_visit):
    """The iterations that it makes itself are counted from the state that it copies."""
    known = a_model(
        1, epoch=1, position=2, last_epoch=9, state=ModelState.TRAINING, digest="d", state_version=2,
        compile_params=COMPILE, model_arch=ARCH, fit_params="batch_size=1",
    )  # fmt: skip
    newest = replace(known, epoch=2, state_version=4) if has_newer_visit else known
    models, slots = ClonedModels({1: known}), SlotsInUse()
    record = SimpleNamespace(
        lock_model=lambda *_: newest, transaction=nullcontext, lock_command=lambda command: True,
        record_outcome=lambda *_: None, visits=lambda run_id: [],
    )  # fmt: skip
    side = RunSide(record, a_run(a_plan()), models, slots)
    command = ChangeRow.asked(1, "clone_model", {}, 10).checked(Clone(1, num_iterations=2))
    with pytest.raises(NotYet) if has_newer_visit else nullcontext():
        Changes(side).apply_command(command)
    assert slots.writers == [] and [(m.epoch, m.last_epoch) for m in models.clones] == [(1, 3)] * (not has_newer_visit)


class ClonedModels(dict):
    """The models of a run; clones are noted."""

    def __init__(self, models):
        super().__init__(models)
        self.clones = []

    def cloned(self, clone, source, slot, came_from, keep_optimizer):
        self.clones.append(replace(clone, epoch=came_from.epoch))
        self[clone.mst_key] = clone


class SlotsInUse:
    """Slots of states; ``writers`` are the models whose states are being written."""

    def __init__(self):
        self.writers = []

    def begin_write(self, mst_key):
        self.writers.append(mst_key)
        return 7

    def end_write(self, slot, mst_key, n_bytes=None):
        self.writers.remove(mst_key)


def a_side(record, models):
    """Return a run that does not train, with these models."""
    return RunSide(record, a_run(a_plan()), models, SimpleNamespace())


def test_a_command_that_waits_does_not_delay_unpause():
    """It may wait for an evaluation, which a paused run does not make."""
    names = ["pause", "extend", "stop_model", "unpause", "pin_model"]
    applied = []

    class Waiting(Changes):
        def apply_command(self, command):
            if command.command == "extend":
                raise NotYet
            applied.append(command.command)

    pending = [ChangeRow.asked(1, name, {}, 10) for name in names]
    Waiting(a_side(SimpleNamespace(), {})).apply(pending)
    assert applied == ["pause", "unpause"]


class StoppedModels(dict):
    """The models of a run; stops are noted."""

    def stopped(self, mst_key, reason):
        self.reason = mst_key, reason


@pytest.mark.parametrize("change", [Finish("the time budget was used up"), Stop(5, "the time budget was used up")])
def test_the_end_of_a_budget_stops_a_clone_that_has_made_no_visit(change):
    """Its state is complete, but not its own."""
    came_from = ClonedFrom(1, 2, 2, (), 0, False, version=4)
    clone = a_model(5, epoch=2, position=2, last_epoch=5, cloned_from=came_from)
    models, stopped = StoppedModels({5: clone}), []
    written = []
    record = SimpleNamespace(lock_model=lambda *_: clone, transaction=nullcontext, add_changes=written.extend)
    side = a_side(record, models)
    side.stopped = stopped.append
    Changes(side).make(Decision(ChangeSource.SEARCH, [change]))
    reason = "the time budget was used up before it was trained with the state that it copied"
    assert (stopped, models.reason) == ([5], (5, reason))
    assert [(row.read(), row.source, row.mst_keys) for row in written] == [(change, ChangeSource.SEARCH, [5])]


@pytest.mark.parametrize(
    "source, change, refused",
    [(ChangeSource.POLICY, Stop(1, at_once=True), True), (ChangeSource.PERSON, Stop(1, at_once=True), False)],
)
def test_only_people_stop_a_pinned_model(source, change, refused):
    side = a_side(SimpleNamespace(), {1: a_model(1, state=ModelState.TRAINING, pinned=True)})
    with pytest.raises(CommandRefused, match="is pinned") if refused else nullcontext():
        Changes(side)._effect(change, _Issuer(source))


class FailedModels(dict):
    """The models of a run; a failure is recorded."""

    def failed(self, mst_key, reason):
        self[mst_key] = replace(self[mst_key], state=ModelState.FAILED, state_detail=reason)


@pytest.mark.parametrize(
    "state, told, reason",
    [(ModelState.TRAINING, [1], "second"), (ModelState.STOPPED, [], "second"), (ModelState.FAILED, [], "first")],
)
def test_a_search_is_told_once_that_a_model_has_ended(state, told, reason):
    """A command has stopped it, or one of its evaluations has failed; then its visit or another evaluation fails."""
    found = []
    nothing = SimpleNamespace(forget=lambda key: None, model_failed=lambda *_: None, failed=lambda task: None)
    models = FailedModels({1: a_model(1, state=state, state_detail="first")})
    hopper = SimpleNamespace(_models=models, _evaluations=nothing, _stops=nothing, _progress=nothing, _plan=nothing)
    hopper._at_hosts = None
    hopper._deciders = [SimpleNamespace(failed=lambda key: [key])]
    hopper._changes = SimpleNamespace(make_all=found.extend)
    hopper._failed = partial(Hopper._failed, hopper)
    hopper._write_failure = partial(Hopper._write_failure, hopper)
    Hopper._fail_model(hopper, 1, Visit((1,), 0, 1, 1), RetryDecision(False, False, {"message": "second"}))
    assert (found, models[1].state) == (told, ModelState.FAILED) and models[1].state_detail.startswith(reason)


class Record(SimpleNamespace):
    """A record with the metrics of one model, that notes what is written."""

    def metrics(self, run_id):
        losses = [1.0, 2.0][: self.n_epochs]
        return [Metric(run_id=7, mst_key=1, epoch=epoch, data_set="validation", name="loss", ordinal=0, value=value,
                       elapsed_s=0.0, work_s=0.0) for epoch, value in enumerate(losses, 1)]  # fmt: skip

    def models(self, run_id):
        return [a_model(1, state=ModelState.TRAINING, early_stopping=self.rule, epoch=self.n_epochs, position=2,
                        last_epoch=5)]  # fmt: skip

    def transaction(self):
        return nullcontext()

    def add_changes(self, rows):
        self.changes += rows

    def set_model(self, run_id, mst_key, waits=True, **columns):
        self.written.append(columns["last_epoch"])


@pytest.mark.parametrize("n_epochs, stops", [(1, []), (2, [1])])
def test_a_stop_that_is_decided_when_a_run_is_resumed_is_returned(n_epochs, stops):
    """So the run lets the scheduler know."""
    record = Record(n_epochs=n_epochs, rule={**RULE, "restore_best": False}, written=[], changes=[])
    models = RunModels(record, 7)
    told = SimpleNamespace(tell=lambda sentence: None)
    assert EarlyStops(record, a_run(a_plan()), models, None, told).resume() == stops
    assert record.written == [2] * len(stops)
    assert [(row.source, row.change, row.visits) for row in record.changes] == [
        (ChangeSource.EARLY_STOPPING, "stop", {"1": [2, 2]})
    ] * len(stops)
    assert models[1].last_epoch == (2 if stops else 5)
