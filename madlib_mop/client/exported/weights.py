"""Reads an exported safetensors file, without the package safetensors; for `Model.to_keras` of registered models."""

import json

import numpy as np

from madlib_mop.client.calling.errors import noted
from madlib_mop.errors import Unsupported

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
           "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?"}  # fmt: skip


def read_safetensors(data: bytes) -> tuple[str, bytes]:
    """Return the architecture as JSON, and the weights: float32, flattened, in the order of ``get_weights()``.

    Raises
    ------
    Unsupported
        If a weight has a type that NumPy lacks.
    """
    n_header = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n_header])
    metadata, start = header["__metadata__"], 8 + n_header
    parts = []
    for name in json.loads(metadata["weights"]):
        dtype, (begin, end) = header[name]["dtype"], header[name]["data_offsets"]
        if dtype not in _DTYPES:
            raise noted(Unsupported(f"weight {name!r} is of type {dtype}, which NumPy does not have"))
        parts.append(np.frombuffer(data[start + begin : start + end], _DTYPES[dtype]).astype(np.float32))
    return metadata["architecture"], b"".join(part.tobytes() for part in parts)
