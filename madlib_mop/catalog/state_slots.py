"""Manages the partitions to which a run writes its states; they are emptied by TRUNCATE, so a run uses little disk.

VACUUM cannot free replaced states during a run, because the caller's own statement holds a snapshot as old as the
run. TRUNCATE can. So states go into one slot, a partition of `madlib_mop.model_state`, until it is full, then into
the next; a slot whose last state has been replaced is emptied at once and used again. A slot is full with a 64th of
the run's states: with fewer models than that, each state above 1 MB has its own slot, and little more disk is used
than for the newest states. Called by the hopper.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg2

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import Model
from madlib_mop.catalog.rows.states import ModelState

SLOTS_PER_RUN = 1000
_MOVE_NEWEST = "UPDATE madlib_mop.model SET state_slot = %(target)s WHERE run_id = %(run)s AND mst_key = %(key)s"
_MOVE_BEST = (
    "UPDATE madlib_mop.model"
    " SET best_state = pg_catalog.jsonb_set(best_state, ARRAY['slot'], pg_catalog.to_jsonb(%(target)s))"
    " WHERE run_id = %(run)s AND mst_key = %(key)s"
)
_SLOTS_PER_RUN_OF_STATES = 64
_MIN_QUOTA_BYTES = 1 << 20
_MAX_SPREAD = 2.0
#: The driver waits while a slot's states are moved, so the more bytes a slot has, the rarer are the moves.
_MOVED_BYTES_PER_S = 8 << 20
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_LOCK_TIMEOUT_MS = 200
#: A dump may read a slot for hours, and the driver waits during each try to empty it: pauses between two tries.
_FIRST_RETRY_S, _LONGEST_RETRY_S = 5.0, 300.0

#: The key of a state: mst_key for a model's newest one, `best_key` for its best one, (mst_key, segment) for one that a
#: segment has staged.
StateKey = int | tuple[str, int] | tuple[int, int]


@dataclass
class _Slot:
    number: int
    written_bytes: int = 0
    reserved_bytes: int = 0
    writers: int = 0
    retry_at: float = 0.0  # monotonic time of the next try to empty it, after one that failed
    retry_s: float = _FIRST_RETRY_S


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
    """

    def __init__(self, record: Record, run_id: int, states: Sequence[StoredState]):
        self._record = record
        self._run_id = run_id
        self._n_models = max(1, len(states))
        self._places: dict[StateKey, _Place] = {}
        # slot -> keys of the newest states in it, so that a visit need not scan all models
        self._keys: dict[int, set[StateKey]] = {}
        self._live: dict[int, int] = {}  # slot -> bytes of these states
        self._all_live = 0
        for state in states:
            if state.slot is not None:
                self._put(state.key, _Place(state.slot, state.n_bytes or 0))
        self._slots = {number: _Slot(number) for number in existing_slots(record, run_id)}
        for slot in self._slots.values():
            slot.written_bytes = self._live_bytes(slot.number)
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
        """Truncate the slots whose states have all been replaced; retry one later if a session is reading it.

        A dump reads the slots that were there at its beginning, so the others can be emptied meanwhile.
        """
        for slot in self._slots.values():
            if not slot.written_bytes or slot is self._current or not self._is_dead(slot):
                continue
            if time.monotonic() >= slot.retry_at and not self._truncate(slot):
                slot.retry_at = time.monotonic() + slot.retry_s
                slot.retry_s = min(2 * slot.retry_s, _LONGEST_RETRY_S)
                return

    @property
    def pause_s(self) -> float:
        """Seconds that should pass between two calls of `compact`."""
        return min(_LONGEST_PAUSE_S, max(_LEAST_PAUSE_S, self._quota() / _MOVED_BYTES_PER_S))

    def compact(self, idle: set[StateKey]) -> None:
        """Move states of idle models out of the emptiest slot when replaced states use more disk than allowed."""
        written = sum(slot.written_bytes for slot in self._slots.values())
        allowed = _MAX_SPREAD * self._all_live + min(2 * _MIN_QUOTA_BYTES, self._all_live // 2)
        if self._current is None or written <= allowed:
            return
        candidates = [
            slot
            for slot in self._slots.values()
            # a visit that writes to it may have committed its state, although the driver has no answer yet
            if slot is not self._current and not slot.writers and self._keys_in(slot.number)
        ]
        for slot in sorted(candidates, key=lambda s: self._live_bytes(s.number) / max(1, s.written_bytes)):
            if self._keys_in(slot.number) <= idle:
                for key in sorted(self._keys_in(slot.number), key=str):
                    self._move(key, self.begin_write(key))
                self._truncate(slot)
                return

    def finish(self) -> None:
        """Drop the slots without a state at the end of the run; if another run blocks that, only empty them."""
        for slot in list(self._slots.values()):
            if self._is_dead(slot):
                if _within_lock_timeout(self._record, "DROP TABLE {slot}", slot.number):
                    del self._slots[slot.number]
                else:
                    self._truncate(slot)

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
        create_slot(self._record, number)
        self._slots[number] = _Slot(number)
        return self._slots[number]

    def _truncate(self, slot: _Slot) -> bool:
        """Empty a slot; return False if a session is reading it, such as pg_dump."""
        done = _within_lock_timeout(self._record, "TRUNCATE {slot}", slot.number)
        if done:
            slot.written_bytes, slot.retry_s = 0, _FIRST_RETRY_S
        return done

    def _move(self, key: StateKey, target: int) -> None:
        place = self._places[key]
        if isinstance(key, int):
            query, version, mst_key = _MOVE_NEWEST, "state_version", key
        else:
            query, version, mst_key = _MOVE_BEST, "(best_state ->> 'version')::pg_catalog.int8", key[1]
        self._record.execute(
            "UPDATE madlib_mop.model_state SET slot = %(target)s"
            f" WHERE slot = %(old)s AND run_id = %(run)s AND mst_key = %(key)s AND version = (SELECT {version}"
            f" FROM madlib_mop.model WHERE run_id = %(run)s AND mst_key = %(key)s); {query}",
            {"target": target, "old": place.slot, "run": self._run_id, "key": mst_key},
        )
        self.end_write(target, key, place.n_bytes)

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


def newest_states(models: Iterable[Model]) -> list[StoredState]:
    """Return the locations of the models' newest states."""
    return [StoredState(m.mst_key, m.state_slot, m.state_bytes) for m in models]


def best_states(models: Iterable[Model]) -> list[StoredState]:
    """Return the locations of the states of best epochs that are stored in addition to newest ones."""
    return [
        StoredState(best_key(m.mst_key), m.best_state.slot, m.best_state.state_bytes)
        for m in models
        if m.best_state is not None and not m.is_restored and m.state is not ModelState.FAILED
    ]


def best_key(mst_key: int) -> tuple[str, int]:
    """Return the key of a model's best state."""
    return "best", mst_key


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
    to them, regardless of default privileges. Greenplum distributes it like the table that it is created from.
    """
    record.execute(
        "CREATE TABLE {slot} (LIKE madlib_mop.model_state INCLUDING STORAGE) USING heap;"
        " ALTER TABLE {slot} ENABLE ROW LEVEL SECURITY;"
        " ALTER TABLE madlib_mop.model_state ATTACH PARTITION {slot} FOR VALUES IN (%s)",
        [number],
        slot=slot_table(number),
    )


def drop_slot(record: Record, number: int) -> None:
    """Drop a slot's partition; if readers block that, empty it, and leave the rest to `sweep_slots`.

    A visit of any other run, or the caller's own transaction, may lock the whole table for hours, so this never waits.
    """
    if not _within_lock_timeout(record, "DROP TABLE {slot}", number):
        if not _within_lock_timeout(record, "TRUNCATE {slot}", number):
            record.execute("DELETE FROM {slot}", slot=slot_table(number))


def sweep_slots(record: Record) -> None:
    """Drop the slots of runs that are no longer recorded, unless readers block that."""
    rows = record.execute(
        "SELECT split_part(c.relname, '_', 3)::pg_catalog.int8 * %s + split_part(c.relname, '_', 4)::pg_catalog.int8"
        " FROM pg_catalog.pg_class c WHERE c.relnamespace = 'madlib_mop'::pg_catalog.regnamespace AND c.relkind = 'r'"
        " AND c.relname ~ '^model_state_[0-9]+_[0-9]+$'"
        " AND split_part(c.relname, '_', 3)::pg_catalog.int8 NOT IN (SELECT run_id FROM madlib_mop.run)",
        [SLOTS_PER_RUN],
    )
    for (number,) in rows:
        _within_lock_timeout(record, "DROP TABLE {slot}", number)


def _within_lock_timeout(record: Record, template: str, number: int) -> bool:
    """Run a statement on a slot if its lock is available at once; several statements in one string are one
    transaction."""
    try:
        record.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}; {template}", slot=slot_table(number))
    except psycopg2.errors.LockNotAvailable:
        return False
    return True
