"""Reads the header of a safetensors file: the place, the type and the shape of each tensor, all of them checked.

https://huggingface.co/docs/safetensors/index#format
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

from mop_backend.bounded_json import read_json

from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.exports.archives import Data

#: Bytes of one value, and NumPy's name of the type, by the file's name of it. BF16 is that of ml_dtypes.
DTYPES = {
    "F64": (8, "<f8"), "F32": (4, "<f4"), "F16": (2, "<f2"), "BF16": (2, "bfloat16"), "I64": (8, "<i8"),
    "I32": (4, "<i4"), "I16": (2, "<i2"), "I8": (1, "i1"), "U64": (8, "<u8"), "U32": (4, "<u4"), "U16": (2, "<u2"),
    "U8": (1, "u1"), "BOOL": (1, "?"),
}  # fmt: skip
MAX_HEADER_BYTES = 16 << 20
_MAX_NAME = 1000
_MOST_DIMENSIONS = 32
_HINT = "Write the file again with safetensors, or with madlib_mop.export_model."


@dataclass(frozen=True)
class FileTensor:
    """One tensor of a file.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        NumPy's name, or ``bfloat16``.
    start, end : int
        Where its bytes are in the file.
    """

    shape: tuple[int, ...]
    dtype: str
    start: int
    end: int


@dataclass(frozen=True)
class TensorFile:
    """The header of a file.

    Attributes
    ----------
    tensors : dict of str to FileTensor
    order : tuple of str, or None
        The names of all tensors in the order of Keras' ``get_weights()``, as an export of ours writes them.
    metadata : mapping of str to str
        The texts of the header that belong to no tensor.
    """

    tensors: dict[str, FileTensor]
    order: tuple[str, ...] | None
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_header(data: Data) -> TensorFile:
    """Read the header of a safetensors file.

    Raises
    ------
    UnreadableText
        If the header is damaged, or tensors overlap, leave a gap or end behind the file.
    Unsupported
        If a tensor is of a type that Keras' weights do not have.
    """
    n_header = int.from_bytes(bytes(data[:8]), "little")
    if len(data) < 8 or n_header > min(MAX_HEADER_BYTES, len(data) - 8):
        raise _damaged("its header ends behind the file, or is too long")
    try:
        header: Any = read_json(str(memoryview(data)[8 : 8 + n_header], "utf-8"))
    except (ValueError, RecursionError):
        raise _damaged("its header is not JSON") from None
    if not isinstance(header, dict):
        raise _damaged("its header is not an object")
    if any(len(name) > _MAX_NAME for name in header):
        raise _damaged(f"a tensor has a name of more than {_MAX_NAME:,} characters")
    metadata = header.pop("__metadata__", {})
    start = 8 + n_header
    tensors = {name: _tensor(name, one, start, len(data)) for name, one in header.items()}
    places = sorted((one.start, one.end) for one in tensors.values())
    if places and (places[0][0] != start or places[-1][1] != len(data)):
        raise _damaged("its tensors do not fill it")
    if any(end != begin for (_, end), (begin, _) in pairwise(places)):  # defence: overlapping-tensors
        raise _damaged("its tensors overlap, or leave a gap")
    texts = {name: one for name, one in metadata.items() if isinstance(one, str)} if isinstance(metadata, dict) else {}
    return TensorFile(tensors, _order(texts, tensors), texts)


def _tensor(name: str, entry: Any, start: int, n_bytes: int) -> FileTensor:
    shown = repr(name[:100])
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_good = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        is_good = False
    if not is_good or len(shape) > _MOST_DIMENSIONS:
        raise _damaged(f"tensor {shown} is not described by dtype, shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Unsupported(f"tensor {shown} of the safetensors file is of type {str(dtype)[:20]!r}", hint=_HINT)
    size, numpy_name = DTYPES[dtype]
    if end - begin != size * prod(shape) or start + end > n_bytes:
        raise _damaged(f"tensor {shown} has another size than its shape says")
    return FileTensor(tuple(shape), numpy_name, start + begin, start + end)


def _order(metadata: Mapping[str, str], tensors: dict[str, FileTensor]) -> tuple[str, ...] | None:
    if "weights" not in metadata:
        return None
    try:
        order: Any = read_json(metadata["weights"])
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise _damaged("its list of weights is not a list of names")
    if len(set(order)) != len(order) or set(order) != set(tensors):
        raise _damaged("its list of weights does not name each tensor once")
    return tuple(order)


def _damaged(reason: str) -> MopError:
    return UnreadableText(f"the safetensors file is damaged: {reason}", hint=_HINT)
