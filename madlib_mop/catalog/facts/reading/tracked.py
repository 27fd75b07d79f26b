"""Reads what trackers get to know of a run; called by `madlib_mop.trackers.following`."""

from madlib_mop.catalog.facts.reading.heads import head_of, read_head
from madlib_mop.catalog.facts.reading.shared import FactsReader
from madlib_mop.catalog.facts.tracked import TrackedRun
from madlib_mop.catalog.facts.training import MetricPoint
from madlib_mop.errors import no_run

_SERVER = "SELECT c.system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system() AS c"
_POINTS = """
SELECT s.mst_key, EXTRACT(epoch FROM s."time")::pg_catalog.float8 AS at, s.data_set, s.name, s.value, s.epoch, s.visits,
       s.sample_rows IS NOT NULL AS is_sample
FROM madlib_mop.metric_series AS s
WHERE s.run_id = $1::pg_catalog.int8 AND s.value IS NOT NULL
      AND ($2::pg_catalog.float8 IS NULL OR s."time" >= pg_catalog.to_timestamp($2::pg_catalog.float8))
ORDER BY s."time", s.mst_key, s.data_set, s.name
"""


def read_tracked(reader: FactsReader, run_id: int) -> TrackedRun:
    """Return a run.

    Raises
    ------
    InvalidParameter
        If the role may see no run of this number: a run of others is like one that does not exist.
    """
    row = read_head(reader, run_id)
    if row is None:
        raise no_run(run_id, "madlib-mop runs lists the runs that it may see.")
    return TrackedRun(**head_of(row), system_identifier=reader.rows(_SERVER)[0]["system_identifier"])


def read_points(reader: FactsReader, run_id: int, since: float | None = None) -> tuple[MetricPoint, ...]:
    """Return the metrics of a run, the earliest first.

    Parameters
    ----------
    since : float or None
        Only those that have become known at this time or later, in seconds since 1970.
    """
    return tuple(MetricPoint(**row) for row in reader.rows(_POINTS, run_id, since))
