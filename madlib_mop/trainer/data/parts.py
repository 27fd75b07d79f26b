"""One part of a training state: a file in the safetensors format, its header written and read; NumPy only.

Called by ``state.py``, which knows what a whole state is, and by ``averaging.py``, which works part by part.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mop_backend.frames import Blob

GROUPS = ("weights", "variables", "optimizer")
#: From this size on, the optimizer's state begins a part of its own, which evaluations do not receive.
_OWN_PART_BYTES = 64 << 10
#: The headers would not fit into smaller parts; tests use parts of nearly this size.
SMALLEST_PART_BYTES = 2048

#: The backend of Keras that a state belongs to if its header names none.
USUAL_BACKEND = "tensorflow"
_FORMAT = "madlib_mop.state/1"
_LENGTH_BYTES = 8
_DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
_NAMES = {code: name for name, code in _DTYPES.items()}
#: Upper bounds of the bytes of a header: the fixed part, each tensor or slice, and each dimension of its shape.
_HEADER_BYTES = 512
_ENTRY_BYTES = 160
_DIMENSION_BYTES = 40


class StateError(ValueError):
    """The bytes are not a training state, or a part of it is missing, duplicated or damaged."""


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype (NumPy's name, or ``bfloat16``) of one variable."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def n_elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Size of an element in bytes."""
        return 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize

    @property
    def n_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.n_elements * self.item_bytes


@dataclasses.dataclass(frozen=True)
class Piece:
    """Elements ``start`` to ``stop`` of one tensor; ``whole`` when that is all of it."""

    group: str
    index: int
    start: int
    stop: int
    whole: bool

    @property
    def name(self) -> str:
        return f"{self.group}/{self.index}" if self.whole else f"{self.group}/{self.index}/{self.start}"


@dataclasses.dataclass(frozen=True)
class Located(Piece):
    """A piece, its tensor, and the location of its bytes."""

    spec: TensorSpec
    part: int
    begin: int
    end: int


Metadata = dict[str, Any]  # content of a part's header: format, part, parts, counts, static_batch, shapes, backend
Specs = Mapping[str, Sequence[TensorSpec]]  # group -> tensors of a state, in order


@dataclasses.dataclass(frozen=True)
class Header:
    """The header of a part."""

    metadata: Metadata
    pieces: list[Located]


def plan_parts(specs: Specs, part_bytes: int) -> list[list[Piece]]:
    """Distribute the tensors over parts, in order; only a tensor too large for a part of its own is cut.

    The optimizer's tensors start a new part if that is worthwhile, because evaluations need only the parts before.
    """
    capacity = part_bytes - _HEADER_BYTES
    parts: list[list[Piece]] = [[]]
    left = capacity
    cuts = sum(spec.n_bytes for spec in specs["optimizer"]) >= _OWN_PART_BYTES
    for group, index, spec in _tensors(specs):
        if cuts and group == "optimizer" and index == 0 and parts[-1]:
            parts.append([])
            left = capacity
        entry_bytes = _ENTRY_BYTES + _DIMENSION_BYTES * len(spec.shape)
        start, more = 0, True
        while more:
            rest = spec.n_elements - start
            room = (left - entry_bytes) // spec.item_bytes
            if rest > room and (room <= 0 or rest * spec.item_bytes + entry_bytes <= capacity):
                parts.append([])
                left = capacity
                continue
            taken = min(rest, room)
            more = taken < rest
            parts[-1].append(Piece(group, index, start, start + taken, start == 0 and not more))
            left -= entry_bytes + taken * spec.item_bytes
            start += taken
    return parts


def _tensors(specs: Specs) -> Iterator[tuple[str, int, TensorSpec]]:
    for group in GROUPS:
        for index, spec in enumerate(specs[group]):
            if spec.dtype not in _DTYPES:
                raise StateError(f"variable {group}/{index} has dtype {spec.dtype}, which a training state cannot hold")
            yield group, index, spec


def headed_part(
    specs: Specs, pieces: list[Piece], number: int, n_parts: int, static_batch: int, backend: str = USUAL_BACKEND
) -> tuple[memoryview, int]:
    """Create a part with its header and space for its tensors; return it and the offset of the first tensor."""
    shapes = {
        f"{piece.group}/{piece.index}": list(specs[piece.group][piece.index].shape)
        for piece in pieces
        if not piece.whole
    }
    metadata = {
        "format": _FORMAT,
        "part": number,
        "parts": n_parts,
        "counts": [len(specs[group]) for group in GROUPS],
        "static_batch": static_batch,
        "shapes": shapes,
        **({} if backend == USUAL_BACKEND else {"backend": backend}),
    }
    return empty_part(metadata, pieces, [specs[piece.group][piece.index] for piece in pieces])


def empty_part(metadata: Metadata, pieces: Sequence[Piece], specs: Sequence[TensorSpec]) -> tuple[memoryview, int]:
    """Write a header for pieces of tensors with these specs; return the part and the offset of the first tensor."""
    header: dict[str, Any] = {"__metadata__": {"madlib_mop": json.dumps(metadata, separators=(",", ":"))}}
    offset = 0
    for piece, spec in zip(pieces, specs, strict=True):
        end = offset + (piece.stop - piece.start) * spec.item_bytes
        header[piece.name] = {
            "dtype": _DTYPES[spec.dtype],
            "shape": list(spec.shape) if piece.whole else [piece.stop - piece.start],
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # NumPy requests huge pages, which are filled 5 times faster than a bytearray.
    part: memoryview = np.empty(_LENGTH_BYTES + len(text) + offset, np.uint8).data
    part[:_LENGTH_BYTES] = len(text).to_bytes(_LENGTH_BYTES, "little")
    part[_LENGTH_BYTES : _LENGTH_BYTES + len(text)] = text
    return part, _LENGTH_BYTES + len(text)


def parse_header(part: Blob, number: int) -> Header:
    """Read the head of a part; raises StateError for anything that ``encode_state`` does not write."""
    view = memoryview(part).cast("B")
    try:
        begin = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
        if len(view) < begin:
            raise StateError(f"part {number} of the training state ends inside its header")
        header = json.loads(bytes(view[_LENGTH_BYTES:begin]))
        metadata = json.loads(header.pop("__metadata__")["madlib_mop"])
        if metadata["format"] != _FORMAT:
            raise StateError(f"the training state has format {metadata['format']!r}, expected {_FORMAT!r}")
        pieces = [_locate(name, entry, metadata, number, begin) for name, entry in header.items()]
        pieces.sort(key=lambda piece: piece.begin)
        offset = begin
        for piece in pieces:
            if piece.begin != offset:
                raise StateError(f"part {number} of the training state has a gap before {piece.name}")
            offset = piece.end
        if offset != len(view):
            raise StateError(f"part {number} of the training state has {len(view)} bytes, expected {offset}")
        if not all(isinstance(metadata[key], int) for key in ("part", "parts", "static_batch")):
            raise StateError(f"part {number} of the training state has a damaged header")
        if len(metadata["counts"]) != len(GROUPS) or not isinstance(metadata.get("backend", ""), str):
            raise StateError(f"part {number} of the training state has a damaged header")
    except StateError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise StateError(f"part {number} of the training state is not in safetensors format") from error
    return Header(metadata, pieces)


def _locate(name: str, entry: dict[str, Any], metadata: Metadata, number: int, begin: int) -> Located:
    group, index, *start = name.split("/")
    if group not in GROUPS or len(start) > 1:
        raise StateError(f"the training state has a tensor {name!r}, which is none of ours")
    whole = not start
    shape = tuple(entry["shape"] if whole else metadata["shapes"][f"{group}/{index}"])
    spec = TensorSpec(shape, _NAMES[entry["dtype"]])
    first = 0 if whole else int(start[0])
    count = math.prod(entry["shape"])
    a, b = entry["data_offsets"]
    if b - a != count * spec.item_bytes or any(size < 0 for size in shape):
        raise StateError(f"tensor {name} of the training state has {b - a} bytes, expected {count * spec.item_bytes}")
    return Located(group, int(index), first, first + count, whole, spec, number, begin + a, begin + b)


def numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)
