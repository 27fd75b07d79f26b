"""Shards in the trainer's memory or file: assembled from packed buffers, checked, fingerprinted, cached. NumPy only."""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
from mop_backend.frames import Blob

from madlib_mop.errors import OutOfResources
from madlib_mop.trainer.data.arrival import Arrival
from madlib_mop.trainer.data.shard_file import FileFull, ShardFile
from madlib_mop.trainer.process.failures import INPUT, RequestFailure, invalid_input, model_failed

#: Element size -> dtype, because packed rows have bytes and a shape, but no dtype. The plan lists the inputs that are
#: int32 instead of float32.
_DTYPES: dict[int, np.dtype] = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.float32)}
#: Backends of Keras use memory of this alignment in place and copy any other.
_ALIGNMENT_BYTES = 64
_PACK_AGAIN = "Pack the table again with training_preprocessor_dl."
#: Rows that are computed with at once where all of them could take too much memory.
_ROWS_AT_ONCE = 1 << 20

#: Shapes and types of arrays.
Forms = Sequence[tuple[Sequence[int], np.dtype]]


@dataclasses.dataclass(frozen=True)
class Shard:
    """The rows of one segment, ready to be trained on.

    Attributes
    ----------
    xs, ys : tuple of numpy.ndarray
        One array a column, shape ``(n_rows, ...)``, read-only: x float32, int32 or uint8, y float32, int16 or uint8.
    normalizing_const : float
        What uint8 x is divided by; float32 x has been divided already.
    n_bytes : int
        Size of the arrays.
    fingerprint : str
        sha256 in hexadecimal of the content; the same however the rows were cut into buffers.
    file : ShardFile or None
        Where the arrays are; None if they are in memory.
    arrival : Arrival or None
        Of a shard whose rows are still on their way: says which are there. Its fingerprint is empty.
    """

    xs: tuple[np.ndarray, ...]
    ys: tuple[np.ndarray, ...]
    normalizing_const: float
    n_rows: int
    n_bytes: int
    fingerprint: str
    file: ShardFile | None = None
    arrival: "Arrival[Shard] | None" = None

    def whole(self) -> "Shard":
        """Return the shard with all of its rows, after waiting for them. Raises RowsMissing."""
        return self if self.arrival is None else self.arrival.whole()

    def waited_s(self) -> float:
        """Return how long a visit has waited for rows until now, in seconds."""
        return 0.0 if self.arrival is None else self.arrival.waited_s

    def empty(self, *forms: tuple[Sequence[int], np.dtype]) -> list[np.ndarray]:
        """Return arrays, to be written to, for what a visit needs beside the rows: where these are, if possible."""
        if self.file is not None:
            try:
                return self.file.arrays(forms)
            except FileFull:
                pass
        return [aligned_empty(*form) for form in forms]


def is_dealt_out(shard: Shard, n_inputs: int) -> bool:
    """Return whether a model with so many inputs takes the shard's rows of numbers as inputs of one number each."""
    x = shard.xs[0]
    return n_inputs > 1 and len(shard.xs) == 1 and x.shape[1:] == (n_inputs,) and x.dtype == np.float32


def dealt_out(shard: Shard, n_inputs: int) -> Shard:
    """Return a shard with its rows of numbers split into inputs of one number each; other shards unchanged."""
    if not is_dealt_out(shard, n_inputs):
        return shard
    x = shard.xs[0]
    columns = shard.empty(*[((shard.n_rows, 1), x.dtype)] * n_inputs)
    for begin in range(0, shard.n_rows, _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        for number, column in enumerate(columns):
            column[rows, 0] = x[rows, number]
    return dataclasses.replace(shard, xs=tuple(columns))


def check_class_weight(shard: Shard, class_weight: dict[int, float] | str | None) -> None:
    """Raise RequestFailure (model) for class weights that are not written out, and where rows have no single class."""
    if class_weight is None:
        return
    if isinstance(class_weight, str):
        raise model_failed(
            f"class_weight={class_weight!r} requires class counts that the run does not have",
            hint="Write the weights: class_weight={0: 1.0, 1: 3.0}.",
        )
    if len(shard.ys) > 1:
        raise model_failed(
            f"class_weight cannot be used for a model with {len(shard.ys)} outputs",
            hint="Keras supports class weights only for models with a single output; omit class_weight.",
        )
    if (n_classes := math.prod(shard.ys[0].shape[1:-1])) != 1:
        raise model_failed(
            f"class_weight cannot be used for y of shape {list(shard.ys[0].shape[1:])}: a row has {n_classes} classes",
            hint="Keras supports class weights only for one class a row; omit class_weight.",
        )


def row_weights_of(shard: Shard, class_weight: dict[int, float]) -> np.ndarray:
    """Return each row's class weight, as Keras' ``class_weight_to_sample_weights`` does; float32 ``(n_rows,)``."""
    (of_rows,) = shard.empty(((shard.n_rows,), np.dtype(np.float32)))
    for begin in range(0, shard.n_rows, _ROWS_AT_ONCE):
        y = shard.ys[0][begin : begin + _ROWS_AT_ONCE]
        if y.ndim > 1:
            y = np.argmax(y, axis=-1) if y.shape[-1] != 1 else np.squeeze(y, axis=-1)
        classes, positions = np.unique(np.round(y).astype(np.int32), return_inverse=True)
        weights = np.array([class_weight.get(int(c), 1.0) for c in classes], np.float32)
        of_rows[begin : begin + len(y)] = weights[positions].reshape(len(y))
    return of_rows


class ShardBuilder:
    """Assembles the packed buffers of one shard, in order; ``finish`` returns the shard.

    Parameters
    ----------
    n_x, n_y : int
        Numbers of x and y columns.
    normalizing_const : float
        See ``Shard``.
    n_rows : int or None
        Rows to come, if there may be no others.
    names : sequence of str or None
        The columns' names for messages, x before y.
    index_inputs : sequence of int
        Which x columns, by number, hold int32 indices.
    first_rows : int or None
        Rows after so many are ignored.
    planned_rows : int or None
        Rows that should come: then the arrays are allocated once, and never copied.
    allocate : callable
        Allocates arrays; called once, if the number of rows is known.
    arrival : Arrival or None
        Is told how many rows there are.
    """

    def __init__(
        self,
        n_x: int,
        n_y: int,
        normalizing_const: float,
        n_rows: int | None = None,
        names: Sequence[str] | None = None,
        index_inputs: Sequence[int] = (),
        first_rows: int | None = None,
        planned_rows: int | None = None,
        allocate: "Callable[[Forms], Allocated] | None" = None,
        arrival: Arrival[Shard] | None = None,
    ):
        if not math.isfinite(normalizing_const) or normalizing_const == 0:
            raise invalid_input(f"normalizing_const must be a number other than 0, received {normalizing_const}")
        names = names or [*(f"x{i + 1}" for i in range(n_x)), *(f"y{i + 1}" for i in range(n_y))]
        self._columns = [_Column(name, i < n_x, i in index_inputs) for i, name in enumerate(names)]
        self._n_x = n_x
        self._normalizing_const = normalizing_const
        self._expected_rows = n_rows
        self._first_rows = first_rows
        self._room = n_rows if planned_rows is None else planned_rows
        self._allocate = allocate or in_memory
        self._file: ShardFile | None = None
        self._arrival = arrival
        self.n_rows = 0

    def add(self, shapes: Sequence[Sequence[int]], blobs: Sequence[Blob]) -> None:
        """Append one buffer: a shape and the bytes of each column, x before y. Raises RequestFailure (input)."""
        if len(shapes) != len(self._columns) or len(blobs) != len(self._columns):
            raise invalid_input(f"a buffer has {len(blobs)} columns, expected {len(self._columns)}")
        n_rows: int | None = None
        arrays = []
        for column, shape, blob in zip(self._columns, shapes, blobs, strict=True):
            rows = buffer_array(column.name, shape, blob, is_x=column.is_x, is_index=column.is_index)
            if self._first_rows is not None:
                rows = rows[: self._first_rows - self.n_rows]
            n_rows = len(rows) if n_rows is None else n_rows
            if len(rows) != n_rows:
                raise invalid_input(
                    f"column {column.name} has shape {list(shape)} in a buffer whose first column has {n_rows} rows",
                    hint=_PACK_AGAIN,
                )
            arrays.append(rows)
        if not n_rows:
            return
        if self.n_rows == 0 and self._room is not None:
            found = self._allocate([((self._room, *rows.shape[1:]), rows.dtype) for rows in arrays])
            self._file = found.file
            for column, array in zip(self._columns, found.arrays, strict=True):
                column.array = array
        for column, rows in zip(self._columns, arrays, strict=True):
            column.add(rows, self.n_rows)
        self.n_rows += n_rows
        if self._expected_rows is not None and self.n_rows > self._expected_rows:
            raise invalid_input(f"the shard has more than the {self._expected_rows} announced rows")
        if self._arrival is not None:
            self._arrival.reach(self.n_rows, self._begun())

    def _begun(self) -> Shard | None:
        """Return the shard as it will be, if the number of its rows is planned."""
        if self._room is None:
            return None
        arrays = [column.array for column in self._columns if column.array is not None]
        n_bytes = sum(array.nbytes for array in arrays)
        xs, ys = tuple(arrays[: self._n_x]), tuple(arrays[self._n_x :])
        return Shard(xs, ys, self._normalizing_const, self._room, n_bytes, "", self._file, self._arrival)

    @property
    def is_whole(self) -> bool:
        """Whether there was room for all rows: others are counted only, and the run refuses their number."""
        return self._room is None or self.n_rows <= self._room

    def finish(self) -> Shard:
        """Return the shard. Raises RequestFailure (input) for one without rows."""
        if self.n_rows == 0:
            raise invalid_input(
                "the shard has no rows",
                hint="Exclude segments without rows from the run. If a row policy reads a setting with a function, set"
                " it with ALTER ROLE, because the run's sessions are separate from yours.",
            )
        if self._expected_rows not in (None, self.n_rows):
            raise invalid_input(f"the shard has {self.n_rows} rows, but {self._expected_rows} were announced")
        digest = hashlib.sha256(f"{self.n_rows} {float(self._normalizing_const)!r}".encode())
        for column in self._columns:
            digest.update(column.fingerprint())
        arrays = [column.finish(self.n_rows) for column in self._columns]
        if self._file is not None:
            for array in arrays:
                self._file.seal(array)
        return Shard(
            tuple(arrays[: self._n_x]),
            tuple(arrays[self._n_x :]),
            self._normalizing_const,
            self.n_rows,
            sum(array.nbytes for array in arrays),
            digest.hexdigest(),
            self._file,
        )


def buffer_array(name: str, shape: Sequence[int], blob: Blob, *, is_x: bool, is_index: bool = False) -> np.ndarray:
    """View one packed column of one buffer as an array: int32 of indices, else of the type that an element's size says.

    Raises
    ------
    RequestFailure
        input: the bytes don't fit the shape.
    """
    is_shape = isinstance(shape, list | tuple) and shape and all(type(size) is int and size >= 0 for size in shape)
    n_elements = math.prod(shape) if is_shape else 0
    item_bytes = len(blob) // n_elements if n_elements else 4
    fits = is_shape and item_bytes in _DTYPES and len(blob) == n_elements * item_bytes
    if not fits or (is_x and item_bytes == 2) or (is_index and item_bytes != 4):
        raise invalid_input(
            f"column {name} has {len(blob)} bytes for shape {shape}, which is not a packed array", hint=_PACK_AGAIN
        )
    return np.frombuffer(blob, dtype=np.int32 if is_index else _DTYPES[item_bytes]).reshape(shape)


class _Column:
    """One column while it is assembled."""

    def __init__(self, name: str, is_x: bool, is_index: bool):
        self.name = name
        self.is_x = is_x
        self.is_index = is_index
        self.array: np.ndarray | None = None
        self._buffers: list[np.ndarray] = []
        self._first: np.ndarray | None = None
        self._digest = hashlib.sha256()

    def add(self, buffer: np.ndarray, start: int) -> None:
        if self._first is None:
            self._first = buffer[:0]
        if buffer.shape[1:] != self._first.shape[1:] or buffer.dtype != self._first.dtype:
            first = self._first
            raise invalid_input(
                f"column {self.name} is ragged: rows {start} to {start + len(buffer) - 1} have shape "
                f"{list(buffer.shape[1:])} ({buffer.dtype}), those before {list(first.shape[1:])} ({first.dtype})",
                hint="All rows of a column must have one shape.",
            )
        check_finite(self.name, buffer, start)
        self._digest.update(buffer.data)
        if self.array is None:
            self._buffers.append(buffer)
        elif start < len(self.array):
            self.array[start : start + len(buffer)] = buffer[: len(self.array) - start]

    @property
    def _form(self) -> np.ndarray:
        """An array without rows that is like the column's."""
        assert self._first is not None, "a shard that is finished has rows"
        return self._first

    def fingerprint(self) -> bytes:
        first = self._form
        return f"{first.dtype.str} {first.shape[1:]} {self._digest.hexdigest()};".encode()

    def finish(self, n_rows: int) -> np.ndarray:
        if self.array is None:
            self.array = aligned_empty((n_rows, *self._form.shape[1:]), self._form.dtype)
            start = 0
            self._buffers.reverse()
            while self._buffers:  # release each buffer after it is copied
                buffer = self._buffers.pop()
                self.array[start : start + len(buffer)] = buffer
                start += len(buffer)
        return self.array[:n_rows]


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Allocate an array that a backend of Keras takes without a copy."""
    dtype = np.dtype(dtype)
    n_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(n_bytes + _ALIGNMENT_BYTES, np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[skip : skip + n_bytes].view(dtype).reshape(shape)


def check_finite(name: str, rows: np.ndarray, first_row: int) -> None:
    """Raise RequestFailure (input) if a float column has NaN or infinity, naming the rows."""
    if rows.dtype.kind != "f" or np.isfinite(rows).all():
        return
    bad = np.flatnonzero(~np.isfinite(rows).reshape(len(rows), -1).all(axis=1))
    value = rows.reshape(len(rows), -1)[bad[0]]
    value = value[~np.isfinite(value)][0]
    raise invalid_input(
        f"column {name} has {value} in {len(bad)} of the rows {first_row} to {first_row + len(rows) - 1} of the shard, "
        f"first in row {first_row + bad[0]}",
        hint="Remove or replace NaN and infinite values in the source table, then pack it again.",
    )


@dataclasses.dataclass(frozen=True)
class Allocated:
    """Arrays for a shard, and the file in which they are; None if they are in memory."""

    arrays: Sequence[np.ndarray]
    file: ShardFile | None = None


def in_memory(forms: Forms) -> Allocated:
    """Allocate arrays in memory."""
    return Allocated([aligned_empty(*form) for form in forms])


class ShardCache:
    """Shards by key: in memory up to ``capacity_bytes``, the others in the file.

    If the file has no room, the least recently used shards in memory are dropped, and one that is larger than the
    capacity is kept for the next visit only. A sample is kept beside the others, and not counted.

    Parameters
    ----------
    capacity_bytes : int
    file : ShardFile or None
    without_file : str
        Why there is no file, if it was to have one.
    free_file : callable
        Frees space in the file that was taken for something else; returns whether there was any.
    """

    def __init__(
        self,
        capacity_bytes: int,
        file: ShardFile | None = None,
        without_file: str = "",
        free_file: Callable[[], bool] = lambda: False,
    ):
        self._capacity_bytes = capacity_bytes
        self._file = file
        self._without_file = without_file
        self._free_file = free_file
        self._shards: collections.OrderedDict[str, Shard] = collections.OrderedDict()
        self._passing: tuple[str, Shard] | None = None
        self._samples: dict[str, Shard] = {}

    @property
    def n_bytes(self) -> int:
        """Bytes of all shards held in memory, without samples."""
        passing = self._passing[1].n_bytes if self._passing else 0
        return passing + self._kept_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes taken in the file."""
        return 0 if self._file is None else self._file.n_bytes

    @property
    def room(self) -> int:
        """Bytes of the cap without shards; data derived from shards can use them until a shard needs them."""
        return max(0, self._capacity_bytes - self.n_bytes)

    def keys(self) -> list[str]:
        """Return the keys of the kept shards: samples, then the others, least recently used first."""
        return [*self._samples, *self._shards]

    def allocate(self, forms: Forms) -> Allocated:
        """Allocate arrays for a new shard, in the file if those in memory leave too little room.

        Raises RequestFailure (input) if there is no room for it at all.
        """
        self._passing = None
        n_bytes = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in forms)
        if n_bytes <= self._capacity_bytes - self._kept_bytes:
            return in_memory(forms)
        why = self._without_file
        while self._file is not None:
            try:
                return Allocated(self._file.arrays(forms), self._file)
            except FileFull as full:
                why = str(full)
            if not self._free_file() and not self._drop_from_file():
                break
        try:
            return in_memory(forms)
        except MemoryError:
            if not why:  # it is to have no file
                raise
            raise RequestFailure(
                INPUT,
                OutOfResources(
                    f"the rows of the shard take {n_bytes >> 20} MB: more than the {self._capacity_bytes >> 20} MB of"
                    f" madlib_mop.shard_cache_mb, and the trainer's file has no room for them: {why}",
                    hint="Free disk space there, name another directory in the setting shard_directory, or raise"
                    " madlib_mop.shard_disk_mb or madlib_mop.trainer_memory_mb.",
                ),
            ) from None

    def add_sample(self, key: str, shard: Shard) -> None:
        """Add a sample, which is kept until it is dropped."""
        self._samples[key] = shard

    def add(self, key: str, shard: Shard) -> bool:
        """Add a shard; return whether it is cached (otherwise it is kept for the next visit only)."""
        self.drop(key)
        self._passing = None
        if shard.file is None and shard.n_bytes > self._capacity_bytes:
            self._passing = (key, shard)
            return False
        more_bytes = shard.n_bytes if shard.file is None else 0
        to_drop = [other for other, held in self._shards.items() if held.file is None]
        while self._kept_bytes + more_bytes > self._capacity_bytes:
            del self._shards[to_drop.pop(0)]
        self._shards[key] = shard
        return True

    def take(self, key: str) -> Shard:
        """Return a shard for one visit. Raises RequestFailure (input) if it is not cached."""
        if self._passing and self._passing[0] == key:
            shard, self._passing = self._passing[1], None
            return shard
        if key in self._samples:
            return self._samples[key]
        if key not in self._shards:
            raise _absent(key)
        self._shards.move_to_end(key)
        return self._shards[key]

    def clear(self) -> None:
        """Drop all shards."""
        self._shards.clear()
        self._samples.clear()
        self._passing = None

    def drop(self, key: str) -> None:
        """Drop a shard, if it is cached."""
        self._shards.pop(key, None)
        self._samples.pop(key, None)
        if self._passing and self._passing[0] == key:
            self._passing = None

    @property
    def _kept_bytes(self) -> int:
        return sum(shard.n_bytes for shard in self._shards.values() if shard.file is None)

    def _drop_from_file(self) -> bool:
        """Drop the shard in the file that was least recently used; return whether there was one."""
        key = next((key for key, shard in self._shards.items() if shard.file is not None), None)
        if key is not None:
            del self._shards[key]
        return key is not None


def _absent(key: str) -> RequestFailure:
    return invalid_input(f"shard {key!r} is not in the trainer's memory", hint="Send its rows again before the visit.")
