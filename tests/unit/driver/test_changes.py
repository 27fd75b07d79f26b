"""Commands at random moments of a run, without a server: each is obeyed once, and a replay repeats what they did.

The record is in memory; scheduler, evaluations, the models of the run, their changes and the replay are the real ones.
The digest of a model's state is the list of its visits.
"""

import math
import random
from collections import Counter

import pytest

from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.states import ChangeSource, CommandState, ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.driver.changes.changes import Changes
from madlib_mop.driver.changes.deciders import Decider
from madlib_mop.driver.changes.replay import RepeatedCommands
from madlib_mop.driver.planning.replay import untrained
from madlib_mop.driver.running.models import RunningModels
from madlib_mop.models.changes import BY_FUNCTION, Add, Clone, Extend, NewModel, Pause, Pin, Resume, Stop, Unpause
from madlib_mop.models.configuration import Configuration
from madlib_mop.schedule import Visit
from tests.helpers.unit.memory import PARENT, Killed, MemoryRecord, Quiet, Slots
from tests.helpers.unit.rows import a_model, a_plan, a_run
from tests.helpers.unit.sums import sums_of

SEGMENTS = {0: 10, 1: 10, 2: 10}
N_MODELS = 3
N_HISTORIES = 100


def configuration(n: int) -> Configuration:
    """Return one of many configurations."""
    return Configuration(1, "loss='mse', optimizer='sgd'", f"batch_size={n}", {})


class PausedSegments:
    """The segments of a run that can be paused."""

    def pause(self):
        """Do nothing."""

    def open(self):
        """Bring all segments up."""
        for segment in SEGMENTS:
            self.scheduler.segment_up(segment)


class Hopping:
    """The life of one driver of a run: it is given commands, and ends tasks in a random order."""

    def __init__(self, record: MemoryRecord, rng: random.Random, decider: Decider, recorded=None):
        kind, parent = ("fit_multiple_model", None) if recorded is None else ("replay", PARENT)
        run = a_run(a_plan(tuple(SEGMENTS.items())), kind=kind, parent_run_id=parent, paused_by=record.paused_by)
        self.record, self.rng, self.decider = record, rng, decider
        self.models, segments = RunModels(record, 1), PausedSegments()
        self.running = RunningModels(record, run, self.models, segments, Quiet(), decider, recorded, Slots())
        self.scheduler, self.evaluations = self.running.scheduler, self.running.evaluations
        segments.scheduler = self.scheduler
        self.changes = Changes(self.running)
        self.flights = []

    def live(self, commands=()) -> None:
        """Train to the end; each command is issued at a random moment."""
        self.evaluations.add_missing()
        self.changes.make_all(self.decider.begin(self.models))
        while True:
            self.changes.obey_pending()
            if self.scheduler.done and not commands and not self.flights:
                break
            if not self.running.pause.keeps(bool(self.flights)):
                self.flights += self.scheduler.next_tasks()
            if commands and (self.rng.random() < 0.3 or not self.flights):
                self.record.issue(asked(commands.pop(0), self.rng, list(self.models)))
            if self.flights:
                self.end(self.flights.pop(self.rng.randrange(len(self.flights))))
            self.changes.make_all(self.decider.tick())
        self.changes.make_all(self.decider.ended())

    def end(self, task) -> None:
        """End a task as the hopper does."""
        if not isinstance(task, Visit):
            self.scheduler.finished(task, 1.0)
            shard = {"n_rows": 10, "loss": 1.0, "timing": {}, "started_at": 1.0, "ended_at": 2.0}
            shard["sums"] = sums_of(10, {"loss": 1.0})
            answer = {"shards": [shard | at for at in task.payload.as_order()]}
            for key, rows in self.evaluations.finished(task, answer, 1.0, 1.0).items():
                self.epoch_over(key, task.payload.epoch, rows)
            return
        m = self.record.lock_model(1, task.model)
        digest = (*(m.digest or ()), (task.epoch, task.segment))
        with self.record.transaction():
            state = ModelState.TRAINING if m.is_alive else m.state
            values = {"digest": digest, "epoch": task.epoch, "position": task.position, "state": state}
            self.record.set_model(1, task.model, **values, state_version=m.state_version + 1)
            self.record.tables["visits"].append((task.model, task.epoch, task.segment, task.position))
        self.models.visit_kept(task.model, digest, task.epoch, task.position)
        done = self.scheduler.finished(task, 1.0)
        self.changes.make_all(self.decider.visited(task.model))
        alive = self.models[task.model].is_alive
        if done is not None and alive and not self.evaluations.begin([task.model], done.epoch):
            self.epoch_over(task.model, done.epoch, ())

    def epoch_over(self, key: int, epoch: int, metrics) -> None:
        """End a model after its last epoch."""
        if epoch == self.models[key].last_epoch:
            self.models.trained(key)
            self.changes.make_all(self.decider.reached(key, epoch, metrics))


def asked(kind: type, rng: random.Random, keys: list[int]) -> ChangeRow:
    """Return a command about a random model."""
    key = rng.choice(keys)
    change = {
        Stop: Stop(key, "enough", at_once=True), Resume: Resume(key), Pin: Pin(key), Pause: Pause(), Unpause: Unpause(),
        Extend: Extend(rng.choice([key, None]), num_iterations=rng.randint(1, 2)),
        Clone: Clone(
            key, rng.choice([None, configuration(rng.randint(50, 99))]), rng.random() < 0.7,
            num_iterations=rng.choice([None, 1, 2]),
        ),
        Add: Add((NewModel(configuration(rng.randint(100, 999)), None, None),)),
    }[kind]  # fmt: skip
    source = ChangeSource.POLICY if kind.by_policy and rng.random() < 0.3 else ChangeSource.PERSON
    return ChangeRow.asked(1, kind.function, {}, 10, source).checked(change)


def begun() -> MemoryRecord:
    """Return the record of a run that was planned."""
    record = MemoryRecord()
    record.add_models(1, [a_model(key, **configuration(key).columns()) for key in range(1, N_MODELS + 1)])
    return record


def steered(seed: int, kills: bool) -> MemoryRecord:
    """Return the record of a run with commands at random moments, whose driver is killed sometimes."""
    rng, record = random.Random(seed), begun()
    commands = [rng.choice(list(BY_FUNCTION.values())) for _ in range(rng.randint(1, 8))] + [Unpause]
    while True:
        record.writes_left = rng.randint(0, 40) if kills and rng.random() < 0.8 else math.inf
        try:
            Hopping(record, rng, Decider()).live(commands)
        except Killed:
            continue
        return record


def states(record: MemoryRecord) -> dict[int, tuple]:
    """Return state and visits of each model."""
    return {m.mst_key: (m.state, m.digest) for m in record.models(1)}


@pytest.mark.parametrize("kills", [False, True])
def test_commands_at_any_moment_are_obeyed_once_and_every_visit_is_made_once(kills):
    outcomes = Counter()
    for seed in range(N_HISTORIES):
        record = steered(seed, kills)
        commands = record.tables["changes"]
        outcomes.update((row.command, row.state) for row in commands)
        assert {row.state for row in commands} <= {CommandState.OBEYED, CommandState.REFUSED}, seed
        obeyed = [row for row in commands if row.state is CommandState.OBEYED]
        assert sorted(row.ordinal for row in obeyed) == list(range(len(obeyed))), seed
        visits = [visit[:3] for visit in record.tables["visits"]]
        assert len(visits) == len(set(visits)), seed
        added = {key for row in obeyed if row.change in ("add", "clone") for key in row.mst_keys}
        assert set(record.tables["models"]) == set(range(1, N_MODELS + 1)) | added, seed
        for m in record.models(1):
            made = m.digest or ()
            assert list(made) == sorted(made, key=lambda visit: visit[0]) and len(made) == len(set(made)), seed
            whole = {(epoch, segment) for epoch in range(1, m.last_epoch + 1) for segment in SEGMENTS}
            assert m.state in (ModelState.TRAINED, ModelState.STOPPED), seed
            assert set(made) == whole if m.state is ModelState.TRAINED else set(made) <= whole, seed
            if m.state is ModelState.STOPPED:
                (*_, stop) = [row for row in obeyed if row.change == "stop" and row.mst_keys == (m.mst_key,)]
                epoch, position = stop.visits[str(m.mst_key)]
                n_then = max(0, epoch - 1) * len(SEGMENTS) + position
                assert len(made) <= n_then + 1, f"{seed}: more than the visit in flight was made after the stop"
    assert {command for command, state in outcomes if state is CommandState.OBEYED} == set(BY_FUNCTION)
    assert {command for command, state in outcomes if state is CommandState.REFUSED} >= {
        "stop_model", "resume_model", "clone_model", "extend", "pause", "unpause"
    }  # fmt: skip


def test_a_replay_repeats_what_commands_did():
    for seed in range(N_HISTORIES):
        record, again = steered(seed, kills=False), MemoryRecord()
        again.parent = record
        again.add_models(1, [untrained(m) for m in record.models(1) if m.cloned_from is None])
        visits = [
            Visit(m.mst_key, segment, m.cloned_from.epoch, position)
            for m in record.models(1)
            if m.cloned_from is not None
            for position, segment in enumerate(m.cloned_from.segments, start=1)
        ]
        visits += [Visit(key, segment, epoch, position) for key, epoch, segment, position in record.tables["visits"]]
        Hopping(again, random.Random(seed + 1), RepeatedCommands(record.models(1)), visits).live()
        assert states(again) == states(record), seed
        clones = [m.mst_key for m in record.models(1) if m.cloned_from is not None]
        made = [row for row in again.tables["changes"] if row.change == "clone"]
        assert sorted(key for row in made for key in row.mst_keys) == clones
        assert all(row.source is ChangeSource.REPLAY and row.command is None for row in again.tables["changes"])
