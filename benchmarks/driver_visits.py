"""The driver's own cost of a visit: runs the hopper with a record in memory and segments that answer at once.

    make/python.sh benchmarks/driver_visits.py [segments:models ...]

Prints a table; `madlib-mop simulate --driver-ms` takes the result. Statements to the catalog are counted, not executed.
"""

import sys
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from mop_backend.messages import Order

from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.driver.running.segments import SegmentEvent, SegmentReady, TaskAnswered

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.unit.memory_record import MemoryRecord  # noqa: E402
from tests.helpers.unit.rows import a_model, a_plan, a_run  # noqa: E402


class _Record(MemoryRecord):
    """A record that counts the driver's reads and writes, and checks none of them."""

    n_statements = 0

    @contextmanager
    def transaction(self):
        yield

    def change_slots(self, query, slots):
        self.slots |= slots

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if callable(found) and not name.startswith("_") and name != "do":
            self.n_statements += 1
        return found


class _Enough(Exception):
    """The visits to measure are made."""


class _Segments:
    """Segments that answer one after the other; the time of the writers does not count."""

    def __init__(self, segments: range, record: _Record, n_visits: int):
        self._opening, self._record, self._left = deque(segments), record, n_visits
        self._orders: dict[int, Order] = {}
        self.began = self.writers_s = 0.0
        self.n_before = self.n_of_writers = 0

    def open(self) -> None:
        """All open in turn."""

    def begin(self, segment: int, order: Order) -> None:
        self._orders[segment] = order

    def wait(self, at_most_s: float) -> list[SegmentEvent]:
        if self._opening:
            self.began, self.n_before = time.process_time(), self._record.n_statements
            return [SegmentReady(self._opening.popleft())]
        if not self._left:
            raise _Enough
        self._left -= 1
        segment = next(iter(self._orders))
        before, n_before = time.process_time(), self._record.n_statements
        answer = self._record.do(self._orders.pop(segment))
        self.writers_s += time.process_time() - before
        self.n_of_writers += self._record.n_statements - n_before
        return [TaskAnswered(segment, answer)]


def measure(n_segments: int, n_models: int, n_visits: int = 20_000) -> tuple[float, float]:
    """Return the driver's processor time in ms, and its number of statements to the catalog, per visit."""
    n_epochs = n_visits // (n_segments * n_models) + 2
    plan = a_plan([(segment, 100) for segment in range(n_segments)])
    models = [a_model(key, last_epoch=n_epochs) for key in range(1, n_models + 1)]
    record = _Record(a_run(plan, n_models=n_models, num_iterations=n_epochs), models)
    segments = _Segments(range(n_segments), record, n_visits)
    nothing = SimpleNamespace(epoch_over=lambda *_: None, elapsed_s=0.0)
    try:
        Hopper(record, segments, record.the_run, nothing).run()
    except _Enough:
        pass
    spent_s = time.process_time() - segments.began - segments.writers_s
    n_statements = record.n_statements - segments.n_before - segments.n_of_writers
    return 1e3 * spent_s / n_visits, n_statements / n_visits


def main() -> None:
    """Print one line for each size."""
    sizes = [word.split(":") for word in sys.argv[1:]] or [("8", "16"), ("64", "64"), ("64", "1000"), ("1000", "10000")]
    print("segments   models   ms a visit   statements a visit")
    for n_segments, n_models in sizes:
        ms, statements = measure(int(n_segments), int(n_models))
        print(f"{n_segments:>8} {n_models:>8} {ms:>12.3f} {statements:>20.2f}", flush=True)


if __name__ == "__main__":
    main()
