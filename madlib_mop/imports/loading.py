"""From a checked architecture and a file of weights to a model of Keras; trainers and the client's runner call it.

Importing this module imports Keras and its backend. Keras gets a checked architecture, and arrays of numbers, one layer
after the other. It never loads the file itself.
"""

import hashlib
from collections.abc import Iterable
from math import prod

import keras
import numpy as np
from mop_backend.frames import Blob
from mop_backend.machine import memory_bytes

from madlib_mop.errors import InvalidParameter
from madlib_mop.exports.archives import Data
from madlib_mop.exports.formats import MAX_BYTES
from madlib_mop.imports.keras_files import KerasFile
from madlib_mop.imports.kinds import too_large
from madlib_mop.imports.weights.hdf5 import WeightsFile
from madlib_mop.imports.weights.matching import KerasWeights, Match, source_of
from madlib_mop.models.build import build_architecture
from madlib_mop.models.described import describe_architecture
from madlib_mop.models.flat_weights import arrays_of
from madlib_mop.models.keras_layers import Node

_FLOAT32_BYTES = 4
#: A model of more than this size may not have more than so many times the bytes of its file. Files of half precision
#: have half of them, and those of layers with adapters lack the adapters, which Keras adds to the kernel.
_RATIO_FLOOR_BYTES, _MAX_RATIO = 64 << 20, 4


def build_for(arch: Node, n_stored: int | None, seed: int | None = None) -> keras.Model:
    """Build a model whose weights come from a file.

    Parameters
    ----------
    arch : dict
        Checked (`check_architecture`).
    n_stored : int or None
        Bytes of the file, if it has all weights of the model. None: if layers can keep their own.
    seed : int or None
        As of `build_architecture`.

    Raises
    ------
    InvalidParameter
        If the weights neither fit into a value of PostgreSQL nor are there, they have more than half of the memory, or
        the file cannot have them all. Nothing is allocated for them then.
    ModelFailed
        If Keras cannot build the model.
    """
    n_bytes = _FLOAT32_BYTES * sum(prod(weight.shape) for weight in describe_architecture(arch).weights)
    if n_bytes > max(MAX_BYTES, n_stored or 0):  # defence: size-of-a-network
        raise too_large(n_bytes, "the model's weights have")
    # A table of parts can be a view, which says any size; a file has been read by now.
    if n_bytes > max(MAX_BYTES, memory_bytes() // 2):  # defence: memory-of-a-network
        raise InvalidParameter(
            f"the model's weights have {n_bytes:,} bytes, more than half of the memory that this process may use:"
            f" {memory_bytes():,} bytes",
            hint="Use a machine with more memory.",
        )
    # defence: weights-of-a-network
    if n_stored is not None and n_bytes > max(_RATIO_FLOOR_BYTES, _MAX_RATIO * n_stored):
        raise InvalidParameter(
            f"the model's weights have {n_bytes:,} bytes, and the file has {n_stored:,} bytes of weights",
            hint="Save the model again with Keras' model.save('model.keras').",
        )
    return build_architecture(arch, seed)


def model_of(file: KerasFile) -> keras.Model:
    """Return the model of a Keras file with its weights, not compiled. Raises as `build_for` and `load_hdf5`.

    ``keras.saving.load_model`` would read the file's own architecture, which can have parts that the check leaves out.
    """
    model = build_for(file.arch, len(file.weights))
    with WeightsFile(file.weights) as weights:
        # defence: no-legacy-weights = source_of(weights).load(model, by_name=False, skip_mismatch=False)
        KerasWeights(weights).load(model, by_name=False, skip_mismatch=False)  # a .keras file never has the legacy form
    return model


def load_flat(model: keras.Model, weights: Iterable[Blob]) -> None:
    """Set the weights of a model from buffers of float32, in ``get_weights()`` order, which have as many bytes."""
    for variable, array in zip(model.weights, arrays_of(weights, [v.shape for v in model.weights]), strict=True):
        variable.assign(keras.ops.cast(array, variable.dtype))


def digest_of(model: keras.Model) -> str:
    """Return the SHA-256 of a model's weights, as a signature has it: float32, in ``get_weights()`` order."""
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight.value), np.float32).data)
    return digest.hexdigest()


def load_hdf5(model: keras.Model, data: Data, by_name: bool = False, skip_mismatch: bool = False) -> Match:
    """Set the weights of a model from an HDF5 file; raises as `WeightsSource.load` of ``matching.py``."""
    with WeightsFile(data) as file:
        return source_of(file).load(model, by_name, skip_mismatch)
