"""Models of exported ``.keras`` files, which the Python client runs; the one module of this folder with TensorFlow.

The client's Keras may run on another backend. Then Keras itself predicts, and TensorFlow need not be installed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from madlib_mop.models.running import batch_rows, filled, filled_batch_rows, fixed_rows, is_rowwise

#: ``f(xs) -> [output]``: each output, float32 (n_rows, ...), for the inputs of one batch.
Compute = Callable[[Sequence[npt.NDArray[np.generic]]], list[npt.NDArray[np.float32]]]


class KerasRunner:
    """Runs the model of an exported ``.keras`` file; it predicts as ``madlib_mop.predict`` does, with the same bits.

    The same bits need Keras on TensorFlow, the same version of TensorFlow, one thread, and the same kind of processor.
    On JAX and PyTorch, last bits differ.

    Parameters
    ----------
    model : keras.Model
        Not compiled.
    """

    def __init__(self, model: keras.Model):
        self.model = model
        self._fills = is_rowwise(self.model)
        self._rows = fixed_rows(self.model) if self._fills else None
        self._compute = _Traced(self.model) if keras.config.backend() == "tensorflow" else _plain(self.model)

    def run(self, xs: Sequence[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.float32]]:
        """Return each output, float32 (n_rows, ...), for inputs (n_rows, ...) in the order of the model."""
        n_rows = len(xs[0])
        step = self._rows or (filled_batch_rows(xs) if self._fills else batch_rows(xs))
        parts = [self._batch([x[start : start + step] for x in xs]) for start in range(0, n_rows, step)]
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    def _batch(self, xs: Sequence[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.float32]]:
        n_rows = len(xs[0])
        if self._fills and (n_more := (self._rows or filled(n_rows)) - n_rows):
            xs = [np.concatenate([x, np.repeat(x[-1:], n_more, axis=0)]) for x in xs]
        return [output[:n_rows] for output in self._compute(xs)]


def _plain(model: keras.Model) -> Compute:
    def compute(xs: Sequence[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.float32]]:
        outputs = model.predict_on_batch(xs[0] if len(xs) == 1 else list(xs))
        return [np.asarray(output, np.float32) for output in keras.tree.flatten(outputs)]

    return compute


class _Traced:
    """Computes one batch of a model in TensorFlow, with the bits of the trainers."""

    def __init__(self, model: keras.Model):
        import tensorflow

        self._tf: Any = tensorflow
        self._model = model
        self._functions: dict[tuple[Any, ...], Any] = {}

    def __call__(self, xs: Sequence[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.float32]]:
        tf = self._tf
        traced = self._function(tuple(tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in xs))
        # as trainers call it (trainer/backends/tensorflow/loop.py): in a call of the function itself, TensorFlow's
        # arithmetic optimization changes last bits of some networks
        outputs = tf.raw_ops.StatefulPartitionedCall(
            args=[*map(tf.constant, xs), *traced.captured_inputs],
            Tout=[output.dtype for output in traced.outputs],
            f=traced,
        )
        return [np.asarray(output, np.float32) for output in outputs]

    def _function(self, specs: tuple[Any, ...]) -> Any:
        """Return the function for a kind of data; its first use traces it."""
        tf = self._tf
        if specs not in self._functions:
            def call(*xs: Any) -> list[Any]:
                outputs = self._model(xs[0] if len(xs) == 1 else list(xs), training=False)
                return [tf.cast(output, tf.float32) for output in keras.tree.flatten(outputs)]

            function = tf.function(call, input_signature=list(specs), autograph=False)
            self._functions[specs] = function.get_concrete_function()
        return self._functions[specs]
