"""What explain_fit says before a run, and what the run then takes: time, memory and disk, for many kinds of runs.

Called by run.py. No kind was seen before: the record has no run of its networks.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
from ratios import Ratio
from tables import make_table

SCHEMA = "mop_bench"
_LOOK_S = 0.1  # between two looks at the memory of the processes
#: How far the estimates may be off in nine of ten kinds.
LIMITS = {"time": 0.25, "memory": 0.15, "disk": 0.10}
_WITHIN = 0.9
_STATES = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
WHERE c.relnamespace = 'madlib_mop'::regnamespace AND c.relname LIKE 'model\\_state\\_%' AND c.relkind = 'r'
"""
_OUTPUTS = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
WHERE c.relnamespace = %s::regnamespace AND c.relname LIKE 'made%%' AND c.relkind IN ('r', 'm')
"""
FIT, AVERAGE, SEARCH = "madlib_keras_fit_multiple_model", "madlib_keras_fit", "madlib_keras_automl"


def mlp(*units: int) -> Callable[[int], Any]:
    """Return a function that builds a perceptron for rows of a number of columns."""

    def build(shape):
        import keras

        hidden = [keras.layers.Dense(n, activation="relu") for n in units]
        return keras.Sequential([keras.Input(shape), *hidden, keras.layers.Dense(10, activation="softmax")])

    return build


def conv(*filters: int) -> Callable[[int], Any]:
    """Return a function that builds a convolutional network for images."""

    def build(shape):
        import keras

        inner = [keras.Input(shape)]
        for n in filters:
            inner += [keras.layers.Conv2D(n, 3, activation="relu", padding="same"), keras.layers.MaxPooling2D(2)]
        return keras.Sequential([*inner, keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")])

    return build


def frozen(*filters: int) -> Callable[[int], Any]:
    """Return a function that builds a convolutional network of which only the last layer is trained."""

    def build(shape):
        model = conv(*filters)(shape)
        for layer in model.layers[:-1]:
            layer.trainable = False
        return model

    return build


def recurrent(n_units: int) -> Callable[[int], Any]:
    """Return a function that builds a recurrent network for sequences."""

    def build(shape):
        import keras

        layers = [keras.layers.LSTM(n_units), keras.layers.Dense(10, activation="softmax")]
        return keras.Sequential([keras.Input(shape), *layers])

    return build


@dataclass(frozen=True)
class Kind:
    """One kind of run.

    Attributes
    ----------
    name : str
    n_rows, shape : int, tuple of int
        Training rows, and the shape of a row.
    networks : tuple of callable
        Functions that build a network for rows of a shape.
    rates, batch_sizes : tuple
        Learning rates and batch sizes of each network.
    n_iterations, n_segments : int
    has_validation : bool
    function : str
        The function that trains.
    arguments, settings : dict
        More arguments of it; settings of the session.
    """

    name: str
    n_rows: int
    shape: tuple[int, ...]
    networks: tuple[Callable[..., Any], ...]
    rates: tuple[float, ...] = (1e-3,)
    batch_sizes: tuple[int, ...] = (32,)
    n_iterations: int = 5
    n_segments: int = 2
    has_validation: bool = False
    function: str = FIT
    arguments: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


_WIDE = (1e-2, 3e-3, 1e-3, 3e-4)
KINDS = (
    Kind("few rows, 8 perceptrons", 1000, (17,), (mlp(64), mlp(32, 16), mlp(128), mlp(64, 64, 32)), (1e-2, 1e-3)),
    Kind("many rows, 4 perceptrons", 60_000, (17,), (mlp(64, 32), mlp(256)), (1e-2, 1e-3), n_iterations=3),
    Kind(
        "perceptrons, evaluated", 4000, (17,), (mlp(64), mlp(64, 32)), (1e-2, 1e-3), (32, 256), 10, has_validation=True
    ),
    Kind("images, 2 networks", 2000, (32, 32, 3), (conv(8, 16), conv(16, 16, 32)), n_iterations=3),
    Kind("images, evaluated", 2000, (32, 32, 3), (conv(12, 24),), (1e-3, 1e-4), (64,), 3, has_validation=True),
    Kind("one model", 4000, (40,), (mlp(96, 48),), n_iterations=20),
    Kind("many models of a graph", 2000, (96,), (mlp(80),), (*_WIDE, *(r / 2 for r in _WIDE)), (32, 64, 128), 4),
    Kind("fused group", 2000, (96,), (mlp(72, 24),), _WIDE, (32, 256), 4, settings={"fused_training": "on"}),
    Kind("more trainers than processors", 8000, (30,), (mlp(112), mlp(112, 56)), (1e-2, 1e-3), n_segments=4),
    Kind("large states", 1000, (64,), (mlp(1500, 1000),), (1e-3, 1e-4), (100,), 3),
    Kind("recurrent", 1500, (20, 8), (recurrent(24),), (1e-2, 1e-3), (50,), 3, has_validation=True),
    Kind("frozen layers", 2000, (32, 32, 3), (frozen(10, 20),), (1e-2, 1e-3, 1e-4), n_iterations=8),
    Kind(
        "metrics after visits", 4000, (19,), (mlp(68), mlp(68, 34)), (1e-2, 1e-3), n_iterations=8,
        arguments={"metrics_every": "visit"},
    ),
    Kind("model averaging", 6000, (25,), (mlp(88, 44),), n_iterations=8, function=AVERAGE),
    Kind(
        "search by asha", 2500, (22,), (mlp(56), mlp(56, 28)), function=SEARCH, has_validation=True,
        arguments={"automl_method": "asha", "automl_params": "R=9, eta=3, num_configs=12"},
    ),
    Kind(
        "search by hyperband", 2500, (22,), (mlp(60), mlp(60, 30)), function=SEARCH, has_validation=True,
        arguments={"automl_method": "hyperband", "automl_params": "R=9, eta=3, skip_last=0"},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """What a run took: seconds, the most bytes of memory at once, and the bytes on disk afterwards."""

    seconds: float
    memory_bytes: int
    disk_bytes: int


def compare_explained(dsn: str, only: str | None = None) -> list[Ratio]:
    """Explain and run each kind; print both side by side, and return for each figure the share that is off."""
    far = {what: [] for what in LIMITS}
    print("\nexplain: estimate and run")
    print(f"  {'':30}{'time, s':>22}{'memory, MB':>22}{'disk, MB':>22}")
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        _warm(cursor)
        for kind in KINDS:
            if only is not None and only not in kind.name:
                continue
            said, taken = _measure(cursor, kind)
            pairs = {
                "time": (said["time"], taken.seconds),
                "memory": (said["memory"], taken.memory_bytes / 1e6),
                "disk": (said["disk"], taken.disk_bytes / 1e6),
            }
            for what, (expected, found) in pairs.items():
                far[what].append(abs(expected / found - 1))
            cells = "".join(f"{a:8.1f} {b:8.1f} {a / b:4.2f}" for a, b in pairs.values())
            print(f"  {kind.name:30}{cells}", flush=True)
        cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    ratios = []
    for what, found in far.items():
        within = sorted(found)[max(0, round(_WITHIN * len(found)) - 1)]
        ratios.append(Ratio(f"explain: {what}, nine of ten are off by at most", within, LIMITS[what]))
    print(*ratios, sep="\n", flush=True)
    return ratios


def _warm(cursor) -> None:
    """Let the server load the libraries, as it has for all but the first call."""
    cursor.execute("SELECT madlib_mop.version()")


def _measure(cursor, kind: Kind) -> tuple[dict[str, float], Taken]:
    _prepare(cursor, kind)
    arguments = _arguments(kind)
    explain = "SELECT * FROM madlib_mop.explain_fit(%s, %s)"
    began = time.monotonic()
    cursor.execute(explain, [kind.function, json.dumps(arguments)])
    rows = cursor.fetchall()
    found = {item: value for item, value, *_ in rows}
    if os.environ.get("MOP_BENCH_DETAILS"):
        print(f"    explain_fit took {time.monotonic() - began:.1f} s", *rows, sep="\n    ")
    said = {what: found[what] for what in LIMITS}
    taken = _run(cursor, kind.function, arguments)
    return said, taken


def _run(cursor, function: str, arguments: dict[str, Any]) -> Taken:
    cursor.execute(_STATES)
    (states_before,) = cursor.fetchone()
    named = ", ".join(f"{name} => %s" for name in arguments)
    with _watch(cursor, states_before) as most:
        began = time.monotonic()
        cursor.execute(f"SELECT madlib.{function}({named})", list(arguments.values()))
        seconds = time.monotonic() - began
    cursor.execute(_STATES)
    kept = cursor.fetchone()[0] - states_before
    cursor.execute(_OUTPUTS, [SCHEMA])
    (outputs,) = cursor.fetchone()
    cursor.execute("SELECT max(run_id) FROM madlib_mop.run")
    (run_id,) = cursor.fetchone()
    if os.environ.get("MOP_BENCH_DETAILS"):
        _details(cursor, run_id, seconds)
    cursor.execute("SELECT madlib_mop.drop_run(%s)", [run_id])
    if os.environ.get("MOP_BENCH_DETAILS"):
        print("    most:", most, "kept", kept, "outputs", outputs)
    return Taken(seconds, most["memory"], kept + outputs)


def _details(cursor, run_id: int, seconds: float) -> None:
    cursor.execute(
        "SELECT extract(epoch FROM ended_at - created_at)::float8, training_s, makespan_s, lower_bound_s, n_models,"
        " plan ? 'any_trainer' FROM madlib_mop.run WHERE run_id = %s", [run_id]
    )
    print("    run:", seconds, cursor.fetchone())
    for table in ("visit", "evaluation"):
        cursor.execute(
            f"SELECT count(*), sum(extract(epoch FROM ended_at - started_at))::float8 FROM madlib_mop.{table}"
            " WHERE run_id = %s", [run_id],
        )
        print("   ", table, cursor.fetchone())
        cursor.execute(
            f"SELECT k, sum(v::float8), percentile_cont(0.5) WITHIN GROUP (ORDER BY v::float8), max(v::float8)"
            f" FROM madlib_mop.{table}, jsonb_each_text(timing) AS t (k, v) WHERE run_id = %s AND k NOT IN ('fused')"
            f" GROUP BY k ORDER BY k", [run_id],
        )
        for row in cursor.fetchall():
            print("      ", row)


@contextmanager
def _watch(cursor, states_before: int) -> Iterator[dict[str, int]]:
    """Look every moment at the memory of all processes of the run, and at the disk that its states take."""
    cursor.execute("SELECT pg_read_file('postmaster.pid')")
    server = int(cursor.fetchone()[0].split()[0])
    before = {pid for pid, *_ in _processes(server)}
    most = {"memory": 0, "server": 0, "disk": 0}
    over = threading.Event()

    def look() -> None:
        with closing(psycopg2.connect(cursor.connection.dsn)) as connection, connection.cursor() as own:
            connection.autocommit = True
            before.add(connection.info.backend_pid)
            while not over.wait(_LOOK_S):
                now = [(n_bytes, is_session) for pid, n_bytes, is_session in _processes(server) if pid not in before]
                most["memory"] = max(most["memory"], sum(n_bytes for n_bytes, _ in now))
                most["server"] = max(most["server"], sum(n_bytes for n_bytes, is_session in now if is_session))
                own.execute(_STATES)
                most["disk"] = max(most["disk"], own.fetchone()[0] - states_before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def _processes(server: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the processes of a server and of its library: number, private memory, and whether it is a session."""
    library = str(Path(sys.prefix).parent).encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent != server and not (library in words and b"madlib_mop" in words):
                continue
            rollup = (path / "smaps_rollup").read_text()
        except OSError:
            continue
        kilobytes = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")]
        yield int(path.name), sum(kilobytes) << 10, parent == server


def _prepare(cursor, kind: Kind) -> None:
    """Load and pack rows, and write the configurations."""
    chance = np.random.default_rng(0)
    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
    cursor.execute("SET client_min_messages = warning; RESET madlib_mop.fused_training")
    cursor.execute("SET madlib_mop.segments = %s", [str(kind.n_segments)])
    for name, value in kind.settings.items():
        cursor.execute(f"SET madlib_mop.{name} = %s", [value])
    for table, n_rows in (("train_rows", kind.n_rows), ("valid_rows", kind.n_rows // 4)):
        x = chance.random((n_rows, *kind.shape), np.float32)
        make_table(cursor, table, x, chance.integers(0, 10, n_rows))
    cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := 1)")
    cursor.execute("SELECT madlib.validation_preprocessor_dl('valid_rows', 'valid', 'y', 'x', 'train')")
    for build in kind.networks:
        cursor.execute("SELECT madlib.load_keras_model('arch', %s::json)", [build(kind.shape).to_json()])
    if kind.function == FIT:
        cursor.execute("CREATE TABLE mst (mst_key serial, model_id integer, compile_params text, fit_params text)")
        cursor.execute("CREATE TABLE mst_summary (model_arch_table text, object_table text)")
        cursor.execute("INSERT INTO mst_summary VALUES ('arch')")
        cursor.execute(
            "INSERT INTO mst (model_id, compile_params, fit_params) SELECT i,"
            " format($$loss='categorical_crossentropy', optimizer='Adam(lr=%%s)', metrics=['accuracy']$$, r),"
            " format('batch_size=%%s, epochs=1', b) FROM generate_series(1, %s) AS i, unnest(%s) AS r, unnest(%s) AS b",
            [len(kind.networks), list(kind.rates), list(kind.batch_sizes)],
        )


def _arguments(kind: Kind) -> dict[str, Any]:
    params = "loss='categorical_crossentropy', optimizer='Adam(lr=0.001)', metrics=['accuracy']"
    found: dict[str, Any] = {"source_table": "train", "seed": 1}
    if kind.has_validation:
        found["validation_table"] = "valid"
    if kind.function == FIT:
        found |= {"model_output_table": "made", "model_selection_table": "mst", "num_iterations": kind.n_iterations}
    elif kind.function == AVERAGE:
        found |= {
            "model": "made", "model_arch_table": "arch", "model_id": 1, "compile_params": params,
            "fit_params": "batch_size=32, epochs=1", "num_iterations": kind.n_iterations,
        }  # fmt: skip
    else:
        grid = (
            "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list':"
            " [{'optimizer': ['Adam'], 'learning_rate': [0.0001, 0.1, 'log']}]}"
        )
        found |= {
            "model_output_table": "made", "model_arch_table": "arch", "model_selection_table": "made_mst",
            "model_id_list": list(range(1, len(kind.networks) + 1)), "compile_params_grid": grid,
            "fit_params_grid": "{'batch_size': [32], 'epochs': [1]}", "random_state": 1,
        }  # fmt: skip
    return found | kind.arguments
