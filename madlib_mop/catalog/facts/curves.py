"""Learning curves: of the best models point by point, of all models as quantiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import TypeVar

from madlib_mop.catalog.facts.shared import FactsReader, array


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One metric of one model on one data set, at one point of its training.

    Attributes
    ----------
    mst_key : int
    at : float
        When it was known, in seconds since 1970.
    data_set : str
        ``training`` or ``validation``.
    name : str
        By Keras' name; ``loss`` is the loss.
    value : float
        Can be NaN or infinite, except in curves.
    epoch : int
    visits : int
        Number of visits that the model had made.
    is_sample : bool
        Whether it was computed on the sample of metrics_every, after a visit; otherwise on all rows, after an epoch.
    elapsed_s, rows : float
        Of curves only: seconds since the start of the run, and rows that the model had been trained on in this run.
    """

    mst_key: int
    at: float
    data_set: str
    name: str
    value: float
    epoch: int
    visits: int
    is_sample: bool
    elapsed_s: float = nan
    rows: float = nan

    @property
    def step(self) -> int:
        """Where it stands on the axis of a tracker: the epoch, or for a sample the number of visits."""
        return self.visits if self.is_sample else self.epoch

    def iteration(self, n_segments: int) -> float:
        """Return the iterations that the model had made; of a sample, with parts of an iteration."""
        return self.epoch - 1 + ((self.visits - 1) % n_segments + 1) / n_segments if self.is_sample else self.epoch


@dataclass(frozen=True, slots=True)
class Band:
    """The spread of one metric over all models at one iteration: quantiles 0.1, 0.5 and 0.9 of ``n_models`` models."""

    data_set: str
    name: str
    iteration: int
    low: float
    median: float
    high: float
    n_models: int


_T = TypeVar("_T")
#: Models with curves of their own.
MAX_MODELS = 50
#: Points of a curve, and of a band.
MAX_ITERATIONS = 40
#: Points of all curves, and of all curves on samples.
MAX_POINTS = 4000
#: Curves of a model: loss and first metric, on training and validation data.
_MAX_CURVES = 4

_EPOCHS = """
SELECT x.epoch, count(*) OVER () AS n FROM (SELECT DISTINCT t.epoch FROM madlib_mop.metric t
    WHERE t.run_id = $1::pg_catalog.int8 AND ($2::pg_catalog.int4[] IS NULL
        OR t.mst_key = ANY ($2::pg_catalog.int4[]))) x ORDER BY x.epoch
"""
_POINTS = """
SELECT t.mst_key, EXTRACT(epoch FROM t.at)::pg_catalog.float8 AS at, t.data_set,
       CASE WHEN t.ordinal = 0 THEN 'loss' ELSE t.name END AS name, t.value, t.epoch,
       (t.epoch - m.first_epoch + 1) * r.n_segments AS visits, false AS is_sample, t.elapsed_s,
       coalesce(v.n_rows, 0)::pg_catalog.float8 AS rows
FROM madlib_mop.metric t JOIN madlib_mop.run r ON r.run_id = t.run_id
JOIN madlib_mop.model m ON m.run_id = t.run_id AND m.mst_key = t.mst_key
LEFT JOIN LATERAL (SELECT sum(x.n_rows) AS n_rows FROM madlib_mop.visit x
    WHERE x.run_id = t.run_id AND x.mst_key = t.mst_key AND x.epoch <= t.epoch) v ON true
WHERE t.run_id = $1::pg_catalog.int8 AND t.mst_key = ANY ($2::pg_catalog.int4[])
    AND t.epoch = ANY ($3::pg_catalog.int4[]) AND t.ordinal <= 1
      AND t.value > '-Infinity' AND t.value < 'Infinity'
ORDER BY t.mst_key, t.data_set, t.ordinal, t.epoch
"""
# the sample's figures have no time of their own: they are committed with their visit
_SAMPLED = """
SELECT y.mst_key, y.at, y.data_set, y.name, y.value, y.epoch, y.visits, true AS is_sample, y.elapsed_s, y.rows FROM (
    SELECT x.mst_key, x.data_set, CASE WHEN x.ordinal = 0 THEN 'loss' ELSE x.name END AS name, x.ordinal, x.visits,
           x.value, x.epoch, EXTRACT(epoch FROM v.ended_at)::pg_catalog.float8 AS at,
           EXTRACT(epoch FROM v.ended_at - r.created_at)::pg_catalog.float8 AS elapsed_s,
           (sum(v.n_rows) OVER (PARTITION BY x.mst_key, x.ordinal ORDER BY x.visits))::pg_catalog.float8 AS rows,
           row_number() OVER (PARTITION BY x.mst_key, x.data_set, x.ordinal ORDER BY x.visits) AS number,
           count(*) OVER (PARTITION BY x.mst_key, x.data_set, x.ordinal) AS n
    FROM madlib_mop.visit_metric x JOIN madlib_mop.run r ON r.run_id = x.run_id
    JOIN madlib_mop.visit v
        ON v.run_id = x.run_id AND v.mst_key = x.mst_key AND v.epoch = x.epoch AND v.position = x.position
    WHERE x.run_id = $1::pg_catalog.int8 AND x.mst_key = ANY ($2::pg_catalog.int4[]) AND x.ordinal <= 1
          AND x.value > '-Infinity' AND x.value < 'Infinity') y
WHERE y.number % ((y.n + $3::pg_catalog.int8 - 1) / $3::pg_catalog.int8) = 0 OR y.number = 1 OR y.number = y.n
ORDER BY y.mst_key, y.data_set, y.ordinal, y.visits
"""
_BANDS = """
SELECT t.data_set, t.name, t.epoch AS iteration, count(*) AS n,
       percentile_cont(ARRAY[0.1, 0.5, 0.9]) WITHIN GROUP (ORDER BY t.value) AS q
FROM madlib_mop.metric t
WHERE t.run_id = $1::pg_catalog.int8 AND t.epoch = ANY ($2::pg_catalog.int4[]) AND t.ordinal <= 1
      AND t.value > '-Infinity' AND t.value < 'Infinity'
GROUP BY t.data_set, t.name, t.epoch ORDER BY t.data_set, t.name, t.epoch
"""


def read_curves(reader: FactsReader, run_id: int, keys: Sequence[int]) -> tuple[MetricPoint, ...]:
    """Return loss and first metric of the best models, from the first to the last iteration that has some.

    Parameters
    ----------
    keys : sequence of int
        mst_keys, best first.
    """
    first = keys[:MAX_MODELS]
    chosen = array(first)
    limit = MAX_POINTS // (_MAX_CURVES * max(1, len(first)))  # so that each model has the same share of the points
    all_epochs = [row["epoch"] for row in reader.rows(_EPOCHS, run_id, chosen)]
    epochs = thinned(all_epochs, min(MAX_ITERATIONS, limit))
    points = reader.rows(_POINTS, run_id, chosen, array(epochs))
    sampled = reader.rows(_SAMPLED, run_id, chosen, limit - 2)  # the first and the last point are always there
    return tuple(MetricPoint(**row) for row in (*points, *sampled))


def read_bands(reader: FactsReader, run_id: int) -> tuple[Band, ...]:
    """Return the quantiles of all models, from the first to the last iteration."""
    epochs = thinned([row["epoch"] for row in reader.rows(_EPOCHS, run_id, None)], MAX_ITERATIONS)
    rows = reader.rows(_BANDS, run_id, array(epochs))
    bands = []
    for row in rows:
        low, median, high = map(float, row["q"])
        bands.append(Band(row["data_set"], row["name"], row["iteration"], low, median, high, int(row["n"])))
    return tuple(bands)


def thinned(items: Sequence[_T], limit: int) -> list[_T]:
    """Return at most ``limit`` items, evenly chosen, with the first and the last."""
    if len(items) <= limit:
        return list(items)
    step = (len(items) - 1) / (limit - 1)
    return [items[round(i * step)] for i in range(limit)]
