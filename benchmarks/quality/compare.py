"""The section "quality": networks of three statements against gradient boosting and perceptrons, on real tables."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from ratios import Ratio

from quality.networks import train_networks
from quality.rivals import train_rivals
from quality.scores import BOOSTING, SINGLE, Score, read_scores, report, write_score
from quality.tables import SMALL, TABLES, split


@dataclass(frozen=True)
class Size:
    """Which tables and how many seeds and configurations."""

    tables: tuple[str, ...]
    n_seeds: int
    n_configs: int


SHORT = Size(SMALL, 1, 4)
FULL = Size(tuple(table.name for table in TABLES), 5, 16)


def compare_quality(dsn: str, size: Size, output: Path, go_on: bool) -> list[Ratio]:
    """Train all contestants, and print the table.

    An interrupted run continues from the scores in ``quality_<n_configs>.csv`` of its output; without this file, from
    the recorded ones beside this module.
    """
    path, recorded = output / f"quality_{size.n_configs}.csv", Path(__file__).with_name(f"scores_{size.n_configs}.csv")
    if not go_on:
        path.unlink(missing_ok=True)
    elif not path.exists() and recorded.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(recorded.read_text())
    of = f"{len(size.tables)} tables, seeds 1 to {size.n_seeds}, {size.n_configs} configurations"
    print(f"\nquality: {of}", flush=True)
    for table in reversed(TABLES):
        if table.name not in size.tables:
            continue
        rows = table.sample()
        for seed in range(1, size.n_seeds + 1):
            of = table, rows, split(table, rows, seed), size.n_configs, seed
            if not _has(path, table.name, seed, BOOSTING):
                _keep(path, train_rivals(*of))
            if not _has(path, table.name, seed, SINGLE):
                with closing(psycopg2.connect(dsn)) as connection:
                    connection.autocommit = True
                    _keep(path, train_networks(connection, *of))
    scores = [score for score in read_scores(path) if score.table in size.tables]
    print(report(scores), flush=True)
    return []


def _has(path: Path, table: str, seed: int, contestant: str) -> bool:
    return any((one.table, one.seed, one.contestant) == (table, seed, contestant) for one in read_scores(path))


def _keep(path: Path, found: Iterable[Score]) -> None:
    """Write and print scores, all or none: those of contestants who are trained together."""
    for score in list(found):
        write_score(path, score)
        value = f"{score.metric:8} {100 * score.value:7.2f} %"
        what = f"{score.table:13} seed {score.seed}   {score.contestant:20}"
        print(f"  {what} {value}   {score.seconds:8.1f} s", flush=True)
