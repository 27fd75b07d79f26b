"""Draws some rows of a table, while they are read; called by the driver for backgrounds."""

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from madlib_mop.explaining.columns import Inputs

_HASH_BYTES = 8
_Label = TypeVar("_Label")


class DrawnRows(Generic[_Label]):
    """Draws rows without replacement, each set of rows with the same probability.

    A row is drawn by the hash of the seed, its content, and how often the same content came before. So the same seed
    draws the same rows, in whatever order the rows are read, and equal rows are drawn independently of each other.

    Parameters
    ----------
    n_drawn : int
    seed : int

    Attributes
    ----------
    n_rows : int
        How many rows there were to draw from.
    rows : list of numpy.ndarray
        The rows that were drawn, in the order of their hashes; () before any were added.
    labels : list
        Their labels.
    """

    def __init__(self, n_drawn: int, seed: int):
        self.n_rows = 0
        self._n_drawn = n_drawn
        self._key = struct.pack(">q", seed)
        self._hashes: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self.rows: list[npt.NDArray[np.generic]] = []
        self.labels: list[_Label] = []
        self._seen: Counter[bytes] = Counter()

    def add(self, rows: Inputs, labels: Sequence[_Label] | None = None) -> None:
        """Add rows to draw from.

        Parameters
        ----------
        rows : sequence of numpy.ndarray
            (n, ...) each; in all calls of the same shapes and types.
        labels : sequence or None
            What else is known of each row; a part of its content.
        """
        self.n_rows += len(rows[0])
        hashes = np.append(self._hashes, self._hashed(rows, labels))
        before = self.rows or [values[:0] for values in rows]
        together = [np.concatenate(pair) for pair in zip(before, rows, strict=True)]
        kept = np.argsort(hashes, kind="stable")[: self._n_drawn]
        self._hashes, self.rows = hashes[kept], [values[kept] for values in together]
        if labels is not None:
            known = [*self.labels, *labels]
            self.labels = [known[row] for row in kept.tolist()]

    def _hashed(self, rows: Inputs, labels: Sequence[_Label] | None) -> npt.NDArray[np.uint64]:
        parts = [np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8) for values in rows]
        found = []
        for row, content in enumerate(np.concatenate(parts, axis=1)):
            digest_of_row = hashlib.blake2b(content.data, digest_size=2 * _HASH_BYTES, key=self._key)
            if labels is not None:
                digest_of_row.update(repr(labels[row]).encode())
            digest = digest_of_row.digest()
            n_before = self._seen[digest]
            self._seen[digest] += 1
            found.append(hashlib.blake2b(digest + struct.pack(">q", n_before), digest_size=_HASH_BYTES).digest())
        return np.frombuffer(b"".join(found), ">u8").astype(np.uint64)
