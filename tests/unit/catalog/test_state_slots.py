"""Promises 9 and 15 without a server: `StateSlots` empties only states that no model and no snapshot needs.

Its disk usage stays small.
"""

import random
from contextlib import contextmanager

import psycopg2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.catalog.old_snapshots import SnapshotHolder, SnapshotPoll
from madlib_mop.catalog.state_slots import _FREELY_MOVED_BYTES, StateSlots, StoredState

RUN_ID = 7


class Disk:
    """Replaces the record: stores what is written to each slot, and empties slots on request."""

    def __init__(self):
        self.slots: dict[int, list[tuple[int, int]]] = {}
        self.is_read = False
        self.locked: set[int] = set()  # slots that a dump reads
        self.n_truncated = 0
        self.holders: list[SnapshotHolder] = []

    def poll(self) -> SnapshotPoll:
        return SnapshotPoll(0, list(self.holders))

    def keep(self, slots: StateSlots, key, n_bytes: int) -> int:
        """Write and commit a state; return its slot."""
        slot = slots.begin_write(key)
        self.slots[slot].append((key, n_bytes))
        slots.end_write(slot, key, n_bytes)
        return slot

    @contextmanager
    def transaction(self):
        yield

    def execute(self, query, params=(), slot=None, **dropped):
        if query.startswith(("SELECT", "SET lock_timeout", "RESET")):
            return []
        if "DROP TABLE" in query:
            numbers = [int(name[1:]) for name in dropped]
            if self.is_read or not self.locked.isdisjoint(numbers):
                raise psycopg2.errors.LockNotAvailable
            for number in numbers:
                del self.slots[number]
            return []
        if "UPDATE madlib_mop.model_state" in query:
            key = ("best", params["key"]) if "best_state" in query else params["key"]
            (row,) = [row for row in self.slots[params["old"]] if row[0] == key][-1:]
            self.slots[params["target"]].append(row)
            return []
        number = RUN_ID * 1000 + int(str(slot).rsplit("_", 1)[1].strip('"'))
        if "CREATE TABLE" in query:
            self.slots[number] = []
        elif self.is_read or number in self.locked:
            raise psycopg2.errors.LockNotAvailable
        elif "TRUNCATE" in query:
            self.slots[number].clear()
            self.n_truncated += 1
        return []

    @property
    def n_bytes(self) -> int:
        return sum(size for rows in self.slots.values() for _, size in rows)


def train(
    sizes: list[int], n_segments: int, n_visits: int, chance: random.Random, disk: Disk, keeps_best: bool = False
) -> tuple[int, StateSlots]:
    """Let models visit segments in any order; return the maximum disk usage, without the visits in flight."""
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(len(sizes))], disk.poll)
    in_flight, written, most, n_ended = {}, {}, 0, 0
    while n_ended < n_visits:
        idle = [key for key in range(len(sizes)) if key not in in_flight and key not in written]
        while idle and len(in_flight) + len(written) < n_segments:
            key = idle.pop(chance.randrange(len(idle)))
            in_flight[key] = slots.begin_write(key)
        for key in [key for key in in_flight if chance.random() < 0.5]:  # committed, which the driver learns later
            written[key] = in_flight.pop(key)
            disk.slots[written[key]].append((key, sizes[key]))
        key = chance.choice([*in_flight, *written])
        n_ended += key in written
        if key in written:
            slots.end_write(written.pop(key), key, sizes[key])
            if keeps_best and chance.random() < 0.2:
                disk.keep(slots, ("best", key), sizes[key])
        elif chance.random() < 0.2:
            slots.end_write(in_flight.pop(key), key)  # a failed visit, which wrote nothing
        slots.empty_dead()
        busy = {*in_flight, *written}
        slots.compact({*range(len(sizes)), *(("best", key) for key in range(len(sizes)))} - busy)
        most = max(most, disk.n_bytes)
        newest = {key: place.slot for key, place in slots._places.items()} | written
        for key, slot in newest.items():
            assert (key, sizes[key if isinstance(key, int) else key[1]]) in disk.slots[slot], (
                "a newest state was emptied away"
            )
    for key, slot in in_flight.items():
        slots.end_write(slot, key)
    for key, slot in written.items():
        slots.end_write(slot, key, sizes[key])
    slots.empty_dead()
    return most, slots


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1 << 20, 30 << 20), min_size=1, max_size=40),
    n_segments=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_large_states_take_little_more_than_once_their_size(sizes, n_segments, seed):
    disk = Disk()
    most, _ = train(sizes, n_segments, 300, random.Random(seed), disk)
    assert most <= 1.5 * sum(sizes) + 2 * n_segments * max(sizes)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1 << 10, 200 << 10), min_size=1, max_size=120),
    n_segments=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_small_states_take_at_most_thrice_their_size_and_some_megabytes(sizes, n_segments, seed):
    disk = Disk()
    most, _ = train(sizes, n_segments, 600, random.Random(seed), disk)
    assert most <= 3 * sum(sizes) + (4 << 20)


@pytest.mark.parametrize("seed", range(5))
def test_sixteen_small_states_take_less_than_thrice_their_size(seed):
    """Two megabytes of replaced states count, where all states have hardly more."""
    sizes = [145 << 10] * 16
    most, _ = train(sizes, 2, 96, random.Random(seed), Disk())
    assert most <= 2.6 * sum(sizes)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1 << 10, 200 << 10), min_size=1, max_size=120),
    n_segments=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_with_best_states_beside_the_newest_ones_the_same_holds_of_both(sizes, n_segments, seed):
    disk = Disk()
    most, _ = train(sizes, n_segments, 600, random.Random(seed), disk, keeps_best=True)
    assert most <= 3 * 2 * sum(sizes) + (4 << 20)


@pytest.mark.parametrize("n_bytes, pause_s", [(1 << 10, 0.125), (20 << 20, 0.125), (1 << 30, 2.0)])
def test_few_bytes_are_moved_often_and_many_rarely(n_bytes, pause_s):
    """A pause of seconds between the moves of kilobytes would let small states use more disk than allowed."""
    states = [StoredState(key, RUN_ID * 1000, n_bytes // 16) for key in range(16)]
    slots = StateSlots(Disk(), RUN_ID, states, Disk().poll)
    assert slots.pause_s == pause_s


@pytest.mark.parametrize("n_bytes", [100 << 10, 2 << 20])
def test_no_visit_waits_for_a_truncate(n_bytes):
    """One empty slot more than are in use is enough for that."""
    disk = Disk()
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(8)], disk.poll)
    n_truncated = 0
    for key in [*range(8)] * 20:
        before = disk.n_truncated
        slot = slots.begin_write(key)
        n_truncated += disk.n_truncated - before
        disk.slots[slot].append((key, n_bytes))
        slots.end_write(slot, key, n_bytes)
        slots.empty_dead()
    assert n_truncated == 0 < disk.n_truncated
    assert len(disk.slots) <= 8 + 2


def test_a_run_with_all_its_slots_uses_none_of_the_next_run():
    """Model averaging on 1,000 segments has as many staged states, each above the quota of a slot."""
    disk, size = Disk(), 2 << 20
    keys = [(1, segment) for segment in range(1100)]
    slots = StateSlots(disk, RUN_ID, [StoredState(1)], disk.poll)
    for _ in range(2):
        written = {key: slots.begin_write(key) for key in keys}
        assert set(written.values()) <= set(range(RUN_ID * 1000, (RUN_ID + 1) * 1000))
        for key, slot in written.items():
            disk.slots[slot].append((key, size))
            slots.end_write(slot, key, size)
        slots.empty_dead()
        slots.compact(set(keys))
        assert all((key, size) in disk.slots[slots.slot_of(key)] for key in keys)


def test_a_model_that_ends_with_its_best_state_leaves_the_newest_one_to_be_emptied():
    disk = Disk()
    slots = StateSlots(disk, RUN_ID, [StoredState(1)], disk.poll)
    for key in (1, ("best", 1), 1):
        disk.keep(slots, key, 2 << 20)
    best = slots.slot_of(("best", 1))
    slots.rename(("best", 1), 1)
    slots.finish()
    assert slots.slot_of(1) == best and disk.n_bytes == 2 << 20


def test_after_the_last_visit_only_newest_states_are_left():
    disk = Disk()
    _, slots = train([2 << 20] * 5, 2, 100, random.Random(1), disk)
    slots.finish()
    assert disk.n_bytes == 5 * (2 << 20)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1 << 10, 3 << 20), min_size=1, max_size=80),
    n_segments=st.integers(1, 8),
    keeps_best=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_states_that_stay_take_hardly_more_than_their_size(sizes, n_segments, keeps_best, seed):
    disk = Disk()
    _, slots = train(sizes, n_segments, 300, random.Random(seed), disk, keeps_best)
    slots.finish()
    for key, place in slots._places.items():
        size = sizes[key if isinstance(key, int) else key[1]]
        assert (key, size) in disk.slots[place.slot], "a state that stays was emptied away"
    live = sum(place.n_bytes for place in slots._places.values())
    assert disk.n_bytes <= (1.05 if live <= _FREELY_MOVED_BYTES else 2) * live


def small_states(disk: Disk) -> tuple[StateSlots, int]:
    """Write four small states of a model into one slot; return the slots, and the one that the model is in."""
    slots = StateSlots(disk, RUN_ID, [StoredState(1)], disk.poll)
    for _ in range(4):
        slot = disk.keep(slots, 1, 100 << 10)
    return slots, slot


def test_states_of_which_none_was_replaced_are_not_moved_at_the_end():
    disk = Disk()
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(8)], disk.poll)
    for key in range(8):
        disk.keep(slots, key, 100 << 10)
    before = {key: slots.slot_of(key) for key in range(8)}
    slots.finish()
    assert {key: slots.slot_of(key) for key in range(8)} == before and set(disk.slots) == set(before.values())


@pytest.mark.parametrize(("replaced_of_each_slot", "most_moved"), [(1, _FREELY_MOVED_BYTES), (2, 200 << 20)])
def test_of_large_states_more_are_moved_only_if_that_frees_more_than_it_writes(replaced_of_each_slot, most_moved):
    disk, size = Disk(), 1 << 20
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(198)], disk.poll)
    for key in [*range(198), *(key for key in range(198) if key % 3 < replaced_of_each_slot)]:  # a slot has three
        disk.keep(slots, key, size)
    places = {key: slots.slot_of(key) for key in range(198)}
    slots.finish()
    moved = sum(size for key in range(198) if slots.slot_of(key) != places[key])
    assert most_moved * 0.3 <= moved <= most_moved
    assert disk.n_bytes <= 1.25 * 198 * size


def test_at_the_end_no_state_is_moved_that_a_snapshot_sees():
    """It would take more disk, and free none."""
    disk = Disk()
    slots, slot = small_states(disk)
    disk.holders = [SnapshotHolder("a dump", 1)]
    slots.finish()
    assert slots.slot_of(1) == slot and disk.n_bytes == 4 * (100 << 10)


def test_slots_without_replaced_states_stay_as_they_are_while_a_snapshot_keeps_others():
    disk = Disk()
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(200)], disk.poll)
    for key in [*range(200), *range(16), *range(16, 200, 4)]:  # the first slot is dead then: the driver polls
        if key == 199:
            disk.holders = [SnapshotHolder("a dump", 1)]
        disk.keep(slots, key, 64 << 10)
        slots.empty_dead()
    before, places = disk.n_bytes, {key: slots.slot_of(key) for key in range(200)}
    slots.finish()
    assert {key: slots.slot_of(key) for key in range(200)} == places and disk.n_bytes == before == 262 * (64 << 10)


def test_a_snapshot_that_comes_while_states_are_moved_ends_the_moves():
    class Late(Disk):
        def execute(self, query, *arguments, **options):
            if "UPDATE madlib_mop.model_state" in query:
                self.holders = [SnapshotHolder("a dump", 1)]
            return super().execute(query, *arguments, **options)

    disk = Late()
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(200)], disk.poll)
    for key in [*range(200)] * 2 + [*range(0, 200, 4)]:
        disk.keep(slots, key, 64 << 10)
        slots.empty_dead()
    before, places = disk.n_bytes, {key: slots.slot_of(key) for key in range(200)}
    slots.finish()
    moved = [key for key in range(200) if slots.slot_of(key) != places[key]]
    assert moved and len({places[key] for key in moved}) == 1, "one slot only"
    assert disk.n_bytes == before + len(moved) * (64 << 10)


def test_a_run_ends_though_its_states_cannot_be_moved():
    """They take disk, and one may be damaged, which fails its model and not the run."""

    class Full(Disk):
        def execute(self, query, *arguments, **options):
            if "UPDATE madlib_mop.model_state" in query:
                raise psycopg2.errors.DiskFull
            return super().execute(query, *arguments, **options)

    disk = Full()
    slots, slot = small_states(disk)
    slots.finish()
    assert slots.slot_of(1) == slot and disk.slots == {slot: [(1, 100 << 10)] * 4}, "nor is an empty slot left"


def test_the_states_of_a_slot_are_moved_together_or_not_at_all():
    """In one transaction: each commit waits for the disk, and the caller of the run waits too."""

    class Breaking(Disk):
        n_transactions = n_moved = 0
        breaks_at: int | None = 3
        is_open = False

        @contextmanager
        def transaction(self):
            self.n_transactions += 1
            before = {number: list(rows) for number, rows in self.slots.items()}
            self.is_open = True
            try:
                yield
            except psycopg2.Error:
                self.slots = before
                raise
            finally:
                self.is_open = False

        def execute(self, query, *arguments, **options):
            if "UPDATE madlib_mop.model_state" in query:
                assert self.is_open, "the record would say that a state is in a slot that is dropped as empty"
                self.n_moved += 1
                if self.n_moved == self.breaks_at:
                    raise psycopg2.errors.DiskFull
            return super().execute(query, *arguments, **options)

    disk = Breaking()
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(8)], disk.poll)
    for key in [*range(8), *range(0, 8, 2)]:
        disk.keep(slots, key, 100 << 10)
    places = {key: slots.slot_of(key) for key in range(8)}
    slots.finish()
    assert disk.n_moved == 3 and {key: slots.slot_of(key) for key in range(8)} == places
    assert all((key, 100 << 10) in disk.slots[places[key]] for key in range(8))
    disk.breaks_at, disk.n_moved, disk.n_transactions = None, 0, 0
    slots.finish()
    assert disk.n_moved >= 4 and disk.n_bytes == 8 * (100 << 10)
    assert all((key, 100 << 10) in disk.slots[slots.slot_of(key)] for key in range(8))
    assert disk.n_transactions < disk.n_moved


def test_states_that_a_segment_has_staged_are_not_moved_at_the_end():
    disk = Disk()
    slots, slot = small_states(disk)
    staged = disk.keep(slots, (1, 0), 100 << 10)
    slots.finish()
    assert (slots.slot_of(1), slots.slot_of((1, 0))) == (slot, staged) and staged == slot


def test_while_a_dump_reads_some_slots_the_others_are_emptied():
    """It reads those that were there when it began. Otherwise each visit would make a slot, for hours."""
    disk, sizes = Disk(), [2 << 20] * 6
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(6)], disk.poll)
    for key in [*range(6)] * 20:
        disk.keep(slots, key, sizes[key])
        slots.empty_dead()
        if key == 5 and not disk.locked:
            disk.locked = set(disk.slots)
    assert len(disk.slots) <= len(disk.locked) + 6 + 2
    assert disk.n_bytes <= 2 * sum(sizes) + (4 << 20)


class LateDump(Disk):
    """A disk on which a dump takes its snapshot after each poll, before the slots are locked."""

    def poll(self) -> SnapshotPoll:
        return SnapshotPoll(0, guard=("the guard", {}))

    def execute(self, query, params=(), slot=None, **dropped):
        if dropped and query.endswith("the guard"):
            raise psycopg2.errors.ObjectInUse
        return super().execute(query, params, slot, **dropped)


def test_a_slot_is_dropped_only_if_no_snapshot_was_taken_since_the_poll():
    """The dump will lock all partitions that its snapshot sees."""
    disk = LateDump()
    _, slots = train([2 << 20] * 3, 1, 20, random.Random(1), disk)
    before = set(disk.slots)
    slots.finish()
    assert set(disk.slots) == before and disk.n_bytes == 3 * (2 << 20)


@pytest.mark.parametrize("n_models", [1, 6])
def test_a_slot_that_somebody_reads_is_let_be(n_models):
    disk = Disk()
    disk.is_read = True
    most, slots = train([2 << 20] * n_models, 1, 20, random.Random(2), disk)
    assert most > 2 * n_models * (2 << 20), "nothing was emptied"
    disk.is_read = False
    slots.finish()
    assert disk.n_bytes == n_models * (2 << 20)


class Server(Disk):
    """A disk with snapshots: each sees the states of the models at its time, and exports itself to later sessions."""

    def __init__(self, one_xmin: bool, chance: random.Random):
        super().__init__()
        self._one_xmin, self._chance = one_xmin, chance
        self.newest: dict[int, tuple[int, int]] = {}  # model -> slot, version
        self.snapshots: dict[str, tuple[int, dict[int, tuple[int, int]]]] = {}  # session -> xmin, what it sees
        self.versions: dict[int, set[tuple[int, int]]] = {}  # slot -> models and versions in it
        self.xid = 1
        self._n_sessions = 0
        self._is_moving = False
        self.is_ending = False  # of the run: snapshots come and go at each poll and each move

    def poll(self) -> SnapshotPoll:
        holders = [SnapshotHolder(name, xmin) for name, (xmin, _) in self.snapshots.items()]
        if holders and self._chance.random() < 0.1:  # an import while the list is read hides both
            exporter = self._chance.choice(holders)
            self.begin(exporter.key)
            self.end(exporter.key)
            holders.remove(exporter)
        is_moving, self._is_moving = self._is_moving, False
        found = SnapshotPoll(self.xid, holders, bool(self.snapshots), is_moving)
        if self.is_ending:
            _come_and_go(self, self._chance)
        return found

    def execute(self, query, params=(), slot=None, **dropped):
        numbers = [int(name[1:]) for name in dropped]
        if slot is not None and "TRUNCATE" in query:
            numbers = [RUN_ID * 1000 + int(str(slot).rsplit("_", 1)[1].strip('"'))]
        found = super().execute(query, params, slot, **dropped)
        for number in numbers:
            self.versions.pop(number, None)
        if "UPDATE madlib_mop.model_state" in query:
            self.commit(params["key"], params["target"], self.newest[params["key"]][1])
            _come_and_go(self, self._chance)
        return found

    def commit(self, key: int, slot: int, version: int) -> None:
        self.xid += 1
        self.newest[key] = slot, version
        self.versions.setdefault(slot, set()).add((key, version))

    def begin(self, of: str | None) -> None:
        self._n_sessions += 1
        xmin = 1 if self._one_xmin else self.xid
        self.snapshots[f"s{self._n_sessions}"] = self.snapshots[of] if of else (xmin, dict(self.newest))
        self._is_moving |= of is not None

    def end(self, name: str) -> None:
        del self.snapshots[name]

    def check(self) -> None:
        """Each snapshot finds the states that it sees."""
        for _, seen in self.snapshots.values():
            for key, (slot, version) in seen.items():
                assert (key, version) in self.versions.get(slot, ()), "a snapshot lacks a state"


@settings(max_examples=40, deadline=None)
@given(
    size=st.sampled_from([100 << 10, 2 << 20]), n_models=st.integers(1, 8), one_xmin=st.booleans(),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_each_snapshot_finds_the_states_that_it_sees(size, n_models, one_xmin, seed):
    """Snapshots come, are imported and end at any moment, before or after the driver knows of a commit."""
    chance = random.Random(seed)
    server = Server(one_xmin, chance)
    slots = StateSlots(server, RUN_ID, [StoredState(key) for key in range(n_models)], server.poll)
    version = 0
    for _ in range(150):
        key = chance.randrange(n_models)
        slot = slots.begin_write(key)
        _come_and_go(server, chance)
        version += 1
        server.commit(key, slot, version)
        server.slots[slot].append((key, size))
        _come_and_go(server, chance)
        slots.end_write(slot, key, size)
        slots.empty_dead()
        server.check()
    server.is_ending = True
    slots.finish()
    server.check()
    assert all((key, size) in server.slots[slots.slot_of(key)] for key in server.newest)
    server.is_ending = False
    for name in list(server.snapshots):
        server.end(name)
    server.poll()
    for _ in range(3):
        slots._next_poll_at = 0.0
        slots.empty_dead()
    assert server.n_bytes <= 3 * n_models * size + (4 << 20), "what no snapshot needs is emptied"


def _come_and_go(server: Server, chance: random.Random) -> None:
    for _ in range(chance.randrange(3)):
        names = list(server.snapshots)
        if names and chance.random() < 0.5:
            server.end(chance.choice(names))
        elif len(names) < 3:
            server.begin(chance.choice(names) if names and chance.random() < 0.3 else None)


def test_one_old_snapshot_keeps_one_state_of_each_model():
    disk, sizes = Disk(), [2 << 20] * 6
    slots = StateSlots(disk, RUN_ID, [StoredState(key) for key in range(6)], disk.poll)
    most = 0
    for n, key in enumerate([*range(6)] * 40):
        if n == 60:
            disk.holders = [SnapshotHolder("a dump", 1)]
        disk.keep(slots, key, sizes[key])
        slots.empty_dead()
        most = max(most, disk.n_bytes)
    assert 2 * sum(sizes) <= most <= 3 * sum(sizes)


def test_a_standby_keeps_what_was_replaced_since_its_oldest_snapshot():
    """Its feedback has one number for all its snapshots, also for those that it takes later."""
    disk, size = Disk(), 2 << 20
    slots = StateSlots(disk, RUN_ID, [StoredState(1)], lambda: SnapshotPoll(7, list(disk.holders)))
    disk.holders = [SnapshotHolder("standby", 6, holds_many=True)]
    for _ in range(5):
        disk.keep(slots, 1, size)
        slots.empty_dead()
    assert disk.n_bytes == 5 * size
    disk.holders = [SnapshotHolder("standby", 7, holds_many=True)]
    slots._next_poll_at = 0.0
    slots.empty_dead()
    assert disk.n_bytes <= 2 * size
