"""Targets to tensors, and a network's outputs back to classes and numbers; packing and every form of predict use it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.encoding.inputs import check_family, special_value, wrong_class
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.fitting import null_hint
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.raw import Codes, Levels, Moments, Numbers, RawColumn
from madlib_mop.columns.transforms.categories import FIRST, CategoryFit, LevelCodes
from madlib_mop.columns.transforms.scaling import NumberFit, Scaling, restore
from madlib_mop.errors import InvalidParameter, UndefinedColumn

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What outputs of one target mean.

    Attributes
    ----------
    numbers : numpy.ndarray or None
        Of a regression: float64 (n_rows,), in the units of the table (seconds for intervals).
    classes : tuple of str
        Of classes: all of them, in the order of ``probabilities``; else ().
    codes : numpy.ndarray or None
        Of classes: int64 (n_rows,), the most probable one; of equals the first.
    probabilities : numpy.ndarray or None
        Of classes: float64 (n_rows, n_classes).
    """

    numbers: Floats | None = None
    classes: tuple[str, ...] = ()
    codes: npt.NDArray[np.int64] | None = None
    probabilities: Floats | None = None


class Targets:
    """The targets of a preprocessor.

    Parameters
    ----------
    preprocessor : Preprocessor
    """

    def __init__(self, preprocessor: Preprocessor):
        self._targets: dict[str, ClassTarget | NumberTarget] = {
            column.name: ClassTarget(column.name, column.fit)
            if isinstance(column.fit, ClassFit)
            else NumberTarget(column)
            for column in preprocessor.targets
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the targets, in order."""
        return tuple(self._targets)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one row of a target's tensor."""
        return self._targets[name].shape

    def dtype(self, name: str) -> str:
        """Return NumPy's name of the type of a target's tensor: ``int16`` of classes, ``float32`` of numbers."""
        return "int16" if isinstance(self._targets[name], ClassTarget) else "float32"

    def encode(self, raw: Mapping[str, RawColumn]) -> dict[str, npt.NDArray[np.generic]]:
        """Return the tensor of each target.

        Returns
        -------
        dict of str to numpy.ndarray
            Classes: int16 (n_rows, n_classes) for ``one_hot``, int16 (n_rows, 1) for ``index``. Numbers: float32
            (n_rows, 1), scaled.

        Raises
        ------
        UndefinedColumn
            If a target is missing.
        UnreadableValue
            For NULL.
        InvalidParameter
            For NaN and infinities, and for a class that the training rows do not have.
        """
        for name in self._targets:
            if name not in raw:
                raise UndefinedColumn(f"target {name!r} is missing", hint="Add it, with its name and type.")
        return {name: target.encode(raw[name]) for name, target in self._targets.items()}

    def known(self, raw: Mapping[str, RawColumn]) -> dict[str, npt.NDArray[np.bool_]]:
        """Return for each target which rows have a value that `encode` takes: bool (n_rows,).

        The others are NULL, or have a class that the training rows do not have.
        """
        return {name: target.known(raw[name]) for name, target in self._targets.items()}

    def encode_one(self, name: str, column: RawColumn) -> npt.NDArray[np.generic]:
        """Return the tensor of one target; as `encode`."""
        return self._targets[name].encode(column)

    def decode(self, outputs: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, Predictions]:
        """Return what a network's outputs mean, by target.

        Parameters
        ----------
        outputs : mapping of str to numpy.ndarray
            By target, floats: (n_rows, n_classes) probabilities, (n_rows, 1) of two classes is the probability of the
            second; (n_rows, 1) of a number.

        Raises
        ------
        InvalidParameter
            If an output has another shape.
        """
        return {name: self.decode_one(name, values) for name, values in outputs.items()}

    def decode_one(self, name: str, values: npt.NDArray[np.generic]) -> Predictions:
        """Return what the outputs for one target mean, or its tensor; as `decode`."""
        return self._targets[name].decode(np.asarray(values, np.float64))

    def values(self, name: str, outputs: npt.NDArray[np.generic]) -> Floats:
        """Return the outputs for one target, float64 (n_rows, n_values): numbers in the units of the table.

        Raises InvalidParameter as `decode` does.
        """
        return self._targets[name].values(np.asarray(outputs, np.float64, order="C"))


def class_labels(codes: npt.NDArray[np.integer], n_classes: int, as_index: bool) -> npt.NDArray[np.int16]:
    """Return the tensor of classes by their numbers from 0: int16 (n_rows, 1), or one-hot (n_rows, n_classes)."""
    if as_index:
        return codes.astype(np.int16)[:, np.newaxis]
    rows = np.zeros((len(codes), n_classes), np.int16)
    rows[np.arange(len(codes)), codes] = 1
    return rows


class ClassTarget:
    """A target with classes."""

    def __init__(self, name: str, fit: ClassFit):
        self.name = name
        self.fit = fit
        n_classes = len(fit.classes)
        self.shape: tuple[int, ...] = (n_classes,) if fit.encode == "one_hot" else (1,)
        self._codes = LevelCodes(CategoryFit("index", fit.classes, FIRST + n_classes, 1, None, True, False))

    def encode(self, column: RawColumn) -> npt.NDArray[np.int16]:
        """Return int16 (n_rows, n_classes) or (n_rows, 1)."""
        _require_values(self.name, column)
        codes = self._codes_of(column)
        if (codes < FIRST).any():
            raise self._unknown(column, codes)
        return class_labels(codes - FIRST, len(self.fit.classes), self.fit.encode == "index")

    def decode(self, outputs: Floats) -> Predictions:
        """Return the classes and probabilities of outputs."""
        outputs = self.values(outputs)
        if outputs.shape[1] < len(self.fit.classes):
            outputs = np.concatenate([1.0 - outputs, outputs], axis=1)
        return Predictions(classes=self.fit.classes, codes=outputs.argmax(axis=1), probabilities=outputs)

    def values(self, outputs: Floats) -> Floats:
        """Return outputs if their shape is one of this target's."""
        n_classes = len(self.fit.classes)
        if outputs.ndim != 2 or not (outputs.shape[1] == n_classes or (outputs.shape[1] == 1 and n_classes == 2)):
            raise _wrong_shape(self.name, f"{n_classes} classes", outputs)
        return outputs

    def counts(self, column: RawColumn) -> tuple[int, ...]:
        """Return how many rows have each class."""
        codes = self._codes_of(column) - FIRST
        return tuple(np.bincount(codes[codes >= 0], minlength=len(self.fit.classes)).tolist())

    def known(self, column: RawColumn) -> npt.NDArray[np.bool_]:
        """Return which rows have one of the classes: bool (n_rows,)."""
        return self._codes_of(column) >= FIRST

    def _codes_of(self, column: RawColumn) -> Codes:
        if isinstance(column, Numbers):
            return self._codes.of_numbers(column.values, column.missing, column.is_single)
        if isinstance(column, Levels):
            return self._codes.of_levels(column.codes, column.levels, column.levels.keys)
        raise wrong_class(self.name, "a category", column)

    def _unknown(self, column: RawColumn, codes: Codes) -> InvalidParameter:
        row = column.take(np.flatnonzero(codes < FIRST)[:1])
        assert isinstance(row, Numbers | Levels), "its codes were found"
        text = (row.sql_texts() if isinstance(row, Numbers) else row.texts())[0]
        return InvalidParameter(
            f"target {self.name!r} has class {text!r}, which no training row has",
            hint="List all classes in levels of the proposal, or leave such rows out by a view.",
        )


class NumberTarget:
    """A target of a regression."""

    shape: tuple[int, ...] = (1,)

    def __init__(self, column: FittedColumn):
        assert isinstance(column.fit, NumberFit)
        self._column = column
        self.name = column.name
        self.fit = column.fit
        self._scaling = Scaling([column.fit])

    def encode(self, column: RawColumn) -> npt.NDArray[np.float32]:
        """Return float32 (n_rows, 1)."""
        check_family(self._column, column)
        assert isinstance(column, Numbers | Moments), "its family is one of these"
        _require_values(self.name, column)
        special = column.first_special()
        if special is not None:
            raise special_value(self.name, special.text)
        values = column.values.astype(np.float64)[np.newaxis]
        return self._scaling.apply(values, column.missing[np.newaxis]).T.astype(np.float32)

    def known(self, column: RawColumn) -> npt.NDArray[np.bool_]:
        """Return which rows have a number: bool (n_rows,)."""
        return ~column.missing

    def decode(self, outputs: Floats) -> Predictions:
        """Return the numbers of outputs."""
        return Predictions(numbers=self.values(outputs)[:, 0])

    def values(self, outputs: Floats) -> Floats:
        """Return the numbers of outputs, (n_rows, 1)."""
        if outputs.ndim == 1:
            outputs = outputs[:, np.newaxis]
        if outputs.ndim != 2 or outputs.shape[1] != 1:
            raise _wrong_shape(self.name, "one number", outputs)
        return restore(outputs, self.fit)


def _require_values(name: str, column: RawColumn) -> None:
    """Raise UnreadableValue for the first row that has no target."""
    if column.missing.any():
        raise UnreadableValue(name, int(np.argmax(column.missing)), "is a target, and it is NULL", null_hint(name))


def _wrong_shape(name: str, expected: str, outputs: Floats) -> InvalidParameter:
    return InvalidParameter(
        f"the output for target {name!r} must have {expected} a row. Received: shape {outputs.shape}",
        hint="Use a network whose last layer has as many units.",
    )
