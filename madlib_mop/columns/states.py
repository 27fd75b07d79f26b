"""States of `ColumnStatistics`, one for each class of raw columns: rows and other states are added to them."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.exact import CHUNK_ROWS, ExactMoments
from madlib_mop.columns.raw import (
    BEGIN,
    END,
    INT8,
    MOMENT,
    NUMERIC,
    SPAN,
    Integers,
    Levels,
    Moments,
    Numbers,
    RawColumn,
    Vectors,
    sql_text,
    text_of_number,
)
from madlib_mop.columns.sketch import (
    MAX_FLOAT_SHIFT,
    N_EXAMPLES,
    DistinctSample,
    FewestDigits,
    LevelCounts,
    ValueCounts,
    floats_of_keys,
    hashes_of,
    keys_of_floats,
    keys_of_integers,
)

#: Most bytes and values that are hashed at once.
_PIECE_BYTES, _PIECE_ROWS = 16 << 20, 10_000
#: Values that are added to bins at once.
_BINNED_ROWS = 1 << 20
_EPOCH = datetime(2000, 1, 1)
Values = npt.NDArray[np.float64] | npt.NDArray[np.int64]


class ColumnState:
    """The state of one class of columns."""

    def __init__(self) -> None:
        self._minimum: float | None = None
        self._maximum: float | None = None

    def limits(self) -> tuple[float | None, float | None]:
        """Return the least and the greatest finite value."""
        return self._minimum, self._maximum

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        raise NotImplementedError

    def merge(self, other: "ColumnState") -> None:
        raise NotImplementedError

    def n_distinct(self) -> int:
        raise NotImplementedError

    def distinct_is_exact(self) -> bool:
        raise NotImplementedError

    def moments(self) -> ExactMoments | None:
        return None

    def level_counts(self, family: str) -> dict[str, int] | None:
        return None

    def examples(self, family: str) -> list[str]:
        return []

    def _widen(self, minimum: float | None, maximum: float | None) -> None:
        if minimum is not None and maximum is not None:
            self._minimum = minimum if self._minimum is None else min(self._minimum, minimum)
            self._maximum = maximum if self._maximum is None else max(self._maximum, maximum)


class OrderedState(ColumnState):
    """Values that have an order and moments; rows wait until there are enough of them to be added together."""

    def __init__(self, counts: ValueCounts):
        super().__init__()
        self._moments = ExactMoments()
        self._counts = counts
        self._waiting: list[Values] = []
        self._n_waiting = 0

    def _keys(self, values: Values) -> Integers:
        raise NotImplementedError

    def _value(self, key: int) -> float:
        raise NotImplementedError

    def _wait(self, values: Values) -> None:
        self._waiting.append(values)
        self._n_waiting += len(values)
        if self._n_waiting >= CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._n_waiting:
            return
        values: npt.NDArray[Any] = np.concatenate(self._waiting)
        self._waiting, self._n_waiting = [], 0
        start, may_fit = 0, True
        while start < len(values):
            if may_fit and self._counts.shift:
                may_fit = self._add_binned(values[start : start + _BINNED_ROWS])
                if may_fit:
                    start += _BINNED_ROWS
                    continue
            self._add_sorted(np.sort(values[start : start + CHUNK_ROWS]))
            start += CHUNK_ROWS

    def _add_binned(self, values: Values) -> bool:
        """Add values in any order to bins, without sorting them; return whether there are few enough bins for that."""
        if not self._counts.add_to_bins(self._keys(values)):
            return False
        self._widen(values.min().item(), values.max().item())
        self._moments.add(values)
        return True

    def _add_sorted(self, values: Values) -> None:
        """Add ascending values."""
        starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
        counts = np.diff(starts, append=len(values))
        distinct = values[starts]
        self._widen(distinct[0].item(), distinct[-1].item())
        self._moments.add_sorted(distinct, None if len(distinct) == len(values) else counts)
        self._counts.add(self._keys(distinct), counts)

    def merge(self, other: ColumnState) -> None:
        assert isinstance(other, OrderedState)
        self._flush()
        other._flush()
        self._moments.merge(other._moments)
        self._counts.merge(other._counts)
        self._widen(*other.limits())

    def limits(self) -> tuple[float | None, float | None]:
        self._flush()
        return super().limits()

    def moments(self) -> ExactMoments:
        self._flush()
        return self._moments

    def n_distinct(self) -> int:
        self._flush()
        return self._counts.n_distinct

    def distinct_is_exact(self) -> bool:
        self._flush()
        return self._counts.is_exact

    def quantile(self, q: float) -> float | None:
        self._flush()
        found = self._counts.quantile(q)
        if found is None or self._minimum is None or self._maximum is None:
            return None
        low, high = (min(max(self._middle(key), self._minimum), self._maximum) for key in found[:2])
        weight = found[2]
        return float(low) if low == high or not weight else low * (1.0 - weight) + high * weight

    def histogram(self, n_bins: int) -> tuple[list[float], list[int]]:
        """Return the upper limits of all bins but the last one, and the counts of all."""
        self._flush()
        keys, counts = self._counts.histogram(n_bins)
        limits = np.array([self._limit(key) for key in keys.tolist()], np.float64)
        if not len(limits):
            return [], []
        starts = np.flatnonzero(np.append(True, limits[1:] != limits[:-1]))  # int64 has more values than float64
        return limits[starts][:-1].tolist(), np.add.reduceat(counts, starts).tolist()

    def _middle(self, key: int) -> float:
        """Return the value of a key, or of the middle of a bin."""
        return self._value(key)

    def _limit(self, key: int) -> float:
        """Return the value of the greatest key of a bin of a histogram."""
        return self._value(key)

    def _frequent(self) -> list[int]:
        """Return the keys of examples."""
        self._flush()
        if not self._counts.is_exact:
            return [key for key in self._counts.sample.examples() if isinstance(key, int)]
        keys, counts = self._counts.items()
        return [int(key) for key in keys[np.argsort(-counts, kind="stable")[:N_EXAMPLES]]]


class NumberState(OrderedState):
    """Numbers and booleans.

    Parameters
    ----------
    form : str or None
        Of the column, as `Numbers` has it: how its numbers are written.
    """

    def __init__(self, form: str | None = None, counts: ValueCounts | None = None):
        super().__init__(counts or ValueCounts(MAX_FLOAT_SHIFT))
        self.form = form
        self._is_integral = True

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        assert isinstance(column, Numbers)
        values = column.values if not column.missing.any() else column.values[~column.missing]
        finite = np.isfinite(values)
        if not finite.all():
            special.update(text_of_number(value) for value in values[~finite].tolist())
            values = values[finite]
        self._is_integral = self._is_integral and bool((values == np.rint(values)).all())
        self._wait(values + 0.0)

    def merge(self, other: ColumnState) -> None:
        super().merge(other)
        assert isinstance(other, NumberState)
        self._is_integral = self._is_integral and other._is_integral

    def is_integral(self) -> bool:
        self._flush()
        return self._is_integral

    def _keys(self, values: Values) -> Integers:
        return keys_of_floats(values.astype(np.float64, copy=False))

    def _value(self, key: int) -> float:
        return self._values(np.array([key], np.int64))[0]

    def _values(self, keys: Integers) -> list[float]:
        return _floats(keys)

    def _limit(self, key: int) -> float:
        return _float(min(key, -2) if key < 0 else key)  # -1 is the key of -0, which equals 0

    def number_counts(self) -> dict[float, int] | None:
        """Return how often each number occurs, ascending; None if there are too many."""
        self._flush()
        if not self._counts.is_exact:
            return None
        keys, counts = self._counts.items()
        return dict(zip(self._values(keys), counts.tolist(), strict=True))

    def level_counts(self, family: str) -> dict[str, int] | None:
        counts = self.number_counts()
        return None if counts is None else _descending({self.text(v, family): n for v, n in counts.items()})

    def examples(self, family: str) -> list[str]:
        return [self.text(self._value(key), family) for key in self._frequent()]

    def text(self, value: float, family: str) -> str:
        """Return a value of the column as SQL prints it."""
        return sql_text(value, self.form, family)


class IntegerState(NumberState):
    """Numbers of ``bigint``, which float64 does not tell apart beyond 2^53; their bins are those of floats."""

    def __init__(self) -> None:
        super().__init__(INT8, ValueCounts(MAX_FLOAT_SHIFT, keys_of_integers))

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        assert isinstance(column, Numbers)
        values = column.integers()
        assert values is not None, "the column is of this form"
        self._wait(values if not column.missing.any() else values[~column.missing])

    def _keys(self, values: Values) -> Integers:
        return values.astype(np.int64, copy=False)

    def _values(self, keys: Integers) -> list[float]:
        found: list[float] = keys.tolist()
        return found

    def _middle(self, key: int) -> float:
        return key if self._counts.is_exact else _float(key)


class NumericState(NumberState):
    """Numbers of ``numeric``; of equal ones, such as 1.5 and 1.50, the text with the fewest digits stands for all."""

    def __init__(self) -> None:
        super().__init__(NUMERIC)
        self._digits = FewestDigits()

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        super().add(column, special)
        assert isinstance(column, Numbers) and column.rest is not None, "readers add the digits"
        if not self._digits.is_full:
            present = ~column.missing & np.isfinite(column.values)
            self._digits.add(column.values[present] + 0.0, column.rest[present])

    def merge(self, other: ColumnState) -> None:
        super().merge(other)
        assert isinstance(other, NumericState)
        self._digits.merge(other._digits)

    def text(self, value: float, family: str) -> str:
        """Return a value of the column as SQL prints it."""
        return sql_text(value, self.form, family, self._digits.of(value))


class MomentState(OrderedState):
    """Moments, times and spans."""

    def __init__(self) -> None:
        super().__init__(ValueCounts())

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        assert isinstance(column, Moments)
        values = column.values if not column.missing.any() else column.values[~column.missing]
        for end, text in ((BEGIN, "-infinity"), (END, "infinity")):
            endless = values == end
            if endless.any():
                special[text] += int(np.count_nonzero(endless))
                values = values[~endless]
        self._wait(values)

    def _keys(self, values: Values) -> Integers:
        return values.astype(np.int64, copy=False)

    def _value(self, key: int) -> float:
        return key

    def examples(self, family: str) -> list[str]:
        return [text_of_moment(key, family) for key in self._frequent()]


class LevelState(ColumnState):
    """Texts."""

    def __init__(self) -> None:
        super().__init__()
        self._levels = LevelCounts()

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        assert isinstance(column, Levels)
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.levels))
        texts = column.levels.keys()
        used = np.flatnonzero(counts)
        if len(used) < len(texts):
            texts = [texts[code] for code in used.tolist()]
        self._levels.add(texts, counts[used].tolist())

    def merge(self, other: ColumnState) -> None:
        assert isinstance(other, LevelState)
        self._levels.merge(other._levels)

    def n_distinct(self) -> int:
        return self._levels.n_distinct

    def distinct_is_exact(self) -> bool:
        return self._levels.counts is not None

    def level_counts(self, family: str) -> dict[str, int] | None:
        if self._levels.counts is None:
            return None
        counts: Counter[str] = Counter()
        for text, count in self._levels.counts.items():
            counts[text.decode("utf-8", "replace")] += count
        return _descending(counts)

    def examples(self, family: str) -> list[str]:
        counts = self.level_counts(family)
        if counts is not None:
            return list(counts)[:N_EXAMPLES]
        return [text.decode("utf-8", "replace") for text in self._levels.sample.examples() if isinstance(text, bytes)]


class HashedState(ColumnState):
    """Bytes: distinct ones are counted by hashes alone."""

    def __init__(self) -> None:
        super().__init__()
        self._sample = DistinctSample()

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        assert isinstance(column, Blobs)
        for _, values in column.pieces(_PIECE_BYTES, _PIECE_ROWS):
            self._count(values)

    def _count(self, rows: list[bytes]) -> None:
        hashes = hashes_of(rows)
        self._sample.add(hashes, hashes.view(np.int64))

    def merge(self, other: ColumnState) -> None:
        assert isinstance(other, HashedState)
        self._sample.merge(other._sample)
        self._widen(*other.limits())

    def n_distinct(self) -> int:
        return self._sample.estimate()

    def distinct_is_exact(self) -> bool:
        return False


class VectorState(HashedState):
    """Vectors: rows are counted as bytes are; the moments are those of all finite elements."""

    def __init__(self) -> None:
        super().__init__()
        self._moments = ExactMoments()

    def add(self, column: RawColumn, special: Counter[str]) -> None:
        assert isinstance(column, Vectors)
        values = column.values[~column.missing] + np.float32(0.0)
        elements = values.ravel()
        finite = np.isfinite(values)
        if not finite.all():
            rows = np.flatnonzero(~finite.all(axis=1)).tolist()
            special.update(text_of_number(float(values[row][~finite[row]][0])) for row in rows)
            elements = values[finite]
        if column.absent is not None:
            absent = column.absent[~column.missing]
            elements = values[finite & ~absent]
            values = np.where(absent, np.float32("nan"), values)  # to be counted apart from 0
        if len(elements):
            self._widen(elements.min().item(), elements.max().item())
            self._moments.add(elements)
        self._count([row.tobytes() for row in values])

    def merge(self, other: ColumnState) -> None:
        super().merge(other)
        assert isinstance(other, VectorState)
        self._moments.merge(other._moments)

    def moments(self) -> ExactMoments:
        return self._moments


_STATES: dict[type, Callable[[], ColumnState]] = {
    Moments: MomentState,
    Levels: LevelState,
    Vectors: VectorState,
    Blobs: HashedState,
}


def state_of(column: RawColumn) -> ColumnState:
    """Return an empty state for columns of this class; of numbers, of this form."""
    if isinstance(column, Numbers):
        if column.form == INT8:
            return IntegerState()
        return NumericState() if column.form == NUMERIC else NumberState(column.form)
    return _STATES[type(column)]()


def _floats(keys: Integers) -> list[float]:
    found: list[float] = floats_of_keys(keys).tolist()
    return found


def _float(key: int) -> float:
    return _floats(np.array([key], np.int64))[0]


def text_of_moment(value: int, family: str = MOMENT) -> str:
    """Return microseconds as text: a date, a date and time, a time, or days and a time; beyond year 9999 a number."""
    if family == MOMENT:
        try:
            moment = _EPOCH + timedelta(microseconds=value)
        except OverflowError:
            return f"{value} microseconds since 2000-01-01"
        return moment.isoformat(" ") if moment.time() != datetime.min.time() else moment.date().isoformat()
    days, rest = divmod(abs(value), 86_400_000_000)
    if family != SPAN:  # a time of day, which may be 24:00:00
        days, rest = 0, abs(value)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    clock += f".{fraction:06d}" if fraction else ""
    text = f"{days} days {clock}" if days else clock
    return f"-{text}" if value < 0 else text


def _descending(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts in descending order, equal ones in the order of their texts."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
