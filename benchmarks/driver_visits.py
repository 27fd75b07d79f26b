"""The driver's own cost of a visit: runs the hopper with a record and workers that answer at once; prints a table.

    make/python.sh benchmarks/driver_visits.py [segments:models ...]

`madlib-mop simulate --driver-ms` takes the result. Statements to the catalog are counted, not executed.
"""

import sys
import time
from types import SimpleNamespace

from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.engines.sessions.worker import Answer

_VERSIONS = dict.fromkeys(("python", "tensorflow", "keras", "numpy"), "1")


class _Record:
    """A record that stores nothing; the tables of slots exist on request."""

    n_statements = 0
    raw = SimpleNamespace(poll=lambda: None, notifies=[])

    def __init__(self, models: list[dict]):
        self._models = models

    def models(self, run_id):
        return self._models

    def __getattr__(self, name):
        def answer(*values, **names):
            self.n_statements += 1
            return []

        return answer


class _Workers:
    """Workers that have completed each task at the first poll."""

    def __init__(self, segments):
        self.waiting = dict.fromkeys(segments)
        self.orders = {}

    def open_all(self):
        pass

    def sessions(self):
        return []

    def begin(self, segment, order):
        self.orders[segment] = order

    def check_shards_by(self, check):
        pass

    def advance(self, segment, session):
        if segment not in self.orders:
            return object()  # stands for an opened session
        del self.orders[segment]
        fields = {"outcome": "done", "versions": _VERSIONS, "digest_out": "d", "state_bytes": 4 << 20}
        return Answer({**fields, "timing": {"compute_s": 1.0}})

    def reopen_lost(self):
        pass


def measure(n_segments: int, n_models: int, n_visits: int = 20_000) -> tuple[float, float]:
    """Return the driver's processor time in ms, and its number of statements to the catalog, per visit."""
    n_epochs = n_visits // (n_segments * n_models) + 2
    model = {"state_version": 0, "state_slot": None, "state_bytes": None, "epoch": 0, "position": 0, "state": "waiting",
             "first_epoch": 1, "last_epoch": n_epochs}  # fmt: skip
    models = [{**model, "mst_key": c, "ordinal": c, "digest": None} for c in range(n_models)]
    segments = [{"segment_id": s, "n_rows": 100} for s in range(n_segments)]
    plan = {"training": {"segments": segments, "table": "t"}, "validation": None}
    run = {"run_id": 1, "n_segments": n_segments, "schedule": "rotation", "metrics_compute_frequency": n_epochs,
           "versions": _VERSIONS, "plan": plan}  # fmt: skip
    record, workers = _Record(models), _Workers(range(n_segments))
    nothing = SimpleNamespace(epoch_over=lambda *_: None, elapsed_s=0.0)
    hopper = Hopper(record, workers, run, nothing, None)
    done, left = [0], n_visits
    began, before = time.process_time(), record.n_statements
    while done[0] < left + n_segments:
        hopper._start_tasks()
        hopper._slots.empty_dead()
        for segment in _next(workers, n_segments, done):
            hopper._advance(segment, None)
        hopper._tick()
    return 1e3 * (time.process_time() - began) / left, (record.n_statements - before) / left


def _next(workers: _Workers, n_segments: int, done: list[int]) -> list[int]:
    """Return the segment of the next event: first each segment opens, then those with tasks answer in turn."""
    done[0] += 1
    if done[0] <= n_segments:
        return [done[0] - 1]
    return [next(iter(workers.orders))]


def main() -> None:
    """Print one line for each size."""
    sizes = [word.split(":") for word in sys.argv[1:]] or [("8", "16"), ("64", "64"), ("64", "1000"), ("1000", "10000")]
    print("segments   models   ms a visit   statements a visit")
    for n_segments, n_models in sizes:
        ms, statements = measure(int(n_segments), int(n_models))
        print(f"{n_segments:>8} {n_models:>8} {ms:>12.3f} {statements:>20.2f}", flush=True)


if __name__ == "__main__":
    main()
