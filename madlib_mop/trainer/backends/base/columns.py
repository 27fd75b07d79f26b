"""The columns of a model's data: their kinds, and the columns of a shard as a backend's tensors."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from madlib_mop.models.prefix import Split


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The properties of data that a compiled pass depends on: dtype and row shape of each column."""

    xs: tuple[tuple[str, tuple[int, ...]], ...]
    ys: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, xs: tuple[np.ndarray, ...], ys: tuple[np.ndarray, ...] = ()) -> "DataSpec":
        """Describe columns; rows are their first dimension."""
        return cls(*(tuple((str(a.dtype), a.shape[1:]) for a in columns) for columns in (xs, ys)))

    def batch(self) -> tuple[Any, ...]:
        """Return two rows of zeros, in the structure in which Keras gets a batch."""
        rows = [
            [np.zeros((2, *shape), np.int32 if dtype == "int32" else np.float32) for dtype, shape in columns]
            for columns in (self.xs, self.ys)
        ]
        return tuple(structure(columns) for columns in rows)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns that a pass computes on, as tensors of the backend or arrays; made by `Backend.columns`.

    Attributes
    ----------
    xs, ys : sequence of tensor or ndarray
        One a column, ``(n_rows, ...)``.
    row_weights : sequence of tensor or ndarray
        Empty, or one of float32 ``(n_rows,)``.
    constant : tensor or scalar
        float32 scalar, which uint8 x is divided by.
    """

    xs: Sequence[Any]
    ys: Sequence[Any]
    row_weights: Sequence[Any]
    constant: Any


def tail_spec(split: Split, spec: DataSpec) -> DataSpec:
    """Return the columns that a split model's tail takes, if the model takes those of ``spec``."""
    features = [("float32", tuple(tensor.shape[1:])) for tensor in split.prefix.outputs]
    return DataSpec(tuple(features[n] if made else spec.xs[n] for made, n in split.tail_inputs), spec.ys)


def structure(columns: Sequence[Any]) -> Any:
    """Return a single column unchanged and several as a tuple, as Keras' data adapters do."""
    return columns[0] if len(columns) == 1 else tuple(columns)
