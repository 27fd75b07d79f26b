"""How many rows a Keras model computes at once, so that bits do not depend on the number of rows.

Trainers and exported models (``exported.py``) use it. Importing this module imports Keras and its backend.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

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
#: Layers among them that compute a batch of matrix products, one for each number of a row for example.
_BATCHES_OF_PRODUCTS = frozenset("Dot EinsumDense".split())
#: The operations among them that are no layers; those called Average, Dot and Reshape can combine rows.
_ROWWISE_OPERATIONS = frozenset("Add Concatenate Cos Maximum Minimum Multiply Sin Softmax Subtract".split())
#: Operations that combine rows in most uses.
_COMBINING = frozenset("BroadcastTo Dot Einsum Outer Pad Ravel Tensordot Tile".split())
#: Layers whose ``axis`` is that of their weights, which the batch has not.
_AXIS_OF_WEIGHTS = (keras.layers.BatchNormalization, keras.layers.Normalization)


def batch_rows(xs: Sequence[npt.NDArray[np.generic]], at_least: int = 1) -> int:
    """Return how many rows to compute at once: a function of their size only, so that buffers change no result."""
    row_bytes = sum(4 * x[:1].size for x in xs) or 1
    return max(at_least, 1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes))


def is_rowwise(model: keras.Model) -> bool:
    """Return whether a model is a dense network: its rows have the same bits alone and in every batch of `filled`."""
    for operation in _operations(model):
        names = _ROWWISE if isinstance(operation, keras.layers.Layer) else _ROWWISE_OPERATIONS
        if type(operation).__name__ not in names:
            return False
    return not combines_rows(model)


def combines_rows(model: keras.Model) -> bool:
    """Return whether what a row gets may depend on the other rows of its batch; True for some where it does not.

    Examples are `Softmax(axis=0)` and `keras.ops.mean(x, axis=0)`. Such a batch may not be filled with other rows.
    """
    return any(_combines(operation) for operation in _operations(model))


def filled(n_rows: int) -> int:
    """Return the number of rows that are computed for some rows of a dense network."""
    return _FEW_ROWS if n_rows <= _FEW_ROWS else -(-n_rows // _PANEL_ROWS) * _PANEL_ROWS


def fixed_rows(model: keras.Model) -> int | None:
    """Return the number of rows that are computed together of a dense network, always; None if `filled` says it.

    TensorFlow without oneDNN has two kernels for a batch of matrix products, and chooses by the number of rows. It uses
    oneDNN on processors with VNNI or AMX, which some with AVX2 lack.
    """
    has_batch = any(type(operation).__name__ in _BATCHES_OF_PRODUCTS for operation in _operations(model))
    return _PANEL_ROWS if has_batch else None


def filled_batch_rows(xs: Sequence[npt.NDArray[np.generic]]) -> int:
    """Return how many rows of a dense network to compute at once."""
    return max(1, batch_rows(xs) // _PANEL_ROWS) * _PANEL_ROWS


def _operations(model: keras.Model) -> Iterator[Any]:
    """Yield the layers and operations of a model, and of models that are layers of it."""
    for operation in getattr(model, "operations", model.layers):
        if isinstance(operation, keras.Model):
            yield from _operations(operation)
        else:
            yield operation


def _combines(operation: Any) -> bool:
    is_layer = isinstance(operation, keras.layers.Layer)
    if is_layer and any(_axes(inner) == [0] for inner in operation._flatten_layers(include_self=False)):
        return True  # a layer in a wrapper
    call_combines = _layer_combines if is_layer else _operation_combines
    return any(call_combines(operation, node) for node in operation._inbound_nodes if node.input_tensors)


def _layer_combines(layer: Any, node: Any) -> bool:
    """Return whether a call of a layer combines rows along an axis."""
    return bool({0, -len(node.input_tensors[0].shape)} & set(_axes(layer)))


def _operation_combines(operation: Any, node: Any) -> bool:
    """Return whether an operation combines rows: along an axis, by moving the first axis, or in another way."""
    name, shape, result = type(operation).__name__, node.input_tensors[0].shape, node.outputs[0].shape
    if name in _COMBINING:
        return True
    if name == "GetItem":
        return not _keeps_rows(node.arguments.args[1], len(shape))
    if name == "Matmul":
        return any(len(tensor.shape) < 3 for tensor in node.input_tensors) and len(node.input_tensors) > 1
    if name == "Reshape":
        return result[:1] != shape[:1] or None in result[1:] or math.prod(result[1:]) != _n_values(shape)
    if name == "Transpose":
        return operation.axes is None or operation.axes[0] not in (0, -len(shape))
    axes = _axes(operation)
    if name == "Swapaxes":
        axes = [operation.axis1, operation.axis2]
    if name == "Moveaxis":
        axes = [*operation.source, *operation.destination]
    if hasattr(operation, "axis") and operation.axis is None:
        return True  # along all axes
    rank = len(result if name in ("ExpandDims", "Stack") else shape)
    return bool({0, -rank} & set(axes))


def _axes(operation: Any) -> list[int]:
    """Return the axes that a layer or an operation computes along."""
    axis = None if isinstance(operation, _AXIS_OF_WEIGHTS) else getattr(operation, "axis", None)
    return [axis] if isinstance(axis, int) else list(axis or ())


def _keeps_rows(key: Any, rank: int) -> bool:
    """Return whether ``x[key]`` has all rows of x in their order."""
    first, n_others = (key[0] if key else ..., len(key) - 1) if isinstance(key, tuple | list) else (key, 0)
    return (first is ... and n_others < rank) or (isinstance(first, slice) and first == slice(None))


def _n_values(shape: Sequence[int | None]) -> int | None:
    """Return the number of values of a row; None if it is not known."""
    return math.prod(size or 0 for size in shape[1:]) or None
