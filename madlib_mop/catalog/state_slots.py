"""Manages the partitions to which a run writes its states; they are emptied by TRUNCATE, so a run uses little disk.

VACUUM cannot free replaced states during a run, because the caller's own statement holds a snapshot as old as the
run. TRUNCATE can. So states go into one slot, a partition of `madlib_mop.model_state`, until it is full, then into
the next; a slot whose last state has been replaced is emptied and used again, as soon as no snapshot of a dump may see
what is in it (`old_snapshots`). A slot is full with a 64th of the run's states: with fewer models than that, each state
above 1 MB has its own slot, and little more disk is used than for the newest states. At the end of a run, the states
that stay are moved together.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg2

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.old_snapshots import Guard, OldSnapshots, ServerPolls, SnapshotPoll
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.states import ModelState

SLOTS_PER_RUN = 1000
# While a host has the newest state of a model, the newest one here is its home state.
_MOVE_NEWEST = (
    "UPDATE madlib_mop.model SET state_slot = CASE WHEN home_state IS NULL THEN %(target)s ELSE state_slot END,"
    " home_state = pg_catalog.jsonb_set(home_state, ARRAY['slot'], pg_catalog.to_jsonb(%(target)s))"
    " WHERE run_id = %(run)s AND mst_key = %(key)s"
)
_VERSION_OF_NEWEST = "coalesce((home_state ->> 'version')::pg_catalog.int8, state_version)"
_MOVE_BEST = (
    "UPDATE madlib_mop.model"
    " SET best_state = pg_catalog.jsonb_set(best_state, ARRAY['slot'], pg_catalog.to_jsonb(%(target)s))"
    " WHERE run_id = %(run)s AND mst_key = %(key)s"
)
_SLOTS_PER_RUN_OF_STATES = 64
_MIN_QUOTA_BYTES = 1 << 20
_MAX_SPREAD = 2.0
_MAX_SPREAD_AT_END = 1.05
#: At the end, more bytes than these are moved only if that frees more than it writes: the caller waits for it.
_FREELY_MOVED_BYTES = 64 << 20
#: The driver waits while a slot's states are moved, so the more bytes a slot has, the rarer are the moves.
_MOVED_BYTES_PER_S = 8 << 20
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_DROPPED_AT_ONCE = 32  # each takes some locks, from the lock table that all sessions share
_LOCK_TIMEOUT_MS = 200  # of a slot's TOAST table, which VACUUM may have locked, and of moves at the end
#: A dump may read a slot for hours: pauses between two tries to empty it.
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 300.0
#: Pauses between two polls of old snapshots, if one keeps a slot from being emptied.
_FIRST_POLL_S, _LONGEST_POLL_S = 0.1, 2.0
#: The number of polls when something was written before this process began to poll.
_BEFORE_ALL_POLLS = -1

_SLOT_NUMBERS = """
SELECT n[1]::pg_catalog.int8 AS run_id, n[1]::pg_catalog.int8 * %s + n[2]::pg_catalog.int8 AS slot
FROM (SELECT pg_catalog.regexp_matches(c.relname, '^model_state_([0-9]+)_([0-9]+)$') AS n FROM pg_catalog.pg_class c
      WHERE c.relnamespace = 'madlib_mop'::pg_catalog.regnamespace AND c.relkind = 'r') AS c
"""
_OF_DROPPED_RUNS = f"""
SELECT s.slot FROM ({_SLOT_NUMBERS}) s WHERE s.run_id NOT IN (SELECT r.run_id FROM madlib_mop.run r) ORDER BY 1
"""
_SPARE_SLOTS = f"""
SELECT s.slot FROM ({_SLOT_NUMBERS}) s JOIN madlib_mop.run r ON r.run_id = s.run_id
LEFT JOIN madlib_mop.model m
     ON m.run_id = s.run_id AND (m.state_slot = s.slot OR (m.home_state ->> 'slot')::pg_catalog.int8 = s.slot
         OR (m.best_state ->> 'slot')::pg_catalog.int8 = s.slot
         -- a best state that has become the newest one may have been moved since
         AND (m.best_state ->> 'version')::pg_catalog.int8 <> m.state_version)
WHERE r.state IN ('trained', 'finished') AND m.run_id IS NULL
"""
_BEST = "best"
#: The key of a state: mst_key for a model's newest one, `best_key` for its best one, (mst_key, segment) for one that a
#: segment has staged.
StateKey = int | tuple[str, int] | tuple[int, int]


@dataclass
class _Slot:
    """A slot; ``created``, ``written`` and ``replaced`` are numbers of polls, as in `OldSnapshots.may_see`."""

    number: int
    created: int
    written_bytes: int = 0
    reserved_bytes: int = 0
    writers: int = 0
    written: int | None = None  # when the first of its states was written; None: it is empty
    replaced: int | None = None  # when the last of its states was replaced; None: it has one that is needed
    next_xid: int | None = None  # of the first poll after that
    is_free: bool = False  # no snapshot can see its states
    retry_at: float = 0.0  # monotonic time of the next try to empty it, after one that failed
    retry_s: float = _FIRST_RETRY_S

    def begin_write(self, n_polls: int) -> None:
        if self.written is None:
            self.written = n_polls
        self.replaced, self.next_xid, self.is_free = None, None, False

    def emptied(self) -> None:
        self.written_bytes, self.retry_s = 0, _FIRST_RETRY_S
        self.written, self.replaced, self.next_xid, self.is_free = None, None, None, False


@dataclass(frozen=True)
class StoredState:
    """A state stored in a slot: a model's newest one, with the model's key, or another one, with its own key.

    Attributes
    ----------
    key : StateKey
    slot, n_bytes : int or None
        None if there is none yet.
    """

    key: StateKey
    slot: int | None = None
    n_bytes: int | None = None


@dataclass(frozen=True)
class _Place:
    slot: int
    n_bytes: int


class StateSlots:
    """The slots of one run.

    Parameters
    ----------
    record : Record
    run_id : int
    states : sequence of StoredState
        The newest state of each model of the run, and other stored states.
    poll : callable or None
        Polls the server's snapshots; None: `ServerPolls`.
    """

    def __init__(
        self, record: Record, run_id: int, states: Sequence[StoredState], poll: Callable[[], SnapshotPoll] | None = None
    ):
        self._record = record
        self._snapshots = OldSnapshots(poll or ServerPolls(record, run_id))
        self._next_poll_at, self._poll_pause_s = 0.0, _FIRST_POLL_S
        self._run_id = run_id
        self._n_models = max(1, len(states))
        self._places: dict[StateKey, _Place] = {}
        # slot -> keys of the newest states in it, so that a visit need not scan all models
        self._keys: dict[int, set[StateKey]] = {}
        self._live: dict[int, int] = {}  # slot -> bytes of these states
        self._all_live = 0
        self._snapshots.poll()
        for state in states:
            if state.slot is not None:
                self._put(state.key, _Place(state.slot, state.n_bytes or 0))
        self._slots = {number: _Slot(number, _BEFORE_ALL_POLLS) for number in existing_slots(record, run_id)}
        for slot in self._slots.values():
            # a driver that died may have left replaced states: a slot is emptied before it is used again
            slot.written_bytes, slot.written = max(1, self._live_bytes(slot.number)), _BEFORE_ALL_POLLS
        self._current: _Slot | None = None
        self._reserved: dict[StateKey, int] = {}

    def add_models(self, n_models: int) -> None:
        """Count added models of the run."""
        self._n_models += n_models

    def begin_write(self, mst_key: StateKey) -> int:
        """Return the slot for a model's visit that starts now; `end_write` must follow."""
        expected = self._expected_bytes(mst_key)
        current = self._current
        if current is None or current.written_bytes + current.reserved_bytes + expected > self._quota():
            if current is None or current.writers or current.written_bytes:
                self._current = current = self._empty_slot()
        current.begin_write(self._snapshots.n_polls)
        current.writers += 1
        current.reserved_bytes += expected
        self._reserved[mst_key] = expected
        return current.number

    def end_write(self, slot: int, mst_key: StateKey, n_bytes: int | None = None) -> None:
        """Record the end of a visit; with ``n_bytes`` it stored a state of that size in the slot."""
        self._slots[slot].writers -= 1
        self._slots[slot].reserved_bytes -= self._reserved.pop(mst_key)
        if n_bytes is not None:
            self._slots[slot].written_bytes += n_bytes
            self._put(mst_key, _Place(slot, n_bytes))

    @property
    def written_bytes(self) -> list[int]:
        """The bytes of the states that each slot has, replaced ones included."""
        return [slot.written_bytes for slot in self._slots.values()]

    def slot_of(self, key: StateKey) -> int:
        """Return the location of a state."""
        return self._places[key].slot

    def rename(self, key: StateKey, mst_key: StateKey) -> None:
        """Record that the state stored under a key is now a model's newest state, instead of the previous one."""
        self._put(mst_key, self._places[key])
        self._put(key, None)

    def release(self, mst_key: StateKey) -> None:
        """Record that a state is no longer needed, although no newer one has replaced it."""
        self._put(mst_key, None)

    def empty_dead(self) -> None:
        """Truncate the slots whose states have all been replaced, if no snapshot may see these states.

        If a session has locked a slot, it is tried again later: a dump locks the slots that were there at its
        beginning, so the others can be emptied meanwhile.
        """
        for slot in self._dead():
            if slot.is_free and time.monotonic() >= slot.retry_at and not self._truncate(slot):
                slot.retry_at = time.monotonic() + slot.retry_s
                slot.retry_s = min(2 * slot.retry_s, _LONGEST_RETRY_S)

    def _dead(self) -> list[_Slot]:
        """Return the slots that wait to be emptied, and find which of them no snapshot may see any more."""
        dead = [s for s in self._slots.values() if s.written_bytes and s is not self._current and self._is_dead(s)]
        kept = [slot for slot in dead if not slot.is_free]
        new = [slot for slot in kept if slot.replaced is None]
        if not new and (not kept or time.monotonic() < self._next_poll_at):
            return dead
        for slot in new:
            slot.replaced = self._snapshots.n_polls
        self._snapshots.poll()
        for slot in kept:
            slot.next_xid = self._snapshots.next_xid if slot.next_xid is None else slot.next_xid
            assert slot.written is not None and slot.replaced is not None, "it has replaced states"
            slot.is_free = not self._snapshots.may_see(slot.written, slot.replaced, slot.next_xid)
        some_freed = any(slot.is_free for slot in kept)
        self._poll_pause_s = _FIRST_POLL_S if some_freed else min(2 * self._poll_pause_s, _LONGEST_POLL_S)
        self._next_poll_at = time.monotonic() + self._poll_pause_s
        return dead

    @property
    def pause_s(self) -> float:
        """Seconds that should pass between two calls of `compact`."""
        return min(_LONGEST_PAUSE_S, max(_LEAST_PAUSE_S, self._quota() / _MOVED_BYTES_PER_S))

    def compact(self, idle: set[StateKey]) -> None:
        """Move states of idle models out of the emptiest slot when replaced states use more disk than allowed.

        If a snapshot may see the states of a slot, moving them would free nothing.
        """
        allowed = _MAX_SPREAD * self._all_live + min(2 * _MIN_QUOTA_BYTES, self._all_live // 2)
        if self._current is None or self._needed_slots_bytes() <= allowed:
            return
        self._snapshots.poll()
        for slot in self._movable():
            if self._keys_in(slot.number) <= idle:
                self._move_out(slot)
                return

    def finish(self) -> None:
        """Move the states that stay together at the end of the run, and drop the slots without a state; if another
        session blocks that, only empty them, or leave them to `sweep_slots`."""
        # The disk may be full, a state damaged or a table locked, perhaps by the caller's own transaction, which waits
        # for this run. If the session is lost, the next statement fails too.
        with suppress(psycopg2.Error):
            self._record.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
            try:
                self._pack()
            finally:
                self._record.execute("RESET lock_timeout")
        self._current = None
        self._dead()
        dead = [slot for slot in self._slots.values() if self._is_dead(slot)]
        self._snapshots.poll()
        dropped = drop_slots(
            self._record, [slot.number for slot in dead if not self._may_see(slot.created)], self._snapshots.guard
        )
        for slot in dead:
            if slot.number in dropped:
                del self._slots[slot.number]
            elif slot.is_free:
                self._truncate(slot)

    def _pack(self) -> None:
        """Move states out of the slots with replaced ones until these use little disk; no visit is in progress.

        Each state is written once at most, and the slots are emptied one after the other.
        """
        self._current = None
        self._snapshots.poll()
        moved = 0
        for slot in self._movable():
            live = self._live_bytes(slot.number)
            is_packed = self._needed_slots_bytes() <= _MAX_SPREAD_AT_END * self._all_live
            if is_packed or live >= slot.written_bytes:
                return
            if moved + live > _FREELY_MOVED_BYTES and 2 * live > slot.written_bytes:
                return
            if any(isinstance(key, tuple) and key[0] != _BEST for key in self._keys_in(slot.number)):
                continue  # states that a segment has staged
            self._move_out(slot)
            moved += live
            if slot.written_bytes and not slot.is_free:
                return  # a session has just taken a snapshot: moving more would free nothing

    def _movable(self) -> list[_Slot]:
        """Return the slots whose states can be moved, and then removed for no snapshot sees them, emptiest first."""
        found = [
            slot
            for slot in self._slots.values()
            # a visit that writes to it may have committed its state, although the driver has no answer yet
            if slot is not self._current and not slot.writers and self._keys_in(slot.number)
            if not self._may_see(slot.written)
        ]
        return sorted(found, key=lambda slot: self._live_bytes(slot.number) / max(1, slot.written_bytes))

    def _needed_slots_bytes(self) -> int:
        """Return the bytes of the states, replaced ones included, in the slots that cannot be emptied."""
        return sum(slot.written_bytes for slot in self._slots.values() if not self._is_dead(slot))

    def _move_out(self, slot: _Slot) -> None:
        """Move all states of a slot to others, or none.

        In one transaction: each commit waits for the disk, and the caller of the run waits too.
        """
        targets = {key: self.begin_write(key) for key in sorted(self._keys_in(slot.number), key=str)}
        moved: dict[StateKey, int] = {}
        try:
            with self._record.transaction():
                for key, target in targets.items():
                    self._move(key, target)
            moved = {key: self._places[key].n_bytes for key in targets}
        finally:
            for key, target in targets.items():
                self.end_write(target, key, moved.get(key))
        self.empty_dead()

    def _may_see(self, written: int | None) -> bool:
        """Return whether a snapshot may see something that was written after a number of polls and is replaced now."""
        assert written is not None, "it has states, or is one"
        return self._snapshots.may_see(written, self._snapshots.n_polls, self._snapshots.next_xid)

    def _quota(self) -> int:
        return max(_MIN_QUOTA_BYTES, self._mean_bytes() * self._n_models // _SLOTS_PER_RUN_OF_STATES)

    def _expected_bytes(self, mst_key: StateKey) -> int:
        return self._places[mst_key].n_bytes if mst_key in self._places else self._mean_bytes()

    def _mean_bytes(self) -> int:
        return self._all_live // len(self._places) if self._places else 0

    def _empty_slot(self) -> _Slot:
        """Return an empty slot, a new one if need be: a visit that starts does not wait for a TRUNCATE, which
        `empty_dead` does while the segments compute. If the run has all its slots, return the current one."""
        for slot in self._slots.values():
            if slot is not self._current and self._is_dead(slot) and slot.written_bytes == 0:
                return slot
        first = self._run_id * SLOTS_PER_RUN
        number = next((n for n in range(first, first + SLOTS_PER_RUN) if n not in self._slots), None)
        if number is None:  # the next number is a slot of the next run
            return self._current or min(self._slots.values(), key=lambda slot: slot.written_bytes)
        created = self._snapshots.n_polls
        create_slot(self._record, number)
        self._slots[number] = _Slot(number, created)
        return self._slots[number]

    def _truncate(self, slot: _Slot) -> bool:
        """Empty a slot; return False if a session is reading it, such as pg_dump."""
        try:
            with _locked(self._record, slot.number):
                self._record.execute("TRUNCATE {slot}", slot=slot_table(slot.number))
        except psycopg2.errors.LockNotAvailable:
            return False
        slot.emptied()
        return True

    def _move(self, key: StateKey, target: int) -> None:
        """Move a state to the slot that `begin_write` has returned for it."""
        if isinstance(key, int):
            query, version, mst_key = _MOVE_NEWEST, _VERSION_OF_NEWEST, key
        else:
            query, version, mst_key = _MOVE_BEST, "(best_state ->> 'version')::pg_catalog.int8", key[1]
        # In the order of a visit, which writes its state before it changes the row of its model: without the global
        # deadlock detector of Greenplum, both lock these tables.
        self._record.execute(
            "UPDATE madlib_mop.model_state SET slot = %(target)s"
            f" WHERE slot = %(old)s AND run_id = %(run)s AND mst_key = %(key)s AND version = (SELECT {version}"
            f" FROM madlib_mop.model WHERE run_id = %(run)s AND mst_key = %(key)s); {query}",
            {"target": target, "old": self._places[key].slot, "run": self._run_id, "key": mst_key},
        )

    def _is_dead(self, slot: _Slot) -> bool:
        return not slot.writers and not self._keys_in(slot.number)

    def _put(self, mst_key: StateKey, place: _Place | None) -> None:
        """Record the location of a model's newest state; None: there is none."""
        old = self._places.pop(mst_key, None)
        if old is not None:
            self._keys[old.slot].discard(mst_key)
            self._live[old.slot] -= old.n_bytes
            self._all_live -= old.n_bytes
        if place is not None:
            self._places[mst_key] = place
            self._keys.setdefault(place.slot, set()).add(mst_key)
            self._live[place.slot] = self._live.get(place.slot, 0) + place.n_bytes
            self._all_live += place.n_bytes

    def _keys_in(self, slot: int) -> set[StateKey]:
        return self._keys.get(slot, set())

    def _live_bytes(self, slot: int) -> int:
        return self._live.get(slot, 0)


def newest_states(models: Iterable[ModelRow]) -> list[StoredState]:
    """Return the locations of the models' newest states."""
    return [_newest_here(model) for model in models]


def _newest_here(model: ModelRow) -> StoredState:
    """Return the location of a model's newest state that is in a slot."""
    home = model.home_state
    if home is not None:
        return StoredState(model.mst_key, home.slot, home.state_bytes)
    return StoredState(model.mst_key, model.state_slot, model.state_bytes)


def best_states(models: Iterable[ModelRow]) -> list[StoredState]:
    """Return the locations of the states of best epochs that are stored in addition to newest ones."""
    return [
        StoredState(best_key(m.mst_key), m.best_state.slot, m.best_state.state_bytes)
        for m in models
        if m.best_state is not None and not m.is_restored and m.state is not ModelState.FAILED
    ]


def best_key(mst_key: int) -> tuple[str, int]:
    """Return the key of a model's best state."""
    return _BEST, mst_key


def slot_table(number: int) -> Relation:
    """Return the name of a slot's partition."""
    run_id, k = divmod(number, SLOTS_PER_RUN)
    return Relation("madlib_mop", f"model_state_{run_id}_{k}")


def existing_slots(record: Record, run_id: int) -> list[int]:
    """Return the numbers of a run's slots."""
    prefix = f"model_state_{run_id}_"
    rows = record.execute(
        "SELECT c.relname FROM pg_catalog.pg_class c WHERE c.relnamespace = 'madlib_mop'::pg_catalog.regnamespace"
        " AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        [prefix],
    )
    return sorted(run_id * SLOTS_PER_RUN + int(name[len(prefix) :]) for (name,) in rows)


def create_slot(record: Record, number: int) -> None:
    """Create a slot's partition; attaching it does not block readers or writers of the others.

    Users read it through the parent table, whose policy checks the run's owner; the partition itself shows no rows
    to them, regardless of default privileges. Greenplum distributes it like the table that it is created from. A
    publication refuses to delete rows of a table without a replica identity; this one has no key, as segments of model
    averaging stage states of one version. It does not wait for the disk: the commit of the first state in it does.
    """
    record.execute(
        "SET LOCAL synchronous_commit = off;"
        " CREATE TABLE {slot} (LIKE madlib_mop.model_state INCLUDING STORAGE) USING heap;"
        " ALTER TABLE {slot} ENABLE ROW LEVEL SECURITY;"
        " ALTER TABLE {slot} REPLICA IDENTITY FULL;"
        " ALTER TABLE madlib_mop.model_state ATTACH PARTITION {slot} FOR VALUES IN (%s)",
        [number],
        slot=slot_table(number),
    )


def drop_slots(record: Record, numbers: Sequence[int], guard: Guard) -> set[int]:
    """Drop slots' partitions that no snapshot sees; return the numbers of those that are gone.

    A dump locks all partitions that its snapshot sees, and fails if one is gone by then. So the statements are sent as
    one message, and the last one before the commit is ``guard``: a dump fails only if it takes its snapshot in the
    moment between the two. If another session has locked a partition, or has just taken a snapshot, its batch stays.

    Parameters
    ----------
    record : Record
    numbers : sequence of int
    guard : Guard
        Of the poll that has shown that no snapshot sees them.
    """
    dropped: set[int] = set()
    for start in range(0, len(numbers), _DROPPED_AT_ONCE):
        batch = numbers[start : start + _DROPPED_AT_ONCE]
        tables = {f"t{number}": slot_table(number) for number in batch}
        only = ", ".join(f"ONLY {{{name}}}" for name in tables)
        try:
            record.execute(
                f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS};"
                f" LOCK TABLE ONLY madlib_mop.model_state, {only} IN ACCESS EXCLUSIVE MODE NOWAIT;"
                f" DROP TABLE {', '.join(f'{{{name}}}' for name in tables)};{guard[0]}",
                guard[1],
                **tables,
            )
        except (psycopg2.errors.LockNotAvailable, psycopg2.errors.ObjectInUse):
            continue
        except psycopg2.errors.UndefinedTable:  # another driver has just swept one
            dropped |= {number for number in batch if len(batch) == 1 or drop_slots(record, [number], guard)}
            continue
        dropped |= set(batch)
    return dropped


def sweep_slots(record: Record, callers: Sequence[int] = ()) -> None:
    """Drop the slots of runs that are no longer recorded, and those that trained runs do not need any more.

    If a session may see such a slot or is reading it, this is left to the next call. The rows of a run that is no
    longer recorded are then deleted.

    Parameters
    ----------
    record : Record
    callers : sequence of int
        Process numbers of sessions whose snapshots do not count.
    """
    no_longer_recorded = [number for (number,) in record.execute(_OF_DROPPED_RUNS, [SLOTS_PER_RUN])]
    runs = sorted({number // SLOTS_PER_RUN for (number,) in record.execute(_SPARE_SLOTS, [SLOTS_PER_RUN])})
    for number in sorted({*no_longer_recorded} - _drop_unseen(record, no_longer_recorded, callers)):
        with suppress(psycopg2.errors.LockNotAvailable, psycopg2.errors.UndefinedTable):
            delete = f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}; DELETE FROM {{slot}}"
            record.execute(delete, slot=slot_table(number))
    for run_id in runs:
        if not record.lock_run(run_id):
            continue
        spare = record.execute(f"{_SPARE_SLOTS} AND r.run_id = %s", [SLOTS_PER_RUN, run_id])
        _drop_unseen(record, [number for (number,) in spare], callers)
        record.unlock_run(run_id)


def _drop_unseen(record: Record, numbers: Sequence[int], callers: Sequence[int]) -> set[int]:
    """Drop slots unless a session holds a snapshot; return the numbers of those that are gone."""
    if not numbers:
        return set()
    poll = ServerPolls(record, None, callers)()
    return set() if poll.holders or poll.is_moving else drop_slots(record, numbers, poll.guard)


@contextmanager
def _locked(record: Record, number: int) -> Iterator[None]:
    """Lock a slot for a transaction.

    It never waits for the lock: meanwhile, no other session would get its own. A dump's worker (``--jobs``), which asks
    for the same lock as its leader without waiting, would fail. Other runs' visits would wait, perhaps for hours.

    Raises
    ------
    psycopg2.errors.LockNotAvailable
        If another session has a lock.
    """
    lock = f"LOCK TABLE ONLY {{slot}} IN ACCESS EXCLUSIVE MODE NOWAIT; SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}"
    with record.transaction():
        record.execute(lock, slot=slot_table(number))
        yield
