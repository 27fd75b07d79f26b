"""The figures of a database for monitoring, aggregated in SQL; read for the page of metrics of a job worker."""

from collections.abc import Mapping
from dataclasses import dataclass

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.states import JobState, ModelState, RunState

_STATES = """
SELECT 'run' AS kind, state, count(*) AS n FROM madlib_mop.run GROUP BY state
UNION ALL SELECT 'model', state, count(*) FROM madlib_mop.model GROUP BY state
UNION ALL SELECT 'job', state, count(*) FROM madlib_mop.job_record GROUP BY state
"""
# Jobs that wait for their time or for another job are not in the queue. A sequence does not fall when a run is dropped.
_FIGURES = """
SELECT (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM madlib_mop.visit_visit_id_seq),
       count(*), coalesce(extract(epoch FROM max(clock_timestamp() - greatest(j.due_at, j.submitted_at))), 0)::pg_catalog.float8
FROM madlib_mop.job_record j LEFT JOIN madlib_mop.job_record before ON before.job_id = j.after
WHERE j.state = 'waiting' AND j.due_at <= clock_timestamp() AND coalesce(before.state, '') NOT IN ('waiting', 'running')
"""  # noqa: E501


@dataclass(frozen=True)
class DatabaseFigures:
    """The figures of a database.

    Attributes
    ----------
    runs, models, jobs : mapping of str to int
        Their numbers by state; every state is there.
    n_visits : int
        Number of visits ever begun to be committed. It does not fall when runs are dropped.
    n_queued : int
        Due jobs that wait for a worker.
    oldest_s : float
        Seconds since the first of these was due; 0 if there is none.
    """

    runs: Mapping[str, int]
    models: Mapping[str, int]
    jobs: Mapping[str, int]
    n_visits: int
    n_queued: int
    oldest_s: float


def read_figures(record: Record) -> DatabaseFigures:
    """Return the figures of the record's database now."""
    found = {(kind, state): n for kind, state, n in record.execute(_STATES)}
    runs = {str(state): found.get(("run", state), 0) for state in RunState}
    models = {str(state): found.get(("model", state), 0) for state in ModelState}
    jobs = {str(state): found.get(("job", state), 0) for state in JobState}
    ((n_visits, n_queued, oldest_s),) = record.execute(_FIGURES)
    return DatabaseFigures(runs, models, jobs, n_visits, n_queued, max(0.0, oldest_s))
