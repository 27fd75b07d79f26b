"""Task parallelism with Celery: one configuration is one task; each worker has a full copy of the rows.

A private Redis is broker and result backend. A worker is one process (`--pool solo`) that loads TensorFlow and its copy
once. `python -m ways.celery_tasks SPEC OUTCOME` sends the tasks; Celery's workers import this module for the task.
"""

import contextlib
import dataclasses
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import celery
import redis
from celery import signals
from celery.exceptions import TimeoutError as NotReady
from celery.result import AsyncResult
from workloads import Rows

from ways.contract import Outcome, Spec, now, run_way
from ways.training import copy_rows, one_thread, outcome_of, path_of_copy, train

TASK = "ways.celery_tasks.train"
_START_S = 30
_LOOK_S = 1  # between two checks that all processes are alive
_DAY_S = 24 * 60 * 60

# The settings that Celery's documentation recommends for few long tasks: a task is acknowledged when it is complete,
# and a worker reserves no second one. Redis redelivers a task that is not acknowledged within the visibility timeout,
# an hour by default.
app = celery.Celery("ways")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 30 * _DAY_S},
    result_backend_transport_options={"visibility_timeout": 30 * _DAY_S, "retry_policy": {"max_retries": 3}},
    result_expires=30 * _DAY_S,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
)


def work(spec: Spec) -> Outcome:
    """Copy the rows, start Redis and the workers, send the tasks, collect their results."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    data_bytes = copy_rows(spec)
    with _Processes() as processes:
        url, redis_version = _start_redis(Path(spec.directory), processes)
        app.conf.update(broker_url=url, result_backend=url)
        for number in range(spec.n_workers):
            _start_worker(spec, number, url, processes)
        with _sent(spec.mst_keys) as results:
            told = {mst_key: _wait(mst_key, result, processes) for mst_key, result in results.items()}
    return outcome_of(told, data_bytes, {"Celery": version("celery"), "Redis": redis_version})


class _Processes(contextlib.AbstractContextManager):
    """The server and the workers, by name; all are killed at the end, because none has data to save."""

    def __init__(self):
        self._started: dict[str, tuple[subprocess.Popen, Path]] = {}

    def start(self, name: str, log: Path, command: list[str], **options) -> subprocess.Popen:
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)
        self._started[name] = process, log
        return process

    def check(self) -> None:
        """Raise SystemExit if one has ended."""
        for name, (process, log) in self._started.items():
            status = process.poll()
            if status is not None and status < 0:
                raise SystemExit(f"{name} was killed by {signal.Signals(-status).name}")
            if status is not None:
                last = log.read_text(errors="replace").strip().split("\n")[-1]
                raise SystemExit(f"{name} ended with status {status}; the end of its output: {last}")

    def __exit__(self, *_):
        for process, _ in self._started.values():
            process.kill()
        for process, _ in self._started.values():
            process.wait()


def _start_redis(directory: Path, processes: _Processes) -> tuple[str, str]:
    """Start a Redis without persistence; when it answers, return its URL and its version."""
    beside = str(Path(sys.executable).parent)  # make/bench.sh installs it there if the system has none
    program = shutil.which("redis-server", path=os.pathsep.join([os.environ.get("PATH", os.defpath), beside]))
    if program is None:
        raise SystemExit("redis-server is neither on the PATH nor next to Python. Run: make bench-full")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    password = secrets.token_hex(16)
    settings = {
        "bind": "127.0.0.1",
        "port": port,
        "requirepass": password,
        "dir": f'"{directory}"',
        "save": '""',
        "appendonly": "no",
        "daemonize": "no",
    }
    server = processes.start("redis-server", directory / "redis.log", [program, "-"], stdin=subprocess.PIPE)
    server.stdin.write("".join(f"{name} {value}\n" for name, value in settings.items()).encode())
    server.stdin.close()
    with redis.Redis(host="127.0.0.1", port=port, password=password) as client:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                found = client.info("server")["redis_version"]
                break
            except redis.ConnectionError:
                processes.check()
                if time.monotonic() > deadline:
                    raise SystemExit(f"redis-server did not answer within {_START_S} s") from None
                time.sleep(0.02)
    return f"redis://:{password}@127.0.0.1:{port}/0", found


def _start_worker(spec: Spec, number: int, url: str, processes: _Processes) -> None:
    command = [sys.executable, "-m", "celery", "--quiet", "--app", "ways.celery_tasks", "worker"]
    command += ["--hostname", f"worker_{number}@127.0.0.1", "--pool", "solo", "--concurrency", "1"]
    # Turns off messages between workers and to monitors, which are not used here.
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
    directory = spec.worker_directory(number)
    environment = os.environ | {
        "CELERY_BROKER_URL": url,
        "CELERY_RESULT_BACKEND": url,
        "TMPDIR": str(directory),  # TensorFlow leaves files there when it is killed
        "WAY_SPEC": json.dumps(dataclasses.asdict(spec)),
        "WAY_WORKER": str(number),
    }
    processes.start(f"worker_{number}", directory / "celery.log", command, env=environment, cwd=directory)


@contextlib.contextmanager
def _sent(mst_keys: list[int]) -> Iterator[dict[int, AsyncResult]]:
    """Send the tasks; return their asynchronous results."""
    results = {mst_key: app.send_task(TASK, [mst_key]) for mst_key in mst_keys}
    try:
        yield results
    finally:
        for result in results.values():
            # otherwise each result would unsubscribe from a Redis that has ended, and retry for a long time
            result.backend = None


def _wait(mst_key: int, result: AsyncResult, processes: _Processes) -> dict:
    while True:
        try:
            return result.get(timeout=_LOOK_S)
        except NotReady:
            processes.check()
        except Exception as error:  # an exception of the task, or a lost connection to Redis
            processes.check()
            raise SystemExit(f"the task of configuration {mst_key} failed: {error!r}") from None


@dataclasses.dataclass(frozen=True)
class _Loaded:
    spec: Spec
    number: int
    rows: Rows
    ready_at: float


@functools.cache
def _loaded() -> _Loaded:
    """Return the data that a worker keeps between its tasks."""
    spec, number = Spec(**json.loads(os.environ["WAY_SPEC"])), int(os.environ["WAY_WORKER"])
    one_thread()
    rows = Rows.load(Path(spec.rows), path_of_copy(spec, number))
    return _Loaded(spec, number, rows, now())


@signals.worker_init.connect
def _load_before_tasks(**_) -> None:
    _loaded()  # Celery only logs exceptions here; the first task will raise it again


@app.task(name=TASK)
def _train(mst_key: int) -> dict:
    worker = _loaded()
    spec = worker.spec
    trained = train(spec.workload, worker.rows, mst_key, spec.n_epochs, spec.seed, worker.number)
    return trained.told(worker.ready_at)


if __name__ == "__main__":
    run_way(work)
