"""Inputs that a person should check before training: those that nearly give the target away, and identifiers.

`propose_columns` and `pack_columns` call `columns_to_check`, and report what it finds. These columns remain inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from madlib_mop.columns.proposals.guesses import is_key_name
from madlib_mop.columns.proposals.kinds import CATEGORY, INPUT, NUMBER, TARGET, TEXT, ColumnSpec
from madlib_mop.columns.proposals.statistics import Statistics
from madlib_mop.columns.raw import BEGIN, END, Floats, Integers, Levels, Moments, Numbers, RawColumn

#: Most rows of the sample, and most values of it: of tables with many columns, fewer rows are read.
_MOST_ROWS, _MOST_VALUES = 20_000, 4_000_000
#: Rows of the sample for each interval of a number, and most intervals.
_ROWS_AN_INTERVAL, _MOST_INTERVALS = 10, 100
#: A score is only computed if each half has so many rows, of classes so many rows of a class and of the others.
_LEAST_ROWS, _LEAST_OF_CLASS = 20, 10
#: Classes with a score of their own, the most frequent ones.
_MOST_CLASSES = 10
#: From this AUC or R2 on, a column nearly decides the target.
NEARLY_DECIDES = 0.95
_NEARLY_DISTINCT = 0.95
#: Fewest values of which it can be said that nearly all are distinct, and fewest levels that are many.
_LEAST_VALUES, _MANY_LEVELS = 50, 100
_ROWS_A_LEVEL = 10
_MOST_WORDS = 4  # of a name; free text has more


@dataclass(frozen=True)
class ColumnToCheck:
    """A column and what a person should know of it.

    Attributes
    ----------
    name : str
    problem : str
        One clause or two, without a period.
    """

    name: str
    problem: str

    @property
    def text(self) -> str:
        """Return name and problem."""
        return f"{self.name} ({self.problem})"


def columns_to_check(
    specs: Sequence[ColumnSpec],
    statistics: Mapping[str, Statistics],
    columns: Mapping[str, RawColumn],
    order: Integers,
    grouped_by: str | None = None,
) -> list[ColumnToCheck]:
    """Return the inputs to check, in the order of the specification.

    A column nearly decides a target if it predicts it by itself with an AUC of 0.95 or more, or an R2 of 0.95 or more:
    see `score_alone`.

    Parameters
    ----------
    specs : sequence of ColumnSpec
        Of inputs and targets; others are passed over.
    statistics : mapping of str to Statistics
        Of the columns.
    columns : mapping of str to RawColumn
        Values of the columns; a column that is not there is judged by its statistics alone.
    order : numpy.ndarray
        int64: numbers of the rows to choose from, in random order. The first ones are the sample.
    grouped_by : str or None
        The column by whose values the rows are split, so that it is no problem as an identifier.
    """
    inputs = [spec for spec in specs if spec.role == INPUT and spec.name in statistics]
    sample = order[: min(_MOST_ROWS, _MOST_VALUES // max(1, len(inputs)))]
    targets = {
        spec.name: _Target.of(columns[spec.name].take(sample), spec.kind == NUMBER)
        for spec in specs
        if spec.role == TARGET and spec.name in columns
    }
    found = []
    for spec in inputs:
        whole = columns.get(spec.name)
        column = whole.take(sample) if isinstance(whole, Levels | Moments | Numbers) else None
        problems = []
        if column is not None:
            problems += [
                f"alone, it predicts {name} with {'an R2' if target.is_number else 'an AUC'} of {score:.2f}:"
                " is it known in time?"
                for name, target in targets.items()
                if target is not None and (score := _score(column, target) or 0.0) >= NEARLY_DECIDES
            ]
        if spec.name != grouped_by and (problem := _identifier(spec, statistics[spec.name], column)) is not None:
            problems.append(problem)
        if problems:
            found.append(ColumnToCheck(spec.name, "; ".join(problems)))
    return found


def score_alone(column: RawColumn, target: RawColumn, is_number: bool) -> float | None:
    """Return how well one column predicts a target by itself, on rows that were held out.

    Of one half of the rows, the mean target is computed for each level of a text, or for each interval of numbers,
    dates and times, which have about equally many rows; NULL is a level of its own. These means predict the other half.
    Then the halves change places, and the result is the mean of both scores. For classes, it is the area under the ROC
    curve; if there are more than two, the mean over the classes of that of one class against the others. For numbers,
    it is the R2 of the ranks of the target, which does not depend on its scale.

    Parameters
    ----------
    column, target : RawColumn
        Rows in random order. Rows without a target do not count.
    is_number : bool
        Whether the target is a number, not a class.

    Returns
    -------
    float or None
        1 is perfect; 0.5 (AUC) or 0 (R2) is chance. None if there are too few rows to say it, or if a column is of
        arrays or bytes.
    """
    held = _Target.of(target, is_number)
    return None if held is None else _score(column, held)


@dataclass(frozen=True)
class _Target:
    """A target of the sample.

    Attributes
    ----------
    rows : numpy.ndarray
        int64 (n,): the rows that have a value.
    values : numpy.ndarray
        float64 (n, k): 1 where a row has the class, for each class with a score; or the rank of a number, k = 1.
    is_number : bool
    """

    rows: Integers
    values: Floats
    is_number: bool

    @staticmethod
    def of(column: RawColumn, is_number: bool) -> "_Target | None":
        """Return the values of a column as a target; None if too few rows have one, or it is none of numbers or levels.
        """
        codes = _distinct(column)
        if codes is None:
            return None
        rows = np.flatnonzero(codes >= 0)
        codes = codes[rows]
        half = len(rows) // 2
        if half < _LEAST_ROWS:
            return None
        counts = np.bincount(codes)
        if is_number:
            ranks = np.cumsum(counts) - (counts - 1) / 2
            return _Target(rows, (ranks[codes] / len(codes))[:, None], True)
        classes = np.argsort(-counts, kind="stable")[:_MOST_CLASSES]
        if len(counts) == 2:
            classes = classes[1:]  # the score of the other is the same
        flags = codes[:, None] == classes
        fewest = np.minimum(flags[:half].sum(axis=0), flags[half:].sum(axis=0))
        most = np.maximum(flags[:half].sum(axis=0), flags[half:].sum(axis=0))
        flags = flags[:, (fewest >= _LEAST_OF_CLASS) & (most <= half - _LEAST_OF_CLASS)]
        return _Target(rows, flags.astype(np.float64), False) if flags.shape[1] else None


def _score(column: RawColumn, target: _Target) -> float | None:
    """Return what `score_alone` does."""
    half = len(target.rows) // 2
    parts = slice(0, half), slice(half, None)
    found = []
    for fitted, held_out in (parts, parts[::-1]):
        cells = _cells(column, target.rows, fitted)
        if cells is None:
            return None
        found.append(_score_of_half(cells, target, fitted, held_out))
    return float(np.mean(found))


def _score_of_half(cells: Integers, target: _Target, fitted: slice, held_out: slice) -> float:
    """Return the score of the means of one half for the other; ``cells`` are codes, int64 (n,)."""
    n_cells, values = int(cells.max()) + 1, target.values
    overall = values[fitted].mean(axis=0)
    # one more row of the overall mean in each cell, so that the mean of few rows is near it
    sums = _sums(cells[fitted], values[fitted], n_cells) + overall
    means = sums / (1 + np.bincount(cells[fitted], minlength=n_cells))[:, None]
    if target.is_number:
        truth = values[held_out, 0]
        spread = float(((truth - truth.mean()) ** 2).sum())
        return 1 - float(((truth - means[cells[held_out], 0]) ** 2).sum()) / spread if spread > 0 else 0.0
    of_class = _sums(cells[held_out], values[held_out], n_cells)
    others = np.bincount(cells[held_out], minlength=n_cells)[:, None] - of_class
    return float(np.mean([_area(means[:, k], of_class[:, k], others[:, k]) for k in range(values.shape[1])]))


def _area(scores: Floats, of_class: Floats, others: Floats) -> float:
    """Return the area under the ROC curve of cells with these scores and rows, float64 (n_cells,) each."""
    levels, place = np.unique(scores, return_inverse=True)
    wanted = np.bincount(place.ravel(), of_class, len(levels))
    rest = np.bincount(place.ravel(), others, len(levels))
    below = np.cumsum(rest) - rest / 2
    return float((wanted * below).sum() / (wanted.sum() * rest.sum()))


def _sums(cells: Integers, values: Floats, n_cells: int) -> Floats:
    """Return the sum of the values of each cell: float64 (n_cells, k)."""
    return np.stack([np.bincount(cells, values[:, k], n_cells) for k in range(values.shape[1])], axis=1)


def _cells(column: RawColumn, rows: Integers, fitted: slice) -> Integers | None:
    """Return the level or interval of each row, int64 (n,), 0 for NULL; intervals are those of the fitted half."""
    if isinstance(column, Levels):
        return np.unique(column.codes[rows], return_inverse=True)[1].ravel().astype(np.int64) + 1
    values = _finite(column)
    if values is None:
        return None
    values = values[rows]
    present = np.sort(values[fitted][~np.isnan(values[fitted])])
    limits = np.unique(present)
    n_intervals = min(_MOST_INTERVALS, max(2, len(present) // _ROWS_AN_INTERVAL))
    if len(limits) > n_intervals:
        limits = np.unique(present[np.arange(1, n_intervals) * len(present) // n_intervals])
    return np.where(np.isnan(values), 0, 1 + np.searchsorted(limits, values)).astype(np.int64)


def _distinct(column: RawColumn) -> Integers | None:
    """Return a number from 0 for each value, int64 (n_rows,): ascending with numbers; -1 for NULL; None for arrays."""
    values = column.codes if isinstance(column, Levels) else _finite(column)
    if values is None:
        return None
    is_missing = values < 0 if isinstance(column, Levels) else np.isnan(values)
    codes = np.full(len(values), -1, np.int64)
    codes[~is_missing] = np.unique(values[~is_missing], return_inverse=True)[1].ravel()
    return codes


def _finite(column: RawColumn) -> Floats | None:
    """Return numbers and moments as float64 (n_rows,), NaN where they are missing or not finite; None for others."""
    if not isinstance(column, Numbers | Moments):
        return None
    values = column.values.astype(np.float64)
    is_used = ~column.missing & np.isfinite(values)
    if isinstance(column, Moments):
        is_used &= (column.values != BEGIN) & (column.values != END)
    return np.where(is_used, values, np.nan)


def _identifier(spec: ColumnSpec, counted: Statistics, column: RawColumn | None) -> str | None:
    """Return why an input may be an identifier, of which a network learns the training rows by heart; None if not."""
    n_values, n_distinct = counted.n_rows - counted.n_missing, counted.n_distinct
    if n_values < _LEAST_VALUES or spec.kind not in (NUMBER, CATEGORY, TEXT):
        return None
    many = f"{n_distinct:,} distinct values in {n_values:,} rows"
    if n_distinct >= _NEARLY_DISTINCT * n_values:
        if spec.kind == TEXT and not _are_names(column):
            return None
        return f"{many}: an identifier?" if spec.kind != NUMBER or counted.is_integral else None
    if n_distinct >= _MANY_LEVELS and is_key_name(spec.name):
        return f"{many} and the name of a key: are whole groups to be held out, with 'by group'?"
    if spec.kind == CATEGORY and n_distinct >= _MANY_LEVELS and n_distinct * _ROWS_A_LEVEL > n_values:
        return f"{many}: many levels with few rows each"
    return None


def _are_names(column: RawColumn | None) -> bool:
    """Return whether the texts of a sample are short, as names are, not free text."""
    if not isinstance(column, Levels):
        return False
    keys = column.levels.keys()
    lengths = [len(keys[code].split()) for code in column.codes[column.codes >= 0].tolist()]
    return bool(lengths) and float(np.median(lengths)) <= _MOST_WORDS
