"""The CSV files of the report: the table, each run, errors after each epoch, and the breakdown of the workers' time."""

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from report import figures
from report.measurement import Comparison
from report.summary import Row, rows_of, workloads_of

FILES = {
    "table.csv": "the tables above, a line a way and workload",
    "runs.csv": "a line a run",
    "epochs.csv": "test and training error of each configuration after each epoch of each run",
    "stages.csv": "the workers’ time by activity in each run that reports it",
}


def write_csv_files(comparison: Comparison, directory: Path) -> None:
    """Write the files. Times are seconds, ``at`` is since the start of the work, sizes are bytes, errors fractions."""
    rows = [row for workload in workloads_of(comparison) for row in rows_of(comparison, workload)]
    names = [field.name for field in dataclasses.fields(Row)]
    _write(directory / "table.csv", names, (dataclasses.astuple(row) for row in rows))
    run = ("workload", "way", "seed", "repetition")
    runs = [
        ((one.workload, one.way, one.seed, one.repetition), one)
        for one in sorted(comparison.measurements, key=lambda one: (one.workload, one.way, one.seed, one.repetition))
    ]
    _write(
        directory / "runs.csv",
        [*run, "n_workers", "makespan_s", "startup_s", "train_s", "evaluate_s", "idle_share", "socket_bytes"]
        + ["data_bytes", "written_bytes", "database_bytes", "best_error", "mean_error"],
        (
            (*key, one.n_workers, one.makespan_s, figures.startup_s(one), figures.compute_s(one, "train"))
            + (figures.compute_s(one, "evaluate"), figures.idle_share(one), one.socket_bytes, one.outcome.data_bytes)
            + (one.outcome.written_bytes, one.outcome.database_bytes)
            + (figures.best_error(one), figures.mean_error(one))
            for key, one in runs
        ),
    )
    _write(
        directory / "epochs.csv",
        [*run, "mst_key", "epoch", "at_s", "test_error", "train_error"],
        (
            (*key, epoch.mst_key, epoch.epoch, epoch.at - one.begun_at, epoch.test_error, epoch.train_error)
            for key, one in runs
            for epoch in sorted(one.outcome.epochs, key=lambda epoch: (epoch.mst_key, epoch.epoch))
        ),
    )
    _write(
        directory / "stages.csv",
        [*run, "of", "stage", "seconds"],
        (
            (*key, of, stage, seconds)
            for key, one in runs
            for of, stages in (("the whole", one.outcome.stages), ("after epoch 1", one.outcome.steady_stages))
            for stage, seconds in stages.items()
        ),
    )


def _write(path: Path, names: Sequence[str], lines: Iterable[Sequence]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(lines)
