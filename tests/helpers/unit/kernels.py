"""What the kernels of this processor do: whether a row's features have the same bits in every batch."""

import numpy as np

from madlib_mop.models.prefix import split
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.columns import DataSpec
from madlib_mop.trainer.data.shards import aligned_empty


def features_keep_bits(model, columns, batch_size: int) -> bool:
    """Return whether a model's frozen layers compute the same bits for a row in a batch of all rows and in a visit's.

    On some processors, the bits of a matrix product depend on the number of rows and on a row's place among them. Then
    a trainer does not cache features, as it must.
    """
    n_rows, backend = len(columns[0]), choice.current()
    run = backend.prefix_batch(split(model), DataSpec.of(tuple(columns)), 0)
    tensors = backend.columns([aligned(column) for column in columns], (), 1.0)
    whole = run(tensors, np.arange(n_rows))
    chance = np.random.default_rng(1)
    for size in filter(None, {min(batch_size, n_rows), n_rows % batch_size}):
        for _ in range(100):
            rows = chance.choice(n_rows, size, replace=False)
            if any(not np.array_equal(w[rows], b) for w, b in zip(whole, run(tensors, rows), strict=True)):
                return False
    return True


def aligned(column: np.ndarray) -> np.ndarray:
    """Return a copy in memory of the alignment that backends need, as shards have it."""
    copy = aligned_empty(column.shape, column.dtype)
    copy[...] = column
    return copy
