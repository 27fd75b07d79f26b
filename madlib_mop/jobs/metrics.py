"""The metrics of a database and of this machine's trainers, for Prometheus; served by ``metrics_page.py``."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg2
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import DBAPIError

from madlib_mop.catalog.figures import DatabaseFigures, read_figures
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from madlib_mop.errors import MopError

_AT_MOST_EVERY_S = 1.0
_STATEMENT_TIMEOUT = "5s"
_TRAINER = "madlib_mop.trainer"


class Metrics(Collector):
    """Reads the metrics, in a session of its own, at most once a second whatever the number of requests.

    Parameters
    ----------
    read : callable
        Returns the database's figures; raises what a lost session raises.
    clock : callable
        Returns seconds.
    """

    def __init__(self, read: Callable[[], DatabaseFigures], clock: Callable[[], float] = time.monotonic):
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: list[Metric] = []
        self._read_at = float("-inf")
        self._failed = _Increases()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; a second request within a second gets those of the first."""
        with self._lock:
            if self._clock() - self._read_at >= _AT_MOST_EVERY_S:
                self._kept = list(self._metrics())
                self._read_at = self._clock()
            yield from self._kept

    def _metrics(self) -> Iterator[Metric]:
        try:
            figures = self._read()
        except (psycopg2.Error, DBAPIError, MopError):
            yield GaugeMetricFamily("madlib_mop_up", "Whether the database answers: 1 or 0", 0)
        else:
            yield GaugeMetricFamily("madlib_mop_up", "Whether the database answers: 1 or 0", 1)
            yield from self._of_database(figures)
        n_trainers, n_bytes = trainers_memory()
        yield GaugeMetricFamily("madlib_mop_trainers", "Trainers on this machine", n_trainers)
        help_text = "Resident memory of the trainers on this machine; pages that they share count in each"
        yield GaugeMetricFamily("madlib_mop_trainer_memory_bytes", help_text, n_bytes)

    def _of_database(self, figures: DatabaseFigures) -> Iterator[Metric]:
        yield _by_state("madlib_mop_runs", "Recorded runs", figures.runs)
        yield _by_state("madlib_mop_models", "Models of recorded runs", figures.models)
        yield _by_state("madlib_mop_jobs", "Recorded jobs", figures.jobs)
        yield GaugeMetricFamily("madlib_mop_job_queue_length", "Due jobs that wait for a worker", figures.n_queued)
        help_text = "Time since the first of the jobs in the queue was due; 0: there is none"
        yield GaugeMetricFamily("madlib_mop_job_queue_oldest_seconds", help_text, figures.oldest_s)
        yield CounterMetricFamily("madlib_mop_visits", "Visits, with those of dropped runs", figures.n_visits)
        help_text = "Failed runs, models and jobs since the start of this worker"
        failures = CounterMetricFamily("madlib_mop_failures", help_text, labels=["of"])
        now = {"run": figures.runs["failed"], "model": figures.models["failed"], "job": figures.jobs["failed"]}
        for kind, n in self._failed.add(now).items():
            failures.add_metric([kind], n)
        yield failures


class _Increases:
    """Sums the increases of numbers that also fall, when runs are dropped or resumed."""

    def __init__(self) -> None:
        self._before: Mapping[str, int] = {}
        self._sums: dict[str, int] = {}

    def add(self, now: Mapping[str, int]) -> Mapping[str, int]:
        """Return the sums until now; the first numbers are where they begin."""
        for name, n in now.items():
            self._sums[name] = self._sums.get(name, 0) + max(0, n - self._before.get(name, n))
        self._before = dict(now)
        return self._sums


class DatabaseReader:
    """Reads a database's figures, and logs in again after a session was lost.

    Parameters
    ----------
    dsn : str
        A superuser's login.
    """

    def __init__(self, dsn: str):
        self._dsn = dsn
        self._record: Record | None = None

    def __call__(self) -> DatabaseFigures:
        """Return the figures. Raises psycopg2.Error, DBAPIError or NotReady if the database does not answer."""
        if self._record is None or self._record.raw.closed:
            self._record = Record(*connect_by_dsn(self._dsn))
            self._record.execute("SELECT set_config('statement_timeout', %s, false)", [_STATEMENT_TIMEOUT])
        return read_figures(self._record)


def trainers_memory(processes: Path = Path("/proc")) -> tuple[int, int]:
    """Return the number of trainers on this machine, of all databases, and the sum of their resident memory in bytes.

    A trainer that was forked is named ``trainer <pid>``; a separate one has the module in its command line.

    Parameters
    ----------
    processes : Path
        The directory of the kernel's process files.
    """
    sizes = []
    for entry in processes.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if _is_trainer(entry):
                status = (entry / "status").read_text(encoding="ascii", errors="replace").splitlines()
                sizes += [int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:")]
        except OSError:  # it has ended, or belongs to another user
            continue
    return len(sizes), sum(sizes)


def _is_trainer(entry: Path) -> bool:
    name = (entry / "comm").read_text(encoding="ascii", errors="replace").split()
    if len(name) == 2 and name[0] == "trainer" and name[1].isdecimal():
        return True
    return _TRAINER in (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")


def _by_state(name: str, help_text: str, numbers: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, f"{help_text}, by state", labels=["state"])
    for state, n in numbers.items():
        family.add_metric([state], n)
    return family
