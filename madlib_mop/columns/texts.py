"""Readers of texts, uuids, network addresses and bytes in PostgreSQL's binary form; `records` uses them."""

import socket
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.blobs import BLOB, Blobs
from madlib_mop.columns.cells import Cells
from madlib_mop.columns.numbers import CellReader
from madlib_mop.columns.raw import TEXT, Codes, Dictionary, Integers, Levels, dictionary_of, dictionary_of_keys, taken

Render = Callable[[Sequence[bytes]], list[bytes]]
#: Texts of at most this number of bytes are compared in 8-byte words, longer ones in a loop.
_WORD_BYTES = 48
#: An odd constant of 64 bits (of MurmurHash3's finalizer) that mixes words.
_MIX = np.uint64(0xFF51AFD7ED558CCD)
#: For 0 to 8 bytes, the little-endian word that has ones in them.
_MASKS = np.array([(1 << 8 * n_bytes) - 1 for n_bytes in range(9)], np.uint64)
_AF_INET = 2
_DASHES = (8, 13, 18, 23)


class TextReader(CellReader):
    """Reads what is treated as a text into codes of a dictionary of the batch.

    Parameters
    ----------
    family : str
        ``text``, ``uuid`` or ``inet``.
    render : callable, optional
        Turns distinct values' bytes into texts as PostgreSQL prints them; without it they are texts already.
    """

    def __init__(self, family: str = TEXT, render: Render | None = None):
        self.family = family
        self._render = render

    def read(self, cells: Cells) -> Levels:
        """Return the texts of a batch."""
        longest = int(cells.lengths.max(initial=0))
        distinct, codes = self._by_words(cells, longest) if longest <= _WORD_BYTES else self._by_loop(cells)
        if self._render is None:
            return Levels(codes, dictionary_of_keys(distinct, cells.column), self.family)
        return self._rendered(distinct, codes, cells.column)

    def _rendered(self, distinct: list[bytes], codes: Codes, column: str) -> Levels:
        assert self._render is not None
        texts = self._render(distinct)
        levels = dictionary_of(dict.fromkeys(texts), column)
        if len(levels) < len(texts):  # two values have the same text
            codes = np.array([*map(levels.find, texts), -1], np.int32)[codes]
        return Levels(codes, levels, self.family)

    def _by_loop(self, cells: Cells) -> tuple[list[bytes], Codes]:
        known: dict[bytes, int] = {}
        codes = np.full(cells.n_rows, -1, np.int32)
        present = np.flatnonzero(~cells.missing)
        codes[present] = [known.setdefault(value, len(known)) for value in cells.values(present)]
        return list(known), codes

    def _by_words(self, cells: Cells, longest: int) -> tuple[list[bytes], Codes]:
        """Find the distinct texts by a hash of their words, and compare all words with those of the hash."""
        present = np.flatnonzero(~cells.missing)
        codes = np.full(cells.n_rows, -1, np.int32)
        if not len(present):
            return [], codes
        few = cells if len(present) == cells.n_rows else cells.take(present)
        words = _words(few, -(-max(longest, 1) // 8))
        key = few.lengths.astype(np.uint64)
        for word in words:
            key = (key ^ word) * _MIX
            key ^= key >> np.uint64(32)
        first_of = first_rows(key)
        for part in (*words, few.lengths):
            if (taken(part, first_of) != part).any():
                return self._by_loop(cells)
        is_first = first_of == np.arange(len(first_of))
        numbers = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
        codes[present] = taken(numbers, first_of)
        return few.values(np.flatnonzero(is_first)), codes

    def one(self, value: bytes) -> bytes:
        """Return one text."""
        return self._render([value])[0] if self._render else value

    def column(self, values: list[object], name: str) -> Levels:
        """Return a column of a few texts."""
        levels = Dictionary(name)
        codes = [levels.code_of(value) if isinstance(value, bytes) else -1 for value in values]
        return Levels(np.array(codes, np.int32), levels, self.family)


def first_rows(keys: npt.NDArray[np.uint64]) -> Integers:
    """Return a row for each row, int64 (n,): the same one for all rows with equal keys, uint64 (n,); it is one of them.

    Each of a key's four parts of 16 bits is a place in a table, to which a row writes its number. A row whose key is
    not that of the row whose number stayed tries the next part; the last ones are sorted. This is faster than sorting
    all keys.
    """
    found = np.empty(len(keys), np.int64)
    table = np.empty(1 << 16, np.int64)
    left, mine = np.arange(len(keys)), keys
    for shift in (48, 32, 16, 0):
        places = ((mine >> np.uint64(shift)) & np.uint64(0xFFFF)).view(np.int64)  # NumPy would convert uint64
        table[places] = left
        stayed = taken(table, places)
        is_mine = taken(keys, stayed) == mine
        found[left] = stayed  # the next part replaces those that are not mine
        if is_mine.all():
            return found
        left = left[~is_mine]
        mine = taken(keys, left)
    _, first, inverse = np.unique(keys[left], return_index=True, return_inverse=True)
    found[left] = left[first][inverse]
    return found


def _words(cells: Cells, n_words: int) -> list[npt.NDArray[np.uint64]]:
    """Return the first bytes of each cell as words of 8 bytes, uint64 (n_rows,) each; bytes after its end are 0."""
    block = cells.gather(f"V{8 * n_words}").view("<u8").reshape(-1, n_words).astype(np.uint64, copy=False)
    words = []
    shortest = int(cells.lengths.min(initial=8 * n_words))
    for place in range(n_words):
        word = np.ascontiguousarray(block[:, place])
        if shortest < 8 * (place + 1):
            word &= taken(_MASKS, np.clip(cells.lengths - 8 * place, 0, 8))
        words.append(word)
    return words


class BlobReader(CellReader):
    """Reads bytea."""

    family = BLOB

    def read(self, cells: Cells) -> Blobs:
        """Return the bytes of a batch."""
        missing = cells.missing.tolist()
        return Blobs([None if lost else cells.at(row) for row, lost in enumerate(missing)])

    def one(self, value: bytes) -> bytes:
        """Return one value."""
        return value

    def column(self, values: list[object], name: str) -> Blobs:
        """Return a column of a few values."""
        return Blobs([value if isinstance(value, bytes) else None for value in values])


def without_trailing_blanks(values: Sequence[bytes]) -> list[bytes]:
    """Return texts of ``char(n)`` as they compare: without the blanks that fill them up."""
    return [value.rstrip(b" ") for value in values]


def single_char(values: Sequence[bytes]) -> list[bytes]:
    """Return values of the type ``"char"``, one byte each, as it prints them: 0 as nothing, from 128 on in octal."""
    return [b"" if value == b"\0" else value if value < b"\x80" else b"\\%o" % value[0] for value in values]


def uuid_texts(values: Sequence[bytes]) -> list[bytes]:
    """Return uuids of 16 bytes as texts of 36 characters."""
    if any(len(value) != 16 for value in values):
        raise ValueError("is no uuid")
    digits = np.frombuffer(b"".join(values).hex().encode(), np.uint8).reshape(-1, 32)
    texts = np.full((len(values), 36), ord("-"), np.uint8)
    texts[:, [column for column in range(36) if column not in _DASHES]] = digits
    distinct: list[bytes] = texts.view("S36").ravel().tolist()
    return distinct


def network_texts(values: Sequence[bytes]) -> list[bytes]:
    """Return inet and cidr values (family, bits, is cidr, length, address) as PostgreSQL prints them."""
    texts = []
    for value in values:
        if len(value) not in (8, 20) or len(value) != 4 + value[3]:
            raise ValueError("is no network address")
        address = socket.inet_ntop(socket.AF_INET if value[0] == _AF_INET else socket.AF_INET6, value[4:])
        whole = value[1] == 8 * value[3] and not value[2]
        texts.append((address if whole else f"{address}/{value[1]}").encode())
    return texts


def mac_texts(values: Sequence[bytes]) -> list[bytes]:
    """Return macaddr and macaddr8 values as PostgreSQL prints them."""
    return [value.hex(":").encode() for value in values]
