"""Draws some rows of a table, while they are read; called by the driver for backgrounds."""

import hashlib
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from madlib_mop.explaining.columns import Inputs

_HASH_BYTES = 8
#: Of how many contents equal rows are counted, in 16 bytes each; there may be a few more.
_MOST_CONTENTS = 1 << 22
#: How many rows are added at once, and from how many contents on new counts are merged into the sorted ones.
_RECENT = 1 << 16
_Label = TypeVar("_Label")


class DrawnRows(Generic[_Label]):
    """Draws rows without replacement, each set of rows with the same probability.

    A row is drawn by the hash of the seed, its content, and how often the same content came before. So the same seed
    draws the same rows, in whatever order the rows are read, and equal rows are drawn independently of each other.
    Equal rows are counted for the first 4 million contents. In a row of another content, the number of the row takes
    the place of the count: the draw has the same probabilities, but depends on the order of reading.

    Parameters
    ----------
    n_drawn : int
    seed : int
    label_bytes : callable or None
        The size of a label, int.
    most_bytes : int
        If there is a callable: fewer rows are drawn, but at least one, if all labels would take more bytes.

    Attributes
    ----------
    n_rows : int
        How many rows there were to draw from.
    """

    def __init__(
        self, n_drawn: int, seed: int, label_bytes: Callable[[_Label], int] | None = None, most_bytes: int = 0
    ):
        self.n_rows = 0
        self._n_drawn = n_drawn
        self._key = struct.pack(">q", seed)
        self._drawn: _Part[_Label] | None = None
        self._added: list[_Part[_Label]] = []  # rows that may be drawn in place of others
        self._added_bytes = 0  # of their labels
        self._label_bytes = label_bytes
        self._most_bytes = most_bytes
        self._occurrences = _Occurrences()

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
        for start in range(0, len(rows[0]), _RECENT):  # a buffer can have any number of rows
            end = start + _RECENT
            self._add([values[start:end] for values in rows], None if labels is None else labels[start:end])

    def _add(self, rows: Inputs, labels: Sequence[_Label] | None) -> None:
        part = _Part(self._hashed(rows, labels), list(rows), list(labels or ()))
        self.n_rows += len(rows[0])
        if self._drawn is not None and len(self._drawn.hashes) == self._n_drawn:  # most rows of a large table end here
            part = part.take(np.flatnonzero(part.hashes < self._drawn.hashes[-1]))
        self._added.append(part)
        self._added_bytes += sum(self._sizes(part))
        n_added = sum(len(one.hashes) for one in self._added)
        if n_added >= max(self._n_drawn // 4, 1) or self._added_bytes > self._most_bytes // 4:  # so few copies are made
            self._draw()

    def _sizes(self, part: "_Part[_Label]") -> list[int]:
        return [] if self._label_bytes is None else [self._label_bytes(label) for label in part.labels]

    def _draw(self) -> None:
        if not self._added:
            return
        parts = ([] if self._drawn is None else [self._drawn]) + self._added
        self._drawn, self._added, self._added_bytes = _least(parts, self._n_drawn), [], 0
        totals = list(accumulate(self._sizes(self._drawn)))
        if totals and totals[-1] > self._most_bytes:  # the least hashes of fewer rows are also the least ones of all
            self._n_drawn = max(bisect_right(totals, self._most_bytes), 1)
            self._drawn = self._drawn.take(np.arange(self._n_drawn))

    def _hashed(self, rows: Inputs, labels: Sequence[_Label] | None) -> npt.NDArray[np.uint64]:
        parts = [np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8) for values in rows]
        digests = []
        for row, content in enumerate(np.concatenate(parts, axis=1)):
            digest_of_row = hashlib.blake2b(content.data, digest_size=2 * _HASH_BYTES, key=self._key)
            if labels is not None:
                digest_of_row.update(repr(labels[row]).encode())
            digests.append(digest_of_row.digest())
        numbers = self._occurrences.add(_as_integers([digest[:_HASH_BYTES] for digest in digests]), self.n_rows)
        return _as_integers(
            [
                hashlib.blake2b(digest + struct.pack(">q", number), digest_size=_HASH_BYTES).digest()
                for digest, number in zip(digests, numbers, strict=True)
            ]
        )


def _as_integers(hashes: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64)


class _Occurrences:
    """Counts the rows of each content, in memory that is bounded for tables of any size."""

    def __init__(self) -> None:
        self._digests = np.empty(0, np.uint64)  # sorted
        self._counts = np.empty(0, np.int64)
        self._recent: Counter[int] = Counter()  # rows that are not in these counts yet

    def add(self, digests: npt.NDArray[np.uint64], n_rows: int) -> list[int]:
        """Return a number for each row, which no other row of the same content has.

        Parameters
        ----------
        digests : numpy.ndarray
            uint64 (n,): of the contents of the rows.
        n_rows : int
            How many rows were added before.

        Returns
        -------
        list of int
            How many rows of the same content came before; the number of the row if the content is not counted.
        """
        places, is_known = self._places(digests)
        counts = np.zeros(len(digests), np.int64)
        counts[is_known] = self._counts[places[is_known]]
        is_counted = is_known if len(self._digests) >= _MOST_CONTENTS else np.ones(len(digests), np.bool_)
        numbers = (n_rows + np.arange(len(digests))).tolist()
        for row in np.flatnonzero(is_counted).tolist():
            digest = int(digests[row])
            numbers[row] = int(counts[row]) + self._recent[digest]
            self._recent[digest] += 1
        if len(self._recent) >= _RECENT:
            self._merge()
        return numbers

    def _places(self, digests: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return where digests are, or would be, among the sorted ones, and whether they are there."""
        places = np.searchsorted(self._digests, digests)
        is_known = places < len(self._digests)
        is_known[is_known] = self._digests[places[is_known]] == digests[is_known]
        return places, is_known

    def _merge(self) -> None:
        digests = np.array(sorted(self._recent), np.uint64)
        counts = np.array([self._recent[digest] for digest in digests.tolist()], np.int64)
        places, is_known = self._places(digests)
        self._counts[places[is_known]] += counts[is_known]
        self._digests = np.insert(self._digests, places[~is_known], digests[~is_known])
        self._counts = np.insert(self._counts, places[~is_known], counts[~is_known])
        self._recent.clear()


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
