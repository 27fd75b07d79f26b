"""Statistics of one column, exact and the same for rows in any order; the proposal and the preprocessor use them.

Numbers and moments are sorted in runs of a fixed size. A run becomes its distinct values and how often each occurs, and
runs are merged. With more than `MAX_EXACT` distinct values, the last bits of all are left out, as few as leave so many.
All states are functions of the multiset of values: rows in any order, in any parts, merged in any order, end in the
same bits.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import floor
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.exact import ExactMoments
from madlib_mop.columns.families import FAMILIES
from madlib_mop.columns.hashing import Hashes, mixed
from madlib_mop.columns.raw import (
    BEGIN,
    END,
    FLOAT4,
    INT8,
    NUMERIC,
    Floats,
    Integers,
    Levels,
    Moments,
    Numbers,
    RawColumn,
    Vectors,
    other_width,
    sql_text,
    text_of_number,
)

#: Maximum number of distinct values, or bins of values, with exact counts.
MAX_EXACT = 65_536
#: Values that are sorted at once.
RUN_ROWS = 131_072
#: Hashes that `DistinctSample` keeps: its estimate has a standard error of 1 / sqrt(4096), 1.6 %.
N_HASHES = 4_096
N_EXAMPLES = 5
#: Maximum number of characters of an example.
MAX_EXAMPLE = 60
#: Maximum number of trailing bits of a float64 that a bin ignores: sign, exponent and 10 bits of the mantissa stay.
MAX_FLOAT_SHIFT = 42
#: Most bytes and values that are hashed at once.
_PIECE_BYTES, _PIECE_ROWS = 16 << 20, 10_000
Values = npt.NDArray[np.float64] | npt.NDArray[np.int64]
Digits = npt.NDArray[np.int16]


class ColumnStatistics:
    """What is known of one column after some of its rows: a state that rows and other states are added to.

    Equal rows give equal bits, in any order and any parts. `of` makes the statistics of a column, `add` adds rows in
    place, `merge` returns those of both.

    Attributes
    ----------
    family : str
        One of `madlib_mop.columns.families`.
    n_rows, n_missing : int
    width : int or None
        Elements of a vector; None for other families, or if all rows are missing.
    dimensions : tuple of int
        Of arrays of several dimensions, if all rows have the same; else ().
    is_padded : bool
        Whether the arrays were read as padded ones.
    n_absent : int
        Elements that padded arrays do not have.
    special : dict of str to int
        How often NaN, infinities and endless moments occur. They are in no other statistic but ``n_distinct``; rows of
        vectors with one count once.
    is_integral : bool
        Whether there are values, all are numbers or booleans, finite and whole.
    """

    def __init__(self, family: str):
        self.family = family
        self.n_rows = 0
        self.n_missing = 0
        self.width: int | None = None
        self.dimensions: tuple[int, ...] = ()
        self.n_absent = 0
        self.is_padded = False
        self._special: Counter[str] = Counter()
        self._values = _Values()

    @staticmethod
    def of(column: RawColumn) -> "ColumnStatistics":
        """Return the statistics of a column's rows."""
        statistics = ColumnStatistics(column.family)
        statistics.add(column)
        return statistics

    def add(self, column: RawColumn) -> None:
        """Add the rows of a column.

        Raises
        ------
        InvalidParameter
            If vectors have another width than those before them.
        """
        if type(self._values) is _Values:
            self._values = _values_of(column)
        if isinstance(column, Vectors) and column.width is not None:
            self._set_width(column.column, column.width, column.dimensions)
            self.n_absent += 0 if column.absent is None else int(np.count_nonzero(column.absent))
            self.is_padded = self.is_padded or column.absent is not None
        self.n_rows += column.n_rows
        self.n_missing += int(np.count_nonzero(column.missing))
        self._values.add(column, self._special)

    def flush(self) -> None:
        """Count the rows that were added but wait to be sorted together; otherwise the next question does it."""
        self._values.flush()

    def merge(self, other: "ColumnStatistics") -> "ColumnStatistics":
        """Return the statistics of the rows of both; these stay as they are.

        Raises
        ------
        InvalidParameter
            If vectors have different widths.
        """
        both = deepcopy(self)
        if other.width is not None:
            both._set_width("", other.width, other.dimensions)
        both.n_absent += other.n_absent
        both.is_padded = both.is_padded or other.is_padded
        both.n_rows += other.n_rows
        both.n_missing += other.n_missing
        both._special += other._special
        if type(both._values) is _Values:
            both._values = deepcopy(other._values)
        elif type(other._values) is not _Values:
            both._values.merge(other._values)
        return both

    @property
    def _counted(self) -> "_Values":
        """Return the values, with nothing that waits to be sorted."""
        self._values.flush()
        return self._values

    def _set_width(self, column: str, width: int, dimensions: tuple[int, ...]) -> None:
        if self.width not in (None, width):
            raise other_width(column, self.width or 0, width)
        self.dimensions = dimensions if self.width is None or dimensions == self.dimensions else ()
        self.width = width

    @property
    def special(self) -> dict[str, int]:
        """Return how often each value that is not finite occurs."""
        return dict(sorted(self._special.items()))

    @property
    def n_present(self) -> int:
        """Return the number of rows that are not missing."""
        return self.n_rows - self.n_missing

    @property
    def n_distinct(self) -> int:
        """Return the number of distinct values; see ``distinct_is_exact``."""
        n_special = len(self._special) if self._values.has_specials else 0
        return min(self.n_present, self._counted.n_distinct + n_special)

    @property
    def distinct_is_exact(self) -> bool:
        """Return whether ``n_distinct`` is exact; otherwise it is an estimate with a standard error of 1.6 %.

        Numbers, moments and texts are counted exactly up to 65,536 distinct ones. Vectors and bytes are counted by
        hashes, so never exactly.
        """
        return self._counted.is_exact

    @property
    def minimum(self) -> float | None:
        """Return the least finite value or vector element; an int for ``bigint`` and, in microseconds, for moments."""
        return self._counted.minimum

    @property
    def maximum(self) -> float | None:
        """Return the greatest finite value or vector element; an int for ``bigint`` and moments, as ``minimum``."""
        return self._counted.maximum

    def text(self, value: float) -> str | None:
        """Return a number, date or time of this column as text; None of other columns."""
        return self._counted.text(value)

    @property
    def moments(self) -> ExactMoments | None:
        """Return count, sum and sum of squares of finite numbers, moments or vector elements."""
        return self._counted.moments

    @property
    def mean(self) -> float | None:
        """Return the mean of finite numbers, moments or vector elements, rounded once; booleans are 0 and 1."""
        return moments.mean() if (moments := self.moments) else None

    @property
    def std(self) -> float | None:
        """Return the standard deviation of the population, rounded once."""
        return moments.std() if (moments := self.moments) else None

    @property
    def is_integral(self) -> bool:
        """Return whether there are values, and all are whole numbers or booleans."""
        return self._counted.is_integral and not self._special and self.n_present > 0

    def quantile(self, q: float) -> float | None:
        """Return a quantile of finite numbers or moments, as ``percentile_cont`` does; None without any.

        Up to 65,536 distinct values it is exact. Beyond, values are rounded to at most 65,536 bins, fewer bits wide
        where values lie close together; numbers at worst to a relative error of 2^-11.

        Parameters
        ----------
        q : float
            From 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is from 0 to 1. Received: {q}")
        return self._counted.quantile(q)

    def histogram(self, n_bins: int) -> tuple[list[float], list[int]]:
        """Return bins of finite numbers or moments with about equally many rows each; ([], []) for other families.

        Returns
        -------
        list of float
            The upper limits of all bins but the last: increasing; a value that equals a limit belongs to the bin below.
        list of int
            The rows of each bin, exact.
        """
        return self._counted.histogram(n_bins)

    @property
    def level_counts(self) -> dict[str, int] | None:
        """Return how often each text occurs, or each finite number as text; None beyond 65,536 distinct ones.

        Descending by count, then by text. None for moments, vectors and bytes.
        """
        return self._counted.level_counts()

    @property
    def number_counts(self) -> dict[float, int] | None:
        """Return how often each finite number or boolean occurs; None beyond 65,536 of them, and of other columns."""
        return self._counted.number_counts()

    @property
    def is_single(self) -> bool:
        """Return whether the column is of type ``real``."""
        return self._values.is_single

    @property
    def examples(self) -> list[str]:
        """Return at most 5 values: the most frequent ones, then in their own order.

        Beyond 65,536 distinct values, these are 5 with the smallest hashes: a sample that does not depend on the order.
        """
        found = self._counted.examples()
        return [text if len(text) <= MAX_EXAMPLE else text[: MAX_EXAMPLE - 1] + "…" for text in found]


class _Values:
    """The values of a column that are not NULL; of this class itself: no rows yet."""

    minimum: float | None = None
    maximum: float | None = None
    moments: ExactMoments | None = None
    is_integral = False
    is_single = False
    has_specials = False

    @property
    def is_exact(self) -> bool:
        """Return whether every distinct value is counted for itself."""
        return True

    @property
    def n_distinct(self) -> int:
        return 0

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        raise NotImplementedError

    def merge(self, other: "_Values") -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Count what waits to be sorted."""

    def text(self, value: float) -> str | None:
        return None

    def quantile(self, q: float) -> float | None:
        return None

    def histogram(self, n_bins: int) -> tuple[list[float], list[int]]:
        return [], []

    def level_counts(self) -> dict[str, int] | None:
        return {}

    def number_counts(self) -> dict[float, int] | None:
        return None

    def examples(self) -> list[str]:
        return []

    def _widen(self, minimum: float | None, maximum: float | None) -> None:
        if minimum is not None and maximum is not None:
            self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
            self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)


@dataclass(frozen=True)
class _Run:
    """Distinct int64 keys, ascending, how often each occurs, and of numerics its fewest digits: (n,) each."""

    keys: Integers
    counts: Integers
    digits: Digits | None = None

    @cached_property
    def ends(self) -> Integers:
        """Return how many values there are up to each key."""
        return np.cumsum(self.counts)

    @staticmethod
    def merged(runs: Sequence["_Run"]) -> "_Run":
        keys = np.concatenate([run.keys for run in runs])
        order = np.argsort(keys, kind="stable")  # which merges what is ascending already
        digits = [run.digits for run in runs if run.digits is not None]
        counts = np.concatenate([run.counts for run in runs])[order]
        return _Run.of(keys[order], counts, np.concatenate(digits)[order] if digits else None)

    @staticmethod
    def of(keys: Integers, counts: Integers, digits: Digits | None = None) -> "_Run":
        """Return the run of keys that ascend, but may repeat."""
        starts = _starts(keys)
        if len(starts) == len(keys):
            return _Run(keys, counts, digits)
        fewest = None if digits is None else np.minimum.reduceat(digits, starts)
        return _Run(keys[starts], np.add.reduceat(counts, starts), fewest)


@dataclass(frozen=True)
class _Order:
    """How values become int64 keys in their order, and keys those of which bins leave out bits.

    Attributes
    ----------
    keys, values : callable
        From values to keys, and back.
    bins, bin_values : callable
        From keys to those of bins, and from these to values. Bins of integers are as wide as their values, as those of
        floats are.
    max_shift : int
        Bits that are left out at most, even if more than `MAX_EXACT` bins have values.
    """

    keys: Callable[[Values], Integers]
    values: Callable[[Integers], Values]
    bins: Callable[[Integers], Integers]
    bin_values: Callable[[Integers], Values]
    max_shift: int


def _keys_of_floats(values: Values) -> Integers:
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


def _floats_of_keys(keys: Integers) -> Floats:
    return _keys_of_floats(keys.view(np.float64)).view(np.float64)


def _same(values: Values) -> Integers:
    return values.astype(np.int64, copy=False)


_FLOATS = _Order(_keys_of_floats, _floats_of_keys, _same, _floats_of_keys, MAX_FLOAT_SHIFT)
_BIGINTS = _Order(_same, _same, _keys_of_floats, _floats_of_keys, MAX_FLOAT_SHIFT)
_MOMENTS = _Order(_same, _same, _same, _same, 63)
_NO_RUN = _Run(np.empty(0, np.int64), np.empty(0, np.int64))


class _Ordered(_Values):
    """Numbers, booleans and moments: runs of them, and from `MAX_EXACT` distinct values on, bins.

    A bin leaves out so few trailing bits of its keys that at most `MAX_EXACT` bins have values. So bins are narrow
    where the values are, whatever their range.
    """

    has_specials = True

    def __init__(self, column: Numbers | Moments):
        self._is_number = isinstance(column, Numbers)
        self._family = column.family
        self._text = FAMILIES[column.family].text
        self._form = column.form if isinstance(column, Numbers) else None
        self._order = _BIGINTS if self._form == INT8 else _FLOATS if self._is_number else _MOMENTS
        self.is_single = self._form == FLOAT4
        self.is_integral = self._is_number
        self.moments: ExactMoments = ExactMoments()
        self._shift = 0
        self._sample = DistinctSample()
        self._run = _NO_RUN
        self._runs: list[_Run] = []
        self._rows: list[tuple[Values, Digits | None]] = []
        self._n_rows = 0

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        assert isinstance(column, Numbers | Moments)
        for start in range(0, column.n_rows, RUN_ROWS):
            self._add(column.take(slice(start, start + RUN_ROWS)), special)

    def _add(self, column: Numbers | Moments, special: Counter[str]) -> None:
        digits, is_used = None, ~column.missing
        values: npt.NDArray[Any] = column.values
        if isinstance(column, Moments):
            is_used &= (values != BEGIN) & (values != END)
        elif self._form == INT8:
            integers = column.integers()
            assert integers is not None, "the column is of this form"
            values = integers
        else:
            is_used &= np.isfinite(values)
            digits = column.rest if self._form == NUMERIC else None
        if not is_used.all():
            left_out = values[~is_used & ~column.missing].tolist()
            special.update(map(text_of_number if self._is_number else _text_of_endless, left_out))
            values, digits = values[is_used], None if digits is None else digits[is_used]
        self._rows.append((values if values.dtype == np.int64 else values + 0.0, digits))  # -0 becomes 0
        self._n_rows += len(values)
        if self._n_rows >= RUN_ROWS:
            self._sort()

    def _sort(self) -> None:
        """Sort and count the rows that wait, and merge the runs if there are enough of them."""
        if not self._rows:
            return
        values = np.concatenate([rows for rows, _ in self._rows])
        digits = [rows for _, rows in self._rows if rows is not None]
        every = np.concatenate(digits) if digits else None
        self._rows, self._n_rows = [], 0
        for start in range(0, len(values), RUN_ROWS):
            part = slice(start, start + RUN_ROWS)
            self._count(values[part], None if every is None else every[part])
        if sum(len(run.keys) for run in self._runs) > max(MAX_EXACT, len(self._run.keys)):
            self._merge_runs()

    def _count(self, values: npt.NDArray[Any], digits: Digits | None) -> None:
        if digits is None or (digits == digits[0]).all():  # as in a column of numeric(p, s)
            values = np.sort(values)
        else:
            order = np.lexsort((digits, values))
            values, digits = values[order], digits[order]
        self._widen(values[0].item(), values[-1].item())
        run = _Run.of(self._order.keys(values), np.ones(len(values), np.int64), digits)
        distinct = self._order.values(run.keys)
        self.moments.add(distinct, run.counts if len(run.keys) < len(values) else None)
        if values.dtype == np.float64 and self.is_integral:
            self.is_integral = bool((distinct == np.rint(distinct)).all())
        self._runs.append(self._in_bins(run))

    def merge(self, other: _Values) -> None:
        assert isinstance(other, _Ordered)
        self.flush()
        other.flush()
        self.moments.merge(other.moments)
        self._widen(other.minimum, other.maximum)
        self.is_integral = self.is_integral and other.is_integral
        self._sample.merge(other._sample)
        run = other._run
        if other._shift:
            self._leave_out(max(self._shift, other._shift))
            run = _Run.of(run.keys >> (self._shift - other._shift), run.counts)
        else:
            run = self._in_bins(run)
        self._runs.append(run)
        self.flush()

    def flush(self) -> None:
        self._sort()
        self._merge_runs()

    def _merge_runs(self) -> None:
        """Merge all runs, and leave out more bits if there are too many keys."""
        if not self._runs:
            return
        self._run, self._runs = _Run.merged([self._run, *self._runs] if len(self._run.keys) else self._runs), []
        if len(self._run.keys) > MAX_EXACT and not self._shift:
            self._leave_out(1)
        keys = self._run.keys
        if len(keys) > MAX_EXACT:  # neighbours that differ only in the ignored bits share a bin
            differences = (keys[1:] ^ keys[:-1]).view(np.uint64)
            least_kept = int(np.partition(differences, -MAX_EXACT)[-MAX_EXACT])
            self._leave_out(min(self._shift + least_kept.bit_length(), self._order.max_shift))

    def _in_bins(self, run: _Run) -> _Run:
        """Return a run of values as one of today's bins; the values are sampled."""
        if not self._shift:
            return run
        self._sample.add(mixed(run.keys), run.keys)
        return _Run.of(self._order.bins(run.keys) >> self._shift, run.counts)

    def _leave_out(self, shift: int) -> None:
        before, self._shift = self._shift, shift
        if before:
            self._run = _Run.of(self._run.keys >> (shift - before), self._run.counts)
        elif shift:
            self._run = self._in_bins(self._run)

    @property
    def is_exact(self) -> bool:
        return not self._shift

    @property
    def n_distinct(self) -> int:
        return len(self._run.keys) if not self._shift else max(MAX_EXACT + 1, self._sample.estimate())

    def text(self, value: float) -> str | None:
        """Return a value as SQL prints it; of equal numerics, such as 1.5 and 1.50, that with the fewest digits."""
        if self._text is not None:
            return self._text(value)
        digits = None
        if self._run.digits is not None:
            key = self._order.keys(np.array([value], np.float64))
            place = int(np.searchsorted(self._run.keys, key)[0])
            if place < len(self._run.keys) and self._run.keys[place] == key[0]:
                digits = int(self._run.digits[place])
        return sql_text(value, self._form, self._family, digits)

    def quantile(self, q: float) -> float | None:
        """Return a quantile: of n values it is at position q (n - 1) among them, between two of them as a rule.

        Definition 7 of R. J. Hyndman and Y. Fan, 1996; ``percentile_cont``. A bin's value is its middle.
        """
        if self.minimum is None or self.maximum is None:
            return None
        ends = self._run.ends
        position = Fraction(q) * (int(ends[-1]) - 1)
        first = floor(position)
        weight = float(position - first)
        places = np.searchsorted(ends, [first, min(first + 1, int(ends[-1]) - 1)], side="right")
        keys = (self._run.keys[places] << self._shift) + (1 << self._shift >> 1)
        values = (self._order.bin_values if self._shift else self._order.values)(keys).tolist()
        low, high = (min(max(value, self.minimum), self.maximum) for value in values)
        return float(low) if low == high or not weight else low * (1.0 - weight) + high * weight

    def histogram(self, n_bins: int) -> tuple[list[float], list[int]]:
        """Return the upper limits of all bins but the last one, and the counts of all.

        If there are at most ``n_bins`` distinct keys, each is a bin. The counts are exact also where keys are binned: a
        bin of the histogram consists of whole bins of keys.
        """
        run = self._run if self._shift else _Run.of(self._order.bins(self._run.keys), self._run.counts)
        if not len(run.keys):
            return [], []
        ends = run.ends
        places = np.arange(len(run.keys))
        if len(places) > n_bins:
            n_values = int(ends[-1])
            wanted = [-(-step * n_values // n_bins) for step in range(1, n_bins + 1)]
            places = np.unique(np.searchsorted(ends, wanted))
        keys = (run.keys[places] << self._shift) + ((1 << self._shift) - 1)
        if self._is_number:
            keys[keys == -1] = -2  # the key of -0, which equals 0
        limits = self._order.bin_values(keys).astype(np.float64)
        starts = _starts(limits)  # int64 has more values than float64
        counts = np.diff(ends[places], prepend=0)
        return limits[starts][:-1].tolist(), np.add.reduceat(counts, starts).tolist()

    def number_counts(self) -> dict[float, int] | None:
        """Return how often each number occurs, ascending; None if there are too many, and of moments."""
        if not self._is_number or self._shift:
            return None
        return dict(zip(self._order.values(self._run.keys).tolist(), self._run.counts.tolist(), strict=True))

    def level_counts(self) -> dict[str, int] | None:
        counts = self.number_counts()
        return None if counts is None else _descending({str(self.text(v)): n for v, n in counts.items()})

    def examples(self) -> list[str]:
        if self._shift:
            keys = np.array(self._sample.examples(), np.int64)
        else:
            keys = self._run.keys[np.argsort(-self._run.counts, kind="stable")[:N_EXAMPLES]]
        values = self._order.values(keys).tolist()
        return [str(self.text(v)) for v in values]


class _Texts(_Values):
    """Texts: how often each occurs; with more than `MAX_EXACT` distinct texts, about how many there are."""

    def __init__(self) -> None:
        self._sample = DistinctSample()
        self._counts: dict[bytes, int] | None = {}

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        assert isinstance(column, Levels)
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.levels))
        texts = column.levels.keys()
        used = np.flatnonzero(counts)
        if len(used) < len(texts):
            texts = [texts[code] for code in used.tolist()]
        self._add(texts, counts[used].tolist())

    def _add(self, texts: Sequence[bytes], counts: Sequence[int]) -> None:
        known = self._counts
        if known is None:
            self._sample.add(_hashes_of(texts), texts)
            return
        for text, count in zip(texts, counts, strict=True):
            known[text] = known.get(text, 0) + count
        if len(known) > MAX_EXACT:
            self._counts = None
            self._add(list(known), ())

    def merge(self, other: _Values) -> None:
        assert isinstance(other, _Texts)
        if other._counts is not None:
            self._add(list(other._counts), list(other._counts.values()))
            return
        known, self._counts = self._counts, None
        self._add(list(known or ()), ())
        self._sample.merge(other._sample)

    @property
    def is_exact(self) -> bool:
        return self._counts is not None

    @property
    def n_distinct(self) -> int:
        return len(self._counts) if self._counts is not None else max(MAX_EXACT + 1, self._sample.estimate())

    def level_counts(self) -> dict[str, int] | None:
        if self._counts is None:
            return None
        counts: Counter[str] = Counter()
        for text, count in self._counts.items():
            counts[text.decode("utf-8", "replace")] += count
        return _descending(counts)

    def examples(self) -> list[str]:
        counts = self.level_counts()
        if counts is not None:
            return list(counts)[:N_EXAMPLES]
        return [text.decode("utf-8", "replace") for text in self._sample.examples() if isinstance(text, bytes)]


class _Hashed(_Values):
    """Bytes and vectors: distinct ones are counted by hashes alone; the moments are those of all finite elements."""

    def __init__(self, has_elements: bool) -> None:
        self._sample = DistinctSample()
        self.moments = ExactMoments() if has_elements else None

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        if isinstance(column, Blobs):
            for _, piece in column.pieces(_PIECE_BYTES, _PIECE_ROWS):
                self._sample.add(_hashes_of(piece))
            return
        assert isinstance(column, Vectors) and self.moments is not None
        values = column.values[~column.missing] + np.float32(0.0)
        is_used = np.isfinite(values)
        if not is_used.all():
            rows = np.flatnonzero(~is_used.all(axis=1)).tolist()
            special.update(text_of_number(float(values[row][~is_used[row]][0])) for row in rows)
        if column.absent is not None:
            absent = column.absent[~column.missing]
            is_used &= ~absent
            elements = values[is_used]
            values = np.where(absent, np.float32("nan"), values)  # to be counted apart from 0
        else:
            elements = values.ravel() if is_used.all() else values[is_used]
        if len(elements):
            self._widen(elements.min().item(), elements.max().item())
            self.moments.add(elements)
        self._sample.add(_hashes_of([row.tobytes() for row in values]))

    def merge(self, other: _Values) -> None:
        assert isinstance(other, _Hashed)
        self._sample.merge(other._sample)
        self._widen(other.minimum, other.maximum)
        if self.moments is not None and other.moments is not None:
            self.moments.merge(other.moments)

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def n_distinct(self) -> int:
        return self._sample.estimate()

    def level_counts(self) -> None:
        return None


def _values_of(column: RawColumn) -> _Values:
    """Return an empty state for columns of this class; of numbers, of this form."""
    if isinstance(column, Numbers | Moments):
        return _Ordered(column)
    return _Texts() if isinstance(column, Levels) else _Hashed(isinstance(column, Vectors))


class DistinctSample:
    """The smallest hashes of all values: how many distinct ones there are, about, and a few of them.

    K. Beyer and others, On Synopses for Distinct-Value Estimation Under Multiset Operations, SIGMOD 2007, section 4.1.
    """

    def __init__(self) -> None:
        self._hashes = np.empty(0, np.uint64)
        self._examples: list[tuple[int, int | bytes]] = []

    def add(self, hashes: Hashes, values: Sequence[bytes] | Integers = ()) -> None:
        """Add hashes, (n,), and the values to keep as examples: distinct ones, (n,), or none."""
        rows = np.arange(len(hashes))
        if len(self._hashes) == N_HASHES:  # a greater hash is neither kept nor an example
            rows = np.flatnonzero(hashes < self._hashes[-1])
        if not len(rows):
            return
        if len(rows) > 2 * N_HASHES:  # a part is sorted, if it has enough distinct ones
            few = rows[hashes[rows] <= np.partition(hashes[rows], 2 * N_HASHES)[2 * N_HASHES]]
            if len(_distinct(hashes[few])) >= N_HASHES:
                rows = few
        distinct = _distinct(hashes[rows])
        places = rows[hashes[rows] <= distinct[:N_EXAMPLES][-1]].tolist() if len(values) else []
        self._keep(distinct, [(int(hashes[place]), _plain(values[place])) for place in places])

    def merge(self, other: "DistinctSample") -> None:
        """Add the values of another to these."""
        self._keep(other._hashes, other._examples)

    def _keep(self, hashes: Hashes, examples: Sequence[tuple[int, int | bytes]]) -> None:
        self._hashes = _distinct(np.concatenate([self._hashes, hashes]))[:N_HASHES]
        self._examples = sorted({*self._examples, *examples})[:N_EXAMPLES]

    def estimate(self) -> int:
        """Return how many distinct values there are: all counted below `N_HASHES`, else estimated."""
        if len(self._hashes) < N_HASHES:
            return len(self._hashes)
        return (N_HASHES - 1 << 64) // int(self._hashes[-1])

    def examples(self) -> list[int | bytes]:
        """Return the values with the smallest hashes, in their own order."""
        values: list[int | bytes] = sorted(value for _, value in self._examples)
        return values


def _plain(value: bytes | np.int64) -> bytes | int:
    return value if isinstance(value, bytes) else int(value)


def _hashes_of(texts: Sequence[bytes]) -> Hashes:
    """Return 64 bits for each text, from its CRC-32 and its length: a hash for counting, not against attackers."""
    checks = np.fromiter(map(crc32, texts), np.uint64, len(texts))
    return mixed(checks | np.fromiter(map(len, texts), np.uint64, len(texts)) << np.uint64(32))


def _starts(values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return where each distinct one of ascending values begins, (n,)."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else np.empty(0, np.int64)


def _distinct(hashes: Hashes) -> Hashes:
    """Return the distinct hashes, ascending: several times as fast as `np.unique`."""
    hashes = np.sort(hashes)
    return hashes[_starts(hashes)]


def _text_of_endless(value: int) -> str:
    return "infinity" if value > 0 else "-infinity"


def _descending(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts in descending order, equal ones in the order of their texts."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
