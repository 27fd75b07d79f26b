"""128-bit hashes of rows' bytes, a batch at a time; the driver orders and splits rows by them."""

import hashlib
import struct
from collections.abc import Mapping

import numpy as np

from madlib_mop.columns.raw import Integers
from madlib_mop.columns.sketch import Hashes, mixed

#: Rows of 8 to this number of bytes are hashed word by word; all others by SHA-256.
LONGEST = 1024
Bytes = bytes | bytearray | memoryview
_WORD_BYTES = 8
_MOST_WORDS = LONGEST // _WORD_BYTES
#: Words that are mixed at once: they stay in a core's cache.
_BLOCK_WORDS = 16_384
_SHIFT = np.uint64(33)
#: Multipliers of MurmurHash3's finalizer.
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


class RowHasher:
    """Hashes rows; the hash depends on the seed and the row's bytes only, not on the batch.

    A row of 8 to `LONGEST` bytes is read as little-endian words of 8 bytes, and its last 8 bytes as one more word. Each
    word is combined by XOR with a key of its position and mixed by the finalizer ``fmix64`` of MurmurHash3 (A. Appleby,
    2011), a bijection. The first 64 bits are the sum of the mixed words; the second 64 bits are the sum of their
    products with odd constants of their positions (multilinear hashing: D. Lemire and O. Kaser, Strongly Universal
    String Hashing is Fast, 2014). Keys and constants derive from the seed. Both sums are mixed again, with the row's
    length. Rows of any other length have the first 128 bits of the SHA-256 of the seed and their bytes.

    The hash is not cryptographic: someone who knows the seed can make different rows with equal hashes. Their order
    then depends on the order of reading.

    Parameters
    ----------
    seed : int
        Within int64.
    """

    def __init__(self, seed: int):
        self._start = hashlib.sha256(struct.pack(">q", seed))
        base = np.frombuffer(self._start.digest()[:8], "<u8").astype(np.uint64)
        constants = mixed(mixed(np.arange(2 * (_MOST_WORDS + 1), dtype=np.uint64)) ^ base)
        self._keys = constants[: _MOST_WORDS + 1]  # the last one is that of a row's last 8 bytes
        self._factors = constants[_MOST_WORDS + 1 :] | np.uint64(1)

    def of(self, data: Bytes, lengths: Integers) -> Hashes:
        """Return the hashes of a batch's rows.

        Parameters
        ----------
        data : bytes, bytearray or memoryview
            The rows' bytes, one after the other.
        lengths : numpy.ndarray
            int64 (n_rows,), bytes of each row; their sum is at most the length of ``data``.

        Returns
        -------
        numpy.ndarray
            uint64 (n_rows, 2).
        """
        starts = np.cumsum(lengths) - lengths
        hashes = np.empty((len(lengths), 2), np.uint64)
        by_words = (lengths >= _WORD_BYTES) & (lengths <= LONGEST)
        if by_words.any():
            hashes[by_words] = self._by_words(data, starts[by_words], lengths[by_words])
        for row in np.flatnonzero(~by_words).tolist():
            digest = self._start.copy()
            digest.update(data[int(starts[row]) : int(starts[row] + lengths[row])])
            hashes[row] = np.frombuffer(digest.digest()[:16], ">u8")
        return hashes

    def _by_words(self, data: Bytes, starts: Integers, lengths: Integers) -> Hashes:
        sums = np.empty((len(starts), 2), np.uint64)
        n_words = lengths // _WORD_BYTES
        n_common, n_most = int(n_words.min()), int(n_words.max())
        n_rows = _BLOCK_WORDS // n_common
        for start in range(0, len(starts), n_rows):
            block = slice(start, start + n_rows)
            sums[block] = self._sums(_words(data, starts[block], n_common), slice(n_common))
        for place in range(n_common, n_most):
            rows = np.flatnonzero(n_words > place)
            words = _words(data, starts[rows] + _WORD_BYTES * place, 1)
            sums[rows] += self._sums(words, slice(place, place + 1))
        sums += self._sums(_words(data, starts + lengths - _WORD_BYTES, 1), slice(_MOST_WORDS, None))
        first = mixed(sums[:, 0] ^ mixed(lengths))
        return np.stack([first, mixed(sums[:, 1] + first)], axis=1)

    def _sums(self, words: Hashes, places: slice) -> Hashes:
        """Return both sums of the words at some places, uint64 (n_rows, n_places); the words are overwritten."""
        words ^= self._keys[places]
        for factor in (_FIRST, _SECOND):
            words ^= words >> _SHIFT
            words *= factor
        words ^= words >> _SHIFT
        first = words.sum(axis=1)
        words *= self._factors[places]
        return np.stack([first, words.sum(axis=1)], axis=1)


def with_oids(data: Bytes, lengths: Integers, oids: Mapping[int, int]) -> bytearray:
    """Return a batch's records with other oids in some of their fields, so that their hashes do not depend on them.

    Parameters
    ----------
    data : bytes, bytearray or memoryview
        Records that a `RecordReader` has read, one after the other.
    lengths : numpy.ndarray
        int64 (n_rows,), bytes of each.
    oids : mapping of int to int
        Oids by the 0-based places of the fields; not empty.
    """
    changed = bytearray(data)
    words = np.ndarray((len(changed) - 3,), ">u4", changed, 0, (1,))
    at = np.cumsum(lengths) - lengths + 4
    for place in range(max(oids) + 1):
        if place in oids:
            words[at] = oids[place]
        sizes = words[at + 4].view(">i4").astype(np.int64)
        at += 8 + np.maximum(sizes, 0)
    return changed


def _words(data: Bytes, starts: Integers, n_words: int) -> Hashes:
    """Return the words from each start on, uint64 (n_rows, n_words)."""
    n_bytes = _WORD_BYTES * n_words
    gathered: Hashes = np.ndarray((len(data) - n_bytes + 1,), f"V{n_bytes}", data, 0, (1,))[starts]
    return gathered.view("<u8").reshape(len(starts), n_words).astype(np.uint64, copy=False)
