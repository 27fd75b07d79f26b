"""Readers of numbers, booleans, dates and times in PostgreSQL's binary form; `records` uses them.

The forms are those of the types' send functions (``src/backend/utils/adt``): big-endian integers and IEEE floats,
dates as int32 days and timestamps as int64 microseconds since 2000-01-01, times as int64 microseconds since midnight,
intervals as int64 microseconds, int32 days and int32 months, numerics as in ``numeric_send``.
"""

import struct
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.cells import Cells, UnreadableValue, wrong_length
from madlib_mop.columns.raw import (
    BEGIN,
    END,
    INT8,
    MOMENT,
    NUMBER,
    NUMERIC,
    SPAN,
    TIME,
    Flags,
    Floats,
    Integers,
    Moments,
    Numbers,
    RawColumn,
)

#: Greatest number below which float64, as which numbers are read, tells all whole numbers apart.
EXACT = 2**53
DAY_US = 86_400_000_000
#: A month of an interval: 30.4375 days, a twelfth of 365.25.
MONTH_US = 2_629_800_000_000
#: Days that fit into int64 microseconds, except the values `BEGIN` and `END`.
_MAX_DAYS = (2**63 - 2) // DAY_US
_DATE_BEGIN, _DATE_END = -(2**31), 2**31 - 1
_NUMERIC_HEADER = 8
_NEGATIVE = 0x4000
#: The bits of a numeric's fourth int16 that are its digits after the point.
_SCALE = 0x3FFF
_NUMERIC_SPECIAL = {0xC000: float("nan"), 0xD000: float("inf"), 0xF000: float("-inf")}
#: The digits of a numeric, in base 10,000, as text.
_DIGITS = [f"{digit:04d}" for digit in range(10_000)]
#: 10^(4 k) for k = 0..5, which are exact in float64.
_POWERS = np.array([1.0, 1e4, 1e8, 1e12, 1e16, 1e20])
_LONG_POWERS = np.array([np.longdouble(10) ** (4 * k) for k in range(7)])
_HAS_LONG = np.finfo(np.longdouble).nmant >= 63
Wholes = npt.NDArray[np.uint64]


class CellReader(ABC):
    """Reads the cells of one type.

    ``family`` is the family of the columns that it makes (`madlib_mop.columns.families`). ``n_bytes`` is the width of
    every value, or None. ``read`` takes many rows at once. ``one`` takes the bytes of one value, and ``column`` makes a
    column of such values (None is NULL): this is faster for a few rows. ``of_array`` takes values as they lie in the
    memory of an array, if ``native`` has NumPy's name of their type there. All give the same bits.
    """

    family: str
    n_bytes: int | None = None
    native: str | None = None

    @abstractmethod
    def read(self, cells: Cells) -> RawColumn:
        """Return the column of a batch's cells."""

    @abstractmethod
    def one(self, value: bytes) -> object:
        """Return one value; raise ValueError with the problem if it cannot be used."""

    @abstractmethod
    def column(self, values: list[object], name: str) -> RawColumn:
        """Return the column of values that `one` returned."""

    def of_array(self, values: npt.NDArray[Any], missing: Flags, name: str) -> RawColumn:
        """Return the column of values of the type ``native``, which are 0 where NULL: (n_rows,) each."""
        raise NotImplementedError


class NumberReader(CellReader):
    """Reads numbers of a fixed width: integers, floats, booleans, oids.

    Parameters
    ----------
    dtype : str
        NumPy's name, big-endian: ``>i4``.
    family : str
        ``number`` or ``boolean``.
    form : str, optional
        As `Numbers` has it.
    """

    def __init__(self, dtype: str, family: str = NUMBER, form: str | None = None):
        self.dtype = dtype
        self.family = family
        self.form = form
        self.native = dtype[1:]
        self.n_bytes: int = np.dtype(dtype).itemsize
        codes = {">i2": ">h", ">i4": ">i", ">i8": ">q", ">u4": ">I", ">f4": ">f", ">f8": ">d", "|u1": ">B"}
        self._unpack = struct.Struct(codes[dtype]).unpack

    def values(self, cells: Cells) -> Floats:
        """Return the values, float64 (n_rows,), 0 where NULL."""
        cells.require_bytes(self.n_bytes)
        values = cells.gather(self.dtype).astype(np.float64)
        if cells.missing.any():
            values[cells.missing] = 0.0
        return values

    def read(self, cells: Cells) -> Numbers:
        """Return the numbers of a batch."""
        return Numbers(self.values(cells), cells.missing, self.family, self.form)

    def of_array(self, values: npt.NDArray[Any], missing: Flags, name: str) -> Numbers:
        """Return the numbers of an array."""
        return Numbers(values.astype(np.float64), missing, self.family, self.form)

    def one(self, value: bytes) -> object:
        """Return one number."""
        return self.number(value)

    def number(self, value: bytes) -> float:
        """Return one number as float64."""
        if len(value) != self.n_bytes:
            raise ValueError(wrong_length(len(value), self.n_bytes))
        return float(self._unpack(value)[0])

    def column(self, values: list[object], name: str) -> Numbers:
        """Return a column of a few numbers."""
        missing = np.array([value is None for value in values], np.bool_)
        found = np.array([0.0 if value is None else value for value in values], np.float64)
        return Numbers(found, missing, self.family, self.form)


class BigintReader(NumberReader):
    """Reads ``bigint``, and keeps what float64 does not have of integers beyond 2^53."""

    def __init__(self) -> None:
        super().__init__(">i8", form=INT8)

    def read(self, cells: Cells) -> Numbers:
        """Return the numbers of a batch."""
        cells.require_bytes(self.n_bytes)
        integers = cells.gather(self.dtype).astype(np.int64)
        if cells.missing.any():
            integers[cells.missing] = 0
        return bigints(integers, cells.missing)

    def of_array(self, values: npt.NDArray[Any], missing: Flags, name: str) -> Numbers:
        """Return the numbers of an array."""
        return bigints(values, missing)

    def one(self, value: bytes) -> int:
        """Return one integer."""
        self.number(value)
        return int.from_bytes(value, "big", signed=True)

    def column(self, values: list[object], name: str) -> Numbers:
        """Return a column of a few integers."""
        missing = np.array([value is None for value in values], np.bool_)
        return bigints(np.array([0 if value is None else value for value in values], np.int64), missing)


def bigints(integers: Integers, missing: npt.NDArray[np.bool_]) -> Numbers:
    """Return integers, int64 (n_rows,), as numbers of the form ``int8``."""
    values = integers.astype(np.float64)
    rest = np.zeros(len(values), np.int16)
    if len(values) and (integers.max() > EXACT or integers.min() < -EXACT):
        # As int64, the float64 2^63 of the greatest integers is -2^63, and the difference wraps back.
        back = np.where(values >= 2.0**63, -(2.0**63), values).astype(np.int64)
        rest = (integers - back).astype(np.int16)
    return Numbers(values, missing, NUMBER, INT8, rest)


class NumericReader(NumberReader):
    """Reads numerics as the nearest float64, as a cast to ``double precision`` does; beyond its range, infinities.

    Up to 2^53 in base-10000 digits and 20 decimal places, one exact multiplication or division of float64 rounds
    correctly (W. D. Clinger, How to Read Floating Point Numbers Accurately, 1990); other values go through text.
    """

    def __init__(self) -> None:
        self.family = NUMBER
        self.form = NUMERIC

    def read(self, cells: Cells) -> Numbers:
        """Return the numbers of a batch."""
        values = self.values(cells)
        digits = (cells.gather(">u2", 6) & _SCALE).astype(np.int16)
        if cells.missing.any():
            digits[cells.missing] = 0
        return Numbers(values, cells.missing, NUMBER, NUMERIC, digits)

    def values(self, cells: Cells) -> Floats:
        """Return the values, float64 (n_rows,), 0 where NULL."""
        header = cells.gather(">u8").astype(np.uint64)
        n_digits = (header >> np.uint64(48)).astype(np.int64)
        n_digits[cells.missing] = 0
        wrong = (cells.lengths != _NUMERIC_HEADER + 2 * n_digits) & ~cells.missing
        if wrong.any():
            raise UnreadableValue(cells.column, int(np.argmax(wrong)), "is no numeric")
        weight = ((header >> np.uint64(32)) & np.uint64(0xFFFF)).astype(np.uint16).view(np.int16).astype(np.int64)
        sign = ((header >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.int64)
        whole = _four_digits(cells, _NUMERIC_HEADER, n_digits)
        power = np.where(n_digits > 0, weight - n_digits + 1, 0)
        simple = (n_digits <= 4) & (whole <= np.uint64(2**53)) & (np.abs(power) <= 5) & (sign <= _NEGATIVE)
        scale = _POWERS[np.clip(np.abs(power), 0, 5)]
        exact = whole.astype(np.float64)
        values: Floats = np.where(power < 0, exact / scale, exact * scale)
        values[sign == _NEGATIVE] *= -1.0
        values[cells.missing] = 0.0
        rows = np.flatnonzero(~simple & ~cells.missing)
        if len(rows):
            try:
                values[rows] = self._long_values(
                    cells.take(rows), whole[rows], n_digits[rows], weight[rows], sign[rows]
                )
            except UnreadableValue as error:
                raise error.at(int(rows[error.row])) from None
        return values

    def _long_values(self, cells: Cells, first: Wholes, n_digits: Integers, weight: Integers, sign: Integers) -> Floats:
        """Return the values of numerics with many digits, from 32 decimal digits where these decide the rounding.

        In a ``longdouble`` of 64 bits, three operations and the digits left out are a relative error below 2^-61. If
        numbers 2^-60 lower and higher round to one float64, that is the nearest. The others go through text.
        """
        n_second = np.clip(n_digits - 4, 0, 4)
        second = _four_digits(cells, _NUMERIC_HEADER + 8, n_second)
        power = weight - np.minimum(n_digits, 8) + 1
        scale = _LONG_POWERS[np.clip(np.abs(power), 0, 6)]
        long = first.astype(np.longdouble) * _LONG_POWERS[n_second] + second.astype(np.longdouble)
        long = np.where(power < 0, long / scale, long * scale)
        slack = np.longdouble(2.0**-60)
        values: Floats = (long * (1 - slack)).astype(np.float64)
        certain = (values == (long * (1 + slack)).astype(np.float64)) & (np.abs(power) <= 6) & (sign <= _NEGATIVE)
        values[sign == _NEGATIVE] *= -1.0
        for row in np.flatnonzero(~certain).tolist() if _HAS_LONG else range(cells.n_rows):
            try:
                values[row] = self.number(cells.at(row))
            except ValueError as problem:
                raise UnreadableValue(cells.column, row, str(problem)) from None
        return values

    def one(self, value: bytes) -> tuple[float, int]:
        """Return one number, and its digits after the point."""
        return self.number(value), struct.unpack_from(">H", value, 6)[0] & _SCALE

    def column(self, values: list[object], name: str) -> Numbers:
        """Return a column of a few numbers."""
        missing = np.array([value is None for value in values], np.bool_)
        pairs = [value if isinstance(value, tuple) else (0.0, 0) for value in values]
        found = np.array([number for number, _ in pairs], np.float64)
        return Numbers(found, missing, NUMBER, NUMERIC, np.array([digits for _, digits in pairs], np.int16))

    def number(self, value: bytes) -> float:
        """Return one number as float64."""
        if len(value) < _NUMERIC_HEADER or len(value) % 2:
            raise ValueError("is no numeric")
        n_digits, weight, sign, _ = struct.unpack_from(">hhHH", value)
        if sign in _NUMERIC_SPECIAL:
            return _NUMERIC_SPECIAL[sign]
        if len(value) != _NUMERIC_HEADER + 2 * n_digits:
            raise ValueError("is no numeric")
        if not n_digits:
            return 0.0
        try:
            digits = "".join([_DIGITS[digit] for digit in struct.unpack_from(f">{n_digits}H", value, _NUMERIC_HEADER)])
        except IndexError:
            raise ValueError("is no numeric") from None
        return float(f"{'-' if sign == _NEGATIVE else ''}{digits}e{4 * (weight - n_digits + 1)}")


def is_finite_numeric(value: bytes) -> bool:
    """Return whether the bytes of a numeric are those of a finite number, of any size."""
    return struct.unpack_from(">H", value, 4)[0] not in _NUMERIC_SPECIAL


def _four_digits(cells: Cells, offset: int, n_digits: Integers) -> Wholes:
    """Return the number that up to four digits of base 10,000 at ``offset`` make, uint64 (n_rows,)."""
    word = cells.gather(">u8", offset).astype(np.uint64)
    word >>= (16 * (4 - np.clip(n_digits, 1, 4))).astype(np.uint64)
    word[n_digits == 0] = 0
    whole = np.zeros(cells.n_rows, np.uint64)
    for shift in (48, 32, 16, 0):
        digit = (word >> np.uint64(shift)) & np.uint64(0xFFFF)
        if digit.max(initial=0) > 9_999:
            raise UnreadableValue(cells.column, int(np.argmax(digit > 9_999)), "is no numeric")
        whole = whole * np.uint64(10_000) + digit
    return whole


class MomentReader(CellReader):
    """Reads dates, timestamps and times as int64 microseconds; subclasses say how the bytes are meant."""

    family = MOMENT
    n_bytes: int = 8
    native: str | None = "i8"

    def read(self, cells: Cells) -> Moments:
        """Return the moments of a batch."""
        cells.require_bytes(self.n_bytes)
        values = self.values(cells)
        if cells.missing.any():
            values[cells.missing] = 0
        return Moments(values, cells.missing, self.family)

    def of_array(self, values: npt.NDArray[Any], missing: Flags, name: str) -> Moments:
        """Return the moments of an array."""
        return Moments(values.astype(np.int64), missing, self.family)

    def values(self, cells: Cells) -> Integers:
        """Return the values, int64 (n_rows,), any number where NULL."""
        return cells.gather(">i8").astype(np.int64)

    def one(self, value: bytes) -> int:
        """Return one moment."""
        if len(value) != self.n_bytes:
            raise ValueError(wrong_length(len(value), self.n_bytes))
        return self.microseconds(value)

    def microseconds(self, value: bytes) -> int:
        """Return one moment of bytes of the right length."""
        return int.from_bytes(value[:8], "big", signed=True)

    def column(self, values: list[object], name: str) -> Moments:
        """Return a column of a few moments."""
        missing = np.array([value is None for value in values], np.bool_)
        return Moments(np.array([value or 0 for value in values], np.int64), missing, self.family)


class TimeReader(MomentReader):
    """Reads a time of day; of timetz the time at its own offset, which is what it prints."""

    family = TIME

    def __init__(self, n_bytes: int = 8):
        self.n_bytes = n_bytes
        self.native = "i8" if n_bytes == 8 else None  # timetz is no number in memory


class DateReader(MomentReader):
    """Reads dates; a date after the year 294246 does not fit, as it does not fit into a timestamp."""

    n_bytes = 4
    native = "i4"
    _problem = "has a date that no timestamp can hold"

    def values(self, cells: Cells) -> Integers:
        """Return the values, int64 (n_rows,), any number where NULL."""
        days = cells.gather(">i4").astype(np.int64)
        days[cells.missing] = 0
        return self._moments(days, cells.column)

    def of_array(self, values: npt.NDArray[Any], missing: Flags, name: str) -> Moments:
        """Return the moments of an array."""
        return Moments(self._moments(values.astype(np.int64), name), missing, self.family)

    def _moments(self, days: Integers, column: str) -> Integers:
        """Return days, int64 (n_rows,), as microseconds."""
        before, after = days == _DATE_BEGIN, days == _DATE_END
        far = (np.abs(days) > _MAX_DAYS) & ~before & ~after
        if far.any():
            raise UnreadableValue(column, int(np.argmax(far)), self._problem)
        values = np.where(before | after, 0, days) * DAY_US
        values[before] = BEGIN
        values[after] = END
        return values

    def microseconds(self, value: bytes) -> int:
        """Return one moment of bytes of the right length."""
        days = int.from_bytes(value, "big", signed=True)
        if days in (_DATE_BEGIN, _DATE_END):
            return BEGIN if days < 0 else END
        if abs(days) > _MAX_DAYS:
            raise ValueError(self._problem)
        return days * DAY_US


class IntervalReader(MomentReader):
    """Reads intervals as their length: days of 24 hours, months of 30.4375 days."""

    family = SPAN
    n_bytes = 16
    native = None
    _problem = "has an interval of more than 292,000 years"

    def values(self, cells: Cells) -> Integers:
        """Return the values, int64 (n_rows,), any number where NULL."""
        time = cells.gather(">i8").astype(np.int64)
        days = cells.gather(">i4", 8).astype(np.int64)
        months = cells.gather(">i4", 12).astype(np.int64)
        for part in (time, days, months):
            part[cells.missing] = 0
        before = (time == BEGIN) & (days == _DATE_BEGIN) & (months == _DATE_BEGIN)
        after = (time == END) & (days == _DATE_END) & (months == _DATE_END)
        near = time.astype(np.float64) + days.astype(np.float64) * DAY_US + months.astype(np.float64) * MONTH_US
        far = np.flatnonzero((np.abs(near) > 2.0**62) & ~before & ~after)
        for row in far.tolist():
            if abs(self._length(int(time[row]), int(days[row]), int(months[row]))) > END - 1:
                raise UnreadableValue(cells.column, row, self._problem)
        values = time + days * DAY_US + months * MONTH_US  # a part that does not fit wraps around; the sum wraps back
        values[before] = BEGIN
        values[after] = END
        return values

    @staticmethod
    def _length(time: int, days: int, months: int) -> int:
        return time + days * DAY_US + months * MONTH_US

    def microseconds(self, value: bytes) -> int:
        """Return one moment of bytes of the right length."""
        time, days, months = struct.unpack(">qii", value)
        for end, date_end in ((BEGIN, _DATE_BEGIN), (END, _DATE_END)):
            if (time, days, months) == (end, date_end, date_end):
                return end
        length = self._length(time, days, months)
        if abs(length) > END - 1:
            raise ValueError(self._problem)
        return length
