"""Texts to units of fixed width: words and runs of 3 and 4 characters, hashed; no vocabulary is kept."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Units = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8] | npt.NDArray[np.uint32]

_LENGTHS = (3, 4)
_BASE = np.uint64(0x9E3779B97F4A7C15)
#: Of the polynomials that hash words and runs of characters.
FACTOR, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: The code of a blank.
SPACE = 0x20
_END = 0x0A
#: Characters and units that are processed at once; fits into the cache.
CHUNK = 1 << 16
_N_FOLDED = 0x600


def _lower() -> npt.NDArray[np.uint32]:
    """Return lower case of characters below U+0600.

    The table is fixed, so that the version of Python and its Unicode database change nothing.
    """
    table = np.arange(_N_FOLDED, dtype=np.uint32)
    for first, last, distance in (
        (0x41, 0x5A, 32), (0xC0, 0xDE, 32), (0x391, 0x3AB, 32), (0x410, 0x42F, 32), (0x400, 0x40F, 80),
        (0x531, 0x556, 48),
    ):  # fmt: skip
        table[first : last + 1] += np.uint32(distance)
    table[0xD7] = 0xD7
    return table


def _folded() -> npt.NDArray[np.uint32]:
    """Return lower case, or a space for what separates words, of characters below U+0600."""
    table = _lower()
    for code in range(0xC0):
        if code not in (0xAA, 0xB5, 0xBA) and not chr(code).isascii() or (code < 128 and not chr(code).isalnum()):
            table[code] = SPACE
    return table


def mix(hashes: Hashes) -> Hashes:
    """Return well mixed bits: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, figure 16)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * FACTOR
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _MIX_2
    return hashes ^ (hashes >> np.uint64(31))


_SALTS = {n: np.uint64(n * int(_BASE) % (1 << 64)) for n in (1, *_LENGTHS)}
#: Lower case of characters below U+0600.
LOWER = _lower()
_FOLDED = _folded()
_IS_LETTER = _FOLDED != SPACE


def _powers(factor: int, n: int) -> Hashes:
    """Return factor^0, factor^1, ... modulo 2^64: uint64 (n,)."""
    powers = np.full(n, factor, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


_N_POWERS = 2 * CHUNK
_POWERS = _powers(int(FACTOR), _N_POWERS)
_INVERSES = _powers(pow(int(FACTOR), -1, 1 << 64), _N_POWERS)


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
        while end < len(texts) and n_characters + len(texts[end]) < CHUNK and (end - start) * width < CHUNK:
            n_characters += len(texts[end])
            end += 1
        units[start:end] = _units(texts[start:end], width)
        start = end
    return units


def _units(texts: Sequence[str], width: int) -> Units:
    codes, rows = codes_of(texts)
    letters, within = letters_of(codes)
    threes = (letters[:-2] * FACTOR + letters[1:-1]) * FACTOR + letters[2:]
    fours = threes[:-1] * FACTOR + letters[3:]
    chosen_3, chosen_4 = within[1:-1], within[1:-2] & within[2:-1]
    words, starts = words_of(letters, within)
    hashes = mix(
        np.concatenate([words + _SALTS[1], threes[chosen_3] + _SALTS[3], fours[chosen_4] + _SALTS[4]])
    )
    if rows is None:
        return _counted(hashes, 0, 1, width)
    owners = np.concatenate([rows[starts], rows[1:-1][chosen_3], rows[1:-2][chosen_4]])
    return _counted(hashes, owners, len(texts), width)


def codes_of(texts: Sequence[str]) -> tuple[Codes, Integers | None]:
    """Return the characters of all texts, with blanks and a line feed between them, and blanks around them.

    Returns
    -------
    codes : numpy.ndarray
        uint8 or uint32 (n_characters,).
    rows : numpy.ndarray or None
        int64 (n_characters,): the text of each; None for a text alone.
    """
    joined = " " + (texts[0] if len(texts) == 1 else " \n ".join(text.replace("\n", " ") for text in texts)) + "  "
    codes: Codes
    if joined.isascii():
        codes = np.frombuffer(joined.encode("ascii"), np.uint8)
    else:
        codes = np.frombuffer(joined.encode("utf-32-le", "replace"), "<u4")
    return codes, np.cumsum(codes == _END) if len(texts) > 1 else None


def letters_of(codes: Codes) -> tuple[Hashes, Flags]:
    """Return hashes of characters, all that divide words being blanks, and which are letters or digits."""
    if is_small(codes):
        return _LETTERS[codes], _IS_LETTER[codes]
    folded = folded_by(_FOLDED, codes)
    wide = ((folded >= 0x2000) & (folded < 0x2070)) | ((folded >= 0x3000) & (folded < 0x3005))
    folded[wide] = SPACE  # general and CJK punctuation
    return hashed(folded), folded != SPACE


def is_small(codes: Codes) -> bool:
    """Return whether all characters are in the tables."""
    return codes.dtype == np.uint8 or bool((codes < _N_FOLDED).all())


def folded_by(table: npt.NDArray[np.uint32], codes: Codes) -> npt.NDArray[np.uint32]:
    """Return what a table makes of the characters that it has; others stay."""
    known = codes < _N_FOLDED
    return np.where(known, table[np.where(known, codes, 0)], codes).astype(np.uint32)


def hashed(folded: npt.NDArray[np.uint32]) -> Hashes:
    """Return hashes of characters."""
    return mix(folded.astype(np.uint64) * _BASE)


_LETTERS = hashed(_FOLDED)


def words_of(letters: Hashes, within: Flags) -> tuple[Hashes, Integers]:
    """Return a hash of each word, a polynomial of its characters modulo 2^64, and where it begins.

    Differences of running sums are the polynomials times a power of an odd number, which has an inverse.
    """
    edges = within[1:] != within[:-1]
    places = edges.nonzero()[0]  # alternately the character before a word and the last character of it
    before, last = places[::2], places[1::2]
    if len(letters) > _N_POWERS:
        powers, inverses = (
            _powers(factor, len(letters)) for factor in (int(FACTOR), pow(int(FACTOR), -1, 1 << 64))
        )
    else:
        powers, inverses = _POWERS[: len(letters)], _INVERSES
    sums = np.add.accumulate(letters * powers)
    starts = before + 1
    return (sums[last] - sums[before]) * inverses[starts], starts


def _counted(hashes: Hashes, owners: Integers | int, n_rows: int, width: int) -> Units:
    """Return signed counts by the units that hashes choose, scaled to a root mean square of 1 a row."""
    chosen = (((hashes >> np.uint64(32)) * np.uint64(width)) >> np.uint64(32)).view(np.int64)
    signs = 1.0 - 2.0 * (hashes & np.uint64(1)).astype(np.float64)
    flat = owners * width + chosen if n_rows > 1 else chosen
    counts = np.bincount(flat, signs, n_rows * width).reshape(n_rows, width)
    squares = np.add.reduce(counts * counts, axis=1, keepdims=True)
    scale = np.sqrt(np.maximum(squares, 1.0) / width)
    return (counts / scale).astype(np.float32)
