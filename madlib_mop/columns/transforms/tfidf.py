"""Texts to weights of their terms: words, pairs of words and runs of characters, by term frequency and rarity (TF-IDF).

Packing counts the terms of the training rows (`TermCounts`), and keeps a `Vocabulary`; the encoder uses it. A term is a
hash of 48 bits, so a vocabulary has no text of a row in it.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.transforms.logarithm import signed_log1p
from madlib_mop.columns.transforms.ngrams import (
    CHUNK,
    FACTOR,
    LOWER,
    SPACE,
    Codes,
    Flags,
    Hashes,
    Integers,
    codes_of,
    folded_by,
    hashed,
    is_small,
    letters_of,
    mix,
    words_of,
)

Weights = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

#: What divides the tokens of which runs are made: the characters that Unicode calls white space, and the separators of
#: ASCII. The list is fixed.
_WHITE = (
    *range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
    0x3000,
)  # fmt: skip
#: Lengths of the runs of characters.
_SHORTEST, _LONGEST = 2, 5
_HASH_BYTES = 6
_SHIFT = np.uint64(64 - 8 * _HASH_BYTES)
#: Added to the hash of a term, so that kinds of terms differ: words, pairs of words, then runs by their length.
_SALTS = mix(np.arange(1, _LONGEST + 2, dtype=np.uint64))
_WORD, _PAIR = 0, 1
#: Terms of fewer training rows are left out, unless all are.
_LEAST_ROWS = 2
#: Hashes that `TermCounts` keeps before it adds them up.
_MOST_WAITING = 4_000_000
#: 1 + ln(n) for n repetitions of a term.
_DAMPED = 1.0 + signed_log1p(np.maximum(np.arange(-1.0, 255.0), 0.0))


def term_hashes(texts: Sequence[str]) -> tuple[Hashes, Integers]:
    """Return the terms of texts, with repetitions.

    Terms are each word and each pair of neighbouring words, which consist of letters and digits, and each run of 2 to 5
    characters of a token that begins and ends with a blank; white space divides tokens, so punctuation is part of them.
    Capitals are folded and words are divided as `hashed_ngrams` does it. The runs are those that ``char_wb`` of
    scikit-learn makes.

    Parameters
    ----------
    texts : sequence of str
        Of not many more than `CHUNK` characters together.

    Returns
    -------
    hashes : numpy.ndarray
        uint64 (n_terms,), less than 2^48.
    owners : numpy.ndarray
        int64 (n_terms,): the number of the text of each.
    """
    codes, rows = codes_of(texts)
    if rows is None:
        rows = np.zeros(len(codes), np.int64)
    words, starts = words_of(*letters_of(codes))
    of_words = rows[starts]
    is_pair = of_words[1:] == of_words[:-1]
    found = [words + _SALTS[_WORD], (words[:-1] * FACTOR + words[1:])[is_pair] + _SALTS[_PAIR]]
    owners = [of_words, of_words[1:][is_pair]]
    signs, within = _signs_of(codes)
    runs, inner = signs, np.ones(len(signs), np.bool_)
    for length in range(_SHORTEST, _LONGEST + 1):
        runs = runs[:-1] * FACTOR + signs[length - 1 :]
        chosen: Flags
        if length == _SHORTEST:
            chosen = within[:-1] | within[1:]
            inner = inner[1:]
        else:  # all but the first and the last character are no blanks
            inner = inner[:-1] & within[length - 2 : -1]
            chosen = inner
        found.append(runs[chosen] + _SALTS[length])
        owners.append(rows[: len(runs)][chosen])
    return mix(np.concatenate(found)) >> _SHIFT, np.concatenate(owners)


def _small_signs() -> npt.NDArray[np.uint32]:
    table = LOWER.copy()
    table[[code for code in _WHITE if code < len(table)]] = SPACE
    return table


_SIGNS = _small_signs()
_HASHED_SIGNS, _IS_SIGN = hashed(_SIGNS), _SIGNS != SPACE


def _signs_of(codes: Codes) -> tuple[Hashes, Flags]:
    """Return hashes of characters, all white space being blanks, and which are none."""
    if is_small(codes):
        return _HASHED_SIGNS[codes], _IS_SIGN[codes]
    folded = folded_by(_SIGNS, codes)
    folded[np.isin(folded, _WHITE)] = SPACE
    return hashed(folded), folded != SPACE


def _pieces(texts: Sequence[str]) -> Iterator[slice]:
    """Yield which texts are processed at once."""
    start = 0
    while start < len(texts):
        end, n_characters = start + 1, len(texts[start])
        while end < len(texts) and n_characters + len(texts[end]) < CHUNK:
            n_characters += len(texts[end])
            end += 1
        yield slice(start, end)
        start = end


def _distinct(values: npt.NDArray[np.generic]) -> Integers:
    """Return where each distinct one of ascending values begins."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else np.zeros(0, np.int64)


class TermCounts:
    """Counts in how many rows each term is: the same for rows in any order.

    Attributes
    ----------
    n_rows : int
        Rows that were added.
    """

    def __init__(self) -> None:
        self.n_rows = 0
        self._hashes: list[Hashes] = [np.zeros(0, np.uint64)]
        self._counts: list[Integers] = [np.zeros(0, np.int64)]
        self._n_waiting = 0

    def add(self, texts: Sequence[str], n_rows: Integers) -> None:
        """Add distinct texts.

        Parameters
        ----------
        texts : sequence of str
        n_rows : numpy.ndarray
            int64 (n_texts,): how many rows have each of them.
        """
        for piece in _pieces(texts):
            hashes, owners = term_hashes(texts[piece])
            order = np.lexsort((owners, hashes))
            hashes, owners = hashes[order], owners[order]
            is_first = np.append(True, (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1]))[: len(hashes)]
            self._keep(hashes[is_first], n_rows[piece][owners[is_first]])
        self.n_rows += int(n_rows.sum())

    def most_frequent(self, n_terms: int) -> "Vocabulary":
        """Return the vocabulary of the terms of most rows, of terms of as many rows those with the smallest hashes.

        Terms of a single row are left out; if all are such terms, they are kept.
        """
        self._add_up()
        hashes, counts = self._hashes[0], self._counts[0]
        enough = counts >= _LEAST_ROWS
        if enough.any():
            hashes, counts = hashes[enough], counts[enough]
        chosen = np.sort(np.argsort(-counts, kind="stable")[:n_terms])
        return Vocabulary(hashes[chosen], counts[chosen], self.n_rows)

    def _keep(self, hashes: Hashes, counts: Integers) -> None:
        """Add counts of ascending hashes, which may repeat."""
        starts = _distinct(hashes)
        if not len(starts):
            return
        self._hashes.append(hashes[starts])
        self._counts.append(np.add.reduceat(counts, starts))
        self._n_waiting += len(starts)
        if self._n_waiting > max(_MOST_WAITING, len(self._hashes[0])):
            self._add_up()

    def _add_up(self) -> None:
        hashes, counts = np.concatenate(self._hashes), np.concatenate(self._counts)
        order = np.argsort(hashes, kind="stable")  # which merges what is ascending already
        hashes, counts = hashes[order], counts[order]
        starts = _distinct(hashes)
        self._hashes = [hashes[starts]]
        self._counts = [np.add.reduceat(counts, starts) if len(starts) else counts]
        self._n_waiting = 0


class Vocabulary:
    """Terms and their weights.

    A term of a text weighs (1 + ln n) (1 + ln((1 + N) / (1 + m))), if the text has it n times, and m of N training rows
    have it. The weights of a text then have a sum of squares of 1: what scikit-learn's ``TfidfVectorizer`` computes
    with ``sublinear_tf``. Terms that are not in the vocabulary have no weight.

    Parameters
    ----------
    hashes : numpy.ndarray
        uint64 (n_terms,), ascending.
    counts : numpy.ndarray
        int64 (n_terms,): the training rows that have each.
    n_rows : int
        Training rows.
    """

    def __init__(self, hashes: Hashes, counts: Integers, n_rows: int):
        self._hashes = hashes
        self._counts = counts
        self.n_rows = n_rows
        self._rarity = 1.0 + signed_log1p((n_rows - counts) / (1.0 + counts))

    @property
    def n_terms(self) -> int:
        """Number of terms."""
        return len(self._hashes)

    def texts(self) -> tuple[str, str]:
        """Return hashes and counts as `from_texts` reads them."""
        parts = self._hashes.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :_HASH_BYTES]
        counts = self._counts.astype("<u4")
        return base64.b64encode(parts.tobytes()).decode(), base64.b64encode(counts.tobytes()).decode()

    @staticmethod
    def from_texts(hashes: str, counts: str, n_rows: int) -> "Vocabulary":
        """Return the vocabulary that `texts` has written.

        Raises
        ------
        ValueError
            If the texts are damaged.
        """
        try:
            parts, numbers = (base64.b64decode(text.encode("ascii"), validate=True) for text in (hashes, counts))
        except (UnicodeEncodeError, binascii.Error):
            raise ValueError("its terms cannot be read") from None
        if len(parts) % _HASH_BYTES or len(numbers) != 4 * (len(parts) // _HASH_BYTES):
            raise ValueError("its terms and their counts are not as many")
        padded = np.zeros((len(parts) // _HASH_BYTES, 8), np.uint8)
        padded[:, :_HASH_BYTES] = np.frombuffer(parts, np.uint8).reshape(-1, _HASH_BYTES)
        found = padded.view("<u8").ravel().astype(np.uint64)
        rows = np.frombuffer(numbers, "<u4").astype(np.int64)
        if (found[1:] <= found[:-1]).any():
            raise ValueError("its terms do not increase")
        if len(rows) and not (rows.min() >= 1 and rows.max() <= n_rows):
            raise ValueError("a count of its terms is not possible")
        return Vocabulary(found, rows, n_rows)

    def most_terms(self, texts: Sequence[str]) -> int:
        """Return the most terms of the vocabulary that one of these texts has."""
        most = 0
        for piece in _pieces(texts):
            rows = self._found(texts[piece])[0]
            most = max(most, int(np.bincount(rows).max(initial=0)))
        return most

    def weights(self, texts: Sequence[str], width: int) -> tuple[Indices, Weights]:
        """Return the terms of each text, and their weights.

        A row depends on its text alone, and has the same bits everywhere: operations are those that IEEE 754 rounds,
        and sums are made one number after the other.

        Parameters
        ----------
        texts : sequence of str
        width : int
            Most terms of a text. Of texts with more, those with the greatest weights are returned.

        Returns
        -------
        indices : numpy.ndarray
            int32 (n_texts, width): from 1 to `n_terms`, ascending, then zeros.
        weights : numpy.ndarray
            float32 (n_texts, width), zeros where the index is 0.
        """
        indices = np.zeros((len(texts), width), np.int32)
        weights = np.zeros((len(texts), width), np.float32)
        for piece in _pieces(texts):
            self._write(texts[piece], indices[piece], weights[piece])
        return indices, weights

    def _found(self, texts: Sequence[str]) -> tuple[Integers, Integers, Integers]:
        """Return which text has which term how often, (n,) each: ordered by text, then by term."""
        n_terms = self.n_terms
        hashes, owners = term_hashes(texts)
        if not n_terms:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing
        places = np.searchsorted(self._hashes, hashes)
        places[places == n_terms] = 0
        is_known = self._hashes[places] == hashes
        cells = owners[is_known] * n_terms + places[is_known]
        cells.sort()
        starts = _distinct(cells)
        times = np.diff(starts, append=len(cells))
        rows, terms = np.divmod(cells[starts], n_terms)
        return rows, terms, times

    def _write(self, texts: Sequence[str], indices: Indices, weights: Weights) -> None:
        rows, terms, times = self._found(texts)
        if not len(rows):
            return
        values = _damped(times) * self._rarity[terms]
        values /= np.sqrt(np.bincount(rows, values * values, len(texts)))[rows]
        places = _places(rows)
        if places.max() >= indices.shape[1]:
            order = np.lexsort((terms, -values, rows))
            kept = np.sort(order[places < indices.shape[1]])
            rows, terms, values = rows[kept], terms[kept], values[kept]
            places = _places(rows)
        indices[rows, places] = terms + 1
        weights[rows, places] = values


def _places(rows: Integers) -> Integers:
    """Return the place of each element among those of its row; rows ascend."""
    starts = _distinct(rows)
    return np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))


def _damped(times: Integers) -> Floats:
    """Return 1 + ln(n) of whole numbers from 1 on."""
    if times.max() < len(_DAMPED):
        return _DAMPED[times]
    return 1.0 + signed_log1p((times - 1).astype(np.float64))
