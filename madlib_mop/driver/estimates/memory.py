"""The memory of a run's processes, and the files of its trainers; for estimates and for the admission of runs.

A trainer is forked from a process that has loaded the backend of Keras, and shares that memory with it. What a run
takes is private memory: what a process has written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mop_backend.memory import LOADED_TRAINER_BYTES

from madlib_mop.catalog.rows.plan import Plan
from madlib_mop.driver.estimates.costs import Work

# Private memory, measured with TensorFlow 2.21 (make bench ARGS="--grid explain").
_TRAINER_BYTES, _IDLE_TRAINER_BYTES = 42 << 20, 18 << 20
_GRAPH_BYTES, _LAYER_BYTES = 2 << 20, 1200 << 10
_DRIVER_BYTES, _SESSIONS_BYTES, _SEGMENT_BYTES = 45 << 20, 6 << 20, 22 << 20
#: Of a session whose trainer makes no visit.
_IDLE_SEGMENT_BYTES = 10 << 20
#: On Greenplum, each session of a run has a process at each segment: of 2 a segment, the driver and the caller.
_PROCESS_BYTES = 3200 << 10
#: A session sends a buffer of rows at a time.
_MOST_SENT_BYTES = 32 << 20
#: States that a trainer has at once for a visit (variables, what came in, what goes out), and that its session has.
_STATES_AT_ONCE, _STATES_OF_A_SESSION = 2.2, 4.7
#: Of each row in a trainer's file, the bytes of its number in the order of a pass.
_ORDER_BYTES = 8
#: Numbers that a training step keeps for each activation.
_ACTIVATIONS, _NUMBER_BYTES = 3, 4


@dataclass(frozen=True)
class Memory:
    """The private memory of a run's processes on this server, in bytes; on Greenplum, also at its segments.

    Pages of trainers' files are not counted: the kernel drops them when memory is short.

    Attributes
    ----------
    trainer_bytes : int
        Of the trainer that needs most.
    trainers_bytes : int
        Of all trainers.
    server_bytes : int
        Of sessions and the driver.
    files_bytes : int
        Of the trainers' files, on disk.
    """

    trainer_bytes: int
    trainers_bytes: int
    server_bytes: int
    files_bytes: int = 0

    @property
    def n_bytes(self) -> int:
        """All memory together."""
        return self.trainers_bytes + self.server_bytes


def need_of_admission(plan: Plan) -> int:
    """Return the bytes that must be available on this server before a run opens its sessions, before its graphs are
    known: as if each trainer had loaded its backend itself."""
    n_trainers = _n_here(plan)
    if not _has_files(plan):
        rows = sum(shard.n_bytes for shard in plan.training.segments if shard.server is None)
        return n_trainers * LOADED_TRAINER_BYTES + rows * (n_trainers if plan.any_trainer else 1)
    return n_trainers * LOADED_TRAINER_BYTES + sum(rows.memory_bytes for rows in rows_of_trainers(plan))


@dataclass(frozen=True)
class TrainerRows:
    """The rows of a trainer on this server: the bytes of those that stay in memory, and of those in its file.

    Attributes
    ----------
    memory_bytes, file_bytes : int
    largest_bytes : int
        Of the largest shard in the file.
    """

    memory_bytes: int = 0
    file_bytes: int = 0
    largest_bytes: int = 0


def rows_of_trainers(plan: Plan) -> list[TrainerRows]:
    """Return the rows of each trainer here that has its own shards, as `ShardCache` holds them."""
    cache = int(plan.trainer.get("shard_cache_bytes") or 0)
    found: dict[int, TrainerRows] = {}
    for packed in plan.data_sets.values():
        for shard in packed.segments:
            if shard.server is not None:
                continue
            had = found.get(shard.segment_id, TrainerRows())
            if had.memory_bytes + shard.n_bytes <= cache:
                had = replace(had, memory_bytes=had.memory_bytes + shard.n_bytes)
            else:
                in_file = had.file_bytes + shard.n_bytes + _ORDER_BYTES * shard.n_rows
                had = replace(had, file_bytes=in_file, largest_bytes=max(had.largest_bytes, shard.n_bytes))
            found[shard.segment_id] = had
    return list(found.values())


def memory_of(plan: Plan, graphs: Iterable[int], works: Iterable[Work]) -> Memory:
    """Return the memory of a run.

    Parameters
    ----------
    plan : Plan
    graphs : iterable of int
        How many graphs each trainer here traces.
    works : iterable of Work
        The units of the run.
    """
    rows, cache = _rows_bytes(plan), int(plan.trainer.get("shard_cache_bytes") or 0)
    if plan.any_trainer:
        held = min(sum(rows), max(cache, max(rows, default=0)))
    elif _has_files(plan):
        held = max((of_trainer.memory_bytes for of_trainer in rows_of_trainers(plan)), default=0)
    else:
        held = max(rows, default=0)
    every = list(works)
    state = max((work.state_bytes for work in every), default=0)
    step = max((_step_bytes(work) for work in every), default=0)
    graph = max((_graph_bytes(work) for work in every), default=0)
    counts = [n for n in graphs if n]
    of_each = [round(_TRAINER_BYTES + n * graph + held + _STATES_AT_ONCE * state + step) for n in counts or [1]]
    sent = sum(min(n_bytes, _MOST_SENT_BYTES) for n_bytes in rows)
    in_sessions = round(_STATES_OF_A_SESSION * state * len(of_each))
    n_idle = max(0, _n_here(plan) - len(of_each))
    n_busy = len(plan.training.segments) - n_idle
    in_sessions += n_busy * _SEGMENT_BYTES + n_idle * _IDLE_SEGMENT_BYTES
    if is_dispatched(plan):
        n_segments = len(plan.training.segments)
        in_sessions += n_segments * (2 * n_segments + 2) * _PROCESS_BYTES
    return Memory(
        trainer_bytes=max(of_each),
        trainers_bytes=sum(of_each) + n_idle * _IDLE_TRAINER_BYTES,
        server_bytes=_DRIVER_BYTES + _SESSIONS_BYTES + in_sessions + sent,
        files_bytes=files_bytes(plan),
    )


def files_bytes(plan: Plan) -> int:
    """Return the bytes of the files of all trainers here, for rows that do not stay in memory."""
    return sum(of_trainer.file_bytes for of_trainer in rows_of_trainers(plan)) if _has_files(plan) else 0


def is_dispatched(plan: Plan) -> bool:
    """Return whether the segments are those of Greenplum, which dispatches a session's statements to them."""
    return any(shard.place is not None and shard.place.key is not None for shard in plan.training.segments)


def _graph_bytes(work: Work) -> int:
    """Return the bytes of a compiled graph; that of a group has more operations."""
    return (_GRAPH_BYTES + work.size.n_layers * _LAYER_BYTES) * (2 if work.n_places > 1 else 1)


def _step_bytes(work: Work) -> int:
    return _ACTIVATIONS * _NUMBER_BYTES * work.size.n_activations * work.batch_size * work.n_places


def _n_here(plan: Plan) -> int:
    return sum(shard.server is None for shard in plan.training.segments)


def _has_files(plan: Plan) -> bool:
    """Return whether each trainer has its own shards, and a file for those that do not stay in memory."""
    return not plan.any_trainer and not plan.gpus and bool(plan.trainer.get("shard_disk_bytes"))


def _rows_bytes(plan: Plan) -> list[int]:
    """Return the bytes of the rows of each shard here, of both data sets."""
    every = [shard.n_bytes for shard in plan.training.segments if shard.server is None]
    if plan.validation is not None:
        every += [shard.n_bytes for shard in plan.validation.segments if shard.server is None]
    return every
