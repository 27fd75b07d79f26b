"""Arrays from the weights of a model, as tables have them: float32 in ``get_weights()`` order, in one buffer or
several; called by the trainer and by the client."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from mop_backend.frames import Blob


def arrays_of(buffers: Iterable[Blob], shapes: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
    """Yield float32 arrays of these shapes, one after the other: views where a buffer has all of one, else copies.

    Each buffer is used before the next one is made.

    Parameters
    ----------
    buffers : iterable of bytes-like
        As many bytes as the arrays need, cut anywhere.
    shapes : sequence of sequence of int
    """
    rest, left = iter(buffers), memoryview(b"")
    for shape in shapes:
        n_bytes = 4 * math.prod(shape)
        while n_bytes and not left:
            left = memoryview(next(rest)).cast("B")
        if len(left) >= n_bytes:
            yield np.frombuffer(left[:n_bytes], np.float32).reshape(shape)
            left = left[n_bytes:]
            continue
        whole, filled = np.empty(n_bytes, np.uint8), 0
        while filled < n_bytes:
            taken = left[: n_bytes - filled]
            whole[filled : filled + len(taken)] = taken
            filled, left = filled + len(taken), left[len(taken) :]
            if filled < n_bytes:
                left = memoryview(next(rest)).cast("B")
        yield whole.view(np.float32).reshape(shape)
