"""The differences between engines for class `Promises`: a database, its trainers, and leftovers of runs.

Each module creates a `Bench` or an instance of a subclass, which `prepared` fills: packed digits, architectures,
configurations, and a run without faults. Every other run must end with that run's digests.
"""

import json
from dataclasses import dataclass, field

from tests.helpers.faults import (
    BackgroundFit,
    assert_nothing_left,
    assert_whole,
    newest_run,
    trainers,
    wait_for,
    workers,
)
from tests.helpers.training import (
    ALIKE,
    MIXED,
    digests,
    fit,
    load_architectures,
    load_digits,
    pack,
    quiet_keras,
    select_configurations,
    store_unchecked,
    weights,
)

CONFIGURATIONS = [ALIKE[0], MIXED[1], ALIKE[2]]
N_MODELS, N_EPOCHS, SEED = len(CONFIGURATIONS), 4, 77  # enough that no run ends before a fault occurs
UNBUILDABLE = 4  # the model_id of an architecture that Keras cannot build
RUN = {"validation_table": "valid", "metrics_compute_frequency": 1, "seed": SEED, "schedule": "rotation"}
_METRICS = (
    "SELECT mst_key, epoch, data_set, ordinal, name, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2, 3, 4"
)


@dataclass
class Bench:
    """An engine with data and configurations to train; this class is for one PostgreSQL server.

    Attributes
    ----------
    db : tests.conftest.Database
        The database of the calls, or an object with the same ``connect``, ``rows`` and ``value``.
    n_segments : int
    run_id : int
        The run without faults; its models are in table ``undisturbed``.
    expected : dict of int to str
        Digests of that run.
    """

    db: object
    n_segments: int
    run_id: int = 0
    expected: dict[int, str] = field(default_factory=dict)

    def trainers(self) -> list[int]:
        """Return the trainer processes of this database's runs, on all hosts."""
        return trainers(self.db)

    def processes(self) -> set[int]:
        """Return all processes of runs, on all hosts; they must end with the run."""
        return {*workers(self.db), *self.trainers()}

    def assert_nothing_left(self, pids=(), within_s: float = 5.0) -> None:
        """Assert that no process, session, role or lock of a run remains."""
        assert_nothing_left(self.db, pids, within_s)

    def traces(self) -> list:
        """Return what a rejected call must not change: runs, and tables on all hosts."""
        tables = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"
        return [self.db.rows("SELECT run_id, state FROM madlib_mop.run ORDER BY 1"), self.db.rows(tables)]

    def observe(self) -> None:
        """Observe the run without faults while its trainers work, for tests of one engine."""

    def assert_exact(self, database) -> None:
        """Compare the run without faults with the same call on one PostgreSQL server with as many segments.

        Parameters
        ----------
        database : tests.conftest.Database
            A new database for that call.
        """
        one_server = Bench(database, self.n_segments)
        prepare(one_server)
        there = fit(database, "undisturbed", "mst", N_EPOCHS, source_table="train", **RUN)
        assert self.expected == digests(database, there.run_id)
        assert weights(self.db, "undisturbed") == weights(database, "undisturbed")
        assert self.metrics(self.run_id) == one_server.metrics(there.run_id) != []

    def metrics(self, run_id: int) -> list[tuple]:
        """Return all metrics of a run."""
        return self.db.rows(_METRICS, [run_id])

    def begin(self, table: str) -> tuple[BackgroundFit, int]:
        """Start a run of the call with known digests; return it and its run_id when all trainers have started."""
        before = newest_run(self.db)
        named = "".join(f", {name} := %s" for name in RUN)
        statement = f"SELECT madlib.madlib_keras_fit_multiple_model('train', %s, 'mst', {N_EPOCHS}{named})"
        call = BackgroundFit(self.db, statement, [table, *RUN.values()])
        run_id = wait_for(lambda: newest_run(self.db) != before and newest_run(self.db) or call.error, what="its start")
        self.wait_for_trainers(call)
        return call, run_id

    def wait_for_trainers(self, call: BackgroundFit) -> None:
        """Wait until every segment has its trainer."""
        wait_for(lambda: not call.running or len(self.trainers()) >= self.n_segments, what="the trainers")
        assert call.running, call.error

    def check(self, run_id: int, pids=()) -> None:
        """Assert what must hold after any fault: the same bits, each visit once, and no leftovers."""
        assert_whole(self.db, run_id, self.expected, N_MODELS, self.n_segments, N_EPOCHS)
        self.assert_nothing_left(pids)


def prepare(bench: Bench) -> None:
    """Pack the digits as ``train`` and ``valid``; load the architectures; write the configurations, ``mst``."""
    load_digits(bench.db)
    load_architectures(bench.db)
    pack(bench.db, bench.n_segments)
    select_configurations(bench.db, "mst", CONFIGURATIONS)


def prepared(bench: Bench) -> Bench:
    """Create what the class needs: tables, an architecture that cannot be built, and the run without faults."""
    prepare(bench)
    store_unchecked(bench.db, _unbuildable())
    call, bench.run_id = bench.begin("undisturbed")
    bench.observe()
    call.succeed()
    bench.expected = digests(bench.db, bench.run_id)
    return bench


def _unbuildable() -> str:
    """Return the JSON of a network that Keras reads but cannot build: its kernel is larger than an image."""
    keras = quiet_keras()
    layers = [keras.layers.Conv2D(2, 8), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
    wrong = json.loads(keras.Sequential([keras.Input((8, 8, 1)), *layers]).to_json())
    wrong["config"]["layers"][1]["config"]["kernel_size"] = [9, 9]
    return json.dumps(wrong)
