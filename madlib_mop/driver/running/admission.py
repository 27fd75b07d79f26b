"""Admission: a run waits until the server has room for it, or fails at once, before it opens any session; and gives its
place to another one while it only reads rows for long.
"""

import os
import select
import time
from collections.abc import Callable

from mop_backend.machine import available_bytes
from mop_backend.shard_file import free_bytes

from madlib_mop.catalog.drivers import N_LEFT_FREE, Queue, n_segment_sessions
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.plan import Plan
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.driver.estimates.memory import is_dispatched, need_of_admission, rows_of_trainers
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.settings import AdmissionRule, read_admission
from madlib_mop.driver.session.stopping import ignore_from_now_on, stop_reason, was_cancelled
from madlib_mop.errors import Cancelled, OutOfResources

_LOOK_EVERY_S = 2.0  # a driver that was killed wakes nobody


def admit(call: Call, record: Record, run: RunRow) -> AdmissionRule:
    """Wait until a run may train; return the rule.

    Raises
    ------
    OutOfResources
        With ``SET madlib_mop.admission = 'error'``, if it would have to wait. If the rows of a shard fit neither into
        a trainer's memory nor on disk.
    Cancelled
        If it was cancelled meanwhile, or the caller's session stops it.
    """
    _check_files(record, run.plan)
    rule = read_admission(record, call.session)
    if rule.mode == "off" or (call.continue_run is not None and run.admitted_at is not None):
        record.mark_admitted(run.run_id)
        return rule
    record.listen_for_admission()
    record.ask(run.run_id)
    need_bytes = need_of_admission(run.plan)
    n_at_hosts = sum(shard.server is not None for shard in run.plan.training.segments)
    n_connections = n_segment_sessions(run.n_segments, n_at_hosts) + N_LEFT_FREE
    told: str | None = None
    while True:
        available = available_bytes()
        fits = available is None or available >= need_bytes
        queue = record.admit(run.run_id, rule.max_runs, n_connections, fits)
        if queue is None:
            return rule
        why = _why(queue, rule.max_runs, n_connections, need_bytes, available, fits)
        if rule.mode == "error":
            raise OutOfResources(
                f"run {run.run_id} would have to wait: {why}",
                hint="SET madlib_mop.admission = 'wait'; lets it wait. SELECT madlib_mop.resume("
                f"{run.run_id}); starts it later.",
            )
        if told is None:
            call.session.notice(f"run {run.run_id} waits for its turn: {why}")
            record.set_run(run.run_id, state=RunState.RUNNING, ended_at=None, caller_pid=call.info.pid)
        if why != told:
            record.set_run(run.run_id, state_detail=f"waits for its turn: {why}")
            told = why
        _wait(call, record, run.run_id)


def _check_files(record: Record, plan: Plan) -> None:
    """Raise OutOfResources if the rows of the trainers here do not fit into their memory and their files."""
    if plan.any_trainer:  # they have few rows
        return
    start = plan.trainer
    memory, limit = (int(start.get(name) or 0) for name in ("memory_limit_bytes", "shard_disk_bytes"))
    too_large = [rows for rows in rows_of_trainers(plan) if memory and rows.largest_bytes > memory]
    if not too_large or is_dispatched(plan):
        return
    need = sum(rows.file_bytes for rows in too_large)
    directory = start.get("shard_directory") or os.path.join(str(record.data_directory()), "base")
    left = free_bytes(directory)
    most = max(rows.file_bytes for rows in too_large)
    if most <= limit and (left is None or need <= left):
        return
    why = (
        f"{directory} has room for {max(0, left or 0) >> 20} MB"
        if most <= limit
        else f"the limit of a trainer's file is {limit >> 20} MB"
    )
    raise OutOfResources(
        f"the rows of {len(too_large)} segment(s) do not fit into a trainer's memory, {memory >> 20} MB, and take"
        f" {need >> 20} MB on disk, but {why}",
        hint="Pack the table into more segments, free disk space, name another directory in the setting"
        " shard_directory, or raise madlib_mop.shard_disk_mb (or the caller's temp_file_limit) or"
        " madlib_mop.trainer_memory_mb.",
    )


def _why(queue: Queue, limit: int, n_connections: int, need: int, available: int | None, fits: bool) -> str:
    if queue.n_before:
        return f"{_runs(queue.n_before)} before it"
    if queue.n_active >= limit:
        return f"{_runs(queue.n_active)} in progress, and max_runs is {limit}"
    if not fits and available is not None:
        return f"it needs {need >> 20} MB of memory, and {available >> 20} MB are available"
    return f"it needs {n_connections} connections, and the server has {max(0, queue.free_connections)} left"


def _runs(n: int) -> str:
    return "1 run is" if n == 1 else f"{n} runs are"


def _wait(call: Call, record: Record, run_id: int) -> None:
    """Wait for the end of a run, or some time."""
    poller = select.poll()
    poller.register(record.raw.fileno(), select.POLLIN)
    stop_fd = call.session.stop_fd
    poller.register(stop_fd, select.POLLIN)
    wait_s = 0.0 if record.raw.notifies else _LOOK_EVERY_S  # one may have come with the answer of a query
    for fd, _ in poller.poll(wait_s * 1000):
        if fd == stop_fd:
            ignore_from_now_on()
            raise Cancelled(stop_reason(fd))
    record.raw.poll()
    record.raw.notifies.clear()
    if (by := record.cancelled_by(run_id)) is not None:
        raise was_cancelled(run_id, by)


class Place:
    """The place of a run among those that train at once; given back while the run does nothing but read rows for long.

    A view can take any time for a row, so a few runs whose views sleep could keep all others from training.

    Parameters
    ----------
    record : Record
    run_id : int
    limit_s : float
    tell : callable
        Called with a sentence when the place is given back.
    """

    def __init__(self, record: Record, run_id: int, limit_s: float, tell: Callable[[str], None]):
        self._record = record
        self._run_id = run_id
        self._limit_s = limit_s
        self._tell = tell
        self._reads_since: float | None = None
        self._is_given_back = False

    def poll(self, only_reads: bool) -> None:
        """Give the place back if the run has only read rows for too long; take it again when it does something else."""
        now = time.monotonic()
        if not only_reads:
            self._reads_since = None
            if self._is_given_back:
                self._is_given_back = False
                self._record.mark_admitted(self._run_id)
            return
        if self._reads_since is None:
            self._reads_since = now
        if not self._is_given_back and now - self._reads_since >= self._limit_s:
            self._is_given_back = True
            self._record.release_place(self._run_id)  # defence: places-of-sleepers
            self._record.wake_waiting()
            self._tell(
                f"all segments have waited for rows of the source table for {self._limit_s:g} s: another run may"
                " train meanwhile"
            )
