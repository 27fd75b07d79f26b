"""Scores of all contestants on test rows: their file, their table, and the sentences of the acceptance."""

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import mean

import numpy as np

ENSEMBLE, SINGLE = "ensemble", "best network"
BOOSTING, PERCEPTRON, LIGHTGBM = "gradient boosting", "MLP of scikit-learn", "LightGBM"
CONTESTANTS = (ENSEMBLE, SINGLE, BOOSTING, PERCEPTRON, LIGHTGBM)
#: The ensemble is nowhere worse than gradient boosting by more than this number of points.
MOST_BEHIND = 2.0


@dataclass(frozen=True)
class Score:
    """A score of one contestant on the test rows of one table and seed.

    Attributes
    ----------
    table, metric : str
        ``AUC`` for two classes, ``accuracy`` for more, ``R2`` for a regression.
    seed : int
    contestant : str
    value : float
        1 is perfect.
    seconds : float
        Of training and prediction.
    """

    table: str
    metric: str
    seed: int
    contestant: str
    value: float
    seconds: float


def auc(is_positive: np.ndarray, rates: np.ndarray) -> float:
    """Return the area under the ROC curve: the share of pairs of both classes that are in order; ties count half."""
    _, inverse, counts = np.unique(rates, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = np.asarray(is_positive, bool)
    n, n_positive = len(positive), int(positive.sum())
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * (n - n_positive)))


def r2(expected: np.ndarray, predicted: np.ndarray) -> float:
    """Return the share of the variance that predictions explain."""
    expected = np.asarray(expected, float)
    return float(1 - np.square(expected - predicted).sum() / np.square(expected - expected.mean()).sum())


def read_scores(path: Path) -> list[Score]:
    """Return the scores of a file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Score(**{field.name: field.type(row[field.name]) for field in fields(Score)})
            for row in csv.DictReader(file)
        ]


def write_score(path: Path, score: Score) -> None:
    """Append a score to a file, and create the file where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(field.name for field in fields(Score))
        writer.writerow(astuple(score))


def report(scores: Iterable[Score]) -> str:
    """Return the table of means over seeds in percent, and a sentence for each promise."""
    scores = list(scores)
    tables = list(dict.fromkeys(score.table for score in scores))
    lines = ["means over seeds, in percent", f"{'table':18}{'metric':10}{'seeds':>6}" + "".join(
        f"{name:>21}" for name in CONTESTANTS) + f"{'ensemble - boosting':>21}{'network - MLP':>15}"]  # fmt: skip
    for table in tables:
        of_table = [score for score in scores if score.table == table]
        line = f"{table:18}{of_table[0].metric:10}{len({score.seed for score in of_table}):>6}"
        for name in CONTESTANTS:
            values = [score.value for score in of_table if score.contestant == name]
            line += f"{100 * mean(values):21.2f}" if values else f"{'-':>21}"
        for (one, other), width in (((ENSEMBLE, BOOSTING), 21), ((SINGLE, PERCEPTRON), 15)):
            points = _difference(of_table, one, other)
            line += f"{'-':>{width}}" if points is None else f"{points:+{width}.2f}"
        lines.append(line)
    return "\n".join(lines + _sentences(scores, tables))


def _sentences(scores: list[Score], tables: list[str]) -> list[str]:
    lines = []
    for one, other in ((ENSEMBLE, BOOSTING), (SINGLE, PERCEPTRON)):
        found = {table: _difference([score for score in scores if score.table == table], one, other)
                 for table in tables}  # fmt: skip
        points = {table: value for table, value in found.items() if value is not None}
        if not points:
            continue
        average, worst = mean(points.values()), min(points, key=points.__getitem__)
        lines.append(f"{one} - {other}: on average {average:+.2f} points: {_verdict(average >= 0)}")
        if one == ENSEMBLE:
            verdict = f"{_verdict(points[worst] >= -MOST_BEHIND)} (at most {MOST_BEHIND:.0f} behind)"
            lines.append(f"  worst table: {worst}, {points[worst]:+.2f} points: {verdict}")
    return lines


def _verdict(holds: bool) -> str:
    return "holds" if holds else "FAILS"


def _difference(scores: list[Score], one: str, other: str) -> float | None:
    """Return the mean difference in points, over the seeds that both have; None without any."""
    values = {(score.contestant, score.seed): score.value for score in scores}
    seeds = sorted({seed for name, seed in values if name == one and (other, seed) in values})
    return 100 * mean(values[one, seed] - values[other, seed] for seed in seeds) if seeds else None
