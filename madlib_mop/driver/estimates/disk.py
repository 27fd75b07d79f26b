"""The disk that a run's states take: the slots of a run in simulated time, with no database behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from madlib_mop.catalog.old_snapshots import SnapshotPoll
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.state_slots import StateKey, StateSlots, StoredState
from madlib_mop.schedule import Average, Unit, Visit
from madlib_mop.schedule.bulk import MST_KEY
from madlib_mop.schedule.forecast.one_server import ForecastTask, Watcher

_PAGE_BYTES = 8192
#: A state is cut into chunks, of which a page has four.
_CHUNK_BYTES, _CHUNKS_OF_A_PAGE = 1996, 4
_INDEX_BYTES_OF_A_CHUNK = 20
#: A slot without states, and the three output tables of a run with nothing but short rows.
SLOT_BYTES = 3 * _PAGE_BYTES
_OUTPUT_BYTES = 12 * _PAGE_BYTES
#: A shorter value is in its row. A table of more than one page has a map of its free space.
_LONG_BYTES, _MAP_BYTES = 2000, 3 * _PAGE_BYTES


def stored_bytes(n_bytes: int) -> int:
    """Return the bytes on disk of a value of so many bytes that cannot be compressed, in a table that is there."""
    n_chunks = -(-n_bytes // _CHUNK_BYTES)
    return n_chunks * _PAGE_BYTES // _CHUNKS_OF_A_PAGE + n_chunks * _INDEX_BYTES_OF_A_CHUNK


def slot_bytes(n_bytes: int) -> int:
    """Return the bytes on disk of a slot with states of so many bytes together."""
    stored = stored_bytes(n_bytes)
    return SLOT_BYTES + stored + (_MAP_BYTES if stored > _PAGE_BYTES else 0)


def output_bytes(weights: Sequence[int], row_bytes: int) -> int:
    """Return the bytes of a run's output tables.

    Parameters
    ----------
    weights : sequence of int
        The bytes of each model's weights.
    row_bytes : int
        Of what else a model has in them.
    """
    long = sum(stored_bytes(n_bytes) for n_bytes in weights if n_bytes > _LONG_BYTES)
    short = sum(n_bytes for n_bytes in weights if n_bytes <= _LONG_BYTES) + row_bytes * len(weights)
    more = _PAGE_BYTES + _MAP_BYTES if long > _PAGE_BYTES else 0
    return _OUTPUT_BYTES + long + short + more


class SimulatedSlots(Watcher):
    """The slots of a run's states.

    Parameters
    ----------
    units : iterable of Unit
        Those that the run begins with.
    state_bytes : callable
        Returns the bytes of the states of a unit's models together.
    is_averaging : bool
        Whether visits stage states, which are averaged.

    Attributes
    ----------
    most_bytes : int
        The most on disk at once, so far.
    """

    def __init__(self, units: list[Unit], state_bytes: Callable[[Unit], int], is_averaging: bool = False):
        self.most_bytes = 0
        self._is_averaging = is_averaging
        self._state_bytes = state_bytes
        keys = [StoredState(key) for unit in units for key in unit]
        self._slots = StateSlots(cast(Record, _NoRecord()), 0, keys, lambda: SnapshotPoll(1))
        self._known = {key for unit in units for key in unit}
        self._in_progress: dict[StateKey, int] = {}
        self._busy: Counter[StateKey] = Counter()  # tasks in progress, evaluations included
        self._staged: list[StateKey] = []
        self._compacted_s = 0.0

    def begun(self, task: ForecastTask, now_s: float) -> None:
        self._busy.update(task.unit)
        for key in self._keys(task):
            if isinstance(task, Visit) and isinstance(key, int) and key not in self._known:
                self._known.add(key)
                self._slots.add_models(1)
            self._in_progress[key] = self._slots.begin_write(key)

    def ended(self, task: ForecastTask, now_s: float) -> None:
        self._busy.subtract(task.unit)
        keys = self._keys(task)
        for key in keys:
            n_bytes = self._state_bytes(task.unit) // len(task.unit)
            self._slots.end_write(self._in_progress.pop(key), key, n_bytes)
        if isinstance(task, Average):
            for key in self._staged:
                self._slots.release(key)
            self._staged.clear()
        self._staged += [key for key in keys if not isinstance(key, int)]
        self.most_bytes = max(self.most_bytes, self.n_bytes)
        self._slots.empty_dead()
        # model averaging moves no states
        if not self._is_averaging and now_s - self._compacted_s > self._slots.pause_s:
            self._compacted_s = now_s
            self._slots.compact({key for key in self._known if not self._busy[key]})

    @property
    def n_bytes(self) -> int:
        """The bytes on disk now."""
        return sum(slot_bytes(n_bytes) for n_bytes in self._slots.written_bytes)

    def end(self) -> int:
        """End the run; return the bytes that stay."""
        self._slots.finish()
        return self.n_bytes

    def _keys(self, task: ForecastTask) -> list[StateKey]:
        """Return the states that a task writes."""
        if isinstance(task, Average):
            return [MST_KEY]
        if not isinstance(task, Visit):
            return []
        return [(MST_KEY, task.segment)] if self._is_averaging else list(task.unit)


class _NoRecord:
    """What `StateSlots` takes for the record: it has no tables."""

    def execute(self, template: str, params: Any = (), **names: Any) -> list[Any]:
        """Do nothing; nothing is found."""
        return []

    @contextmanager
    def transaction(self) -> Iterator[Mapping[str, Any]]:
        """Do nothing."""
        yield {}
