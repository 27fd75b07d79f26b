"""Models of exported ``.keras`` files, which the Python client runs; the one module of this folder with TensorFlow.

The client's Keras may run on another backend. Then Keras itself predicts, and TensorFlow need not be installed.
"""

import json
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from madlib_mop.errors import UnreadableText, cannot_be_read
from madlib_mop.models.architecture import MAX_JSON_LENGTH
from madlib_mop.models.build import build_architecture, first_reason
from madlib_mop.models.running import batch_rows, filled, filled_batch_rows, is_rowwise

#: ``f(xs) -> [output]``: each output, float32 (n_rows, ...), for the inputs of one batch.
Compute = Callable[[Sequence[npt.NDArray[np.generic]]], list[npt.NDArray[np.float32]]]
_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
#: A member of more than this size may not expand to more than so many times its stored size. Exports do not compress.
_RATIO_FLOOR_BYTES, _MAX_RATIO = 1 << 26, 100


class KerasRunner:
    """A model of an exported ``.keras`` file; it predicts as ``madlib_mop.predict`` does, with the same bits.

    The same bits need Keras on TensorFlow, the same version of TensorFlow, one thread, and the same kind of processor.
    On JAX and PyTorch, last bits differ.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InvalidParameter
        If the file, or the space for a copy of its weights, is not there.
    UnreadableText, Unsupported
        If the file is no Keras archive or is damaged, or has a layer that the library does not accept: no code of a
        file is run.
    """

    def __init__(self, path: Path):
        self.model = _load(path)
        self._fills = is_rowwise(self.model)
        self._compute = _Traced(self.model) if keras.config.backend() == "tensorflow" else _plain(self.model)

    def run(self, xs: Sequence[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.float32]]:
        """Return each output, float32 (n_rows, ...), for inputs (n_rows, ...) in the order of the model."""
        n_rows = len(xs[0])
        step = filled_batch_rows(xs) if self._fills else batch_rows(xs)
        parts = [self._batch([x[start : start + step] for x in xs]) for start in range(0, n_rows, step)]
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    def _batch(self, xs: Sequence[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.float32]]:
        n_rows = len(xs[0])
        if self._fills and (n_more := filled(n_rows) - n_rows):
            xs = [np.concatenate([x, np.repeat(x[-1:], n_more, axis=0)]) for x in xs]
        return [output[:n_rows] for output in self._compute(xs)]


def _load(path: Path) -> keras.Model:
    """Return the model of a file: Keras gets the checked copy of its architecture, and its weights, and nothing else.

    ``keras.saving.load_model`` would read the file's own architecture, which can have parts that the check leaves out.
    """
    with tempfile.TemporaryDirectory(prefix="madlib_mop_") as folder:
        try:
            with zipfile.ZipFile(path) as file:
                model = build_architecture(json.loads(file.read(_checked(file.getinfo(_CONFIG), MAX_JSON_LENGTH))))
                file.extract(_checked(file.getinfo(_WEIGHTS)), folder)
        except OSError as error:
            raise cannot_be_read(path, error.strerror or str(error)) from None
        except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
            raise UnreadableText(f"{path} is no file of a Keras model", hint="Export the model again.") from None
        try:
            model.load_weights(Path(folder) / _WEIGHTS)
        except Exception as error:  # noqa: BLE001 -- h5py and Keras have many classes of errors
            message = f"Keras cannot load the weights of {path}: {first_reason(error)}"
            raise UnreadableText(message, hint="Export the model again.") from None
    return model


def _checked(info: zipfile.ZipInfo, most_bytes: int | None = None) -> zipfile.ZipInfo:
    """Return a member of an archive. Raises ValueError if it is too large, or expands too much."""
    expands = info.file_size > max(_RATIO_FLOOR_BYTES, _MAX_RATIO * info.compress_size)
    if expands or (most_bytes is not None and info.file_size > most_bytes):
        raise ValueError(f"{info.filename} has {info.file_size:,} bytes")
    return info


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
