"""Counts rows of today in the bins of a column's profile, batch after batch; the command drift calls it."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.drift.measures import has_levels, names_of, numbers_of
from madlib_mop.columns.drift.profiler import codes_of, group_of, is_hashed, n_counts_of
from madlib_mop.columns.encoding.inputs import wrong_class
from madlib_mop.columns.families import text_of
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.profiles import ColumnProfile, LevelProfile, NumberProfile, level_hash
from madlib_mop.columns.raw import (
    BEGIN,
    END,
    Levels,
    Moments,
    Numbers,
    RawColumn,
    Vectors,
)
from madlib_mop.columns.transforms.categories import FIRST, CategoryFit

#: Bins of a category's most frequent levels; all others share one.
N_LEVEL_BINS = 19
_N_EXAMPLES = 5
#: New levels that are counted one by one for the examples, and characters that are kept of each.
_MOST_NEW, _MOST_CHARACTERS = 10_000, 60
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ProfileDifference:
    """One comparison of rows with a profile.

    Attributes
    ----------
    measured : str
        ``value``, ``level``, or what is computed from the column: ``characters``, ``bytes``, ``element 3``, ``mean``,
        ``deviation``.
    n_rows, n_null, n_special : int
        Rows; those with NULL; those with NaN or an infinity.
    baseline : ColumnProfile or None
        What the rows are compared with; None where nothing is known of the training rows.
    expected, actual : tuple of int
        Rows in each bin, of the profile and now; () without a profile. NULL, values that are not finite and new levels
        have bins of their own.
    n_new : int or None
        Rows with a level that no training row has; None for numbers, and where that is not known.
    n_unknown : int or None
        Of categories: rows with a level that the encoding does not know: new, or too rare in training.
    new_levels : tuple of str
        The most frequent of those levels, at most 5.
    n_outside : int or None
        Rows below the least or above the greatest value of the profile; None for levels, and without a profile.
    minimum, maximum : str or None
        Of the rows.
    baseline_minimum, baseline_maximum : str or None
    """

    measured: str
    n_rows: int
    n_null: int
    n_special: int
    baseline: ColumnProfile | None
    expected: tuple[int, ...] = ()
    actual: tuple[int, ...] = ()
    n_new: int | None = None
    n_unknown: int | None = None
    new_levels: tuple[str, ...] = ()
    n_outside: int | None = None
    minimum: str | None = None
    maximum: str | None = None
    baseline_minimum: str | None = None
    baseline_maximum: str | None = None


class ObservedColumn:
    """Rows of one column, compared with its profile.

    Parameters
    ----------
    column : FittedColumn
        With the profile to compare with, or without one.
    """

    def __init__(self, column: FittedColumn):
        self._column = column
        self._n_rows = self._n_null = 0
        profile = column.profile
        self._numbers: dict[str, _Numbers] = {}
        for place, name in enumerate(names_of(column.fit)):
            known = profile.numbers[place] if profile is not None and place < len(profile.numbers) else None
            self._numbers[name] = _Numbers(known)
        self._levels = _Levels(column) if has_levels(column.fit) else None

    def add(self, raw: RawColumn) -> None:
        """Add the rows of a batch. Raises InvalidParameter for a column of another class."""
        self._n_rows += raw.n_rows
        self._n_null += int(np.count_nonzero(raw.missing))
        if self._levels is not None:
            self._levels.add(raw)
        for name, numbers in numbers_of(self._column.fit, raw, self._column.name):
            self._numbers[name].add(numbers)

    def differences(self) -> list[ProfileDifference]:
        """Return the comparisons: one for each number that is measured, or one for the levels."""
        profile = self._column.profile
        if self._levels is not None:
            plain = ProfileDifference("level", self._n_rows, self._n_null, self._levels.n_special, profile)
            return [self._levels.compared(plain)]
        return [
            numbers.compared(ProfileDifference(name, self._n_rows, self._n_null, numbers.n_special, profile))
            for name, numbers in self._numbers.items()
        ]


class _Numbers:
    """One number of each row."""

    def __init__(self, profile: NumberProfile | None):
        self.n_special = 0
        self._profile = profile
        self._counts = np.zeros(len(profile.counts) if profile is not None else 0, np.int64)
        self._edges = np.array(profile.edges if profile is not None else (), np.float64)
        self._n_outside = 0
        self._minimum: float | None = None
        self._maximum: float | None = None
        self._family = "number"

    def add(self, column: Numbers | Moments) -> None:
        self._family = column.family
        finite = ~column.missing & ~special_rows(column)
        self.n_special += column.n_rows - int(np.count_nonzero(finite | column.missing))
        values = column.values[finite]
        if not len(values):
            return
        low, high = values.min().item(), values.max().item()
        self._minimum = low if self._minimum is None else min(self._minimum, low)
        self._maximum = high if self._maximum is None else max(self._maximum, high)
        profile = self._profile
        if profile is None or profile.minimum is None or profile.maximum is None:
            return
        numbers = values.astype(np.float64)
        self._counts += np.bincount(np.searchsorted(self._edges, numbers), minlength=len(self._counts))
        self._n_outside += int(np.count_nonzero((numbers < profile.minimum) | (numbers > profile.maximum)))

    def compared(self, plain: ProfileDifference) -> ProfileDifference:
        found = replace(plain, minimum=self._text(self._minimum), maximum=self._text(self._maximum))
        profile, of = self._profile, plain.baseline
        if profile is None or of is None:
            return found
        n_finite = plain.n_rows - plain.n_null - plain.n_special
        inside = tuple(self._counts.tolist()) if profile.counts else (n_finite,)
        return replace(
            found,
            expected=(*(profile.counts or (0,)), of.n_null, of.n_rows - of.n_null - sum(profile.counts)),
            actual=(*inside, plain.n_null, plain.n_special),
            n_outside=self._n_outside,
            baseline_minimum=self._text(profile.minimum),
            baseline_maximum=self._text(profile.maximum),
        )

    def _text(self, value: float | None) -> str | None:
        return None if value is None else text_of(value, self._family)


class _Levels:
    """The level of each row."""

    def __init__(self, column: FittedColumn):
        fit = column.fit
        assert isinstance(fit, CategoryFit | ClassFit)
        self.n_special = 0
        self._name, self._fit, self._codes = column.name, fit, codes_of(fit)
        known = column.profile.levels if column.profile is not None else None
        self._known = known
        self._others = frozenset(known.others) if known is not None else frozenset()
        self._can_be_new = known is not None and known.knows_others
        self._counts = np.zeros(n_counts_of(fit), np.int64)
        self._n_other = self._n_new = 0
        self._new: Counter[str] = Counter()

    def add(self, raw: RawColumn) -> None:
        if not isinstance(raw, Numbers | Levels):
            raise wrong_class(self._name, "a category", raw)
        present = ~raw.missing
        if isinstance(raw, Numbers):
            special = special_rows(raw) & present
            self.n_special += int(np.count_nonzero(special))
            present &= ~special
        raw = raw.take(present)
        if is_hashed(self._fit):
            self._add_others(raw)
            return
        if isinstance(raw, Numbers):
            codes = self._codes.of_numbers(raw.values, raw.missing, raw.is_single)
        else:
            codes = self._codes.of_levels(raw.codes, raw.levels, raw.levels.keys)
        is_known = codes >= FIRST
        self._counts += np.bincount(codes[is_known] - FIRST, minlength=len(self._counts))
        if not is_known.all():
            self._add_others(raw.take(~is_known))

    def _add_others(self, raw: Numbers | Levels) -> None:
        """Add rows whose levels have no place in the fit."""
        levels = raw.as_levels(self._name) if isinstance(raw, Numbers) else raw
        keys = levels.levels.keys()
        shown = dict(zip(levels.codes.tolist(), raw.sql_texts(), strict=True)) if isinstance(raw, Numbers) else {}
        counts = np.bincount(levels.codes, minlength=len(keys))
        for code in np.flatnonzero(counts).tolist():
            count, number = int(counts[code]), level_hash(keys[code])
            is_new = self._can_be_new and number not in self._others
            if is_hashed(self._fit) and not is_new:
                self._counts[group_of(number)] += count
            elif not is_new:
                self._n_other += count
            else:
                self._n_new += count
            if is_new or not self._can_be_new and not is_hashed(self._fit):
                self._keep_example((shown.get(code) or "").encode() if shown else keys[code], count)

    def _keep_example(self, key: bytes, count: int) -> None:
        text = key[: 4 * _MOST_CHARACTERS + 4].decode("utf-8", "replace")
        text = text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
        if text in self._new or len(self._new) < _MOST_NEW:  # defence: new-levels = True
            self._new[text] += count

    def compared(self, plain: ProfileDifference) -> ProfileDifference:
        ordered = sorted(self._new, key=lambda text: (-self._new[text], text))
        n_unknown = None if is_hashed(self._fit) else self._n_other + self._n_new
        found = replace(
            plain,
            n_new=self._n_new if self._can_be_new else None,
            n_unknown=n_unknown,
            new_levels=tuple(ordered[:_N_EXAMPLES]),
        )
        known, of = self._known, plain.baseline
        if known is None or of is None:
            return found
        expected, actual = self._bins(known)
        return replace(
            found,
            expected=(*expected, 0, of.n_null, of.n_special),
            actual=(*actual, self._n_new, plain.n_null, plain.n_special),
        )

    def _bins(self, known: LevelProfile) -> tuple[list[int], list[int]]:
        """Return the rows of the most frequent levels of the profile, and those of all others together.

        Of more levels than packing counts one by one, the profile has their rows together only.
        """
        counts, n_other, now = known.counts, known.n_other, self._counts.tolist()
        if not known.knows_others and not any(counts):
            return [n_other], [sum(now) + self._n_other]
        if is_hashed(self._fit):
            return [*counts, n_other], [*now, self._n_other]
        first = sorted(range(len(counts)), key=lambda place: (-counts[place], place))[:N_LEVEL_BINS]
        expected, actual = [counts[place] for place in first], [now[place] for place in first]
        return (
            [*expected, sum(counts) - sum(expected) + n_other],
            [*actual, sum(now) - sum(actual) + self._n_other],
        )


def special_rows(column: RawColumn) -> Flags:
    """Return which rows have NaN or an infinity: bool (n_rows,); texts and images have none."""
    if isinstance(column, Numbers):
        return ~np.isfinite(column.values) & ~column.missing
    if isinstance(column, Moments):
        endless: Flags = ((column.values == BEGIN) | (column.values == END)) & ~column.missing
        return endless
    if isinstance(column, Vectors):
        return ~np.isfinite(column.values).all(axis=1) & ~column.missing
    return np.zeros(column.n_rows, np.bool_)
