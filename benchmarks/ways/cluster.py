"""Processes that train one model together over 127.0.0.1: started, watched and ended; for the data-parallel ways."""

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
from workloads import WORKLOADS

from ways.contract import Epoch, Outcome, Span, Spec, tensorflow_versions

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """The role of a process: its job ("worker", "ps", "chief") and its number within the job."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}_{self.index}"


@dataclass(frozen=True)
class Part:
    """One process' part of an Outcome; the fields have the same meaning."""

    ready_at: float
    spans: list[Span] = dataclasses.field(default_factory=list)
    epochs: list[Epoch] = dataclasses.field(default_factory=list)
    digests: dict[int, str] = dataclasses.field(default_factory=dict)


def _tf_config(tasks: list[Task]) -> dict[Task, dict[str, str]]:
    addresses: dict[str, list[str]] = {}
    with contextlib.ExitStack() as stack:  # hold all ports until the last one is chosen, so that they differ
        for task in tasks:
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            addresses.setdefault(task.job, []).append("{}:{}".format(*held.getsockname()))
    return {
        task: {"TF_CONFIG": json.dumps({"cluster": addresses, "task": {"type": task.job, "index": task.index}})}
        for task in tasks
    }


def run_cluster(way: str, spec: Spec, jobs: dict[str, int], awaited: str, environment=_tf_config) -> list[Part]:
    """Run a cluster's processes until all tasks of one job have ended, then end the others.

    Parameters
    ----------
    way : str
        The name of the module that calls `be_task` when it is run with ``--task``.
    spec : Spec
    jobs : dict of str to int
        Number of processes of each job.
    awaited : str
        The job whose tasks do the work and return results.
    environment : callable
        ``environment(tasks)`` gives each task's additions to the environment, as a dict of dicts.

    Returns
    -------
    list of Part
        Results of the tasks of the awaited job.

    Raises
    ------
    SystemExit
        If a process ends unexpectedly, or this one gets a signal to end; no process remains.
    """
    tasks = [Task(job, index) for job, n in jobs.items() for index in range(n)]
    environments = environment(tasks)
    text = json.dumps(dataclasses.asdict(spec))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with contextlib.ExitStack() as stack:
        processes = {}
        for task in tasks:
            command = [sys.executable, "-m", f"ways.{way}", "--task", text, task.job, str(task.index)]
            processes[task] = subprocess.Popen(command, env=os.environ | environments[task])
            stack.callback(_end, processes[task])
        _watch(way, processes, {task for task in tasks if task.job == awaited})
    return [_read(_path(spec, task)) for task in tasks if task.job == awaited]


def be_task(work) -> None:
    """Run one process of a cluster: ``work(spec, task)`` returns its Part, or never returns."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # ends it if the way itself is killed
    _, _, text, job, index = sys.argv
    spec, task = Spec(**json.loads(text)), Task(job, int(index))
    part = work(spec, task)
    _path(spec, task).write_text(json.dumps(dataclasses.asdict(part)))


def outcome_of(parts: list[Part], data_bytes: int) -> Outcome:
    """Return the Outcome of a way from its parts."""
    return Outcome(
        ready_at=min(part.ready_at for part in parts),
        spans=[span for part in parts for span in part.spans],
        epochs=[epoch for part in parts for epoch in part.epochs],
        digests={str(key): digest for part in parts for key, digest in part.digests.items()},
        data_bytes=data_bytes,
        versions=tensorflow_versions(),
    )


@dataclass(frozen=True)
class Start:
    """The initial state of a configuration.

    Attributes
    ----------
    graph : tuple
        Configurations with equal values differ only in start weights, learning rate and mini-batch: one traced graph
        can train their models.
    weights : list of numpy.ndarray
        As of ``model.get_weights()``.
    learning_rate : float
    """

    graph: tuple
    weights: list[np.ndarray]
    learning_rate: float

    def begin_in(self, model) -> None:
        """Reset a compiled model to the start of this configuration, with a new Adam."""
        model.set_weights(self.weights)
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        model.optimizer.learning_rate = self.learning_rate


def start_of(spec: Spec, mst_key: int) -> Start:
    """Return a configuration's start; sets Keras' seeds."""
    workload = WORKLOADS[spec.workload]
    c = workload.configurations[mst_key - 1]
    return Start((c.architecture, c.l2), workload.compiled(mst_key, spec.seed).get_weights(), c.learning_rate)


def _watch(way: str, processes: dict[Task, subprocess.Popen], awaited: set[Task]) -> None:
    tasks = {os.pidfd_open(process.pid): task for task, process in processes.items()}
    try:
        while awaited:
            for fd in wait(list(tasks)):
                task = tasks[fd]
                status = processes[task].wait()
                if status or task not in awaited:
                    raise SystemExit(f"{way}: {task} ended with status {status} before the work was done")
                awaited.remove(task)
                os.close(fd)
                del tasks[fd]
    finally:
        for fd in tasks:
            os.close(fd)


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def _path(spec: Spec, task: Task) -> Path:
    return Path(spec.directory, f"{task}.json")


def _read(path: Path) -> Part:
    told = json.loads(path.read_text())
    return Part(
        told["ready_at"],
        [Span(**span) for span in told["spans"]],
        [Epoch(**epoch) for epoch in told["epochs"]],
        told["digests"],
    )
