"""The comparison: trains each workload in every way, one after the other, each way in a network of its own.

Called by run.py. Each measurement is written to a directory at once; `report` renders it from there.
"""

import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import psycopg2
from loopback import ROOT, Loopback, loopback
from psycopg2 import sql
from ratios import Ratio
from report.__main__ import report
from report.figures import outside_share, stage_seconds
from report.measurement import Comparison, Failure, Machine, Measurement
from report.names import FUSED, HOPPER
from ways.contract import Outcome, Spec
from workload import source_of_images
from workloads import WORKLOADS, rows_of

BENCHMARKS = Path(__file__).parent
#: The way that is the reference, then the others.
WAYS = ("hopper", "plain", "celery_tasks", "ray_tune", "all_reduce", "parameter_server", "averaging")
if find_spec("horovod"):  # it is difficult to build, so it is optional
    WAYS += ("horovod_ring",)
IN_DATABASE = (HOPPER, FUSED, "averaging")
#: Upper limits of the hopper's makespan, with or without fused training, as a fraction of that of another way.
LIMITS = {
    ("images", "hopper"): {"plain": 0.65, "celery_tasks": 0.65, "ray_tune": 0.65},
    ("tabular", "hopper"): {"plain": 0.35, "celery_tasks": 0.35, "ray_tune": 0.35},
    ("tabular", FUSED): {"plain": 0.20},
}
_TIMEOUT_S = 4 * 3600


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes
    ----------
    workload : str
    ways : sequence of str
    n_train, n_test, n_epochs : int
        Rows, and passes over them.
    n_workers : int
        Segments, or processes of one thread.
    runs : sequence of (int, int)
        Of each way: seed, and the number of the repetition with that seed.
    most_outside : float or None
        Upper limit of the fraction of the hopper's time after the first epoch in which no model is computed.
    """

    workload: str
    ways: Sequence[str] = WAYS
    n_train: int = 2000
    n_test: int = 500
    n_epochs: int = 2
    n_workers: int = 2
    runs: Sequence[tuple[int, int]] = ((1, 1),)
    most_outside: float | None = None

    def shrunk(self, share: float) -> "Plan":
        """Return the same plan on a share of the rows."""
        return dataclasses.replace(self, n_train=round(share * self.n_train), n_test=round(share * self.n_test))

    @property
    def what(self) -> str:
        """Description in one line."""
        rows = f"{self.n_train:,} rows of {source_of_images()} for training, {self.n_test:,} for testing"
        what = f"{self.workload}: {WORKLOADS[self.workload].what}"
        return f"{what}; {rows}, {self.n_epochs} epochs, {self.n_workers} workers of one thread"


def compare_ways(plans: Sequence[Plan], directory: Path, go_on: bool = False) -> list[Ratio]:
    """Measure plans, print the tables, write page and CSV files; return ratios of the hopper's makespans to others'.

    Earlier files in the directory are overwritten, unless the call continues an interrupted comparison: then its
    measurements are kept. ``python -m report`` renders the page of a directory again.

    Raises
    ------
    SystemExit
        If it should continue measurements of another machine, version or plan.
    """
    new = Comparison([], [], Machine.here(), {plan.workload: plan.what for plan in plans})
    before = _broken_off(directory, new) if go_on else None
    if before is None:
        for old in [*directory.glob("measurement-*.json"), *directory.glob("failure-*.json")]:
            old.unlink()
        new.write(directory)
    for plan in plans:
        print(f"\ncomparison, {plan.what}", flush=True)
        for told in compare(plan, before or new):
            told.write(directory)
            print(f"  {told.way:20} {_line(told)}", flush=True)
    print(f"\n{report(directory)}", flush=True)
    measurements = Comparison.read(directory).measurements
    return [ratio for plan in plans for ratio in _ratios(plan, measurements)]


def _broken_off(directory: Path, new: Comparison) -> Comparison | None:
    """Read a directory's measurements of this comparison; None if there are none."""
    try:
        before = Comparison.read(directory)
    except FileNotFoundError:
        return None
    if before.workloads != new.workloads or before.machine.described != new.machine.described:
        raise SystemExit(
            f"{directory} has measurements of another comparison, of {before.machine.commit} at {before.machine.date}."
            " Name another directory (--output), or omit --continue to start from the beginning."
        )
    return before


def _line(told: Measurement | Failure) -> str:
    return told.error if isinstance(told, Failure) else f"{told.makespan_s:8.1f} s"


def _ratios(plan: Plan, measurements: list[Measurement]) -> list[Ratio]:
    workload, runs = plan.workload, defaultdict(list)
    for measurement in measurements:
        if measurement.workload == workload:
            runs[measurement.way].append(measurement)
    seconds = {way: median(m.makespan_s for m in of_one) for way, of_one in runs.items()}
    ours = {way: seconds.pop(way) for way in (HOPPER, FUSED) if way in seconds}
    ratios = [
        Ratio(f"{workload}: {our} / {way}", our_s / their_s, LIMITS.get((workload, our), {}).get(way))
        for our, our_s in ours.items()
        for way, their_s in seconds.items()
    ]
    outside = outside_share(stage_seconds(runs[HOPPER], "steady_stages"))
    if outside is not None:
        ratios.append(Ratio(f"{workload}: not computing, after the first epoch", outside, plan.most_outside))
    return ratios


def compare(plan: Plan, before: Comparison) -> Iterator[Measurement | Failure]:
    """Measure all ways within each of the plan's runs, so that a temporary load of the machine affects all of them.

    Existing measurements are not repeated. A way that has failed once is not tried again.
    """
    failed = {told.way for told in before.failures if told.workload == plan.workload}
    measured = {told.key for told in before.measurements}
    with tempfile.TemporaryDirectory(prefix="mop") as directory:
        directory = Path(directory)
        directory.chmod(0o755)
        rows_of(plan.workload, plan.n_train, plan.n_test).save(directory / "rows.npz")
        for seed, repetition in plan.runs:
            for way in plan.ways:
                if way in failed or (plan.workload, way, seed, repetition) in measured:
                    continue
                with tempfile.TemporaryDirectory(prefix="way", dir=directory) as place:
                    told = _measure(plan, way, seed, repetition, directory / "rows.npz", Path(place))
                if isinstance(told, Failure):
                    failed.add(way)
                yield told


def _measure(plan: Plan, way: str, seed: int, repetition: int, rows: Path, place: Path) -> Measurement | Failure:
    n_configurations = len(WORKLOADS[plan.workload].configurations)
    work = place / "work"
    work.mkdir()
    spec = Spec(
        workload=plan.workload,
        rows=str(rows),
        directory=str(work),
        n_epochs=plan.n_epochs,
        n_workers=plan.n_workers,
        seed=seed,
        mst_keys=list(range(1, n_configurations + 1)),
    )
    with loopback() as network:
        if way in IN_DATABASE:
            with _server(network) as dsn:
                return _run(way, dataclasses.replace(spec, dsn=dsn), network, repetition, place)
        return _run(way, spec, network, repetition, place)


def _run(way: str, spec: Spec, network: Loopback, repetition: int, place: Path) -> Measurement | Failure:
    """Run one way's program; measure its time and the bytes that it sends."""
    (place / "spec.json").write_text(json.dumps(dataclasses.asdict(spec)))
    command = [*network.within, sys.executable, "-m", f"ways.{way}", place / "spec.json", place / "outcome.json"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{BENCHMARKS}:{ROOT}",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    sent = network.n_bytes()
    begun_at = time.time()
    with open(place / "said", "w+") as said:
        process = subprocess.Popen(command, env=environment, cwd=BENCHMARKS, stdout=said, stderr=said)
        try:
            status = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
        ended_at = time.time()
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
    if status != 0:
        error = f"more than {_TIMEOUT_S} s" if status is None else (lines or [f"exit status {status}"])[-1]
        return Failure(workload=spec.workload, way=way, error=error)
    outcome = Outcome.read(place / "outcome.json")
    begun_at = outcome.begun_at or begun_at
    socket_bytes = None
    if sent is not None:
        socket_bytes = network.n_bytes() - sent if outcome.loopback_bytes is None else outcome.loopback_bytes
    return Measurement(
        workload=spec.workload,
        way=way,
        repetition=repetition,
        seed=spec.seed,
        n_workers=spec.n_workers,
        makespan_s=(outcome.ended_at or ended_at) - begun_at,
        socket_bytes=socket_bytes,
        outcome=outcome,
        begun_at=begun_at,
    )


@contextmanager
def _server(network: Loopback) -> Iterator[str]:
    """Start a cluster in a way's network, and return the TCP URI of a user of the extension."""
    cluster = [*network.within, ROOT / "make" / "cluster.sh", "--name", f"comparison-{os.getpid()}"]

    def control(*arguments: str) -> str:
        done = subprocess.run([*cluster, *arguments], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    control("start")
    try:
        password = secrets.token_hex(16)
        _as_superuser(control("dsn", "postgres"), sql.SQL("CREATE DATABASE comparison"))
        _as_superuser(
            control("dsn", "comparison"),
            sql.SQL("SET client_min_messages = warning"),
            sql.SQL("CREATE EXTENSION madlib_mop CASCADE"),
            sql.SQL("CREATE ROLE analyst LOGIN PASSWORD {} IN ROLE pg_checkpoint").format(sql.Literal(password)),
            sql.SQL("GRANT CREATE ON DATABASE comparison TO analyst"),
            sql.SQL("SELECT madlib_mop.grant_use('analyst')"),
        )
        yield f"postgresql://analyst:{password}@127.0.0.1:{control('port')}/comparison"
    finally:
        control("destroy")


def _as_superuser(dsn: str, *statements: sql.Composable) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    connection.close()
