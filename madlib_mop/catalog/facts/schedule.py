"""When the segments worked: every visit and evaluation, or if there are too many, shares of bins of time.

Also the longest of them, and the parts of their time.
"""

from dataclasses import dataclass
from math import ceil

from madlib_mop.catalog.facts.shared import TRAINER_OF_VISIT, FactsReader


@dataclass(frozen=True, slots=True)
class Bar:
    """One visit or evaluation at a segment.

    Attributes
    ----------
    kind : str
        ``visit`` or ``evaluation``.
    segment_id, mst_key, epoch : int
    position : int or None
        Of a visit.
    start_s, end_s : float
    n_rows : int
    attempt : int
    data_set : str or None
        Of an evaluation.
    """

    kind: str
    segment_id: int
    mst_key: int
    epoch: int
    position: int | None
    start_s: float
    end_s: float
    n_rows: int
    attempt: int = 1
    data_set: str | None = None


@dataclass(frozen=True, slots=True)
class BusyBin:
    """The share of a span of time in which a segment worked, from 0 to 1; in place of too many bars."""

    segment_id: int
    start_s: float
    end_s: float
    share: float


@dataclass(frozen=True, slots=True)
class SegmentLoad:
    """What one segment did.

    Attributes
    ----------
    segment_id, n_visits, n_evaluations : int
    visit_s, evaluation_s, idle_s : float
        Together the span from the run's first visit or evaluation to its last one. Idle time includes interruptions.
    """

    segment_id: int
    n_visits: int
    n_evaluations: int
    visit_s: float
    evaluation_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds of one part of all visits, or of all evaluations.

    Attributes
    ----------
    kind : str
        ``visit`` or ``evaluation``.
    part : str
        A name of column ``timing``, such as ``compute_s``; ``other_s`` is the rest.
    seconds : float
    """

    kind: str
    part: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LongTask:
    """One of the longest visits and evaluations.

    Attributes
    ----------
    kind : str
        ``visit`` or ``evaluation``.
    mst_key, segment_id, epoch : int
        The segment is that of the trainer.
    start_s : float
        Since the start of the run.
    seconds : float
        Of models that train together, each has its share.
    of_median : float or None
        How many times the median of its kind in this run; None if the median is 0.
    """

    kind: str
    mst_key: int
    segment_id: int
    epoch: int
    start_s: float
    seconds: float
    of_median: float | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the segments worked: all visits and evaluations as bars, or if there are too many, the shares of bins.

    ``longest`` has the longest visits and evaluations, the longest first.
    """

    bars: tuple[Bar, ...] = ()
    bins: tuple[BusyBin, ...] = ()
    loads: tuple[SegmentLoad, ...] = ()
    time_spent: tuple[TimeSpent, ...] = ()
    n_visits: int = 0
    n_evaluations: int = 0
    longest: tuple[LongTask, ...] = ()


#: Bars of one figure.
MAX_BARS = 2000
#: Cells of the figure that replaces them.
MAX_CELLS = 6000
#: Rows of the table of the longest visits and evaluations.
MAX_LONGEST = 10
_MAX_BINS = 200

# a visit of a fused group is one of several that train at once, each with its share of the time
_WORK = f"""
    SELECT 'visit' AS kind, {TRAINER_OF_VISIT} AS segment_id, x.mst_key, x.epoch, x.position, x.attempt,
           NULL::pg_catalog.text AS data_set, x.n_rows,
           x.started_at, x.ended_at, x.timing, coalesce((x.timing ->> 'fused')::pg_catalog.float8, 1) AS of_group
    FROM madlib_mop.visit x WHERE x.run_id = $1::pg_catalog.int8
    UNION ALL
    SELECT 'evaluation', e.segment_id, e.mst_key, e.epoch, NULL, 1, e.data_set, e.n_rows, e.started_at, e.ended_at,
           e.timing, coalesce((e.timing ->> 'fused')::pg_catalog.float8, 1)
    FROM madlib_mop.evaluation e WHERE e.run_id = $1::pg_catalog.int8
"""
_PARTS = ("state_in_s", "build_s", "features_s", "trace_s", "compute_s", "state_out_s", "sample_s")
_SUMS = ", ".join(f"sum((w.timing ->> '{part}')::pg_catalog.float8) AS {part}" for part in _PARTS)
_LOADS = f"""
SELECT w.segment_id, w.kind, count(*) AS n,
       sum(EXTRACT(epoch FROM w.ended_at - w.started_at)::pg_catalog.float8 / w.of_group) AS seconds,
       EXTRACT(epoch FROM min(w.started_at) - min(r.created_at))::pg_catalog.float8 AS start_s,
       EXTRACT(epoch FROM max(w.ended_at) - min(r.created_at))::pg_catalog.float8 AS end_s, {_SUMS}
FROM ({_WORK}) w CROSS JOIN (SELECT x.created_at FROM madlib_mop.run x WHERE x.run_id = $1::pg_catalog.int8) r
GROUP BY w.segment_id, w.kind ORDER BY w.segment_id, w.kind
"""
_BARS = f"""
SELECT w.kind, w.segment_id, w.mst_key, w.epoch, w.position, w.attempt, w.data_set, w.n_rows,
       EXTRACT(epoch FROM w.started_at - r.created_at)::pg_catalog.float8 AS start_s,
       EXTRACT(epoch FROM w.ended_at - r.created_at)::pg_catalog.float8 AS end_s
FROM ({_WORK}) w CROSS JOIN (SELECT x.created_at FROM madlib_mop.run x WHERE x.run_id = $1::pg_catalog.int8) r
ORDER BY w.started_at, w.segment_id, w.mst_key
"""
_BINS = f"""
SELECT x.segment_id, b.bin,
       sum((least(x.e, (b.bin + 1) * $3::pg_catalog.float8) - greatest(x.s, b.bin * $3::pg_catalog.float8))
           / x.of_group)
       / $3::pg_catalog.float8 AS share
FROM (SELECT w.segment_id, w.of_group,
             EXTRACT(epoch FROM w.started_at - r.created_at)::pg_catalog.float8 - $2::pg_catalog.float8 AS s,
             EXTRACT(epoch FROM w.ended_at - r.created_at)::pg_catalog.float8 - $2::pg_catalog.float8 AS e
      FROM ({_WORK}) w CROSS JOIN (SELECT y.created_at FROM madlib_mop.run y WHERE y.run_id = $1::pg_catalog.int8) r) x
CROSS JOIN LATERAL generate_series(floor(x.s / $3::pg_catalog.float8)::pg_catalog.int8,
                                   floor(x.e / $3::pg_catalog.float8)::pg_catalog.int8) AS b (bin)
GROUP BY x.segment_id, b.bin ORDER BY x.segment_id, b.bin
"""
_LONGEST = f"""
WITH work AS (
    SELECT w.kind, w.mst_key, w.segment_id, w.epoch,
           EXTRACT(epoch FROM w.started_at - r.created_at)::pg_catalog.float8 AS start_s,
           EXTRACT(epoch FROM w.ended_at - w.started_at)::pg_catalog.float8 / w.of_group AS seconds
    FROM ({_WORK}) w CROSS JOIN (SELECT x.created_at FROM madlib_mop.run x WHERE x.run_id = $1::pg_catalog.int8) r
)
SELECT w.kind, w.mst_key, w.segment_id, w.epoch, w.start_s, w.seconds, w.seconds / nullif(k.median, 0) AS of_median
FROM work w JOIN (SELECT x.kind, percentile_cont(0.5) WITHIN GROUP (ORDER BY x.seconds) AS median
                  FROM work x GROUP BY x.kind) k ON k.kind = w.kind
ORDER BY w.seconds DESC, w.start_s, w.segment_id, w.mst_key LIMIT $2::pg_catalog.int8
"""


def read_schedule(reader: FactsReader, run_id: int) -> Schedule:
    """Return the visits and evaluations of a run, by segment."""
    rows = reader.rows(_LOADS, run_id)
    if not rows:
        return Schedule()
    start, end = min(row["start_s"] for row in rows), max(row["end_s"] for row in rows)
    numbers = sorted({row["segment_id"] for row in rows})
    counts = {kind: sum(int(row["n"]) for row in rows if row["kind"] == kind) for kind in ("visit", "evaluation")}
    loads = []
    for segment in numbers:
        of = {row["kind"]: row for row in rows if row["segment_id"] == segment}
        n = {kind: int(row["n"]) for kind, row in of.items()}
        seconds = {kind: float(row["seconds"]) for kind, row in of.items()}
        idle = max(0.0, end - start - sum(seconds.values()))
        loads.append(
            SegmentLoad(
                segment, n.get("visit", 0), n.get("evaluation", 0), seconds.get("visit", 0.0),
                seconds.get("evaluation", 0.0), idle,
            )
        )  # fmt: skip
    spent = []
    for kind in ("visit", "evaluation"):
        parts = {p: sum(float(row[p] or 0) for row in rows if row["kind"] == kind) for p in _PARTS}
        whole = sum(float(row["seconds"]) for row in rows if row["kind"] == kind)
        parts["other_s"] = max(0.0, whole - sum(parts.values()))
        spent += [TimeSpent(kind, part, seconds) for part, seconds in parts.items() if seconds > 0]
    bars: tuple[Bar, ...] = ()
    bins: tuple[BusyBin, ...] = ()
    if sum(counts.values()) <= MAX_BARS:
        bars = tuple(Bar(**row) for row in reader.rows(_BARS, run_id))
    else:
        bins = _bins(reader, run_id, start, end, len(numbers))
    longest = tuple(LongTask(**row) for row in reader.rows(_LONGEST, run_id, MAX_LONGEST))
    return Schedule(bars, bins, tuple(loads), tuple(spent), counts["visit"], counts["evaluation"], longest)


def _bins(reader: FactsReader, run_id: int, start: float, end: float, n_segments: int) -> tuple[BusyBin, ...]:
    n_bins = max(1, min(_MAX_BINS, ceil(MAX_CELLS / n_segments)))
    width = max((end - start) / n_bins, 1e-3)
    rows = reader.rows(_BINS, run_id, start, width)
    return tuple(
        BusyBin(r["segment_id"], start + r["bin"] * width, start + (r["bin"] + 1) * width, min(1.0, float(r["share"])))
        for r in rows
        if r["bin"] < n_bins
    )
