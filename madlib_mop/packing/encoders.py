"""One packed column: how a batch of its raw values becomes a tensor; called by the packer, one encoder a column."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from mop_backend.frames import Blob

from madlib_mop.columns.layout import BadRow, read_arrays


class ColumnEncoder(Protocol):
    """The interface of a column's encoder for the packer.

    Attributes
    ----------
    name : str
        The column, for messages.
    shape : tuple of int
        Of one row.
    dtype : numpy.dtype
        uint8, int16 or float32.
    """

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def encode(self, data: Blob, lengths: np.ndarray) -> np.ndarray:
        """Return the tensor (n_rows, *shape) of a batch.

        Raises
        ------
        BadRow
            For a row that cannot be packed.
        """


def row_bytes(encoders: Sequence[ColumnEncoder]) -> int:
    """Return the packed bytes of one row over all columns."""
    return sum(value_bytes(encoder) for encoder in encoders)


def value_bytes(encoder: ColumnEncoder) -> int:
    """Return the packed bytes of one row of one column."""
    return encoder.dtype.itemsize * int(np.prod(encoder.shape, dtype=np.int64))


@dataclass(frozen=True)
class ArrayEncoder:
    """Numeric arrays, as float32 divided by a constant, or as int16.

    Attributes
    ----------
    element_type : int
        Oid of the elements' type.
    dtype : numpy.dtype
        float32, or int16 for one-hot rows; values of integer types must fit.
    constant : float
        Each element is divided by it, in float32; only with float32.
    narrowed : bool
        Whether numbers that are too large for float32 have become infinite on the way here.
    """

    name: str
    shape: tuple[int, ...]
    element_type: int
    dtype: np.dtype
    constant: float = 1.0
    narrowed: bool = False

    def encode(self, data: Blob, lengths: np.ndarray) -> np.ndarray:
        """Return the tensor (n_rows, *shape) of a batch of ``madlib_mop.array_bytes`` values."""
        raw = read_arrays(data, lengths, self.shape, self.element_type)
        if self.dtype == np.int16:
            return self._as_int16(raw)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            tensor = raw.astype(np.float32, order="C")
            if self.constant != 1.0:
                np.divide(tensor, np.float32(self.constant), out=tensor)
        self._check_finite(raw, tensor)
        return tensor

    def _as_int16(self, raw: np.ndarray) -> np.ndarray:
        tensor = raw.astype(np.int16, order="C")
        if raw.dtype.itemsize > 2 and (row := _first_row(tensor != raw)) is not None:
            raise BadRow(
                row,
                "contains an integer that does not fit into smallint; the table was changed while it was being packed",
            )
        return tensor

    def _check_finite(self, raw: np.ndarray, tensor: np.ndarray) -> None:
        if np.isfinite(tensor).all():
            return
        row = _first_row(~np.isfinite(tensor))
        assert row is not None, "a number that is not finite"
        if raw.dtype.kind == "f" and not np.isfinite(raw[row]).all():
            is_bad = np.isnan(raw[row]) if np.isnan(raw[row]).any() else np.isinf(raw[row])
            what = "NaN" if np.isnan(raw[row]).any() else "an infinite value"
            if self.narrowed and what != "NaN":
                what += ", or a number that is too large for float32"
            raise BadRow(row, f"holds {what}", "Replace it, or exclude the row.", int(np.argmax(is_bad)))
        raise BadRow(
            row,
            "contains a number that is too large for float32 after division by the normalizing constant",
            "Scale the column, or choose another normalizing_const.",
            int(np.argmax(~np.isfinite(tensor[row]))),
        )


@dataclass(frozen=True)
class ClassEncoder:
    """Positions among the class values, as one-hot int16 rows.

    Attributes
    ----------
    shape : tuple of int
        ``(width,)``: number of classes, padding included.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype = np.dtype(np.int16)

    def encode(self, data: Blob, lengths: np.ndarray) -> np.ndarray:
        """Return the one-hot rows of a batch of 1-based positions, as ``int4send`` writes them."""
        positions = _positions(data, lengths)
        tensor = np.zeros((len(lengths), *self.shape), np.int16)
        tensor[np.arange(len(lengths)), positions - 1] = 1
        return tensor


@dataclass(frozen=True)
class IndexEncoder:
    """Positions among the class values, from 0, as int16 rows of one number."""

    name: str
    shape: tuple[int, ...] = (1,)
    dtype: np.dtype = np.dtype(np.int16)

    def encode(self, data: Blob, lengths: np.ndarray) -> np.ndarray:
        """Return the indices (n_rows, 1) of a batch of 1-based positions, as ``int4send`` writes them."""
        return (_positions(data, lengths) - 1).astype(np.int16)[:, np.newaxis]


def _positions(data: Blob, lengths: np.ndarray) -> np.ndarray:
    missing = lengths < 0
    if missing.any():
        raise BadRow(int(np.argmax(missing)), "has a value that is not among the class values")
    return np.frombuffer(data, ">i4", len(lengths))


def _first_row(bad: np.ndarray) -> int | None:
    rows = bad.reshape(len(bad), -1).any(axis=1)
    return int(np.argmax(rows)) if rows.any() else None
