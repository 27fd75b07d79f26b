"""Counts of distinct values, exact where they are few, in bounded memory where they are many; statistics use them.

All states are functions of the multiset of values: rows in any order, in any parts, merged in any order, end in the
same bits.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor
from zlib import crc32

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.raw import Floats, Integers

#: Maximum number of distinct values, or bins of values, with exact counts.
MAX_EXACT = 65_536
#: Hashes that `DistinctSample` keeps: its estimate has a standard error of 1 / sqrt(4096), 1.6 %.
N_HASHES = 4_096
N_EXAMPLES = 5
#: Maximum number of trailing bits of a float64 that a bin ignores: sign, exponent and 10 bits of the mantissa stay.
MAX_FLOAT_SHIFT = 42
#: Most possible bins between the least and the greatest key for which keys are counted without sorting.
_MOST_BINS = 1 << 20
Hashes = npt.NDArray[np.uint64]


def keys_of_floats(values: Floats) -> Integers:
    """Return int64 keys in the order of the values, float64 without NaN; -0 must have been made 0."""
    bits = np.ascontiguousarray(values).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


def floats_of_keys(keys: Integers) -> Floats:
    """Return the values of `keys_of_floats`."""
    return keys_of_floats(keys.view(np.float64)).view(np.float64)


def keys_of_integers(integers: Integers) -> Integers:
    """Return the keys of the float64s that are nearest to some int64; beyond 2^53, several integers have one key."""
    return keys_of_floats(integers.astype(np.float64))


def mixed(keys: npt.NDArray[np.int64] | Hashes) -> Hashes:
    """Return 64 well mixed bits of each key, different for different keys (splitmix64, S. Vigna, 2015)."""
    bits = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class DistinctSample:
    """The smallest hashes of all values: how many distinct ones there are, about, and a few of them.

    K. Beyer and others, On Synopses for Distinct-Value Estimation Under Multiset Operations, SIGMOD 2007, section 4.1.
    """

    def __init__(self) -> None:
        self._hashes = np.empty(0, np.uint64)
        self._examples: list[tuple[int, int | bytes]] = []

    def add(self, hashes: Hashes, values: Sequence[bytes] | Integers) -> None:
        """Add values and their hashes, (n,) each; values may occur several times."""
        start = 0
        while start < len(hashes):  # few hashes of each further part are among the smallest ones
            end = start + max(2 * N_HASHES, start)
            self._add(hashes[start:end], values[start:end])
            start = end

    def _add(self, hashes: Hashes, values: Sequence[bytes] | Integers) -> None:
        rows = np.arange(len(hashes))
        if len(self._hashes) == N_HASHES:  # a greater hash is neither kept nor an example
            rows = np.flatnonzero(hashes < self._hashes[-1])
            if not len(rows):
                return
            hashes = hashes[rows]
        distinct = np.sort(hashes)
        distinct = distinct[np.append(True, distinct[1:] != distinct[:-1])]
        bound = int(distinct[:N_EXAMPLES][-1])
        if len(self._examples) == N_EXAMPLES:
            bound = min(bound, self._examples[-1][0])
        places = np.flatnonzero(hashes <= np.uint64(bound))
        if isinstance(values, np.ndarray):  # those with equal hashes are equal
            places = places[np.unique(hashes[places], return_index=True)[1]]
        found: list[tuple[int, int | bytes]] = []
        for place in places.tolist():
            value = values[int(rows[place])]
            found.append((int(hashes[place]), value if isinstance(value, bytes) else int(value)))
        self._keep(distinct, found)

    def merge(self, other: "DistinctSample") -> None:
        """Add the values of another to these."""
        self._keep(other._hashes, other._examples)

    def _keep(self, hashes: Hashes, examples: list[tuple[int, int | bytes]]) -> None:
        if len(self._hashes) == N_HASHES:
            hashes = hashes[hashes < self._hashes[-1]]
        if len(hashes):
            every = np.sort(np.concatenate([self._hashes, hashes]))
            self._hashes = every[np.append(True, every[1:] != every[:-1])][:N_HASHES]
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


class LevelCounts:
    """How often each text occurs; with more than `MAX_EXACT` distinct texts, about how many there are."""

    def __init__(self) -> None:
        self.sample = DistinctSample()
        self.counts: dict[bytes, int] | None = {}

    def add(self, texts: Sequence[bytes], counts: Sequence[int]) -> None:
        """Add distinct texts and how often each occurs, (n,) each."""
        if self.counts is None:
            self._sample(texts)
            return
        known = self.counts
        for text, count in zip(texts, counts, strict=True):
            known[text] = known.get(text, 0) + count
        if len(known) > MAX_EXACT:
            self.counts = None
            self._sample(list(known))

    def merge(self, other: "LevelCounts") -> None:
        """Add the texts of another to these."""
        if other.counts is not None:
            self.add(list(other.counts), list(other.counts.values()))
            return
        if self.counts is not None:
            self._sample(list(self.counts))
            self.counts = None
        self.sample.merge(other.sample)

    @property
    def n_distinct(self) -> int:
        """Number of distinct texts, an estimate where there are no counts."""
        return len(self.counts) if self.counts is not None else max(MAX_EXACT + 1, self.sample.estimate())

    def _sample(self, texts: Sequence[bytes]) -> None:
        self.sample.add(hashes_of(texts), texts)


def hashes_of(texts: Sequence[bytes]) -> Hashes:
    """Return 64 bits for each text, from its CRC-32 and its length: a hash for counting, not against attackers."""
    checks = np.fromiter(map(crc32, texts), np.uint64, len(texts))
    return mixed(checks | np.fromiter(map(len, texts), np.uint64, len(texts)) << np.uint64(32))


class ValueCounts:
    """How often each value occurs, as int64 keys; with more than `MAX_EXACT` distinct keys, in bins of keys.

    A bin leaves out so few trailing bits of its keys that at most `MAX_EXACT` bins have values. So bins are narrow
    where the values are, whatever their range.

    Parameters
    ----------
    max_shift : int
        Bits that are left out at most, even if more than `MAX_EXACT` bins have values.
    to_bins : callable or None
        From keys to those of which bins leave out bits, in the same order; None: they are the same. Bins of integers
        are as wide as their values, if these are the keys of floats.
    """

    def __init__(self, max_shift: int = 63, to_bins: Callable[[Integers], Integers] | None = None):
        self.shift = 0
        self.sample = DistinctSample()
        self._max_shift = max_shift
        self._to_bins = to_bins
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._pending: list[tuple[Integers, Integers]] = []
        self._n_pending = 0

    def add(self, keys: Integers, counts: Integers) -> None:
        """Add distinct ascending keys and how often each occurs, int64 (n,) each."""
        if self.shift:
            self.sample.add(mixed(keys), keys)
            keys, counts = _added_up(self._of_bins(keys) >> self.shift, counts)
        self._pending.append((keys, counts))
        self._n_pending += len(keys)
        if self._n_pending > max(MAX_EXACT, len(self._keys)):
            self._flush()

    def add_to_bins(self, keys: Integers) -> bool:
        """Add keys in any order, int64 (n,), n > 0, and return True; False, without adding, if they must be sorted."""
        if not self.shift:
            return False
        bins = self._of_bins(keys) >> self.shift
        least = int(bins.min())
        if int(bins.max()) - least >= _MOST_BINS:
            return False
        self.sample.add(mixed(keys), keys)
        counts = np.bincount(bins - least)
        used = np.flatnonzero(counts)
        self._pending.append((used + least, counts[used]))
        self._flush()
        return True

    def merge(self, other: "ValueCounts") -> None:
        """Add the keys of another to these."""
        self._flush()
        other._flush()
        keys, counts = other._keys, other._counts
        if not other.shift:
            self.add(keys, counts)
            return
        self._leave_out(max(self.shift, other.shift))
        self.sample.merge(other.sample)
        self._pending.append(_added_up(keys >> (self.shift - other.shift), counts))
        self._flush()

    @property
    def is_exact(self) -> bool:
        """Whether every distinct key is counted for itself."""
        self._flush()
        return not self.shift

    @property
    def n_distinct(self) -> int:
        """Number of distinct keys, an estimate if not `is_exact`."""
        return len(self._keys) if self.is_exact else max(MAX_EXACT + 1, self.sample.estimate())

    def items(self) -> tuple[Integers, Integers]:
        """Return the keys (or bins: keys without their last ``shift`` bits) and their counts, ascending, (n,) each."""
        self._flush()
        return self._keys, self._counts

    def quantile(self, q: float) -> tuple[int, int, float] | None:
        """Return the keys below and above a quantile, and the weight of the upper one; None without values.

        The quantile of n values is at position q (n - 1) among them, between two of them as a rule (definition 7 of
        R. J. Hyndman and Y. Fan, 1996; ``percentile_cont``). A bin's key is its middle.
        """
        keys, counts = self.items()
        if not len(keys):
            return None
        ends = np.cumsum(counts)
        position = Fraction(q) * (int(ends[-1]) - 1)
        first = floor(position)
        places = np.searchsorted(ends, [first, min(first + 1, int(ends[-1]) - 1)], side="right")
        low, high = ((int(keys[place]) << self.shift) + (1 << self.shift >> 1) for place in places.tolist())
        return low, high, float(position - first)

    def histogram(self, n_bins: int) -> tuple[Integers, Integers]:
        """Return the greatest key of each of at most ``n_bins`` bins and how many values it has, int64 (n,) each.

        The keys are those that ``to_bins`` returns. The bins have about equally many values. If there are at most
        ``n_bins`` distinct keys, each is a bin. The counts are exact also where keys are binned: a bin of the histogram
        consists of whole bins of keys.
        """
        keys, counts = self.items()
        if not self.shift:
            keys, counts = _added_up(self._of_bins(keys), counts)
        ends = np.cumsum(counts)
        places = np.arange(len(keys))
        if len(keys) > n_bins:
            n_values = int(ends[-1])
            wanted = [-(-step * n_values // n_bins) for step in range(1, n_bins + 1)]
            places = np.unique(np.searchsorted(ends, wanted))
        return (keys[places] << self.shift) + ((1 << self.shift) - 1), np.diff(ends[places], prepend=0)

    def _flush(self) -> None:
        """Add up what is pending, and leave out more bits where there are too many keys."""
        if not self._pending:
            return
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._pending)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._pending)])
        self._pending, self._n_pending = [], 0
        order = np.argsort(keys, kind="stable")  # which merges what is ascending already
        self._keys, self._counts = _added_up(keys[order], counts[order])
        if len(self._keys) > MAX_EXACT and not self.shift:
            self._leave_out(1)
        if len(self._keys) > MAX_EXACT:  # neighbours that differ only in the ignored bits share a bin
            differences = (self._keys[1:] ^ self._keys[:-1]).view(np.uint64)
            least_kept = int(np.partition(differences, -MAX_EXACT)[-MAX_EXACT])
            self._leave_out(min(self.shift + least_kept.bit_length(), self._max_shift))

    def _leave_out(self, shift: int) -> None:
        if shift == self.shift:
            return
        if not self.shift:
            self.sample.add(mixed(self._keys), self._keys)
            self._keys = self._of_bins(self._keys)
        self._keys, self._counts = _added_up(self._keys >> (shift - self.shift), self._counts)
        self.shift = shift

    def _of_bins(self, keys: Integers) -> Integers:
        return keys if self._to_bins is None else self._to_bins(keys)


class FewestDigits:
    """The fewest digits after the point that each number was written with; nothing beyond `MAX_EXACT` numbers."""

    def __init__(self) -> None:
        self._values: Floats = np.empty(0)
        self._digits = np.empty(0, np.int16)
        self.is_full = False

    def add(self, values: Floats, digits: npt.NDArray[np.int16]) -> None:
        """Add numbers and the digits of each, (n,) each."""
        start = 0
        while start < len(values) and not self.is_full:
            end = start + MAX_EXACT
            self._add(values[start:end], digits[start:end])
            start = end

    def merge(self, other: "FewestDigits") -> None:
        """Add the numbers of another to these."""
        if other.is_full:
            self._fill()
        else:
            self.add(other._values, other._digits)

    def of(self, value: float) -> int | None:
        """Return the digits of a number; None if they are not known."""
        place = int(np.searchsorted(self._values, value))
        is_known = place < len(self._values) and self._values[place] == value
        return int(self._digits[place]) if is_known else None

    def _add(self, values: Floats, digits: npt.NDArray[np.int16]) -> None:
        if (digits == digits[0]).all():  # as in a column of numeric(p, s)
            values = np.unique(values)
            digits = np.full(len(values), digits[0], np.int16)
        every, digits = np.concatenate([self._values, values]), np.concatenate([self._digits, digits])
        order = np.lexsort((digits, every))
        every = every[order]
        is_first = np.append(True, every[1:] != every[:-1])
        self._values, self._digits = every[is_first], digits[order][is_first]
        if len(self._values) > MAX_EXACT:
            self._fill()

    def _fill(self) -> None:
        self._values, self._digits, self.is_full = np.empty(0), np.empty(0, np.int16), True


def _added_up(keys: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Return the distinct ones of ascending keys, and the sum of the counts of each."""
    if not len(keys):
        return keys, counts
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    if len(starts) == len(keys):
        return keys, counts
    return keys[starts], np.add.reduceat(counts, starts)
