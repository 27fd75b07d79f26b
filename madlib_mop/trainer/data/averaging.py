"""The arithmetic of model averaging: parts of training states added by rows in float64, and divided; NumPy only.

Called by ``server.py`` for the aggregate madlib_mop.average_state. The parts of one place in several states of a model
have one layout, so each place is averaged by itself and no more than it is in memory. Numbers with fractions (weights,
batch-norm statistics, optimizer slots) are averaged; whole numbers (the optimizer's step count, seed generators, flags)
are those of the first state. Which batch size the step was compiled for (``State.static_batch``) is decided on each
segment: an average leaves it undecided.
"""

import json
from collections.abc import Callable, Sequence

import numpy as np
from mop_backend.frames import Blob
from mop_backend.messages import StateDescription

from madlib_mop.trainer.data.parts import StateError, TensorSpec, empty_part, numpy_dtype, parse_header
from madlib_mop.trainer.data.state import UNDECIDED, count_forward_parts, decode_state, digest_of

_WIDE = "float64"
_FRACTIONS = ("float16", "bfloat16", "float32", "float64")


def add(a: Blob, b: Blob, n_rows: Sequence[int], summed: Sequence[bool]) -> memoryview:
    """Add two parts of one layout, or sums of such.

    Parameters
    ----------
    a, b : bytes
        Each a part of a training state, or a sum that this function gave.
    n_rows : sequence of int
        Rows that each was trained on; the weight of a part. A sum has its weights in it.
    summed : sequence of bool
        Which of them are sums.

    Returns
    -------
    memoryview
        A safetensors file in which numbers with fractions are float64: ``n_a * a + n_b * b``.

    Raises
    ------
    StateError
        If they are not parts of the same place in states of the same model.
    """
    ours, theirs = (_Opened(blob, number) for number, blob in enumerate((a, b)))
    if ours.layout != theirs.layout:
        raise StateError("the parts to be averaged are not of the same place in states of the same model")

    def total(index: int) -> np.ndarray:
        if not ours.is_fraction(index):
            return ours.array(index)
        values = ours.weighted(index, None if summed[0] else n_rows[0])
        values += theirs.weighted(index, None if summed[1] else n_rows[1])
        return values

    return ours.rewritten(total, _WIDE)


def finish(blob: Blob, n_rows: int, summed: bool) -> memoryview:
    """Divide a sum by its rows and round once, to the dtype that the tensors had; one part alone is its own average."""
    opened = _Opened(blob, 0)

    def mean(index: int) -> np.ndarray:
        if not summed or not opened.is_fraction(index):
            return opened.array(index)
        return (opened.array(index) / n_rows).astype(numpy_dtype(opened.dtypes[index]))

    return opened.rewritten(mean, None)


def describe(parts: Sequence[Blob]) -> StateDescription:
    """Check a complete state; return its digests and sizes. Raises StateError."""
    state = decode_state(parts)
    n_bytes = 4 * sum(spec.n_elements for spec in state.specs("weights"))
    return StateDescription(digest_of(parts), state.weights_digest(), n_bytes, count_forward_parts(parts))


class _Opened:
    """A part or a sum; ``dtypes`` are those that its tensors have in a part."""

    def __init__(self, blob: Blob, number: int):
        header = parse_header(blob, number)
        self._blob = memoryview(blob).cast("B")
        self._pieces = header.pieces
        self._metadata = {**header.metadata, "static_batch": UNDECIDED}
        narrow = self._metadata.pop("narrow", None)
        self.dtypes = narrow or [piece.spec.dtype for piece in self._pieces]
        self.layout = json.dumps(
            [self._metadata, self.dtypes, [(p.name, p.spec.shape, p.start, p.stop) for p in self._pieces]]
        )

    def is_fraction(self, index: int) -> bool:
        return self.dtypes[index] in _FRACTIONS

    def array(self, index: int) -> np.ndarray:
        piece = self._pieces[index]
        return np.frombuffer(self._blob[piece.begin : piece.end], numpy_dtype(piece.spec.dtype))

    def weighted(self, index: int, n_rows: int | None) -> np.ndarray:
        """Return a new float64 array: times ``n_rows``, unless it is a sum already."""
        values = self.array(index).astype(np.float64)
        if n_rows is not None:
            values *= n_rows
        return values

    def rewritten(self, values: Callable[[int], np.ndarray], dtype: str | None) -> memoryview:
        """Write the file again with other values, fractions in ``dtype`` (None: in that of a part)."""
        dtypes = [dtype if dtype and self.is_fraction(i) else own for i, own in enumerate(self.dtypes)]
        metadata = {**self._metadata, **({"narrow": self.dtypes} if dtype else {})}
        specs = [TensorSpec(piece.spec.shape, d) for piece, d in zip(self._pieces, dtypes, strict=True)]
        part, offset = empty_part(metadata, self._pieces, specs)
        for index in range(len(self._pieces)):
            data = values(index).view(np.uint8).data
            part[offset : offset + len(data)] = data
            offset += len(data)
        return part
