"""Cuts a stream of rows into packed buffers; holds one buffer and one batch at a time. Used by the preprocessors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from madlib_mop.columns.layout import BadRow
from madlib_mop.packing.buffers import BufferPlan
from madlib_mop.packing.encoders import ColumnEncoder


@dataclass(frozen=True)
class RawColumn:
    """A batch's values of one column: all bytes one after the other, and the bytes of each row (-1 for NULL)."""

    data: bytes | bytearray | memoryview
    lengths: Sequence[int]


@dataclass(frozen=True)
class PackedBuffer:
    """One row of a packed table.

    Attributes
    ----------
    buffer_id, segment, n_rows : int
        0-based; ``segment`` is its ``__dist_key__``.
    values : tuple of bytes
        One tensor a column, native byte order.
    shapes : tuple of tuple of int
        Their shapes, first the rows.
    """

    buffer_id: int
    segment: int
    n_rows: int
    values: tuple[bytes, ...]
    shapes: tuple[tuple[int, ...], ...]


class Packer:
    """Converts batches of raw rows to packed buffers, in order.

    Parameters
    ----------
    plan : BufferPlan
    encoders : sequence of ColumnEncoder
        One a column, in the order in which `add` gets them.
    """

    def __init__(self, plan: BufferPlan, encoders: Sequence[ColumnEncoder]):
        self.plan = plan
        self.n_rows = 0
        self._encoders = tuple(encoders)
        self._pieces: list[list[np.ndarray]] = [[] for _ in self._encoders]
        self._filled = 0
        self._n_buffers = 0

    def add(self, columns: Sequence[RawColumn]) -> Iterator[PackedBuffer]:
        """Pack one batch; yield the buffers that it completes.

        Raises
        ------
        BadRow
            For a row of the batch that cannot be packed; its ``column`` is set.
        """
        tensors = []
        for encoder, column in zip(self._encoders, columns, strict=True):
            try:
                tensors.append(encoder.encode(column.data, np.asarray(column.lengths, np.int64)))
            except BadRow as problem:
                problem.column = encoder.name
                raise
        n_rows = len(tensors[0])
        start = 0
        while start < n_rows:
            if self._n_buffers == self.plan.n_buffers:  # more rows than planned: only counted; the caller checks n_rows
                self.n_rows += n_rows - start
                return
            room = self.plan.rows_of(self._n_buffers) - self._filled
            end = min(n_rows, start + room)
            for pieces, tensor in zip(self._pieces, tensors, strict=True):
                pieces.append(tensor[start:end])
            self._filled += end - start
            self.n_rows += end - start
            if end - start == room:
                yield self._emit()
            start = end

    def finish(self) -> Iterator[PackedBuffer]:
        """Yield the last, short buffer, if there is one."""
        if self._filled:
            yield self._emit()

    def _emit(self) -> PackedBuffer:
        buffer_id, n_rows = self._n_buffers, self._filled
        values = tuple(b"".join(piece.data for piece in pieces) for pieces in self._pieces)
        shapes = tuple((n_rows, *encoder.shape) for encoder in self._encoders)
        self._pieces = [[] for _ in self._encoders]
        self._filled = 0
        self._n_buffers += 1
        return PackedBuffer(buffer_id, self.plan.segment_of(buffer_id), n_rows, values, shapes)
