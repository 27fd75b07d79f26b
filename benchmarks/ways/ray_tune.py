"""Task parallelism with Ray Tune: one configuration is one trial on one CPU; each actor has a copy of the rows.

Ray runs as one node with one CPU per worker. Its processes and actors communicate over TCP; only the object store,
which is nearly empty here, and the node's own manager use other connections. An actor loads TensorFlow and its copy
once and is used for the next trial: `reuse_actors` works for function trainables.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import functools
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import ray
from ray import tune
from workloads import Rows

from ways.contract import Outcome, Spec, now, run_way
from ways.training import copy_rows, one_thread, outcome_of, path_of_copy, train

_CLAIM_S = 30
_END_S = 30
_OBJECT_STORE_BYTES = 80 * 2**20  # Ray requires at least 75 MiB
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SOCKET_PATH_BYTES = 107
# The longest path that Ray appends to its temporary directory.
_SOCKET_EXAMPLE = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.0"


def work(spec: Spec) -> Outcome:
    """Copy the rows, start Ray, run the trials, collect their reports."""
    data_bytes = copy_rows(spec)
    with _ray(spec):
        results = _tuner(spec).fit()
        told = {result.config["mst_key"]: result.metrics for result in map(_succeeded, results)}
    return outcome_of(told, data_bytes, {"Ray": version("ray")})


def _tuner(spec: Spec) -> tune.Tuner:
    return tune.Tuner(
        tune.with_resources(_trial, {"cpu": 1}),
        param_space={"mst_key": tune.grid_search(spec.mst_keys), "spec": dataclasses.asdict(spec)},
        tune_config=tune.TuneConfig(max_concurrent_trials=spec.n_workers, reuse_actors=True),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=spec.directory,
            failure_config=tune.FailureConfig(fail_fast=True),
            verbose=0,
        ),
    )


def _succeeded(result: tune.Result) -> tune.Result:
    if result.error is not None:
        # A traceback ends with the exception; the text before it is about the actor's death and contains much advice.
        lines = str(result.error).strip().splitlines()
        line = lines[-1 if isinstance(result.error, ray.exceptions.RayTaskError) else 0]
        raise SystemExit(f"the trial of configuration {result.config['mst_key']} failed: {line.strip()}")
    return result


@contextlib.contextmanager
def _ray(spec: Spec) -> Iterator[None]:
    """Run a private Ray; at the end, no processes and no files outside our directory remain."""
    # Ray's processes end at different times: as their subreaper, this process finds all of them below itself.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with _temporary_directory(spec) as directory:
        os.environ |= {
            "RAY_AIR_NEW_OUTPUT": "0",  # it prints a banner, whatever the verbosity
            "RAY_TMPDIR": directory,
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": directory,  # TensorFlow leaves files there when it is killed
            "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        }
        try:
            ray.init(
                num_cpus=spec.n_workers,
                num_gpus=0,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=_OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                _temp_dir=directory,
            )
            _exit_on_sigterm()  # replaces Ray's own handler
            yield
        finally:
            ray.shutdown()
            _end_descendants()


def _temporary_directory(spec: Spec) -> tempfile.TemporaryDirectory:
    """Create a directory for Ray's logs and sockets: below the way's own, unless socket paths would be too long."""
    example = f"{spec.directory}/ray_12345678{_SOCKET_EXAMPLE}"
    parent = spec.directory if len(example.encode()) <= _SOCKET_PATH_BYTES else None
    return tempfile.TemporaryDirectory(prefix="ray_", dir=parent, ignore_cleanup_errors=True)


def _exit_on_sigterm() -> None:
    def handler(*_):
        print("ended by SIGTERM", file=sys.stderr, flush=True)  # Ray drops the exception's text
        sys.exit(1)

    signal.signal(signal.SIGTERM, handler)


def _end_descendants() -> None:
    deadline = time.monotonic() + _END_S
    while (descendants := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(descendants, timeout=_END_S)


@dataclasses.dataclass(frozen=True)
class _Loaded:
    number: int
    rows: Rows
    ready_at: float


@functools.cache
def _loaded(spec_rows: str, copies: tuple[Path, ...]) -> _Loaded:
    """Return the data that an actor keeps between its trials."""
    one_thread()
    number = _claim(copies)
    rows = Rows.load(Path(spec_rows), copies[number])
    return _Loaded(number, rows, now())


def _claim(copies: tuple[Path, ...]) -> int:
    """Reserve a copy of the rows for this actor until its process ends; return the number of the copy."""
    deadline = time.monotonic() + _CLAIM_S
    while True:
        for number, copy in enumerate(copies):
            descriptor = os.open(copy, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return number  # the file stays open and so keeps the lock
            except BlockingIOError:
                os.close(descriptor)
        if time.monotonic() > deadline:
            raise RuntimeError(f"more than {len(copies)} actors at once: there is no copy of the rows for this one")
        time.sleep(0.1)  # an actor that is being replaced may be about to end


def _trial(config: dict) -> None:
    spec = Spec(**config["spec"])
    copies = tuple(path_of_copy(spec, number) for number in range(spec.n_workers))
    worker = _loaded(spec.rows, copies)
    trained = train(
        spec.workload,
        worker.rows,
        config["mst_key"],
        spec.n_epochs,
        spec.seed,
        worker.number,
        after_epoch=lambda epoch: tune.report(dataclasses.asdict(epoch)),
    )
    tune.report(trained.told(worker.ready_at))


if __name__ == "__main__":
    from ways import ray_tune  # imported as a module, so that actors find `_trial` and its cache in it

    _exit_on_sigterm()
    run_way(ray_tune.work)
