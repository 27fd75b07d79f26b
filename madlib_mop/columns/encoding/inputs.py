"""The inputs of a network that are one column each, and the units of categories; parts of the encoder."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.cells import UnreadableValue, null_element, wrong_width
from madlib_mop.columns.families import words_of
from madlib_mop.columns.preprocessors.fits import FittedColumn, TermsFit, TextFit, VectorFit
from madlib_mop.columns.raw import (
    Codes,
    Flags,
    Integers,
    Levels,
    Numbers,
    RawColumn,
    Vectors,
    other_dimensions,
    other_width,
)
from madlib_mop.columns.transforms.categories import NULL, OTHER, CategoryFit, LevelCodes
from madlib_mop.columns.transforms.ngrams import hashed_ngrams
from madlib_mop.errors import InvalidParameter

Units = npt.NDArray[np.float32]


def null_value(name: str, missing: Flags) -> UnreadableValue:
    """Return the error for the first NULL where a specification has ``impute => 'error'``."""
    return UnreadableValue(
        name,
        int(np.argmax(missing)),
        "is NULL, and its impute is error,",
        "Leave such rows out by a view, or pack the table with another impute.",
    )


def wrong_class(name: str, expected: str, column: RawColumn) -> InvalidParameter:
    """Return the error for a column whose values are of another family than those that were packed."""
    return InvalidParameter(
        f"column {name!r} must be {expected}, as when the table was packed. Received: {column.family}",
        hint="Cast it in a view, or pack the table again.",
    )


def check_family(fitted: FittedColumn, column: RawColumn) -> None:
    """Raise InvalidParameter unless a column has numbers, dates or lengths of time as its fit has."""
    if column.family not in fitted.families:
        raise wrong_class(fitted.name, words_of(fitted.families), column)


def special_value(name: str, text: str) -> InvalidParameter:
    """Return the error for NaN or an infinity."""
    return InvalidParameter(
        f"column {name!r} has the value {text}, which is not finite",
        hint="Replace it by NULL or a number in a view.",
    )


class CategoryCodes:
    """Codes of one category's values: 0 for NULL, 1 for another level, then the levels; hashed: 0, then buckets."""

    def __init__(self, name: str, fit: CategoryFit):
        self.name = name
        self.fit = fit
        self._levels = LevelCodes(fit)

    def of(self, column: RawColumn) -> Codes:
        """Return int32 (n_rows,). Raises InvalidParameter for NULL where it is an error."""
        if isinstance(column, Numbers):
            special = column.first_special()
            if special is not None:
                raise special_value(self.name, special.text)
            if self.fit.encode == "hashed":
                column = column.as_levels(self.name)
            else:
                codes = self._levels.of_numbers(column.values, column.missing, column.is_single)
        if isinstance(column, Levels):
            codes = self._levels.of_levels(column.codes, column.levels, column.levels.keys)
        elif not isinstance(column, Numbers):
            raise wrong_class(self.name, "a category", column)
        if not self.fit.accepts_null and column.missing.any():
            raise null_value(self.name, column.missing)
        return codes


class IndexInput:
    """A category as indices of an embedding."""

    def __init__(self, name: str, fit: CategoryFit):
        self._codes = CategoryCodes(name, fit)

    def encode(self, column: RawColumn) -> Codes:
        """Return int32 (n_rows, 1)."""
        return self._codes.of(column)[:, np.newaxis]


class UnitsOfCategory:
    """A category as units of the matrix of numbers: one-hot, or one number by a table."""

    def __init__(self, name: str, fit: CategoryFit):
        self._codes = CategoryCodes(name, fit)
        self._table: Units = np.array(fit.units, np.float32)
        self._levels: Codes = np.arange(OTHER, fit.n_codes, dtype=np.int32)[:, np.newaxis]
        self._indicator = fit.indicator

    def write(self, column: RawColumn, units: Units, unit: int) -> None:
        """Write the units, from row ``unit`` on: float32 (n_units, n_rows)."""
        codes = self._codes.of(column)
        if len(self._table):
            units[unit] = self._table[codes]
            end = unit + 1
        else:
            end = unit + len(self._levels)
            units[unit:end] = codes == self._levels
        if self._indicator:
            units[end] = codes == NULL


class TextInput:
    """A text as hashed words and runs of characters."""

    def __init__(self, name: str, fit: TextFit):
        self._name = name
        self._fit = fit

    def encode(self, column: RawColumn) -> Units:
        """Return float32 (n_rows, width); each distinct text is hashed once."""
        if not isinstance(column, Levels):
            raise wrong_class(self._name, "a text", column)
        if not self._fit.accepts_null and column.missing.any():
            raise null_value(self._name, column.missing)
        texts, inverse = _distinct_texts(column)
        units = hashed_ngrams(texts, self._fit.width)
        return units if inverse is None else units[inverse]


class TermsInput:
    """A text as the indices and the weights of its terms."""

    def __init__(self, name: str, fit: TermsFit):
        self._name = name
        self._fit = fit

    def encode(self, column: RawColumn) -> tuple[Codes, Units]:
        """Return int32 and float32, (n_rows, width) each; zeros where NULL."""
        if not isinstance(column, Levels):
            raise wrong_class(self._name, "a text", column)
        if not self._fit.accepts_null and column.missing.any():
            raise null_value(self._name, column.missing)
        texts, inverse = _distinct_texts(column)
        indices, weights = self._fit.vocabulary.weights(texts, self._fit.width)
        return (indices, weights) if inverse is None else (indices[inverse], weights[inverse])


def _distinct_texts(column: Levels) -> tuple[list[str], Integers | None]:
    """Return the distinct texts of some rows, "" for NULL, and which one each row has; None for a row alone."""
    keys = column.levels.keys()
    if column.n_rows == 1:
        code = column.codes.item(0)
        return [keys[code].decode("utf-8", "replace") if code >= 0 else ""], None
    distinct, inverse = np.unique(column.codes, return_inverse=True)
    return [keys[code].decode("utf-8", "replace") if code >= 0 else "" for code in distinct.tolist()], inverse


class VectorInput:
    """A vector or numeric array, scaled by one mean and one deviation."""

    def __init__(self, name: str, fit: VectorFit):
        self._name = name
        self._fit = fit
        self._offset, self._divisor = np.float32(fit.offset), np.float32(fit.divisor)
        self._shape = fit.dimensions or (fit.width,)

    def encode(self, column: RawColumn) -> Units:
        """Return float32 (n_rows, width), or with the dimensions of the fit; zeros where NULL or absent."""
        if not isinstance(column, Vectors):
            raise wrong_class(self._name, "an array or vector of numbers", column)
        missing = column.missing
        has_null = bool(missing.any())
        if has_null and not self._fit.accepts_null:
            raise null_value(self._name, column.missing)
        if column.width is None:
            return np.zeros((column.n_rows, *self._shape), np.float32)
        column = self._as_fitted(column)
        if column.width != self._fit.width:
            raise other_width(self._name, self._fit.width, column.width or 0)
        if self._fit.dimensions and column.dimensions != self._fit.dimensions:
            raise other_dimensions(self._name, self._fit.dimensions, column.dimensions)
        if not np.isfinite(column.values).all():
            special = column.first_special()
            raise special_value(self._name, special.text if special else "NaN")
        with np.errstate(over="ignore"):
            units: Units = (column.values - self._offset) / self._divisor
        if not np.isfinite(units).all():
            np.nan_to_num(units, copy=False)
        if has_null:
            units[missing] = 0.0
        if column.absent is not None:
            units[column.absent] = 0.0
        return units.reshape(column.n_rows, *self._shape)

    def _as_fitted(self, column: Vectors) -> Vectors:
        """Return padded arrays with the elements of the fit; arrays that several encodings read may be padded to more.

        Raises
        ------
        UnreadableValue
            If an array has more elements, or fewer although the fit has no absent ones.
        """
        width, absent = self._fit.width, column.absent
        if absent is None or absent.shape[1] < width:
            return column
        wrong = (~absent[:, width:]).any(axis=1)
        if not self._fit.is_padded:
            wrong |= absent[:, :width].any(axis=1)
        wrong &= ~column.missing
        if wrong.any():
            row = int(np.argmax(wrong))
            n_elements = int(np.flatnonzero(~absent[row]).max(initial=-1)) + 1
            if n_elements == width:
                raise null_element(self._name, row, int(np.argmax(absent[row])))
            raise wrong_width(self._name, row, width, n_elements)
        return replace(column, values=column.values[:, :width], absent=absent[:, :width])
