"""Draws some rows of a table, while they are read; called by the driver for backgrounds."""

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
    """

    def __init__(self, n_drawn: int, seed: int):
        self.n_rows = 0
        self._n_drawn = n_drawn
        self._key = struct.pack(">q", seed)
        self._drawn: _Part[_Label] | None = None
        self._added: list[_Part[_Label]] = []  # rows that may be drawn in place of others
        self._seen: Counter[bytes] = Counter()

    @property
    def rows(self) -> list[npt.NDArray[np.generic]]:
        """The rows that were drawn, in the order of their hashes; [] before any were added."""
        self._draw()
        return [] if self._drawn is None else self._drawn.rows

    @property
    def labels(self) -> list[_Label]:
        """Their labels."""
        self._draw()
        return [] if self._drawn is None else self._drawn.labels

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
        part = _Part(self._hashed(rows, labels), list(rows), list(labels or ()))
        if self._drawn is not None and len(self._drawn.hashes) == self._n_drawn:  # most rows of a large table end here
            part = part.take(np.flatnonzero(part.hashes < self._drawn.hashes[-1]))
        self._added.append(part)
        if sum(len(one.hashes) for one in self._added) >= max(self._n_drawn // 4, 1):  # so few copies are made
            self._draw()

    def _draw(self) -> None:
        if not self._added:
            return
        parts = ([] if self._drawn is None else [self._drawn]) + self._added
        self._drawn, self._added = _least(parts, self._n_drawn), []

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


@dataclass(frozen=True, eq=False)
class _Part(Generic[_Label]):
    """Some rows with their hashes, uint64 (n,), and their labels, if they have any."""

    hashes: npt.NDArray[np.uint64]
    rows: list[npt.NDArray[np.generic]]
    labels: list[_Label]

    def take(self, places: npt.NDArray[np.int64]) -> "_Part[_Label]":
        """Return the rows at some places."""
        labels = [self.labels[place] for place in places.tolist()] if self.labels else []
        return _Part(self.hashes[places], [values[places] for values in self.rows], labels)


def _least(parts: Sequence[_Part[_Label]], n_rows: int) -> _Part[_Label]:
    """Return the rows with the least hashes of all parts, in the order of their hashes."""
    hashes = np.concatenate([part.hashes for part in parts])
    chosen = np.argsort(hashes, kind="stable")[:n_rows]
    rows = [np.empty((len(chosen), *values.shape[1:]), values.dtype) for values in parts[0].rows]
    start = 0
    for part in parts:  # without a copy of all rows, which may be large
        places = chosen - start
        is_here = (places >= 0) & (places < len(part.hashes))
        for values, of_part in zip(rows, part.rows, strict=True):
            values[is_here] = of_part[places[is_here]]
        start += len(part.hashes)
    labels = [label for part in parts for label in part.labels]
    return _Part(hashes[chosen], rows, [labels[place] for place in chosen.tolist()] if labels else [])
