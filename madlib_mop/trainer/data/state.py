"""The training state of a model: every variable of a model and its optimizer, in safetensors parts of bounded size.

Called by the trainer (to read and write states) and by the driver (`weights_in_turn`, for output tables); NumPy only.

Each part is a file in the safetensors format (https://github.com/huggingface/safetensors#format) that any safetensors
library opens. Written here, and not with that library, because its in-memory calls copy every tensor and leave the
metadata out; the tests compare with it. A tensor is named ``<group>/<index>``. One that is too large for a part of its
own is cut into flat slices, ``<group>/<index>/<first element>``, over as many parts as it takes; the metadata of a part
that holds slices has the shapes of the whole tensors. The bytes depend on the state only.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from mop_backend.frames import Blob

from madlib_mop.trainer.data.parts import (
    GROUPS,
    SMALLEST_PART_BYTES,
    USUAL_BACKEND,
    Header,
    Located,
    Metadata,
    Piece,
    Specs,
    StateError,
    TensorSpec,
    headed_part,
    numpy_dtype,
    parse_header,
    plan_parts,
)

#: The groups that a forward pass needs. They are first in a state, so only its first parts have to be sent.
FORWARD_GROUPS = ("weights", "variables")
#: Processes that handle a part have several copies of it; those of smaller parts are in memory that is used again.
DEFAULT_PART_BYTES = 16 << 20
#: ``State.static_batch`` of an average of states.
UNDECIDED = -1


def encode_state(
    specs: Specs,
    read: Callable[[str, int], np.ndarray],
    *,
    static_batch: int = 0,
    part_bytes: int = DEFAULT_PART_BYTES,
    backend: str = USUAL_BACKEND,
) -> list[memoryview]:
    """Write a training state.

    Parameters
    ----------
    specs : dict
        For each of ``GROUPS`` the specs of its tensors, in order.
    read : callable
        ``read(group, index)`` gives the tensor. Called once a tensor, in order, so that only one of them
        is in memory beside the parts.
    static_batch : int
        See ``State.static_batch``.
    part_bytes : int
        Largest size of a part in bytes, header included; at least ``SMALLEST_PART_BYTES``.
    backend : str
        See ``State.backend``.

    Returns
    -------
    list of memoryview
        The parts, at least one, as bytes. Tensors have the machine's byte order: little-endian, wherever we run.
    """
    if part_bytes < SMALLEST_PART_BYTES:
        raise StateError(f"parts of {part_bytes} bytes are too small, at least {SMALLEST_PART_BYTES} are needed")
    plan = plan_parts(specs, part_bytes)
    parts: list[memoryview] = []
    held: tuple[str, int] | None = None
    data: memoryview | None = None
    for number, pieces in enumerate(plan):
        part, offset = headed_part(specs, pieces, number, len(plan), static_batch, backend)
        for piece in pieces:
            spec = specs[piece.group][piece.index]
            if data is None or held != (piece.group, piece.index):
                data = None  # release it: one tensor in memory at a time
                data = _raw(read(piece.group, piece.index), spec, piece)
                held = (piece.group, piece.index)
            chunk = data[piece.start * spec.item_bytes : piece.stop * spec.item_bytes]
            part[offset : offset + len(chunk)] = chunk
            offset += len(chunk)
        parts.append(part)
    return parts


def digest_of(parts: Sequence[Blob]) -> str:
    """Return the sha256 of a state, in hexadecimal: over the bytes of its parts, in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def count_forward_parts(parts: Sequence[Blob]) -> int:
    """Return how many of a state's parts, from the first, a forward pass needs (``FORWARD_GROUPS``)."""
    needed = [0]
    for number, part in enumerate(parts):
        if any(piece.group in FORWARD_GROUPS for piece in parse_header(part, number).pieces):
            needed.append(number)
    return needed[-1] + 1


def decode_state(parts: Sequence[Blob], groups: Sequence[str] = GROUPS) -> "State":
    """Open a training state, or some groups of it.

    Parameters
    ----------
    parts : sequence of bytes
        All parts; where not all groups are wanted, at least the first `count_forward_parts`.
    groups : sequence of str
        The groups that will be read.

    Raises
    ------
    StateError
        Unless every tensor of the groups is there once, whole and of one shape.
    """
    if not parts:
        raise StateError("the training state has no parts")
    headers = [parse_header(part, number) for number, part in enumerate(parts)]
    first = headers[0].metadata
    for number, header in enumerate(headers):
        n_parts = header.metadata["parts"]
        is_right = n_parts >= len(parts) if tuple(groups) != GROUPS else n_parts == len(parts)
        if header.metadata["part"] != number or not is_right:
            raise StateError(f"part {header.metadata['part']} of {n_parts} stands at place {number} of {len(parts)}")
        _check_same(first, header.metadata, number)
    return State(parts, headers, groups)


def weights_in_turn(parts: Iterable[Blob]) -> Iterator[memoryview]:
    """Yield the model's weights as output tables have them: float32, flattened, in ``get_weights()`` order.

    Each part is used before the next one is read, so memory holds one of them.

    Parameters
    ----------
    parts : iterable of bytes
        At least the first `count_forward_parts`.

    Raises
    ------
    StateError
        Unless every weight is there once, in order.
    """
    first: Metadata | None = None
    index = start = 0
    for number, part in enumerate(parts):
        header = parse_header(part, number)
        first = header.metadata if first is None else first
        if header.metadata["part"] != number:
            raise StateError(f"part {header.metadata['part']} of the training state stands at place {number}")
        _check_same(first, header.metadata, number)
        view = memoryview(part).cast("B")
        for piece in header.pieces:
            if piece.group != "weights":
                continue
            if (piece.index, piece.start) != (index, start):
                raise StateError(f"the training state has weights/{piece.index} at {piece.start} too early")
            if piece.stop > piece.start:
                values = np.frombuffer(view[piece.begin : piece.end], numpy_dtype(piece.spec.dtype))
                yield np.ascontiguousarray(values, np.float32).view(np.uint8).data
            start = piece.stop
            if start == piece.spec.n_elements:
                index, start = index + 1, 0
    if first is None or (index, start) != (first["counts"][GROUPS.index("weights")], 0):
        raise StateError("the training state does not have all weights")


def weights_of(parts: Iterable[Blob]) -> bytes:
    """Return what `weights_in_turn` yields, in one piece."""
    return b"".join(weights_in_turn(parts))


def _check_same(first: Metadata, other: Metadata, number: int) -> None:
    """Raise StateError if a part does not belong to the same state as the first one."""
    if any(other.get(key) != first.get(key) for key in ("counts", "static_batch", "parts", "backend")):
        raise StateError(f"part {number} belongs to another training state than part 0")


class State:
    """A decoded training state; its tensors are assembled on request.

    Attributes
    ----------
    static_batch : int
        The batch size of the model's first visit if its shard was a multiple of it, else 0. Keras compiles a training
        step for batches of one known size in that case, and for any size else; the two round differently, and a
        Keras model keeps the choice (see ``backends/tensorflow/loop.py``). So it is part of the state. ``UNDECIDED``
        in an average of states: the next visit decides by its own shard.
    backend : str
        Keras' name of the backend whose variables these are.
    """

    def __init__(self, parts: Sequence[Blob], headers: list[Header], groups: Sequence[str]):
        self._parts = [memoryview(part).cast("B") for part in parts]
        metadata = headers[0].metadata
        self.static_batch: int = metadata["static_batch"]
        self.backend: str = metadata.get("backend", USUAL_BACKEND)
        self._pieces: dict[tuple[str, int], list[Located]] = {}
        self._shapes: dict[tuple[str, int], tuple[int, ...]] = {}
        for header in headers:
            for located in header.pieces:
                if located.group in groups:
                    self._pieces.setdefault((located.group, located.index), []).append(located)
        counts = {group: n for group, n in zip(GROUPS, metadata["counts"], strict=True) if group in groups}
        self._specs = {
            group: [self._checked_spec(group, index) for index in range(count)] for group, count in counts.items()
        }
        if len(self._pieces) != sum(counts.values()):
            raise StateError("the training state holds tensors that its header does not count")

    def has(self, group: str) -> bool:
        """Return whether a group was opened."""
        return group in self._specs

    def specs(self, group: str) -> list[TensorSpec]:
        """Return shape and dtype of each tensor of a group, in order."""
        return self._specs[group]

    def read(self, group: str, index: int) -> np.ndarray:
        """Return one tensor, not to be written to: a view of its part, or, for one cut into slices, a new array."""
        spec = self._specs[group][index]
        pieces = self._pieces[group, index]
        if len(pieces) == 1:
            return np.frombuffer(self._bytes_of(pieces[0]), numpy_dtype(spec.dtype)).reshape(spec.shape)
        array = np.empty(spec.shape, numpy_dtype(spec.dtype))
        self.copy_to(group, index, array)
        return array

    def copy_to(self, group: str, index: int, array: np.ndarray) -> None:
        """Copy one tensor into a C-contiguous array of its shape and dtype."""
        item_bytes = self._specs[group][index].item_bytes
        target = array.reshape(-1).view(np.uint8).data
        for piece in self._pieces[group, index]:
            target[piece.start * item_bytes : piece.stop * item_bytes] = self._bytes_of(piece)

    def weights_digest(self) -> str:
        """Return the SHA-256 of the weights as float32, flattened, in order, in hexadecimal."""
        digest = hashlib.sha256()
        for index in range(len(self._specs["weights"])):
            digest.update(np.ascontiguousarray(self.read("weights", index), np.float32).data)
        return digest.hexdigest()

    def _bytes_of(self, piece: Located) -> memoryview:
        return self._parts[piece.part][piece.begin : piece.end]

    def _checked_spec(self, group: str, index: int) -> TensorSpec:
        """Check that the pieces of a tensor are in order, without gaps, and agree; return its spec."""
        name = f"{group}/{index}"
        pieces = self._pieces.get((group, index))
        if not pieces:
            raise StateError(f"the training state lacks tensor {name}")
        if len({(piece.spec, piece.whole) for piece in pieces}) != 1 or (pieces[0].whole and len(pieces) > 1):
            raise StateError(f"tensor {name} of the training state is there twice, or its slices disagree")
        expected = 0
        for piece in pieces:
            if piece.start != expected:
                raise StateError(f"tensor {name} of the training state has a slice at {piece.start}, not at {expected}")
            expected = piece.stop
        if expected != pieces[0].spec.n_elements:
            raise StateError(f"tensor {name} of the training state ends at {expected} of {pieces[0].spec.n_elements}")
        return pieces[0].spec


def _raw(array: np.ndarray, spec: TensorSpec, piece: Piece) -> memoryview:
    """Return the bytes of a tensor after comparing it with its spec."""
    if array.shape != spec.shape or array.dtype.name != spec.dtype:
        raise StateError(
            f"variable {piece.group}/{piece.index} is {array.dtype.name} {array.shape}, "
            f"expected {spec.dtype} {spec.shape}"
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
