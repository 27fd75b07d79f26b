"""The rows of the report's tables: all figures of each way on each workload; called by text, page and CSV."""

from dataclasses import dataclass

from report import figures
from report.measurement import Comparison, Measurement
from report.names import HOPPER, PLAIN, in_order, published_ratio


@dataclass(frozen=True)
class Row:
    """The figures of one way on one workload; None if unknown. `columns` describes them.

    Attributes
    ----------
    error : str
        Why it could not be measured; empty otherwise.
    """

    workload: str
    way: str
    n_runs: int = 0
    n_seeds: int = 0
    makespan_s: float | None = None
    makespan_low_s: float | None = None
    makespan_high_s: float | None = None
    ratio: float | None = None
    hopper_ratio: float | None = None
    published_ratio: float | None = None
    startup_s: float | None = None
    compute_s: float | None = None
    idle_share: float | None = None
    data_bytes: float | None = None
    copies: float | None = None
    socket_bytes: float | None = None
    written_bytes: float | None = None
    database_bytes: float | None = None
    best_error: float | None = None
    mean_error: float | None = None
    points_above_plain: float | None = None
    same_error_ratio: float | None = None
    same_bits: bool | None = None
    error: str = ""


Runs = dict[str, list[Measurement]]


def runs_of(comparison: Comparison, workload: str) -> Runs:
    """Return a workload's measurements by way, in the ways' order."""
    found: Runs = {}
    for measurement in comparison.measurements:
        if measurement.workload == workload:
            found.setdefault(measurement.way, []).append(measurement)
    return {
        way: sorted(found[way], key=lambda measurement: (measurement.seed, measurement.repetition))
        for way in in_order(found)
    }


def workloads_of(comparison: Comparison) -> list[str]:
    """Return the workloads that were measured or failed, in the order of the report."""
    seen = dict.fromkeys(part.workload for part in [*comparison.measurements, *comparison.failures])
    return [name for name in comparison.workloads if name in seen] + [
        name for name in seen if name not in comparison.workloads
    ]


def what_of(comparison: Comparison, workload: str) -> str:
    """Return the description of a workload, without its name."""
    return comparison.workloads.get(workload, "").removeprefix(f"{workload}: ")


def rows_of(comparison: Comparison, workload: str) -> list[Row]:
    """Return a workload's rows, including those of failed ways, in the ways' order."""
    runs = runs_of(comparison, workload)
    failures = [failure for failure in comparison.failures if failure.workload == workload]
    rows = [_row(way, runs) for way in runs]
    rows += [Row(workload, failure.way, error=" ".join(failure.error.split())) for failure in failures]
    ways = in_order({row.way for row in rows})
    return sorted(rows, key=lambda row: (ways.index(row.way), row.error))


def _row(way: str, runs: Runs) -> Row:
    own, hopper, plain = runs[way], runs.get(HOPPER, []), runs.get(PLAIN, [])
    makespan = figures.makespan(own)
    hopper_s = figures.makespan(hopper).median if hopper else None
    data_bytes = figures.known_median(own, lambda run: run.outcome.data_bytes)
    one_copy_bytes = figures.known_median(plain, lambda run: run.outcome.data_bytes)
    return Row(
        workload=own[0].workload,
        way=way,
        n_runs=len(own),
        n_seeds=len({run.seed for run in own}),
        makespan_s=makespan.median,
        makespan_low_s=makespan.low,
        makespan_high_s=makespan.high,
        ratio=figures.ratio(makespan.median, hopper_s),
        hopper_ratio=figures.ratio(hopper_s, makespan.median),
        published_ratio=published_ratio(way),
        startup_s=figures.known_median(own, figures.startup_s),
        compute_s=figures.known_median(own, figures.compute_s),
        idle_share=figures.known_median(own, figures.idle_share),
        data_bytes=data_bytes,
        copies=figures.ratio(data_bytes, one_copy_bytes),
        socket_bytes=figures.known_median(own, lambda run: run.socket_bytes),
        written_bytes=figures.known_median(own, lambda run: run.outcome.written_bytes),
        database_bytes=figures.known_median(own, lambda run: run.outcome.database_bytes),
        best_error=figures.known_median(own, figures.best_error),
        mean_error=figures.mean_error_over_seeds(own),
        points_above_plain=figures.points_above(own, plain),
        same_error_ratio=figures.same_error_ratio(own, hopper) if hopper else None,
        same_bits=figures.same_bits(own),
    )
