"""Levels of a category to codes and units: an index for an embedding, one-hot, order, frequency, or hash buckets."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Codes of values that are not levels.
NULL, OTHER, FIRST = 0, 1, 2
_FEW = 16


@dataclass(frozen=True)
class CategoryFit:
    """How a category becomes a code or units.

    Attributes
    ----------
    encode : str
        ``index``, ``one_hot``, ``ordinal``, ``hashed`` or ``frequency``.
    levels : tuple of str
        Code 2 and those after it; () for ``hashed``. Code 0 is NULL, code 1 any other level, rare or unseen.
    n_codes : int
        Codes that can occur; of ``hashed``: 0 for NULL, then the buckets.
    width : int
        Units of the embedding; of the other encodings: units.
    fill : str or None
        Level that NULL becomes; None leaves NULL as it is.
    accepts_null : bool
        False if NULL is an error.
    indicator : bool
        Whether one more unit is 1 where the value is NULL: of ``one_hot`` if NULL is a level, of ``ordinal`` if asked.
    units : tuple of float
        The unit of each code of ``ordinal`` and ``frequency``; () for others.
    """

    encode: str
    levels: tuple[str, ...]
    n_codes: int
    width: int
    fill: str | None
    accepts_null: bool
    indicator: bool
    units: tuple[float, ...] = ()


def most_frequent(counts: Mapping[str, int], max_levels: int | None, n_rows: int) -> tuple[str, ...]:
    """Return the levels that are kept, by descending count, then by their bytes.

    Rare levels share code 1, so that it is trained before an unseen level meets it: those with fewer than 2 rows in
    tables of 100 rows or more, and fewer than 5 in tables of 1,000 or more. If all levels are rare, all are kept.

    Parameters
    ----------
    counts : mapping of str to int
        Rows of each level.
    max_levels : int or None
        Most levels to keep.
    n_rows : int
        Rows counted.
    """
    least = 5 if n_rows >= 1_000 else 2 if n_rows >= 100 else 1
    ordered = sorted(counts, key=lambda level: (-counts[level], level.encode()))
    kept = [level for level in ordered if counts[level] >= least] or ordered
    return tuple(kept[:max_levels])


def ordinal_units(n_levels: int) -> tuple[float, ...]:
    """Return the units of codes: levels evenly from 0 to 1, NULL and other levels in the middle."""
    last = max(n_levels - 1, 1)
    return (0.5, 0.5, *(place / last for place in range(n_levels)))


def frequency_units(levels: Sequence[str], counts: Mapping[str, int], n_null: int, n_rows: int) -> tuple[float, ...]:
    """Return the units of codes: the share of the training rows, standardised over those rows; 0 rows for code 1."""
    rows = [n_null, 0, *(counts.get(level, 0) for level in levels)]
    others = n_rows - sum(rows)
    mean = Fraction(sum(count * count for count in rows), n_rows * n_rows)
    variance = sum((count * (Fraction(count, n_rows) - mean) ** 2 for count in rows), others * mean**2) / n_rows
    spread = math.sqrt(variance) or 1.0
    return tuple(float(Fraction(count, n_rows) - mean) / spread for count in rows)


def bucket_of(text: bytes, n_buckets: int) -> int:
    """Return the code of a level by its hash, 1 to n_buckets: the first 8 bytes of BLAKE2b, little-endian."""
    digest = hashlib.blake2b(text, digest_size=8, person=b"madlib_mop cat").digest()
    return 1 + int.from_bytes(digest, "little") % n_buckets


def number_of_level(text: str, is_single: bool = False) -> float | None:
    """Return the number that a level of a numeric or boolean column is; None if it is none.

    Parameters
    ----------
    text : str
    is_single : bool
        Whether the column is of type ``real``, so that its numbers are float32.
    """
    words = {"true": 1.0, "false": 0.0, "t": 1.0, "f": 0.0}
    try:
        number = words[text] if text in words else float(text) + 0.0
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        return float(np.float32(number)) if is_single else number


class LevelCodes:
    """Finds the codes of the values of one column; the tables it makes are kept from call to call.

    Parameters
    ----------
    fit : CategoryFit
    """

    def __init__(self, fit: CategoryFit):
        self.fit = fit
        self._by_text = {level.encode(): FIRST + place for place, level in enumerate(fit.levels)}
        self._null = NULL if fit.fill is None else self._code(fit.fill.encode())
        self._numbers: dict[bool, _CodesOfNumbers] = {}
        self._table: Codes = np.array([self._null], np.int32)
        self._seen: object = None

    def of_levels(self, codes: Codes, levels: Sized, keys: Callable[[], Sequence[bytes]]) -> Codes:
        """Return codes of texts.

        Parameters
        ----------
        codes : numpy.ndarray
            int32 (n,), positions in ``levels``; -1 is NULL.
        levels : object
            A dictionary that grows; while it is the same with as many texts, its table is used again.
        keys : callable
            Returns the distinct texts of ``levels``, UTF-8.

        Returns
        -------
        numpy.ndarray
            int32 (n,), 0 to ``n_codes`` - 1.
        """
        if len(codes) == 1:
            place = codes.item(0)
            return np.array([self._null if place < 0 else self._code(keys()[place])], np.int32)
        if self._seen is not levels or len(self._table) != len(levels) + 1:
            self._table = np.array([*map(self._code, keys()), self._null], np.int32)
            self._seen = levels
        return self._table[codes]

    def of_numbers(self, values: Floats, missing: Flags, is_single: bool = False) -> Codes:
        """Return codes of numbers or booleans: float64 (n,), bool (n,) to int32 (n,).

        Parameters
        ----------
        values, missing : numpy.ndarray
        is_single : bool
            Whether the numbers are of type ``real``: then the level 0.1 is the float32 that is nearest to it.
        """
        numbers = self._numbers.get(is_single)
        if numbers is None:
            numbers = self._numbers[is_single] = _CodesOfNumbers(self.fit, is_single)
        return numbers.of(values, missing, self._null)

    def _code(self, text: bytes) -> int:
        if self.fit.encode == "hashed":
            return bucket_of(text, self.fit.n_codes - 1)
        return self._by_text.get(text, OTHER)


class _CodesOfNumbers:
    """Finds the codes of numbers; two ways, for few and for many of them."""

    def __init__(self, fit: CategoryFit, is_single: bool):
        levels = fit.levels if fit.encode != "hashed" else ()
        numbers = [(number_of_level(level, is_single), FIRST + place) for place, level in enumerate(levels)]
        self._codes = {number: code for number, code in numbers if number is not None}
        known = sorted(self._codes.items())
        self._sorted = np.array([number for number, _ in known]), np.array([code for _, code in known], np.int32)

    def of(self, values: Floats, missing: Flags, null: int) -> Codes:
        """Return int32 (n,); ``null`` is the code of NULL."""
        if len(values) <= _FEW:
            pairs = zip(values.tolist(), missing.tolist(), strict=True)
            found = [null if gone else self._codes.get(value, OTHER) for value, gone in pairs]
            return np.array(found, np.int32)
        numbers, codes = self._sorted
        if not len(numbers):
            return np.where(missing, np.int32(null), np.int32(OTHER))
        place = np.minimum(numbers.searchsorted(values), len(numbers) - 1)
        present = np.where(numbers[place] == values, codes[place], np.int32(OTHER))
        return np.where(missing, np.int32(null), present)
