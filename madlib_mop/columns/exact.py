"""Sums of float64 and int64 that are exact, so that they do not depend on the order of rows; statistics use them.

A finite float64 is an integer of 53 bits times a power of two, so a sum of them is a long integer in units of 2^-1074,
and a sum of squares one in units of 2^-2148 (U. Kulisch, Computer Arithmetic and Validity, 2013, chapter 8: the long
accumulator). Values whose magnitudes do not differ too much are cut at the same binary places into parts of 18 bits: a
large number is added and subtracted again (S. M. Rump, T. Ogita and S. Oishi, Accurate Floating-Point Summation, 2008,
section 3). float64 adds such parts and their products exactly, in any order. Other values are sorted and halved until
the magnitudes of each half do.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.raw import Floats, Integers

_UNIT = 1074
_PART_BITS = 18
#: Values that are cut at once, which stay in a core's cache, and rows that they may stand for: 2^17 products of 2^36
#: fit into 53 bits.
_BLOCK_VALUES = 16_384
_BLOCK_ROWS = 1 << 17
#: Values are halved if they have more parts. They are scaled by a power of two if the greatest magnitude is outside
#: these limits: sums of products of parts could be infinite, or products subnormal.
_MOST_PARTS = 8
_LEAST, _GREATEST = 2.0**-300, 2.0**500
_EXACT = 2**53


class ExactMoments:
    """Count, sum and sum of squares of finite float64 and float32, or of int64.

    The state is three integers: those of any parts of the rows, merged in any order, are equal.

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

    def add(self, values: npt.NDArray[np.floating] | Integers, counts: Integers | None = None) -> None:
        """Add values, float64, float32 or int64 (n,), in any order; raise ValueError for NaN and infinities.

        ``counts``, int64 (n,), is how often each occurs; None: once.
        """
        for start in range(0, len(values), _BLOCK_VALUES):
            block = slice(start, start + _BLOCK_VALUES)
            total, squares = _sums(values[block], None if counts is None else counts[block].astype(np.float64))
            self._sum += total
            self._squares += squares
        self.count += len(values) if counts is None else int(counts.sum())

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

    def _spread(self) -> int:
        """Return count^2 times the variance, in units of 2^-2148."""
        return self.count * self._squares - self._sum**2


def _sums(values: npt.NDArray[Any], counts: Floats | None) -> tuple[int, int]:
    """Return the sum of a block in units of 2^-1074, and that of the squares in units of 2^-2148."""
    is_large = values.dtype == np.int64 and not -_EXACT <= int(values.min()) <= int(values.max()) <= _EXACT
    parts, exponent = (_parts_of_integers(values), 0) if is_large else _parts_of_floats(values.astype(np.float64))
    if parts is not None and (len(values) if counts is None else counts.sum()) <= _BLOCK_ROWS:
        return _sums_of_parts(parts, exponent, counts)
    if len(values) == 1:
        value, count = _units(values[0].item(), _UNIT), 1 if counts is None else int(counts[0])
        return count * value, count * value**2
    order = np.argsort(values)
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    sums = [_sums(values[half], None if counts is None else counts[half]) for half in halves]
    return sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]


def _parts_of_floats(rest: Floats) -> tuple[list[Floats] | None, int]:
    """Return parts of 18 bits whose sum, times 2 to an exponent, the values are; None if they have too many.

    The first parts are whole multiples of 2^-18 times a power of two that no value exceeds; the next ones are cut 18
    bits lower, until nothing is left. Overwrites the values.
    """
    largest, scale = float(max(rest.max(), -rest.min())), 0
    if not np.isfinite(largest):
        raise ValueError("only finite values can be added")
    exponent = int(np.frexp(largest)[1])
    if not (_LEAST <= largest <= _GREATEST or largest == 0):
        values, scale, exponent = rest, exponent, 0
        rest = np.ldexp(values, -scale)
        if not (np.ldexp(rest, scale) == values).all():  # small ones lost bits
            return None, 0
    parts: list[Floats] = []
    while rest.any():
        if len(parts) == _MOST_PARTS:
            return None, 0
        exponent -= _PART_BITS
        cut = np.ldexp(1.5, exponent + 52)
        part = rest + cut
        part -= cut
        rest -= part
        parts.append(part)
    return parts, scale


def _parts_of_integers(values: npt.NDArray[Any]) -> list[Floats]:
    mask = (1 << _PART_BITS) - 1
    parts: list[npt.NDArray[Any]] = [values >> 3 * _PART_BITS, *(values >> n * _PART_BITS & mask for n in (2, 1, 0))]
    return [part * 2.0 ** (_PART_BITS * n) for part, n in zip(parts, (3, 2, 1, 0), strict=True)]


def _sums_of_parts(parts: Sequence[Floats], exponent: int, counts: Floats | None) -> tuple[int, int]:
    unit, total, squared = _UNIT + exponent, 0, 0
    for place, part in enumerate(parts):
        weighted = part if counts is None else part * counts
        total += _units(float(weighted.sum()), unit)
        # `np.einsum` adds the products without the threads of a BLAS, for which these are too few
        squared += _units(float(np.einsum("i,i", weighted, part)), 2 * unit)
        squared += sum(2 * _units(float(np.einsum("i,i", weighted, other)), 2 * unit) for other in parts[:place])
    return total, squared


def _units(value: float, unit: int) -> int:
    """Return a number in units of 2^-``unit``."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << unit) // denominator


def _square_root(numerator: int, denominator: int) -> float:
    """Return the float64 nearest to the square root of a fraction that is not negative."""
    if numerator == 0:
        return 0.0
    shift = max(0, (128 - numerator.bit_length() + denominator.bit_length()) // 2 + 1)
    quotient, rest = divmod(numerator << 2 * shift, denominator)
    root = isqrt(quotient)  # 64 bits or more: the truncated rest only decides on which side of a tie the root is
    below = rest > 0 or root * root < quotient
    return (2 * root + below) / (1 << shift + 1)
