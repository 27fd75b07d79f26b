"""How many rows a Keras model computes at once, so that bits do not depend on the number of rows.

Trainers and exported models (``exported.py``) use it. Importing this module imports Keras and its backend.
"""

from collections.abc import Iterator, Sequence

import keras
import numpy as np
import numpy.typing as npt

#: Evaluation and prediction compute as many rows at once as make this many bytes of input, up to a maximum of rows.
_BATCH_BYTES = 1 << 20
_MAX_BATCH_ROWS = 1024
#: Kernels of matrix products and of functions of single numbers compute some rows together, and the rest in another
#: way, with other last bits. With these numbers of rows there is no such rest: up to 16 rows, and multiples of 48.
_FEW_ROWS, _PANEL_ROWS = 16, 48
#: Layers that compute each row of a batch by matrix products or element by element, at little cost.
_ROWWISE = frozenset(
    "Activation ActivityRegularization Add AlphaDropout Average BatchNormalization Concatenate Cos Dense Dot Dropout"
    " ELU EinsumDense Embedding Flatten GaussianDropout GaussianNoise Identity InputLayer LayerNormalization LeakyReLU"
    " Maximum Minimum Multiply Normalization PReLU Permute ReLU RepeatVector Rescaling Reshape Sin Softmax Subtract"
    " UnitNormalization".split()
)


def batch_rows(xs: Sequence[npt.NDArray[np.generic]], at_least: int = 1) -> int:
    """Return how many rows to compute at once: a function of their size only, so that buffers change no result."""
    row_bytes = sum(4 * x[:1].size for x in xs) or 1
    return max(at_least, 1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes))


def is_rowwise(model: keras.Model) -> bool:
    """Return whether a model is a dense network: its rows have the same bits alone and in every batch of `filled`."""
    return all(type(operation).__name__ in _ROWWISE for operation in _operations(model))


def filled(n_rows: int) -> int:
    """Return the number of rows that are computed for some rows of a dense network."""
    return _FEW_ROWS if n_rows <= _FEW_ROWS else -(-n_rows // _PANEL_ROWS) * _PANEL_ROWS


def filled_batch_rows(xs: Sequence[npt.NDArray[np.generic]]) -> int:
    """Return how many rows of a dense network to compute at once."""
    return max(1, batch_rows(xs) // _PANEL_ROWS) * _PANEL_ROWS


def _operations(model: keras.Model) -> Iterator[object]:
    """Yield the layers and operations of a model, and of models that are layers of it."""
    for operation in getattr(model, "operations", model.layers):
        if isinstance(operation, keras.Model):
            yield from _operations(operation)
        else:
            yield operation
