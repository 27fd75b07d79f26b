"""Sums of float64 and int64 that are exact, so that they do not depend on the order of rows; statistics use them.

A finite float64 is an integer of 53 bits times a power of two, so a sum of them is a long integer in units of 2^-1074,
and a sum of squares one in units of 2^-2148 (U. Kulisch, Computer Arithmetic and Validity, 2013, chapter 8: the long
accumulator). There are two ways to compute it:

- Sorted values with one exponent are neighbours. NumPy adds their mantissas in parts of 18 bits, which no int64
  overflows. Python's integers do the rest, once for each exponent in a chunk.
- Values in any order, if their magnitudes do not differ too much, are cut at the same binary places: a large number is
  added and subtracted again (S. M. Rump, T. Ogita and S. Oishi, Accurate Floating-Point Summation, 2008, section 3).
  float64 adds such parts exactly.
"""

from fractions import Fraction
from math import isqrt

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.raw import Floats, Integers

#: Rows whose parts are summed in int64: 2^16 products below 2^44 fit.
CHUNK_ROWS = 65_536
_UNIT = 1074
#: Values that are cut and summed at once, and bits of a part of them: 2^14 products of 2^36 fit into 53 bits.
#: `np.einsum` adds the products without the threads of a BLAS, for which these are too few.
_FEW_VALUES = 16_384
_PART_BITS = 18
#: Values are sorted if they have more parts, or if the greatest magnitude is outside these limits: sums of products of
#: parts could be infinite, or products subnormal.
_MOST_PARTS = 8
_LEAST, _GREATEST = 2.0**-300, 2.0**500
_MANTISSA = np.int64(2**52 - 1)
Parts = tuple[Integers, Integers, Integers]


class ExactSum:
    """A sum of finite float64.

    The state is one integer: sums of any parts of the rows, merged in any order, are equal.
    """

    def __init__(self) -> None:
        self._units = 0

    def add(self, values: npt.ArrayLike) -> None:
        """Add finite values, float64 of any shape; raise ValueError for NaN and infinities."""
        flat = np.asarray(values, np.float64).ravel()
        for start in range(0, len(flat), CHUNK_ROWS):
            chunk = np.sort(flat[start : start + CHUNK_ROWS])
            self._units += _sums_of_sorted(chunk, None, squares=False)[0]

    def merge(self, other: "ExactSum") -> None:
        """Add another sum to this one."""
        self._units += other._units

    def total(self) -> Fraction:
        """Return the sum."""
        return Fraction(self._units, 1 << _UNIT)


class ExactMoments:
    """Count, sum and sum of squares of finite float64 and float32, or of int64.

    Attributes
    ----------
    count : int
        Number of values.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0
        self._squares = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactMoments) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment] # it changes

    def add(self, values: npt.NDArray[np.floating] | npt.NDArray[np.int64]) -> None:
        """Add values, float64, float32 or int64 (n,), in any order; raise ValueError for NaN and infinities."""
        if values.dtype == np.int64:
            for start in range(0, len(values), CHUNK_ROWS):
                chunk: Integers = values[start : start + CHUNK_ROWS].astype(np.int64, copy=False)
                self._add(len(chunk), _sums_of_integers(chunk, None))
            return
        for start in range(0, len(values), _FEW_VALUES):
            few: Floats = values[start : start + _FEW_VALUES].astype(np.float64)
            found = _sums_of_parts(few.copy())
            self._add(len(few), found if found is not None else _sums_of_sorted(np.sort(few), None))

    def add_sorted(self, values: Floats | Integers, counts: Integers | None = None) -> None:
        """Add ascending values, each as often as ``counts`` says, int64 (n,): `CHUNK_ROWS` in all at most."""
        if not len(values):
            return
        n_values = len(values) if counts is None else int(counts.sum())
        if values.dtype == np.int64:
            self._add(n_values, _sums_of_integers(values.astype(np.int64), counts))
        else:
            self._add(n_values, _sums_of_sorted(values.astype(np.float64, copy=False), counts))

    def merge(self, other: "ExactMoments") -> None:
        """Add the values of another to these."""
        self.count += other.count
        self._sum += other._sum
        self._squares += other._squares

    def total(self) -> Fraction:
        """Return the sum."""
        return Fraction(self._sum, 1 << _UNIT)

    def mean(self) -> float | None:
        """Return the mean, rounded once; None without values."""
        return self._sum / (self.count << _UNIT) if self.count else None

    def variance(self) -> float | None:
        """Return the variance of the population, rounded once; infinity beyond float64; None without values."""
        if not self.count:
            return None
        try:
            return self._spread() / (self.count**2 << 2 * _UNIT)
        except OverflowError:
            return float("inf")

    def std(self) -> float | None:
        """Return the standard deviation of the population, rounded once; None without values."""
        return _square_root(self._spread(), self.count**2 << 2 * _UNIT) if self.count else None

    def _add(self, count: int, sums: tuple[int, int]) -> None:
        self.count += count
        self._sum += sums[0]
        self._squares += sums[1]

    def _spread(self) -> int:
        """Return count^2 times the variance, in units of 2^-2148."""
        return self.count * self._squares - self._sum**2


def _sums_of_sorted(values: Floats, counts: Integers | None, squares: bool = True) -> tuple[int, int]:
    """Return the sum of ascending float64 in units of 2^-1074, and that of their squares in units of 2^-2148."""
    bits = np.ascontiguousarray(values).view(np.int64)
    heads = bits >> 52  # sign and exponent
    starts = np.concatenate([[0], np.flatnonzero(heads[1:] != heads[:-1]) + 1])
    group_heads = heads[starts]
    exponents = group_heads & 0x7FF
    if (exponents == 0x7FF).any():
        raise ValueError("only finite values can be added")
    mantissas = (bits & _MANTISSA) | ((heads & 0x7FF) > 0).astype(np.int64) << 52
    parts = (mantissas >> 36, mantissas >> 18 & 0x3FFFF, mantissas & 0x3FFFF)
    sums = _long_sums(parts, 18, counts, starts)
    signs = np.where(group_heads < 0, -1, 1).tolist()
    shifts = np.maximum(exponents - 1, 0).tolist()
    total = sum(sign * part << shift for sign, part, shift in zip(signs, sums, shifts, strict=True))
    if not squares:
        return total, 0
    squared = _long_squares(parts, 18, counts, starts)
    return total, sum(part << 2 * shift for part, shift in zip(squared, shifts, strict=True))


def _sums_of_parts(rest: Floats) -> tuple[int, int] | None:
    """Return what `_sums_of_sorted` does, of float64 in any order; None if they must be sorted. Overwrites them.

    The first parts are whole multiples of 2^-18 times a power of two that no value exceeds; the next ones are cut 18
    bits lower, until nothing is left. So each sum of parts or of their products is exact, in any order.
    """
    largest = max(rest.max(initial=0.0), -rest.min(initial=0.0))
    if not (_LEAST <= largest <= _GREATEST or largest == 0):  # NaN is not either
        return None
    exponent = int(np.frexp(largest)[1])
    parts: list[Floats] = []
    while rest.any():
        if len(parts) == _MOST_PARTS:
            return None
        exponent -= _PART_BITS
        cut = np.ldexp(1.5, exponent + 52)
        part = rest + cut
        part -= cut
        rest -= part
        parts.append(part)
    total = sum(_units(float(part.sum()), _UNIT) for part in parts)
    squared = 0
    for place, part in enumerate(parts):
        squared += _units(float(np.einsum("i,i", part, part)), 2 * _UNIT)
        squared += sum(2 * _units(float(np.einsum("i,i", part, other)), 2 * _UNIT) for other in parts[:place])
    return total, squared


def _units(value: float, unit: int) -> int:
    """Return a float64 in units of 2^-``unit``."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << unit) // denominator


def _sums_of_integers(values: Integers, counts: Integers | None) -> tuple[int, int]:
    """Return what `_sums_of_sorted` does, of int64."""
    parts = (values >> 42, values >> 21 & 0x1FFFFF, values & 0x1FFFFF)
    starts = np.zeros(1, np.int64)
    return (
        _long_sums(parts, 21, counts, starts)[0] << _UNIT,
        _long_squares(parts, 21, counts, starts)[0] << 2 * _UNIT,
    )


def _long_sums(parts: Parts, n_bits: int, counts: Integers | None, starts: Integers) -> list[int]:
    """Return the sum of each group that begins at ``starts``, of numbers in three parts of ``n_bits``."""
    high, middle, low = (_grouped(part, counts, starts) for part in parts)
    return [(a << 2 * n_bits) + (b << n_bits) + c for a, b, c in zip(high, middle, low, strict=True)]


def _long_squares(parts: Parts, n_bits: int, counts: Integers | None, starts: Integers) -> list[int]:
    """Return the sum of the squares of each group."""
    a, b, c = parts
    products = (a * a, 2 * a * b, 2 * a * c + b * b, 2 * b * c, c * c)
    sums = [_grouped(product, counts, starts) for product in products]
    return [sum(part << (4 - place) * n_bits for place, part in enumerate(group)) for group in zip(*sums, strict=True)]


def _grouped(part: Integers, counts: Integers | None, starts: Integers) -> list[int]:
    sums: list[int] = np.add.reduceat(part if counts is None else part * counts, starts).tolist()
    return sums


def _square_root(numerator: int, denominator: int) -> float:
    """Return the float64 nearest to the square root of a fraction that is not negative."""
    if numerator == 0:
        return 0.0
    shift = max(0, (128 - numerator.bit_length() + denominator.bit_length()) // 2 + 1)
    quotient, rest = divmod(numerator << 2 * shift, denominator)
    root = isqrt(quotient)  # 64 bits or more: the truncated rest only decides on which side of a tie the root is
    below = rest > 0 or root * root < quotient
    return (2 * root + below) / (1 << shift + 1)
