"""The trainer's answer to a request to predict arrays, as rows of numbers; for predict.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mop_backend.arrays import Array
from mop_backend.frames import Blob, Header
from mop_backend.predict_model import FoundModel

Row = Sequence[float]


class PredictedRows:
    """The trainer's result: rows of floats, and the rows without outputs because of a NULL element.

    Parameters
    ----------
    model : FoundModel
    header : dict
        The trainer's answer.
    values : bytes-like
        The floats.
    arrays : sequence of Array
        The inputs.
    type_code : str
        ``f`` for float32, ``d`` for float64.
    """

    __slots__ = ("empty", "floats", "model", "n_rows", "single", "width", "widths")

    def __init__(
        self,
        model: FoundModel,
        header: Header,
        values: Blob,
        arrays: Sequence[Array] = (),
        type_code: Literal["f", "d"] = "f",
    ):
        self.model = model
        self.single: bool = header["single"]
        self.n_rows: int
        self.width: int
        self.n_rows, self.width = header["shape"]
        self.widths: list[int] = header["widths"]
        self.floats: Row = memoryview(values).cast(type_code).tolist()
        self.empty: set[int] = set()
        for array in arrays:
            if array.nulls:
                self.empty |= array.rows_with_nulls(self.n_rows)

    def row(self, i: int) -> Row:
        return self.floats[i * self.width : (i + 1) * self.width]
