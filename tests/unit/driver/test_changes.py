"""Commands at random moments of a run, without a server: each is obeyed once, and a replay repeats what they did.

Hopper, scheduler, changes, slots and replay are the real ones; segments and record are those of the hopper's tests.
"""

import random
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest

from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.states import ChangeSource, CommandState, ModelState
from madlib_mop.driver.changes.changes import Changes
from madlib_mop.driver.changes.replay import RepeatedCommands
from madlib_mop.driver.changes.side import RunSide
from madlib_mop.driver.planning.replay import untrained
from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.models.changes import BY_FUNCTION, Add, Clone, Extend, NewModel, Pause, Pin, Resume, Stop, Unpause
from madlib_mop.models.configuration import Configuration
from madlib_mop.schedule import Visit
from tests.helpers.unit.fake_segments import FakeSegments
from tests.helpers.unit.memory_record import MemoryRecord
from tests.helpers.unit.rows import a_run
from tests.unit.driver.test_hopper import ARCH, COMPILE, PASSING, Died, Driver

N_SEGMENTS = 3
PARENT = 9  # the run that a replay repeats
SEEDS = range(70)


def configuration(n: int) -> Configuration:
    """Return one of many configurations."""
    return Configuration.recorded(1, COMPILE, f"batch_size={n}", ARCH)


class Steered(Driver):
    """A run that gets commands at random moments, also after its end; its drivers may die at any moment."""

    def __init__(self, seed: int, faults=None, n_deaths: int = 0):
        super().__init__(seed, n_segments=N_SEGMENTS, faults=faults)
        self.record.rows = {key: replace(m, fit_params=f"batch_size={key}") for key, m in self.record.rows.items()}
        kinds = [self.chance.choice(list(BY_FUNCTION.values())) for _ in range(self.chance.randint(1, 10))]
        self.commands = [*kinds, Unpause]
        self.deaths = [self.chance.randint(1, 100) for _ in range(n_deaths)]

    def live(self) -> "Steered":
        """Train, with all commands, until no model has visits left."""
        self.between, self.record.on_write = self.meanwhile, self.die
        while True:
            try:
                self.drive()
            except Died:
                self.segments.orphan()
                continue
            if not self.commands:
                return self
            self.deaths.clear()  # the driver of a command's call is not tested here
            self.issue()
            Changes(RunSide(self.record, self.record.the_run)).obey_pending()

    def meanwhile(self) -> None:
        """Issue commands sometimes, often several at once."""
        self.die()
        while self.commands and self.chance.random() < 0.2:
            self.issue()

    def die(self) -> None:
        """Kill the driver when it is its time."""
        if self.deaths:
            self.deaths[0] -= 1
            if not self.deaths[0]:
                self.deaths.pop(0)
                raise Died

    def issue(self) -> None:
        """Issue the next command, about a random model."""
        kind, chance = self.commands.pop(0), self.chance
        stopped = [key for key, model in self.record.rows.items() if model.state is ModelState.STOPPED]
        key = chance.choice(stopped if kind is Resume and stopped else list(self.record.rows))
        change = {
            Stop: Stop(key, "enough", at_once=True), Resume: Resume(key), Pin: Pin(key), Pause: Pause(),
            Unpause: Unpause(), Extend: Extend(chance.choice([key, None]), num_iterations=chance.randint(1, 2)),
            Clone: Clone(
                chance.choice([key, max(self.record.rows)]),
                chance.choice([None, configuration(chance.randint(50, 99))]),
                chance.random() < 0.7,
                num_iterations=chance.choice([None, 1, 2]),
            ),
            Add: Add((NewModel(configuration(chance.randint(100, 999)), None, None),)),
        }[kind]  # fmt: skip
        source = ChangeSource.POLICY if kind.by_policy and chance.random() < 0.3 else ChangeSource.PERSON
        self.record.issue(ChangeRow.asked(1, kind.function, {}, 10, source).checked(change))


def visits_in(record: MemoryRecord, key: int) -> list[tuple[int, int]]:
    """Return epoch and segment of each visit that the state of a model contains, those of a clone's original first."""
    own = [(v.epoch, v.segment_id) for v in record.visits(1) if v.mst_key == key]
    came = record.rows[key].cloned_from
    if came is None:
        return own
    until = (came.epoch - 1) * N_SEGMENTS + came.position
    return visits_in(record, came.mst_key)[:until] + own


@pytest.mark.parametrize("settings", [{}, {"faults": PASSING, "n_deaths": 6}], ids=["calm", "faults and deaths"])
def test_commands_at_any_moment_are_obeyed_once_and_every_visit_is_made_once(settings):
    outcomes = Counter()
    for seed in SEEDS:
        record = Steered(seed, **settings).live().record
        commands = record.changes
        outcomes.update((row.command, row.state) for row in commands)
        assert {row.state for row in commands} <= {CommandState.OBEYED, CommandState.REFUSED}, seed
        obeyed = sorted((row for row in commands if row.state is CommandState.OBEYED), key=lambda row: row.ordinal)
        assert [row.ordinal for row in obeyed] == list(range(len(obeyed))), seed
        added = {key for row in obeyed if row.change in ("add", "clone") for key in row.mst_keys}
        assert set(record.rows) == {1, 2, 3} | added, seed
        for key, model in record.rows.items():
            made = visits_in(record, key)
            whole = {(epoch, s) for epoch in range(1, model.last_epoch + 1) for s in range(N_SEGMENTS)}
            assert len(made) == len(set(made)) and [e for e, _ in made] == sorted(e for e, _ in made), seed
            if model.state is ModelState.TRAINED:
                assert set(made) == whole, seed
                continue
            assert model.state is ModelState.STOPPED and set(made) <= whole, seed
            (*_, stop) = [row for row in obeyed if row.change == "stop" and row.mst_keys == (key,)]
            epoch, position = stop.visits[str(key)]
            n_then = max(0, epoch - 1) * N_SEGMENTS + position
            assert len(made) <= n_then + 1, f"{seed}: more than the visit in flight was made after the stop"
    assert {command for command, state in outcomes if state is CommandState.OBEYED} == set(BY_FUNCTION)
    assert {command for command, state in outcomes if state is CommandState.REFUSED} >= {
        "stop_model", "resume_model", "clone_model", "extend", "pause", "unpause"
    }  # fmt: skip


class ReplayRecord(MemoryRecord):
    """The record of a replay, which reads the models of the repeated run too."""

    def __init__(self, parent: MemoryRecord):
        whole = [untrained(model) for model in parent.models(1) if model.cloned_from is None]
        super().__init__(a_run(parent.the_run.plan, kind="replay", parent_run_id=PARENT, schedule="recorded"), whole)
        self.parent = parent

    def models(self, run_id):
        return self.parent.models(1) if run_id == PARENT else super().models(run_id)


def visits_to_repeat(record: MemoryRecord) -> list[Visit]:
    """Return the recorded visits; those in a clone's state count as its own."""
    inherited = [
        Visit(m.mst_key, segment, m.cloned_from.epoch, position)
        for m in record.models(1)
        if m.cloned_from is not None
        for position, segment in enumerate(m.cloned_from.segments, start=1)
    ]
    return inherited + [Visit(v.mst_key, v.segment_id, v.epoch, v.position) for v in record.visits(1)]


def test_a_replay_repeats_what_commands_did():
    for seed in SEEDS:
        record = Steered(seed).live().record
        again = ReplayRecord(record)
        segments = FakeSegments(range(N_SEGMENTS), again.do, random.Random(seed + 1))
        progress = ProgressReporter(mock.Mock(), again.the_run, again.models(1))
        decider = RepeatedCommands(record.models(1))
        Hopper(again, segments, again.the_run, progress, visits_to_repeat(record), decider).run()
        ends = [{m.mst_key: (m.state, m.digest) for m in each.models(1)} for each in (record, again)]
        assert ends[0] == ends[1], seed
        clones = [m.mst_key for m in record.models(1) if m.cloned_from is not None]
        made = [row for row in again.changes if row.change == "clone"]
        assert sorted(key for row in made for key in row.mst_keys) == clones, seed
        assert all(row.source is ChangeSource.REPLAY and row.command is None for row in again.changes), seed
