"""Materialised features: the cached output of a model's frozen prefix for a shard, so that visits train only the
following layers.

Called by ``visits.py``. The resulting weights must equal those of training through the prefix, bit for bit. A row's
features are mathematically equal in every epoch, but whether their *bits* are equal depends on how the kernels divide a
batch into blocks: on the batch size, and on a row's position in the batch. No list of layers is valid for all
processors and all versions of a backend. So a trial decides: features are used for a batch size only if batches of
that size, and the short last one, result in the cached features of their rows, at every position of a batch
(tests/unit/trainer/test_features.py).
"""

import collections
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from madlib_mop.errors import is_exhausted
from madlib_mop.models.prefix import Split
from madlib_mop.models.running import batch_rows
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.columns import Columns as Tensors
from madlib_mop.trainer.backends.base.interface import PrefixBatch
from madlib_mop.trainer.data.shard_file import FileFull, ShardFile
from madlib_mop.trainer.data.shards import Shard, aligned_empty
from madlib_mop.trainer.graphs.compiled import CompiledModel

#: Least numbers of rows and of batches in a trial, for each batch size that a visit will use.
_TRIAL_ROWS = 1024
_TRIAL_BATCHES = 8
_MAX_DECISIONS = 4096

Columns = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of batches that a visit computes: ``full``, and the last one's.

    ``static`` is the size that the visit's training step is compiled for, see `Backend.static_batch_of`.
    """

    full: int
    last: int
    static: int = 0

    @classmethod
    def of(cls, n_rows: int, batch_size: int, static: int = 0) -> "BatchSizes":
        """Return the sizes for a pass over all rows; a size that does not occur is 0."""
        return cls(batch_size if n_rows >= batch_size else 0, n_rows % batch_size, static)


class FeatureCache:
    """LRU cache of features by shard and prefix; results of trials by prefix and batch sizes.

    Features that do not fit into memory are in the trainer's file, if they fit there.

    Parameters
    ----------
    room : callable
        Returns the bytes that all features may take now: the limit that they share with shards, less the shards' bytes.
    file : ShardFile or None
        The trainer's file.
    """

    def __init__(self, room: Callable[[], int], file: ShardFile | None = None):
        self._room = room
        self._file = file
        self._features: collections.OrderedDict[tuple[str, str, int], Columns] = collections.OrderedDict()
        self._decisions: collections.OrderedDict[tuple[str, BatchSizes], int] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._features)

    @property
    def n_bytes(self) -> int:
        """Bytes of all features held in memory."""
        return sum(_size(columns) for columns in self._features.values() if not self._is_in_file(columns))

    def shrink(self, to_come_bytes: int = 0) -> None:
        """Drop features until they and ``to_come_bytes`` of new ones fit into the memory that shards leave free."""
        in_memory = [key for key, columns in self._features.items() if not self._is_in_file(columns)]
        while in_memory and self.n_bytes + to_come_bytes > self._room():
            del self._features[in_memory.pop(0)]

    def drop_from_file(self) -> bool:
        """Drop the features in the file that were least recently used; return whether there were any."""
        key = next((key for key, columns in self._features.items() if self._is_in_file(columns)), None)
        if key is not None:
            del self._features[key]
        return key is not None

    def columns(self, compiled: CompiledModel, shard: Shard, sizes: BatchSizes) -> Columns | None:
        """Return the inputs of the model's tail: features, and x columns that bypass the prefix.

        None if the model has no prefix, if the features do not fit into memory, or if they would not result in the
        same bits; then the visit runs the prefix, as plain Keras does.
        """
        split = compiled.split
        if split is None:
            return None
        shard = shard.whole()
        if _wanted_bytes(split, shard) > self._room() and not self._fits_file(split, shard):
            return None
        key = _prefix_key(split, shard)
        decision = self._decisions.get((key, sizes))
        try:
            if decision is not None:
                features = self._taken(compiled, shard, key, decision) if decision else None
            else:
                decision, features = self._tried(compiled, shard, key, sizes)
        except Exception as error:
            if not is_exhausted(error):
                raise
            self._features.clear()
            decision, features = 0, None
        self._remember(key, sizes, decision)
        return None if features is None else _tail_columns(split, shard, features)

    def _tried(self, compiled: CompiledModel, shard: Shard, key: str, sizes: BatchSizes) -> tuple[int, Columns | None]:
        """Find a batch size for computing features, with which they have the same bits as in the visit.

        The first size is the same for all visits, so they can share features; the second one is the visit's own.
        """
        for size in dict.fromkeys(min(s, shard.n_rows) for s in (batch_rows(shard.xs), sizes.full) if s):
            is_new = (shard.fingerprint, key, size) not in self._features
            features = self._taken(compiled, shard, key, size)
            if _agrees(compiled, shard, features, sizes):
                return size, features
            if is_new:
                del self._features[shard.fingerprint, key, size]
        return 0, None

    def _taken(self, compiled: CompiledModel, shard: Shard, key: str, size: int) -> Columns:
        place = (shard.fingerprint, key, size)
        features = self._features.pop(place, None)
        if features is None:
            features = self._empty(compiled.parted, shard)
            _compute(compiled, shard, size, features)
            if self._file is not None and self._is_in_file(features):
                for column in features:
                    self._file.seal(column)
        self._features[place] = features
        return features

    def _empty(self, split: Split, shard: Shard) -> Columns:
        """Return arrays for the features of a shard. Raises MemoryError if there is no room for them."""
        shapes = [tuple(tensor.shape[1:]) for tensor in split.prefix.outputs]
        forms = [((shard.n_rows, *shape), np.dtype(np.float32)) for shape in shapes]
        n_bytes = _wanted_bytes(split, shard)
        if n_bytes <= self._room():
            self.shrink(n_bytes)
            return tuple(aligned_empty(*form) for form in forms)
        assert self._file is not None, "they fit somewhere"
        while True:
            try:
                return tuple(self._file.arrays(forms))
            except FileFull as full:
                if not self.drop_from_file():
                    raise MemoryError(str(full)) from None

    def _fits_file(self, split: Split, shard: Shard) -> bool:
        return self._file is not None and _wanted_bytes(split, shard) <= self._file.limit_bytes

    def _is_in_file(self, columns: Columns) -> bool:
        return self._file is not None and any(self._file.offset_of(column) is not None for column in columns)

    def _remember(self, key: str, sizes: BatchSizes, decision: int) -> None:
        self._decisions[key, sizes] = decision
        if len(self._decisions) > _MAX_DECISIONS:
            self._decisions.popitem(last=False)


def _prefix_key(split: Split, shard: Shard) -> str:
    """Return the digest of the prefix's architecture and weights, and of the conversion of columns to its inputs."""
    digest = hashlib.sha256(split.form.encode("utf-8", "surrogatepass"))
    digest.update(repr([(shard.xs[n].dtype.str, n, shard.normalizing_const) for n in split.sources]).encode())
    for variable in split.prefix.variables:
        digest.update(np.ascontiguousarray(choice.current().value_of(variable)).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _wanted_bytes(split: Split, shard: Shard) -> int:
    shapes = [tensor.shape[1:] for tensor in split.prefix.outputs]
    if any(size is None for shape in shapes for size in shape):
        return 1 << 62  # the size depends on the data: too large to cache
    n_elements: int = sum(math.prod(shape) for shape in shapes)
    return 4 * shard.n_rows * n_elements


def _compute(compiled: CompiledModel, shard: Shard, size: int, features: Columns) -> None:
    """Compute the features of all rows, in the shard's order, in batches of one size; the last two may overlap."""
    run, tensors = _function(compiled, shard, 0)
    size = min(size, shard.n_rows)
    for start in range(0, shard.n_rows, size):
        start = min(start, shard.n_rows - size)
        made = run(tensors, np.arange(start, start + size))
        for column, rows in zip(features, made, strict=True):
            column[start : start + size] = rows


def _agrees(compiled: CompiledModel, shard: Shard, features: Columns, sizes: BatchSizes) -> bool:
    """Return whether the visit's batches result in the cached features, bit for bit."""
    chance = np.random.default_rng(0)
    for size in filter(None, {sizes.full, sizes.last}):
        run, tensors = _function(compiled, shard, sizes.static if size == sizes.static else 0)
        for _ in range(max(_TRIAL_BATCHES, math.ceil(_TRIAL_ROWS / size))):
            rows = chance.choice(shard.n_rows, size, replace=False)
            made = run(tensors, rows)
            for column, batch in zip(features, made, strict=True):
                if not np.array_equal(column[rows].view(np.uint32), batch.view(np.uint32)):
                    return False
    return True


def _function(compiled: CompiledModel, shard: Shard, static_batch: int) -> tuple[PrefixBatch, Tensors]:
    return compiled.prefix_batch(static_batch), choice.current().columns(shard.xs, (), shard.normalizing_const)


def _tail_columns(split: Split, shard: Shard, features: Columns) -> Columns:
    return tuple(features[n] if made else shard.xs[n] for made, n in split.tail_inputs)


def _size(columns: Columns) -> int:
    return sum(column.nbytes for column in columns)
