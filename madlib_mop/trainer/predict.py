"""Predictions of one loaded model for batches of raw rows; called by ``visits.py``."""

import keras
import numpy as np
import tensorflow as tf

from madlib_mop.trainer import loop
from madlib_mop.trainer.compiled import check_columns
from madlib_mop.trainer.loop import DataSpec
from madlib_mop.trainer.shards import aligned_empty

#: Evaluation and prediction take as many rows at once as make this much input, but no more than so many rows.
_BATCH_BYTES = 1 << 20
_MAX_BATCH_ROWS = 1024


class Predictor:
    """A model that predicts; its function is traced once for each kind of data (number of rows is no part of it)."""

    def __init__(self, model: keras.Model, normalizing_const: float):
        self._model = model
        self._constant = tf.constant(normalizing_const, tf.float32)
        self._functions: dict[DataSpec, tf.types.experimental.ConcreteFunction] = {}

    def predict(self, xs: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """Give each output for all rows.

        Parameters
        ----------
        xs : tuple of numpy.ndarray
            One array an input, ``(n_rows, ...)``, float32 (normalized) or uint8 (to be divided by the constant).

        Returns
        -------
        list of numpy.ndarray
            One array an output, float32 ``(n_rows, ...)``.
        """
        spec = DataSpec.of(xs)
        if spec not in self._functions:
            check_columns(self._model, spec)
            self._functions[spec] = loop.make_predict_batch(self._model, spec).get_concrete_function()
        function = self._functions[spec]
        n_rows, batch_size = len(xs[0]), batch_rows(xs)
        tensors = loop.tensors_of(tuple(_aligned(x) for x in xs))
        outputs: list[np.ndarray] = []
        for start in range(0, n_rows, batch_size):
            stop = min(start + batch_size, n_rows)
            batch = function(tensors, tf.constant(start, tf.int64), tf.constant(stop, tf.int64), self._constant)
            if not outputs:
                outputs = [np.empty((n_rows, *output.shape[1:]), np.float32) for output in batch]
            for output, rows in zip(outputs, batch, strict=True):
                output[start:stop] = rows.numpy()
        return outputs


def batch_rows(xs: tuple[np.ndarray, ...], at_least: int = 1) -> int:
    """Give how many rows to compute at once: a function of their size only, for results must not depend on buffers."""
    row_bytes = sum(4 * x[:1].size for x in xs) or 1
    return max(at_least, 1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes))


def _aligned(x: np.ndarray) -> np.ndarray:
    copy = aligned_empty(x.shape, x.dtype)
    copy[...] = x
    return copy
