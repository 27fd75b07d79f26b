"""128-bit hashes of rows' values, a batch at a time; the driver orders and splits rows by them."""

import hashlib
import struct
import unicodedata
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.raw import Integers, Levels, Moments, Numbers, RawColumn, Vectors

#: Texts, vectors and files of up to this number of bytes are hashed word by word, longer ones by SHA-256.
LONGEST = 1024
_WORD_BYTES = 8
_MOST_WORDS = LONGEST // _WORD_BYTES
#: Words that are mixed at once: they stay in a core's cache.
_BLOCK_WORDS = 16_384
_SHIFT = np.uint64(33)
#: Multipliers of MurmurHash3's finalizer.
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
#: For 0 to 7 bytes, the little-endian word that has ones in them.
_MASKS = np.array([(1 << 8 * n_bytes) - 1 for n_bytes in range(8)], np.uint64)
Hashes = npt.NDArray[np.uint64]


def mixed(keys: Integers | Hashes) -> Hashes:
    """Return 64 well mixed bits of each key, different for different keys (splitmix64, S. Vigna, 2015)."""
    bits = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class RowHasher:
    """Hashes rows; the hash depends on the seed and the row's values only, not on the batch, or on how they were sent.

    Equal are the values that readers return: numbers as float64 (of ``bigint`` as int64), where 0 and -0 are equal and
    a numeric's digits do not count; dates, times and intervals as microseconds; texts as bytes; arrays as float32.

    A number or a moment is a word of 64 bits. Each word is combined by XOR with a key of its column and mixed by the
    finalizer ``fmix64`` of MurmurHash3 (A. Appleby, 2011), a bijection. The first 64 bits of the hash are the sum of
    the mixed words; the second 64 bits are the sum of their products with odd constants of their columns (multilinear
    hashing: D. Lemire and O. Kaser, Strongly Universal String Hashing is Fast, 2014). Keys and constants derive from
    the seed. Both sums are mixed again.

    Texts, vectors and files have two words each: the hash of their bytes, which is made in the same way of words of 8
    bytes, with the length. If they are longer than `LONGEST`, it is the first 128 bits of the SHA-256 of the seed and
    their bytes. Each distinct text of a batch is hashed once.

    The hash is not cryptographic: someone who knows the seed can make different rows with equal hashes. Their order
    then depends on the order of reading.

    Parameters
    ----------
    seed : int
        Within int64.
    """

    def __init__(self, seed: int):
        self._start = hashlib.sha256(struct.pack(">q", seed))
        self._base = np.frombuffer(self._start.digest()[:8], "<u8").astype(np.uint64)
        constants = self._constants(np.arange(2 * (_MOST_WORDS + 1)))
        self._keys = constants[: _MOST_WORDS + 1]  # the last one is that of the bytes after the last whole word
        self._factors = constants[_MOST_WORDS + 1 :] | np.uint64(1)

    def of(self, columns: Sequence[RawColumn], folded: Collection[int] = ()) -> Hashes:
        """Return the hashes of a batch's rows.

        Parameters
        ----------
        columns : sequence of RawColumn
            At least one, all of one length.
        folded : collection of int
            The places of columns of texts that SQL compares without regard to case or accents. For the first half of
            the hash, by which rows are split, texts that differ in these alone are equal; for the second half, by
            which they are ordered, they are not.

        Returns
        -------
        numpy.ndarray
            uint64 (n_rows, 2).
        """
        n_rows = columns[0].n_rows
        first, second = np.zeros(n_rows, np.uint64), np.zeros(n_rows, np.uint64)
        for place, column in enumerate(columns):
            # Four constants of each column, beyond those of the words of a text; that of NULL is a word of its own.
            keys = self._constants(np.arange(4) + 2 * (_MOST_WORDS + 1) + 4 * place)
            mixed_words = self._mixed(column, keys[:2], place in folded)
            for words, total, key in zip(mixed_words, (first, second), keys[2:], strict=True):
                if column.missing.any():
                    words[column.missing] = key
                total += words
        first = mixed(first)
        return np.stack([first, mixed(second + first)], axis=1)

    def _mixed(self, column: RawColumn, keys: Hashes, is_folded: bool) -> Iterator[Hashes]:
        """Yield what a column adds to each of both sums: uint64 (n_rows,) each, of NULL any bits."""
        if isinstance(column, Numbers | Moments):
            words = _word_of(column) ^ keys[0]
            _mix(words)
            yield words
            yield words * (keys[1] | np.uint64(1))
        elif isinstance(column, Levels):  # a text is looked up for each row, and mixed once; -1 is the last one
            texts = column.levels.keys()
            hashes = np.append(self.of_bytes(texts), np.zeros((1, 2), np.uint64), axis=0)
            if is_folded:
                hashes[:-1, 0] = self.of_bytes([*map(_folded, texts)])[:, 0]
            for half in range(2):
                yield mixed(hashes[:, half] ^ keys[half])[column.codes]
        else:
            hashes = self._of_vectors(column) if isinstance(column, Vectors) else self._of_blobs(column)
            for half in range(2):
                yield mixed(hashes[:, half] ^ keys[half])

    def of_bytes(self, values: Sequence[bytes]) -> Hashes:
        """Return the hashes of texts or files: uint64 (n, 2)."""
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        hashes = np.empty((len(values), 2), np.uint64)
        is_long = lengths > LONGEST
        for row in np.flatnonzero(is_long).tolist():
            digest = self._start.copy()
            digest.update(values[row])
            hashes[row] = np.frombuffer(digest.digest()[:16], ">u8")
        if is_long.any():
            values, lengths = [value for value in values if len(value) <= LONGEST], lengths[~is_long]
        if len(values):
            hashes[~is_long] = self._by_words(b"".join([*values, bytes(_WORD_BYTES)]), lengths)
        return hashes

    def _of_vectors(self, column: Vectors) -> Hashes:
        values = np.ascontiguousarray(column.values, "<f4") + np.float32(0.0)  # 0 and -0 are equal
        if column.absent is not None:
            values = np.where(column.absent, np.float32("nan"), values).astype("<f4")  # present ones are no NaN
        n_bytes = values.shape[1] * values.itemsize
        if n_bytes <= LONGEST:
            return self._by_words(values.tobytes() + bytes(_WORD_BYTES), np.full(column.n_rows, n_bytes))
        return self.of_bytes([row.tobytes() for row in values])

    def _of_blobs(self, column: Blobs) -> Hashes:
        return self.of_bytes([value if value is not None else b"" for value in column.values])

    def _by_words(self, data: bytes, lengths: Integers) -> Hashes:
        """Return the hashes of values that lie one after the other, with `_WORD_BYTES` bytes after the last one."""
        starts = np.cumsum(lengths) - lengths
        sums = np.zeros((len(starts), 2), np.uint64)
        n_words = lengths // _WORD_BYTES
        n_common, n_most = int(n_words.min()), int(n_words.max())
        n_rows = _BLOCK_WORDS // max(n_common, 1)
        for start in range(0, len(starts) if n_common else 0, n_rows):
            block = slice(start, start + n_rows)
            sums[block] = self._sums(_words(data, starts[block], n_common), slice(n_common))
        for place in range(n_common, n_most):
            rows = np.flatnonzero(n_words > place)
            words = _words(data, starts[rows] + _WORD_BYTES * place, 1)
            sums[rows] += self._sums(words, slice(place, place + 1))
        last = _words(data, starts + _WORD_BYTES * n_words, 1)
        last &= _MASKS[lengths % _WORD_BYTES][:, np.newaxis]
        sums += self._sums(last, slice(_MOST_WORDS, None))
        first = mixed(sums[:, 0] ^ mixed(lengths))
        return np.stack([first, mixed(sums[:, 1] + first)], axis=1)

    def _sums(self, words: Hashes, places: slice) -> Hashes:
        """Return both sums of the words at some places, uint64 (n_rows, n_places); the words are overwritten."""
        words ^= self._keys[places]
        _mix(words)
        first = words.sum(axis=1)
        words *= self._factors[places]
        return np.stack([first, words.sum(axis=1)], axis=1)

    def _constants(self, places: npt.NDArray[np.int64]) -> Hashes:
        """Return constants of the seed and these places, uint64 (n,)."""
        return mixed(mixed(places) ^ self._base)


def _folded(text: bytes) -> bytes:
    """Return a text without case and accents: coarser than the usual nondeterministic collations."""
    apart = unicodedata.normalize("NFKD", text.decode("utf-8", "replace")).casefold()
    return "".join(one for one in apart if not unicodedata.combining(one)).encode()


def _word_of(column: Numbers | Moments) -> Hashes:
    """Return each value as a word, uint64 (n_rows,): equal ones of equal values."""
    if isinstance(column, Numbers):
        integers = column.integers()
        return (integers if integers is not None else column.values + 0.0).view(np.uint64)  # -0 + 0 is 0
    return np.ascontiguousarray(column.values, np.int64).view(np.uint64)


def _mix(words: Hashes) -> None:
    """Mix each word, in place: fmix64."""
    for factor in (_FIRST, _SECOND):
        words ^= words >> _SHIFT
        words *= factor
    words ^= words >> _SHIFT


def _words(data: bytes, starts: Integers, n_words: int) -> Hashes:
    """Return the words from each start on, uint64 (n_rows, n_words)."""
    n_bytes = _WORD_BYTES * n_words
    gathered: Hashes = np.ndarray((len(data) - n_bytes + 1,), f"V{n_bytes}", data, 0, (1,))[starts]
    return gathered.view("<u8").reshape(len(starts), n_words).astype(np.uint64, copy=False)
