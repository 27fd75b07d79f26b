"""Texts to units of fixed width: words and runs of 3 and 4 characters, hashed; no vocabulary is kept."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Units = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]

_LENGTHS = (3, 4)
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SPACE, _END = 0x20, 0x0A
_CHUNK = 1 << 16  # characters at once: bounds the memory
_N_FOLDED = 0x600


def _folded() -> npt.NDArray[np.uint32]:
    """Return lower case, or a space for what separates words, of characters below U+0600.

    The table is fixed, so that the version of Python and its Unicode database change nothing.
    """
    table = np.arange(_N_FOLDED, dtype=np.uint32)
    for first, last, distance in (
        (0x41, 0x5A, 32), (0xC0, 0xDE, 32), (0x391, 0x3AB, 32), (0x410, 0x42F, 32), (0x400, 0x40F, 80),
        (0x531, 0x556, 48),
    ):  # fmt: skip
        table[first : last + 1] += np.uint32(distance)
    table[0xD7] = 0xD7
    for code in range(0xC0):
        if code not in (0xAA, 0xB5, 0xBA) and not chr(code).isascii() or (code < 128 and not chr(code).isalnum()):
            table[code] = _SPACE
    return table


_FOLDED = _folded()


def _mix(hashes: Hashes) -> Hashes:
    """Return well mixed bits: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, figure 16)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * _MIX_1
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _MIX_2
    return hashes ^ (hashes >> np.uint64(31))


_SALTS = {n: np.uint64(n * int(_BASE) % (1 << 64)) for n in (1, *_LENGTHS)}


def hashed_ngrams(texts: Sequence[str], width: int) -> Units:
    """Return the units of texts.

    Each word, and each run of 3 or 4 characters within a word that begins and ends with a blank, adds 1 or -1 to the
    unit that its hash chooses (Weinberger et al., "Feature hashing for large scale multitask learning", 2009); a row's
    units then have a root mean square of 1. Capitals are folded where a fixed table knows them. Whole numbers make the
    hashes, and a row's units depend on its text alone: the same bits everywhere.

    Parameters
    ----------
    texts : sequence of str
    width : int
        Units of a row.

    Returns
    -------
    numpy.ndarray
        float32 (n, width); zeros for a text without letters or digits.
    """
    units = np.zeros((len(texts), width), np.float32)
    start = 0
    while start < len(texts):
        end, n_characters = start + 1, len(texts[start])
        while end < len(texts) and n_characters + len(texts[end]) < _CHUNK and (end - start) * width < 1 << 20:
            n_characters += len(texts[end])
            end += 1
        units[start:end] = _units(texts[start:end], width)
        start = end
    return units


def _units(texts: Sequence[str], width: int) -> Units:
    characters, rows = _characters(texts)
    within = characters != _SPACE
    mixed = _mix(characters.astype(np.uint64) * _BASE)
    hashes, owners = [], []
    word, word_rows = _words(mixed, within, rows)
    hashes.append(_mix(word + _SALTS[1]))
    owners.append(word_rows)
    for n in _LENGTHS:
        starts = within[1 : len(within) - n + 2].copy()
        for place in range(2, n - 1):
            starts &= within[place : len(within) - n + 1 + place]
        chosen = np.flatnonzero(starts)
        total = mixed[chosen]
        for place in range(1, n):
            total = total * _MIX_1 + mixed[chosen + place]
        hashes.append(_mix(total + _SALTS[n]))
        owners.append(rows[chosen + 1])
    return _counted(np.concatenate(hashes), np.concatenate(owners), len(texts), width)


def _characters(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the folded characters of all texts, blanks between and around them, and the text of each."""
    joined = " " + " \n ".join(text.replace("\n", " ") for text in texts) + " "
    characters = np.frombuffer(joined.encode("utf-32-le", "replace"), "<u4")
    if len(texts) == 1:
        rows = np.zeros(len(characters), np.int64)
    else:
        rows = np.cumsum(characters == _END)
    small = characters < _N_FOLDED
    folded = np.where(small, _FOLDED[np.where(small, characters, 0)], characters).astype(np.uint32)
    wide = ((folded >= 0x2000) & (folded < 0x2070)) | ((folded >= 0x3000) & (folded < 0x3005))
    folded[wide] = _SPACE  # general and CJK punctuation
    return folded, rows


def _words(
    mixed: Hashes, within: npt.NDArray[np.bool_], rows: npt.NDArray[np.int64]
) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return a hash of each word, and its text: a polynomial of its characters modulo 2^64."""
    starts = np.flatnonzero(within[1:] & ~within[:-1]) + 1
    if not len(starts):
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    places = np.flatnonzero(within)
    lengths = np.diff(np.append(np.searchsorted(places, starts), len(places)))
    first = np.cumsum(lengths) - lengths
    place = np.arange(len(places)) - np.repeat(first, lengths)
    powers = np.ones(int(lengths.max()), np.uint64)
    powers[1:] = _MIX_1
    powers = np.multiply.accumulate(powers)
    words: Hashes = np.add.reduceat(mixed[places] * powers[place], first)
    return words, rows[starts]


def _counted(hashes: Hashes, owners: npt.NDArray[np.int64], n_rows: int, width: int) -> Units:
    """Return signed counts by the units that hashes choose, scaled to a root mean square of 1 a row."""
    chosen = ((hashes >> np.uint64(32)) * np.uint64(width)) >> np.uint64(32)
    signs = 1.0 - 2.0 * (hashes & np.uint64(1)).astype(np.float64)
    flat = owners * width + chosen.astype(np.int64)
    counts = np.bincount(flat, signs, n_rows * width).reshape(n_rows, width)
    squares = np.add.reduce(counts * counts, axis=1, keepdims=True)
    scale = np.sqrt(np.maximum(squares, 1.0) / width)
    return (counts / scale).astype(np.float32)
