"""A run as trackers see it, with the metrics since they read it last; called by `madlib_mop.trackers.following`."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.head import RunHead, head_of, read_head
from madlib_mop.catalog.facts.models import ModelFacts
from madlib_mop.catalog.facts.shared import FactsReader
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.errors import no_run


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun(RunHead):
    """One run among those of all databases of all servers.

    Attributes
    ----------
    system_identifier : str
        The server's, given by initdb. A standby and a copy of the data directory have the same one.
    objective : tuple of str
        What its search minimizes besides the loss: names of fields of `ModelFacts`.
    """

    system_identifier: str
    objective: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A short text of hexadecimal digits that no other run has; trackers find their own work by it.

        Its start distinguishes the run from one of the same number in a database that was created again.
        """
        began = datetime.fromtimestamp(self.created_at, UTC).isoformat()
        return hashlib.sha256(f"{self.system_identifier}\0{self.database}\0{self.run_id}\0{began}".encode()).hexdigest()

    def is_over(self, model: ModelFacts) -> bool:
        """Return whether a model does not train any more; a trained one can be extended as long as the run trains."""
        return model.state == ModelState.FAILED or self.has_ended


@dataclass(frozen=True, slots=True)
class TrackedState:
    """One state of a run: all its models, and metrics that have become known since the state before.

    Attributes
    ----------
    run : TrackedRun
    models : tuple of ModelFacts
        In the order in which the run got them.
    points : tuple of MetricPoint
        The earliest first.
    """

    run: TrackedRun
    models: tuple[ModelFacts, ...]
    points: tuple[MetricPoint, ...]


_SERVER = "SELECT c.system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system() AS c"
_OBJECTIVE = """
SELECT o.name FROM madlib_mop.run AS r
CROSS JOIN LATERAL pg_catalog.jsonb_array_elements_text(r.plan -> 'search' -> 'objective') WITH ORDINALITY AS o(name, n)
WHERE r.run_id = $1::pg_catalog.int8 ORDER BY o.n
"""
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
    server, objective = reader.rows(_SERVER)[0], reader.rows(_OBJECTIVE, run_id)
    return TrackedRun(**head_of(row), **server, objective=tuple(one["name"] for one in objective))


def read_points(reader: FactsReader, run_id: int, since: float | None = None) -> tuple[MetricPoint, ...]:
    """Return the metrics of a run, the earliest first.

    Parameters
    ----------
    since : float or None
        Only those that have become known at this time or later, in seconds since 1970.
    """
    return tuple(MetricPoint(**row) for row in reader.rows(_POINTS, run_id, since))
