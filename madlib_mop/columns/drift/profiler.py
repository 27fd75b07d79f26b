"""Makes the profile of a column: of the training rows when they are packed, and of a baseline table, in one pass."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from madlib_mop.columns.drift.measures import VALUE, has_levels, names_of, numbers_of
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.preprocessors.profiles import (
    MAX_OTHERS,
    N_BINS,
    N_GROUPS,
    ColumnProfile,
    LevelProfile,
    NumberProfile,
    level_hash,
)
from madlib_mop.columns.raw import RawColumn, dictionary_of, text_of_number
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.columns.transforms.categories import FIRST, CategoryFit, LevelCodes


class Profiler:
    """Counts one column, batch after batch, in bounded memory; equal rows give an equal profile, in any order.

    Parameters
    ----------
    column : FittedColumn
        Which numbers are measured, and which levels are known.
    """

    def __init__(self, column: FittedColumn):
        self._column = column
        self._value: ColumnStatistics | None = None
        self._numbers: dict[str, ColumnStatistics] = {
            name: ColumnStatistics("number") for name in names_of(column.fit) if name != VALUE
        }

    def add(self, raw: RawColumn) -> None:
        """Add the rows of a batch. Raises InvalidParameter for a column of another class."""
        if self._value is None:
            self._value = ColumnStatistics(raw.family)
        self._value.add(raw)
        self.add_numbers(raw)

    def add_numbers(self, raw: RawColumn) -> None:
        """Add what is computed from the rows of a batch; their own statistics are in `set_statistics`."""
        for name, numbers in numbers_of(self._column.fit, raw, self._column.name):
            if name != VALUE:
                self._numbers[name].add(numbers)

    def set_statistics(self, statistics: ColumnStatistics) -> None:
        """Use statistics of the column that were made elsewhere."""
        self._value = statistics

    def profile(self) -> ColumnProfile:
        """Return the profile of all rows."""
        fit, own = self._column.fit, self._value or ColumnStatistics("number")
        n_special = sum(own.special.values())
        if has_levels(fit):
            return ColumnProfile(own.n_rows, own.n_missing, n_special, (), _levels(self._column, own))
        found = [_numbers(name, own if name == VALUE else self._numbers[name]) for name in names_of(fit)]
        return ColumnProfile(own.n_rows, own.n_missing, n_special, tuple(found))


def profiled(
    preprocessor: Preprocessor,
    statistics: Mapping[str, ColumnStatistics],
    rows: Callable[[FittedColumn], Iterable[RawColumn]],
) -> Preprocessor:
    """Return a preprocessor with the profile of each column.

    Parameters
    ----------
    preprocessor : Preprocessor
    statistics : mapping of str to ColumnStatistics
        Of the training rows, by column.
    rows : callable
        Returns the training rows of a column, in parts; called for texts, arrays, vectors and images.
    """
    columns = []
    for column in preprocessor.columns:
        profiler = Profiler(column)
        profiler.set_statistics(statistics[column.name])
        for part in rows(column) if any(name != VALUE for name in names_of(column.fit)) else ():
            profiler.add_numbers(part)
        columns.append(replace(column, profile=profiler.profile()))
    return Preprocessor(tuple(columns))


def codes_of(fit: CategoryFit | ClassFit) -> LevelCodes:
    """Return what finds the level of a value: the table of the encoder."""
    if isinstance(fit, ClassFit):
        fit = CategoryFit("index", fit.classes, FIRST + len(fit.classes), 1, None, True, False)
    return LevelCodes(replace(fit, fill=None))


def group_of(number: int) -> int:
    """Return the group of a level of a hashed category, by its `level_hash`: 0 to ``N_GROUPS`` - 1."""
    return number % N_GROUPS


def n_counts_of(fit: CategoryFit | ClassFit) -> int:
    """Return how many counts the profile of a category has."""
    if isinstance(fit, ClassFit):
        return len(fit.classes)
    return N_GROUPS if fit.encode == "hashed" else len(fit.levels)


def is_hashed(fit: CategoryFit | ClassFit) -> bool:
    """Return whether the levels of a category have no places of their own."""
    return isinstance(fit, CategoryFit) and fit.encode == "hashed"


def _levels_of(fit: CategoryFit | ClassFit, counted: ColumnStatistics) -> list[tuple[bytes, int, int]] | None:
    """Return each level of a column as it is hashed, its rows, and its place among those of the fit.

    The place is negative for levels that the fit does not have, and for those of hashed categories. None if there are
    more than 65,536 levels.
    """
    numbers, counts = counted.number_counts, counted.level_counts
    rows: Mapping[str, int] | Mapping[float, int]
    if numbers is not None:
        values = np.array([*numbers], np.float64)
        keys = [text_of_number(value, counted.family).encode() for value in values.tolist()]
        found, rows = codes_of(fit).of_numbers(values, np.zeros(len(values), np.bool_), counted.is_single), numbers
    elif counts is not None:
        levels, rows = dictionary_of(counts), counts
        keys = levels.keys()
        found = codes_of(fit).of_levels(np.arange(len(keys), dtype=np.int32), levels, levels.keys)
    else:
        return None
    places = [-1] * len(keys) if is_hashed(fit) else (found - FIRST).tolist()
    return list(zip(keys, rows.values(), places, strict=True))


def _numbers(name: str, counted: ColumnStatistics) -> NumberProfile:
    edges, counts = counted.histogram(N_BINS)
    low, high = counted.minimum, counted.maximum
    return NumberProfile(
        name, None if low is None else float(low), None if high is None else float(high), tuple(edges), tuple(counts)
    )


def _levels(column: FittedColumn, counted: ColumnStatistics) -> LevelProfile:
    fit = column.fit
    assert isinstance(fit, CategoryFit | ClassFit)
    n_present = counted.n_present - sum(counted.special.values())
    counts = [0] * n_counts_of(fit)
    found = _levels_of(fit, counted)
    if found is None:  # more than 65,536 levels: nothing is known of each
        return LevelProfile(tuple(counts), n_present, (), False)
    others: list[int] = []
    n_other = 0
    for key, count, place in found:
        if place >= 0:
            counts[place] += count
            continue
        number = level_hash(key)
        others.append(number)
        if is_hashed(fit):
            counts[group_of(number)] += count
        else:
            n_other += count
    knows_others = len(others) <= MAX_OTHERS
    return LevelProfile(tuple(counts), n_other, tuple(sorted(others)) if knows_others else (), knows_others)
