"""Reads what people watch from the record; called by the live page and `madlib-mop watch` with their own sessions.

A function gets ``fetch``, which runs one statement with parameters ``%s`` and returns its rows, so psycopg2 and
psycopg 3 both serve.
"""

from dataclasses import replace

from madlib_mop.catalog.facts.models import ModelLine
from madlib_mop.catalog.facts.now import (
    CommandLine,
    JobLine,
    ModelFailure,
    RunLine,
    RunNow,
    RunProgress,
    RunStatus,
    SegmentLine,
)
from madlib_mop.catalog.facts.reading.shared import BOARD, PERCENT_DONE, SECONDS_OF_VISITS, Fetch
from madlib_mop.catalog.run_locks import LOCK_CLASS, lock_number

_MAX_SHOWN = 100
_RUNS = f"""
SELECT r.run_id, r.kind, r.state, pg_catalog.pg_get_userbyid(r.owner), r.model_output_table, r.source_table,
       r.paused_by IS NOT NULL, m.n_models, m.n_failed,
       ({PERCENT_DONE})::pg_catalog.float8,
       r.created_at,
       EXTRACT(epoch FROM coalesce(r.ended_at, pg_catalog.clock_timestamp()) - r.created_at)::pg_catalog.float8
FROM (SELECT * FROM madlib_mop.run ORDER BY run_id DESC LIMIT %s OFFSET %s) AS r
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS n_models, pg_catalog.count(*) FILTER (WHERE o.state = 'failed') AS n_failed,
           coalesce(pg_catalog.sum(
               greatest(0, (o.epoch - o.first_epoch)::pg_catalog.int8 * r.n_segments + o.position))
               FILTER (WHERE o.state NOT IN ('failed', 'stopped')), 0) AS visits_done,
           coalesce(pg_catalog.sum((o.last_epoch - o.first_epoch + 1)::pg_catalog.int8 * r.n_segments)
               FILTER (WHERE o.state NOT IN ('failed', 'stopped')), 0) AS visits_total
    FROM madlib_mop.model AS o WHERE o.run_id = r.run_id) AS m
ORDER BY r.run_id DESC
"""
_PROGRESS = f"""
SELECT r.run_id, r.kind, r.state, r.owner, r.model_output_table, r.n_models, r.n_failed, {PERCENT_DONE}, r.elapsed,
       r.time_left
FROM madlib_mop.progress AS r CROSS JOIN LATERAL (SELECT r.visits_done, r.visits_total) AS m ORDER BY r.run_id
"""
_BEST_TRAINED = """
SELECT mst_key FROM madlib_mop.leaderboard WHERE run_id = %s AND state = 'trained' ORDER BY rank, mst_key LIMIT 1
"""
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
_STATUS = """
SELECT r.run_id, r.kind, r.state, r.state_detail, pg_catalog.pg_get_userbyid(r.owner), r.source_table,
       r.validation_table, r.model_output_table, r.schedule, r.paused_by,
       r.state = 'running' AND r.asked_at IS NOT NULL AND r.admitted_at IS NULL,
       madlib_mop_calls.may_own(r.owner) AND pg_catalog.has_function_privilege(
           'madlib_mop.stop_model(bigint,integer,text)', 'EXECUTE'),
       r.seed, r.num_iterations, r.n_segments, m.n_models, m.n_waiting, m.n_training, m.n_trained, m.n_stopped,
       m.n_failed, m.visits_done, m.visits_total, r.created_at, r.ended_at,
       EXTRACT(epoch FROM coalesce(r.ended_at, pg_catalog.clock_timestamp()) - r.created_at)::pg_catalog.float8,
       (SELECT EXTRACT(epoch FROM p.time_left) FROM madlib_mop.progress AS p
        WHERE p.run_id = r.run_id)::pg_catalog.float8
FROM madlib_mop.run AS r
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
WHERE r.run_id = %s
"""
_CALLER = "SELECT caller_pid FROM madlib_mop.run WHERE run_id = %s AND state IN ('running', 'trained')"
# The processes of a standby's runs are at its primary.
_HAS_NO_PROCESS = f"""
SELECT NOT pg_catalog.pg_is_in_recovery()
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = %s::pg_catalog.int4)
       AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_locks AS l
           WHERE l.granted AND l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = {LOCK_CLASS}::pg_catalog.int8
                 AND l.objid = %s::pg_catalog.int8 AND l.database = (
                     SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()))
"""
_HAS_LIVE_JOB = """
SELECT EXISTS (SELECT FROM madlib_mop.job WHERE run_id = %s AND state IN ('waiting', 'running'))
"""
_MODELS = f"""
SELECT {BOARD}
FROM (SELECT * FROM madlib_mop.leaderboard WHERE run_id = %s ORDER BY rank, mst_key LIMIT %s OFFSET %s) AS l
JOIN madlib_mop.model AS m ON m.run_id = l.run_id AND m.mst_key = l.mst_key ORDER BY l.rank, l.mst_key
"""
_SEGMENTS = f"""
SELECT s.segment_id, s.place, s.n_rows, coalesce(a.n_visits, 0), coalesce(a.busy_s, 0), v.mst_key, v.epoch, v.ended_at,
       EXTRACT(epoch FROM v.ended_at - v.started_at)::pg_catalog.float8, v.loss,
       CASE WHEN r.state = 'running' THEN s.task END, CASE WHEN r.state = 'running' THEN s.task_since END
FROM madlib_mop.segment AS s
JOIN madlib_mop.run AS r ON r.run_id = s.run_id
LEFT JOIN (
    SELECT segment_id, pg_catalog.count(*) AS n_visits, pg_catalog.max(visit_id) AS newest,
           {SECONDS_OF_VISITS} AS busy_s
    FROM madlib_mop.visit AS x WHERE x.run_id = %s GROUP BY segment_id) AS a ON a.segment_id = s.segment_id
LEFT JOIN madlib_mop.visit AS v ON v.visit_id = a.newest AND v.run_id = s.run_id
WHERE s.run_id = %s AND s.data_set = 'training' ORDER BY s.segment_id
"""
_FAILURES = """
SELECT mst_key, epoch, state_detail FROM madlib_mop.model
WHERE run_id = %s AND state = 'failed' ORDER BY epoch DESC, mst_key DESC LIMIT %s
"""
_COMMANDS = """
SELECT command_id, command, arguments, source, issued_by, issued_at, state, detail FROM madlib_mop.steering
WHERE run_id = %s ORDER BY command_id DESC LIMIT %s
"""


def read_runs(fetch: Fetch, limit: int, offset: int = 0) -> list[RunLine]:
    """Return the runs that the role may see, newest first."""
    return [RunLine(*row) for row in fetch(_RUNS, [limit, offset])]


def read_progress(fetch: Fetch) -> list[RunProgress]:
    """Return the progress of all runs that the role may see, the oldest first."""
    return [RunProgress(*row) for row in fetch(_PROGRESS, [])]


def count_runs(fetch: Fetch) -> tuple[int, int, int, int]:
    """Return the numbers of all runs, running ones, finished ones, and ones that ended otherwise."""
    ((n, n_running, n_finished, n_other),) = fetch(_COUNTS, [])
    return n, n_running, n_finished, n_other


def read_jobs(fetch: Fetch, limit: int = _MAX_SHOWN) -> list[JobLine]:
    """Return jobs that the role may see: live ones first, then the newest."""
    ((has_jobs,),) = fetch(_HAS_JOBS, [])
    return [JobLine(*row) for row in fetch(_JOBS, [limit])] if has_jobs else []


def read_status(fetch: Fetch, run_id: int) -> RunStatus | None:
    """Return how far a run is; None if there is no such run for the role."""
    rows = fetch(_STATUS, [run_id])
    return replace(RunStatus(*rows[0]), is_lost=is_lost(fetch, run_id)) if rows else None


def is_lost(fetch: Fetch, run_id: int) -> bool:
    """Return whether a run is recorded as at work, but has no process, and no job that will resume it.

    The server has crashed, or the caller's session was terminated after the training. The run's row is read again
    after the processes, because the run may have ended between. So ``fetch`` must not keep one snapshot.
    """
    callers = fetch(_CALLER, [run_id])
    if not callers or callers[0][0] is None:
        return False
    ((has_no_process,),) = fetch(_HAS_NO_PROCESS, [callers[0][0], lock_number(run_id)])
    if not has_no_process or fetch(_CALLER, [run_id]) != callers:
        return False
    ((has_jobs,),) = fetch(_HAS_JOBS, [])
    return not has_jobs or not fetch(_HAS_LIVE_JOB, [run_id])[0][0]


def read_models(fetch: Fetch, run_id: int, limit: int = _MAX_SHOWN, offset: int = 0) -> tuple[ModelLine, ...]:
    """Return a page of the leaderboard."""
    return tuple(ModelLine(*row) for row in fetch(_MODELS, [run_id, limit, offset]))


def read_best_trained(fetch: Fetch, run_id: int) -> int | None:
    """Return the key of the first trained model of the leaderboard: the best one of the output table."""
    rows = fetch(_BEST_TRAINED, [run_id])
    return rows[0][0] if rows else None


def read_segments(fetch: Fetch, run_id: int) -> tuple[SegmentLine, ...]:
    """Return the segments of the training data."""
    return tuple(SegmentLine(*row) for row in fetch(_SEGMENTS, [run_id, run_id]))


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
        read_segments(fetch, run_id),
        tuple(ModelFailure(*row) for row in fetch(_FAILURES, [run_id, _MAX_SHOWN])),
        tuple(CommandLine(*row) for row in fetch(_COMMANDS, [run_id, _MAX_SHOWN])),
    )
