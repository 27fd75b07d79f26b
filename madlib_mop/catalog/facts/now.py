"""One state of a run, such as `watch` shows it, and the lines of the lists of runs and jobs.

Times of day are aware datetimes. Durations are seconds (``_s``).
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

from madlib_mop.catalog.facts.history import CommandFacts, read_commands
from madlib_mop.catalog.facts.models import ModelLine
from madlib_mop.catalog.facts.shared import BOARD, SECONDS_OF_VISITS, TRAINER_OF_VISIT, WAITS, Fetch, array, moment
from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.catalog.rows.states import ENDED, LOCK_CLASS, RunState, lock_number


def percent_done(state: str, visits_done: int, visits_total: int) -> float:
    """Return which part of a run's visits is done, in percent.

    A run whose training is complete is done, also if its last models failed or were stopped.
    """
    if RunState(state).is_trained:
        return 100.0
    return min(100.0, round(100.0 * visits_done / max(1, visits_total), 1))


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in the list.

    Attributes
    ----------
    run_id : int
    kind, state, owner, output_table, source_table : str
    paused : bool
    n_models, n_failed : int
    percent_done : float
    created_at : datetime
    elapsed_s : float
    """

    run_id: int
    kind: str
    state: str
    owner: str
    output_table: str
    source_table: str
    paused: bool
    n_models: int
    n_failed: int
    percent_done: float
    created_at: datetime
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job in the list; `detail` is its error, or what it waits for."""

    job_id: int
    name: str | None
    function: str
    owner: str
    state: str
    run_id: int | None
    due_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How far a run is.

    Attributes
    ----------
    run_id : int
    kind, state, owner, source_table, output_table, schedule : str
    detail : str or None
        Why it is in that state.
    validation_table : str or None
    paused_by : str or None
    waits : bool
        Whether it waits for its turn to train.
    may_steer : bool
        Whether the reading role owns it and may call the functions that steer.
    seed : int
    num_iterations, n_segments, n_models : int
    n_waiting, n_training, n_trained, n_stopped, n_failed : int
        Numbers of models by state.
    visits_done, visits_total : int
    created_at : datetime
    ended_at : datetime or None
    elapsed_s : float
    time_left_s : float or None
        Estimate; None without visits, and when it does not train.
    is_lost : bool
        Whether its state is one of a run at work, but its session has ended and nothing continues it.
    """

    run_id: int
    kind: str
    state: str
    detail: str | None
    owner: str
    source_table: str
    validation_table: str | None
    output_table: str
    schedule: str
    paused_by: str | None
    waits: bool
    may_steer: bool
    seed: int
    num_iterations: int
    n_segments: int
    n_models: int
    n_waiting: int
    n_training: int
    n_trained: int
    n_stopped: int
    n_failed: int
    visits_done: int
    visits_total: int
    created_at: datetime
    ended_at: datetime | None
    elapsed_s: float
    time_left_s: float | None
    is_lost: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether no process trains it."""
        return self.state in ENDED or self.is_lost

    @property
    def percent_done(self) -> float:
        """Which part of its visits is done."""
        return percent_done(self.state, self.visits_done, self.visits_total)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One shard of the run's data, and what the trainer of its segment has done and does.

    Attributes
    ----------
    data_set : str
        ``training``, ``validation`` or ``sample``. Only segments of training data make visits.
    segment_id : int
    place : str or None
        The foreign server that stores it; None for this server.
    n_rows, n_bytes : int or None
    fingerprint : str or None
        SHA-256 of its rows; None until a trainer has loaded them.
    n_visits, busy_s
        Of all visits that the trainer made; the seconds of models that trained together are divided among them.
    mst_key, epoch, seconds, loss, ended_at
        Of the newest visit that it made.
    task : mapping or None
        What it has been doing for a second: ``kind``, ``mst_keys`` and perhaps ``epoch``, as `madlib_mop.segment`.
    """

    data_set: str
    segment_id: int
    place: str | None
    n_rows: int | None
    n_bytes: int | None
    fingerprint: str | None
    n_visits: int = 0
    busy_s: float = 0.0
    mst_key: int | None = None
    epoch: int | None = None
    seconds: float | None = None
    loss: float | None = None
    ended_at: datetime | None = None
    task: Mapping[str, Any] | None = None
    task_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """One model that has failed, and why."""

    mst_key: int
    epoch: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class RunNow:
    """One state of a run: its progress, a page of its leaderboard, its segments, failures and commands.

    Attributes
    ----------
    status : RunStatus
    models : tuple of ModelLine
        Best first.
    segments : tuple of SegmentFacts
        Of the training data.
    failures : tuple of ModelFailure
        Newest first.
    commands : tuple of CommandFacts
        Newest first.
    baselines : tuple of Baseline
        Figures to compare the models with, of what is no model.
    """

    status: RunStatus
    models: tuple[ModelLine, ...]
    segments: tuple[SegmentFacts, ...]
    failures: tuple[ModelFailure, ...]
    commands: tuple[CommandFacts, ...]
    baselines: tuple[Baseline, ...] = ()

    @property
    def metric_name(self) -> str | None:
        """The first metric of its models, or of a baseline, which has figures as soon as the run has begun."""
        names = chain((one.metric_name for one in self.models), (one.metric_name for one in self.baselines))
        return next(filter(None, names), None)


_MAX_SHOWN = 100
# How many models run ``r`` has, and how many visits of those that have not failed and were not stopped.
_OF_MODELS = """
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS n_models,
           pg_catalog.count(*) FILTER (WHERE o.state = 'waiting') AS n_waiting,
           pg_catalog.count(*) FILTER (WHERE o.state = 'training') AS n_training,
           pg_catalog.count(*) FILTER (WHERE o.state = 'trained') AS n_trained,
           pg_catalog.count(*) FILTER (WHERE o.state = 'stopped') AS n_stopped,
           pg_catalog.count(*) FILTER (WHERE o.state = 'failed') AS n_failed,
           coalesce(pg_catalog.sum(greatest(0, (o.epoch - o.first_epoch)::pg_catalog.int8 * r.n_segments + o.position))
               FILTER (WHERE o.state NOT IN ('failed', 'stopped')), 0)::pg_catalog.int8 AS visits_done,
           coalesce(pg_catalog.sum((o.last_epoch - o.first_epoch + 1)::pg_catalog.int8 * r.n_segments)
               FILTER (WHERE o.state NOT IN ('failed', 'stopped')), 0)::pg_catalog.int8 AS visits_total
    FROM madlib_mop.model AS o WHERE o.run_id = r.run_id) AS m
"""
_RUNS = f"""
SELECT r.run_id, r.kind, r.state, pg_catalog.pg_get_userbyid(r.owner), r.model_output_table, r.source_table,
       r.paused_by IS NOT NULL, m.n_models, m.n_failed, m.visits_done, m.visits_total, r.created_at,
       EXTRACT(epoch FROM coalesce(r.ended_at, pg_catalog.clock_timestamp()) - r.created_at)::pg_catalog.float8
FROM (SELECT * FROM madlib_mop.run ORDER BY run_id DESC LIMIT %s OFFSET %s) AS r
{_OF_MODELS}
ORDER BY r.run_id DESC
"""
_TIMES_LEFT = """
SELECT run_id, EXTRACT(epoch FROM time_left)::pg_catalog.float8 FROM madlib_mop.progress WHERE time_left IS NOT NULL
"""
_TRAINED = "SELECT mst_key FROM madlib_mop.leaderboard WHERE run_id = %s AND state = 'trained' ORDER BY rank, mst_key"
_COUNTS = """
SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE state = 'running'),
       pg_catalog.count(*) FILTER (WHERE state = 'finished'),
       pg_catalog.count(*) FILTER (WHERE state IN ('failed', 'interrupted', 'cancelled'))
FROM madlib_mop.run
"""
_HAS_JOBS = "SELECT pg_catalog.to_regclass('madlib_mop.job_record') IS NOT NULL"
_JOBS = """
SELECT job_id, name, function, owner, state, run_id, due_at, started_at, ended_at,
       coalesce(error, 'waits for ' || waits_for)
FROM madlib_mop.job ORDER BY (state IN ('running', 'waiting')) DESC, job_id DESC LIMIT %s
"""
_STATUS = f"""
SELECT r.run_id, r.kind, r.state, r.state_detail, pg_catalog.pg_get_userbyid(r.owner)::pg_catalog.text AS owner,
       r.source_table, r.validation_table, r.model_output_table, r.schedule, r.paused_by, {WAITS} AS waits,
       madlib_mop_calls.may_own(r.owner) AND pg_catalog.has_function_privilege(
           'madlib_mop.stop_model(bigint,integer,text)', 'EXECUTE') AS may_steer,
       r.seed, r.num_iterations, r.n_segments, m.n_models, m.n_waiting, m.n_training, m.n_trained, m.n_stopped,
       m.n_failed, m.visits_done, m.visits_total,
       CASE WHEN r.state = 'running' AND r.paused_by IS NULL THEN (
           SELECT EXTRACT(epoch FROM p.time_left) FROM madlib_mop.progress AS p WHERE p.run_id = r.run_id
       )::pg_catalog.float8 END AS time_left_s,
       EXTRACT(epoch FROM coalesce(r.ended_at, pg_catalog.clock_timestamp()) - r.created_at)::pg_catalog.float8
           AS elapsed_s,
       EXTRACT(epoch FROM r.created_at)::pg_catalog.float8 AS created_at,
       EXTRACT(epoch FROM r.ended_at)::pg_catalog.float8 AS ended_at
FROM madlib_mop.run AS r
{_OF_MODELS}
WHERE r.run_id = %s
"""
_AT_WORK = """
SELECT run_id, caller_pid FROM madlib_mop.run
WHERE state IN ('running', 'trained') AND caller_pid IS NOT NULL
      AND (%s::pg_catalog.int8 IS NULL OR run_id = %s::pg_catalog.int8)
"""
# The processes of a standby's runs are at its primary. Greenplum's pg_locks asks the segments, which it cannot do while
# a query reads a table there: so the runs come as arrays.
_WITHOUT_PROCESS = f"""
SELECT x.run_id
FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.int8[]), pg_catalog.unnest(%s::pg_catalog.int4[]),
    pg_catalog.unnest(%s::pg_catalog.int8[])) AS x (run_id, pid, lock_number)
WHERE NOT pg_catalog.pg_is_in_recovery()
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = x.pid)
      AND NOT EXISTS (
          SELECT FROM pg_catalog.pg_locks AS l
          WHERE l.granted AND l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = {LOCK_CLASS}::pg_catalog.int8
                AND l.objid = x.lock_number AND l.database = (
                    SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()))
"""
_LIVE_JOBS = """
SELECT run_id FROM madlib_mop.job WHERE run_id = ANY (%s::pg_catalog.int8[]) AND state IN ('waiting', 'running')
"""
_MODELS = f"""
SELECT {BOARD}
FROM (SELECT * FROM madlib_mop.leaderboard WHERE run_id = %s ORDER BY rank, mst_key LIMIT %s OFFSET %s) AS l
JOIN madlib_mop.model AS m ON m.run_id = l.run_id AND m.mst_key = l.mst_key ORDER BY l.rank, l.mst_key
"""
# Not of the leaderboard, which would rank all models for it.
_BASELINES = "SELECT baselines::pg_catalog.text FROM madlib_mop.run WHERE run_id = %s"
#: The data sets whose shards a run has, as an array.
DATA_SETS = "{training,validation,sample}"
_SEGMENTS = f"""
SELECT s.data_set, s.segment_id, s.place, s.n_rows, s.n_bytes, s.fingerprint, coalesce(a.n_visits, 0) AS n_visits,
       coalesce(a.busy_s, 0) AS busy_s, v.mst_key, v.epoch,
       EXTRACT(epoch FROM v.ended_at - v.started_at)::pg_catalog.float8 AS seconds, v.loss,
       EXTRACT(epoch FROM v.ended_at)::pg_catalog.float8 AS ended_at, s.task::pg_catalog.text AS task,
       EXTRACT(epoch FROM s.task_since)::pg_catalog.float8 AS task_since
FROM madlib_mop.segment AS s
LEFT JOIN (
    SELECT {TRAINER_OF_VISIT} AS segment_id, pg_catalog.count(*) AS n_visits, pg_catalog.max(x.visit_id) AS newest,
           {SECONDS_OF_VISITS} AS busy_s
    FROM madlib_mop.visit AS x WHERE x.run_id = %s GROUP BY 1) AS a
ON a.segment_id = s.segment_id AND s.data_set = 'training'
LEFT JOIN madlib_mop.visit AS v ON v.visit_id = a.newest AND v.run_id = s.run_id
WHERE s.run_id = %s AND s.data_set = ANY (%s::pg_catalog.text[]) ORDER BY s.data_set, s.segment_id
"""
_FAILURES = """
SELECT mst_key, epoch, state_detail FROM madlib_mop.model
WHERE run_id = %s AND state = 'failed' ORDER BY epoch DESC, mst_key DESC LIMIT %s
"""


def read_runs(fetch: Fetch, limit: int | None, offset: int = 0) -> list[RunLine]:
    """Return the runs that the role may see, newest first; at most ``limit``, if there is a limit."""
    rows = fetch(_RUNS, [limit, offset])
    return [RunLine(*(*row[:-4], percent_done(row[2], *row[-4:-2]), *row[-2:])) for row in rows]


def read_times_left(fetch: Fetch) -> dict[int, float]:
    """Return the estimated seconds until the end of the runs that train and have a visit."""
    return dict(fetch(_TIMES_LEFT, []))


def count_runs(fetch: Fetch) -> tuple[int, int, int, int]:
    """Return the numbers of all runs, running ones, finished ones, and ones that ended otherwise."""
    ((n, n_running, n_finished, n_other),) = fetch(_COUNTS, [])
    return n, n_running, n_finished, n_other


def read_jobs(fetch: Fetch, limit: int = _MAX_SHOWN) -> list[JobLine]:
    """Return jobs that the role may see: live ones first, then the newest."""
    ((has_jobs,),) = fetch(_HAS_JOBS, [])
    return [JobLine(*row) for row in fetch(_JOBS, [limit])] if has_jobs else []


def read_status(fetch: Fetch, run_id: int, lost: Collection[int] | None = None) -> RunStatus | None:
    """Return how far a run is; None if there is no such run for the role.

    ``lost`` is what `lost_runs` has returned before; without it, ``fetch`` must not keep one snapshot.
    """
    lost = lost_runs(fetch, run_id) if lost is None else lost
    for *given, time_left_s, elapsed_s, created_at, ended_at in fetch(_STATUS, [run_id]):
        given += moment(created_at), None if ended_at is None else moment(ended_at), elapsed_s, time_left_s
        found = RunStatus(*given)
        return replace(found, is_lost=run_id in lost and found.state not in ENDED)
    return None


def lost_runs(fetch: Fetch, run_id: int | None = None) -> frozenset[int]:
    """Return the runs that are recorded as at work, but have no process, and no job that will resume them.

    The server has crashed, or the caller's session was terminated after the training. A run may end between the two
    statements here. So its row is read after this call: a run that has ended is not lost.
    """
    callers: dict[int, int] = dict(fetch(_AT_WORK, [run_id, run_id]))
    if not callers:
        return frozenset()
    rows = fetch(_WITHOUT_PROCESS, [array(callers), array(callers.values()), array(map(lock_number, callers))])
    lost = frozenset(number for (number,) in rows)
    if lost and fetch(_HAS_JOBS, [])[0][0]:
        lost -= {number for (number,) in fetch(_LIVE_JOBS, [array(lost)])}
    return lost


def read_models(fetch: Fetch, run_id: int, limit: int = _MAX_SHOWN, offset: int = 0) -> tuple[ModelLine, ...]:
    """Return a page of the leaderboard."""
    return tuple(ModelLine(*row) for row in fetch(_MODELS, [run_id, limit, offset]))


def read_baselines(fetch: Fetch, run_id: int) -> tuple[Baseline, ...]:
    """Return the rows of the leaderboard that are no models."""
    found = [one for (document,) in fetch(_BASELINES, [run_id]) for one in json.loads(document)]
    return tuple(Baseline.from_json(one) for one in found if one["mst_key"] is None)


def read_trained(fetch: Fetch, run_id: int) -> list[int]:
    """Return the keys of the trained models, best first: the output table has these."""
    return [mst_key for (mst_key,) in fetch(_TRAINED, [run_id])]


def read_segments(fetch: Fetch, status: RunStatus, data_sets: str = "{training}") -> tuple[SegmentFacts, ...]:
    """Return the segments of a run, with their tasks if it trains: nobody clears those of a run that is lost."""
    found = []
    for *shard, ended_at, task, since in fetch(_SEGMENTS, [status.run_id, status.run_id, data_sets]):
        shard.append(None if ended_at is None else moment(ended_at))
        if task is not None and status.state == RunState.RUNNING and not status.is_lost:
            shard += json.loads(task), moment(since)
        found.append(SegmentFacts(*shard))
    return tuple(found)


def read_now(fetch: Fetch, run_id: int, limit: int = _MAX_SHOWN, offset: int = 0) -> RunNow | None:
    """Return the state of a run; None if there is no such run for the role.

    Parameters
    ----------
    fetch : callable
    run_id : int
    limit, offset : int
        The page of the leaderboard.
    """
    status = read_status(fetch, run_id)
    if status is None:
        return None
    return RunNow(
        status,
        read_models(fetch, run_id, limit, offset),
        read_segments(fetch, status),
        tuple(ModelFailure(*row) for row in fetch(_FAILURES, [run_id, _MAX_SHOWN])),
        read_commands(fetch, run_id, _MAX_SHOWN)[0],
        read_baselines(fetch, run_id),
    )
