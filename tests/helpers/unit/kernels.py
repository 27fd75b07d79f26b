"""What the kernels of this processor do: whether a row's features have the same bits in every batch."""

import numpy as np
import tensorflow as tf

from madlib_mop.models.prefix import split
from madlib_mop.trainer.graphs import loop


def features_keep_bits(model, columns, batch_size: int) -> bool:
    """Return whether a model's frozen layers compute the same bits for a row in a batch of all rows and in a visit's.

    On some processors, the bits of a matrix product depend on the number of rows and on a row's place among them. Then
    a trainer does not cache features, as it must.
    """
    n_rows = len(columns[0])
    run = loop.make_prefix_batch(split(model), loop.DataSpec.of(tuple(columns)), 0).get_concrete_function()
    xs, one = [tf.constant(column) for column in columns], tf.constant(1.0, tf.float32)
    whole = [feature.numpy() for feature in run(xs, tf.range(n_rows, dtype=tf.int64), one)]
    chance = np.random.default_rng(1)
    for size in filter(None, {min(batch_size, n_rows), n_rows % batch_size}):
        for _ in range(100):
            rows = chance.choice(n_rows, size, replace=False)
            batch = run(xs, tf.constant(rows, tf.int64), one)
            if any(not np.array_equal(w[rows], b.numpy()) for w, b in zip(whole, batch, strict=True)):
                return False
    return True
