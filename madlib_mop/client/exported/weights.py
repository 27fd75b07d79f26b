"""Reads an exported safetensors file, without the package safetensors; for `Model.to_keras` of registered models."""

import numpy as np

from madlib_mop.client.calling.errors import noted
from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.exports.tensors import read_header

_ARCHITECTURE = "architecture"


def read_safetensors(data: bytes) -> tuple[str, bytes]:
    """Return the architecture as JSON, and the weights: float32, flattened, in the order of ``get_weights()``.

    Raises
    ------
    UnreadableText
        If the file is damaged, or none that an export wrote.
    Unsupported
        If a weight has a type that NumPy lacks.
    """
    try:
        header = read_header(data)
        if _ARCHITECTURE not in header.metadata or header.order is None:
            raise UnreadableText("the safetensors file has no architecture, or no order of its weights")
    except MopError as error:
        raise noted(error) from None
    parts = []
    for name in header.order:
        tensor = header.tensors[name]
        if tensor.dtype == "bfloat16":
            raise noted(Unsupported(f"weight {name!r} is of type {tensor.dtype}, which NumPy does not have"))
        parts.append(np.frombuffer(data[tensor.start : tensor.end], tensor.dtype).astype(np.float32))
    return header.metadata[_ARCHITECTURE], b"".join(part.tobytes() for part in parts)
