"""Predictions of loaded models for batches of raw rows, or for single ones; called by ``visits.py``."""

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.running import batch_rows, combines_rows, filled, filled_batch_rows, fixed_rows, is_rowwise
from madlib_mop.models.shapes import shapes_fit
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.columns import DataSpec
from madlib_mop.trainer.backends.base.interface import PredictBatch
from madlib_mop.trainer.data.parts import TensorSpec
from madlib_mop.trainer.data.shards import aligned_empty
from madlib_mop.trainer.graphs.compiled import check_columns
from madlib_mop.trainer.process.failures import NOT_LOADED, RequestFailure, invalid_input

if TYPE_CHECKING:
    from madlib_mop.trainer.data.rows import RowEncoder

#: Cached shapes of single rows, whose function is known without a check; models with variable row shapes get many
#: shapes.
_MAX_SHAPES = 100
#: Bytes of the inputs of a row alone, filled up, whose arrays are kept.
_MOST_KEPT_BYTES = 1 << 16
Shapes = tuple[tuple[int, ...], ...]
_Kind = tuple[tuple[np.dtype, tuple[int, ...]], ...]  # of each input, the dtype and the shape of a row


class Predictor:
    """A model for prediction; its function is compiled once for each kind of data, for any number of rows.

    A row of a dense network has the same bits alone and in every batch: batches are filled up to numbers of rows that
    kernels compute in one way. Other networks, with convolutions for example, would take too long for that: a single
    row is computed alone, several rows in batches of `batch_rows`. A batch is never filled if the model combines rows.
    """

    def __init__(self, model: keras.Model, normalizing_const: float, preprocessor: str | None = None):
        self._model = model
        self.rows = _row_encoder(preprocessor, model) if preprocessor is not None else None
        self._input_shapes = [tuple(tensor.shape[1:]) for tensor in model.inputs]
        self._normalizing_const = np.float32(normalizing_const)
        self._functions: dict[_Kind, _Function] = {}
        self._one_row: dict[Shapes, _Function] = {}
        self._fills = is_rowwise(model)
        #: Few functions for all numbers of rows, where one is compiled for each.
        self._rounds_up = not self._fills and choice.current().compiles_for_rows and not combines_rows(model)
        self._rows = (choice.current().rows_of_predictions or fixed_rows(model)) if self._fills else None

    def predict(self, xs: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """Return each output for all rows.

        Parameters
        ----------
        xs : tuple of numpy.ndarray
            One array an input, ``(n_rows, ...)``: float32 (normalized), int32 indices, or uint8 (to be divided by the
            constant).

        Returns
        -------
        list of numpy.ndarray
            One array an output, float32 ``(n_rows, ...)``.
        """
        function = self._function(xs)
        n_rows, batch_size = len(xs[0]), self._rows or (filled_batch_rows(xs) if self._fills else batch_rows(xs))
        outputs: list[np.ndarray] = []
        for start in range(0, n_rows, batch_size):
            stop = min(start + batch_size, n_rows)
            batch = self._compute(function, [x[start:stop] for x in xs])
            if stop - start == n_rows:
                return batch
            if not outputs:
                outputs = [np.empty((n_rows, *output.shape[1:]), np.float32) for output in batch]
            for output, rows in zip(outputs, batch, strict=True):
                output[start:stop] = rows
        return outputs

    def _compute(self, function: "_Function", xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return each output for the rows of one batch."""
        n_rows = len(xs[0])
        n_computed = self._rows or (filled(n_rows) if self._fills else n_rows)
        if self._rounds_up:
            n_computed = 1 << (n_rows - 1).bit_length()
        return function(xs, n_rows, n_computed)

    def _function(self, xs: tuple[np.ndarray, ...]) -> "_Function":
        """Return the function for a kind of data; its first use compiles it."""
        kind = tuple((x.dtype, x.shape[1:]) for x in xs)
        function = self._functions.get(kind)
        if function is None:
            spec = DataSpec.of(xs)
            check_columns(self._model, spec)
            compiled = choice.current().predict_batch(self._model, spec, float(self._normalizing_const))
            function = self._functions[kind] = _Function(compiled)
        return function

    @property
    def is_same_in_batches(self) -> bool:
        """Whether a row has the same bits alone and in every batch."""
        return self._fills

    @property
    def row_encoder(self) -> "RowEncoder":
        """The encoder of rows. Raises RequestFailure (input) if the model takes arrays."""
        if self.rows is None:
            raise invalid_input("the model was not trained on a table of pack_columns, so it takes no rows")
        return self.rows

    @property
    def n_bytes(self) -> int:
        """Bytes of the model's variables."""
        specs = (TensorSpec(tuple(v.shape), keras.backend.standardize_dtype(v.dtype)) for v in self._model.variables)
        return sum(spec.n_bytes for spec in specs)

    def values(self, columns: Sequence[np.ndarray]) -> "Values":
        """Predict a single row, or several if the first dimension of each column is the number of rows.

        Parameters
        ----------
        columns : sequence of numpy.ndarray
            For each input one numeric array, not normalized: of the input's shape, or ``(n_rows, ...)``.

        Raises
        ------
        RequestFailure
            input: number or shapes of the columns do not fit the model, or a number is not finite.
        """
        shapes = tuple(column.shape for column in columns)
        function = self._one_row.get(shapes)
        if function is not None:
            xs = [self._normalized(column[np.newaxis]) for column in columns]
            return Values.of(True, self._compute(function, xs))
        single = self._is_single(shapes)
        xs = [self._normalized(column[np.newaxis] if single else column) for column in columns]
        if len({len(x) for x in xs}) != 1:
            raise invalid_input(f"the inputs have {[len(x) for x in xs]} rows")
        outputs = self.predict(tuple(xs))
        if single and len(self._one_row) < _MAX_SHAPES:
            self._one_row[shapes] = self._function(tuple(xs))
        return Values.of(single, outputs)

    def n_rows(self, columns: Sequence[np.ndarray]) -> int:
        """Return how many rows `values` takes these columns for; it raises the same errors for their shapes."""
        return 1 if self._is_single(tuple(column.shape for column in columns)) else len(columns[0])

    def _is_single(self, shapes: "Shapes") -> bool:
        """Return whether columns of these shapes are one row; refuse those that are not many rows either."""
        if len(shapes) != len(self._input_shapes):
            raise invalid_input(
                f"the model has {len(self._input_shapes)} input(s). Received: {len(shapes)}",
                hint="For a model with several inputs, pass an array of their bytes:"
                " ARRAY[madlib_mop.array_bytes(x1), madlib_mop.array_bytes(x2)].",
            )
        if all(map(shapes_fit, self._input_shapes, shapes)):
            return True
        if not all(s and shapes_fit(w, s[1:]) for w, s in zip(self._input_shapes, shapes, strict=True)):
            wanted = [["any" if size is None else size for size in shape] for shape in self._input_shapes]
            raise invalid_input(
                f"x has the shape {_text(shapes)}, but the model takes {_text(wanted)}",
                hint="Pass data of the same form as in training; for many rows, add one dimension in front.",
            )
        return False

    def _normalized(self, column: np.ndarray) -> np.ndarray:
        """Return a column as the preprocessor would have packed it: float32, divided by the constant."""
        with np.errstate(over="ignore", invalid="ignore"):
            x = column.astype(np.float32)
            if self._normalizing_const != 1:
                x /= self._normalizing_const
        if not np.isfinite(x).all():
            raise invalid_input(
                "x contains NaN, an infinite value, or a number that is too large for float32",
                hint="Replace it, or exclude the row.",
            )
        return x


class Values(NamedTuple):
    """Predictions from plain arrays.

    Attributes
    ----------
    single : bool
        Whether they are predictions of a single row.
    values : numpy.ndarray
        float32 ``(n_rows, n_values)``: the concatenated outputs.
    widths : list of int
        Number of values of each output.
    """

    single: bool
    values: np.ndarray
    widths: list[int]

    @classmethod
    def of(cls, single: bool, outputs: list[np.ndarray]) -> "Values":
        """Concatenate the outputs."""
        flat = [output.reshape(len(output), -1) for output in outputs]
        values = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
        return cls(single, values, [output.shape[1] for output in flat])


class Predictors:
    """Loaded models by key; the least recently used ones are dropped beyond a number and a sum of bytes."""

    def __init__(self) -> None:
        self._max_models, self._max_bytes = 8, 1 << 30
        self._loaded: collections.OrderedDict[str, Predictor] = collections.OrderedDict()

    @property
    def n_bytes(self) -> int:
        """Bytes of the variables of all loaded models."""
        return sum(predictor.n_bytes for predictor in self._loaded.values())

    def limit(self, max_models: int, max_bytes: int | None) -> None:
        """Set the number, and lower the sum of bytes if one is given."""
        self._max_models = max_models
        if max_bytes is not None:
            self._max_bytes = min(self._max_bytes, max_bytes)

    def keys(self) -> list[str]:
        """Return the loaded models."""
        return list(self._loaded)

    def is_same_in_batches(self, key: str) -> bool:
        """Return whether a model is loaded whose predictions of a row have the same bits alone and in every batch."""
        return key in self._loaded and self._loaded[key].is_same_in_batches

    def add(self, key: str, predictor: Predictor) -> None:
        """Keep a model; it is never dropped to make room for itself."""
        self._loaded[key] = predictor
        self._loaded.move_to_end(key)
        while len(self._loaded) > 1 and (
            len(self._loaded) > self._max_models or self.n_bytes > self._max_bytes
        ):
            self._loaded.popitem(last=False)

    def drop(self, key: str) -> None:
        """Drop a model, if it is cached."""
        self._loaded.pop(key, None)

    def clear(self) -> None:
        """Drop all models."""
        self._loaded.clear()

    def get(self, key: str) -> Predictor:
        """Return a model. Raises RequestFailure (not loaded)."""
        if key not in self._loaded:
            raise RequestFailure(
                NOT_LOADED, InvalidParameter("no model is loaded for prediction", hint="Load one first.")
            )
        self._loaded.move_to_end(key)
        return self._loaded[key]


class _Function:
    """A compiled function for one kind of data.

    A row alone is written into the same arrays each time: to allocate aligned ones takes longer than to encode it.
    """

    def __init__(self, compiled: PredictBatch):
        self._compiled = compiled
        self._of_one_row: list[np.ndarray] | None = None

    def __call__(self, xs: Sequence[np.ndarray], n_rows: int, n_computed: int) -> list[np.ndarray]:
        """Return each output for the rows of a batch, which the last row fills up to a number of rows."""
        if n_rows != 1 or n_computed * sum(x.nbytes for x in xs) > _MOST_KEPT_BYTES:
            return [output[:n_rows] for output in self._compiled([_aligned(x, n_computed) for x in xs])]
        if self._of_one_row is None:
            self._of_one_row = [aligned_empty((n_computed, *x.shape[1:]), x.dtype) for x in xs]
        for kept, x in zip(self._of_one_row, xs, strict=True):
            kept[...] = x
        # copies, since an output can be an input of the model
        return [output[:1].copy() for output in self._compiled(self._of_one_row)]


def _text(shapes: Sequence[Sequence[object]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)


def _aligned(x: np.ndarray, n_rows: int) -> np.ndarray:
    """Return a copy that a backend can take as it is, with the last row repeated up to a number of rows."""
    copy = aligned_empty((n_rows, *x.shape[1:]), x.dtype)
    copy[: len(x)] = x
    copy[len(x) :] = x[-1:]
    return copy


def _row_encoder(preprocessor: str, model: keras.Model) -> "RowEncoder":
    from madlib_mop.trainer.data.rows import RowEncoder  # imported only for models that take rows

    return RowEncoder(preprocessor, len(model.inputs), len(model.outputs))
