"""The numbers of a column whose distribution is compared: its value, or what is computed from it; for profiles."""

from collections.abc import Sequence

import numpy as np

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.encoding.inputs import wrong_class
from madlib_mop.columns.preprocessors.fits import ClassFit, Fit, ImageFit, TermsFit, TextFit, VectorFit
from madlib_mop.columns.raw import Levels, Moments, Numbers, RawColumn, Vectors, other_width
from madlib_mop.columns.transforms.categories import CategoryFit

VALUE = "value"
#: Most elements of an array that are measured one by one; of longer ones, mean and deviation are.
MAX_ELEMENTS = 32
_BLOCK_ROWS = 4_096


def has_levels(fit: Fit) -> bool:
    """Return whether a column is measured by its levels, not by numbers."""
    return isinstance(fit, CategoryFit | ClassFit)


def numbers_of(fit: Fit, column: RawColumn, name: str) -> list[tuple[str, Numbers | Moments]]:
    """Return what is measured of some rows: the name of each number, and its values; [] for levels.

    The values of a row depend on this row alone.

    Parameters
    ----------
    fit : Fit
    column : RawColumn
    name : str
        Of the column, for errors.

    Raises
    ------
    InvalidParameter
        If the column is of another class than the one that was fitted.
    """
    if has_levels(fit):
        return []
    if isinstance(fit, TextFit | TermsFit):
        if not isinstance(column, Levels):
            raise wrong_class(name, "a text", column)
        lengths = [*(len(text) for text in column.levels.texts()), 0]
        return [("characters", Numbers(np.array(lengths, np.float64)[column.codes], column.missing))]
    if isinstance(fit, VectorFit):
        if not isinstance(column, Vectors):
            raise wrong_class(name, "an array or a vector", column)
        if column.width not in (None, fit.width):
            raise other_width(name, fit.width, column.width or 0)
        return _of_vectors(column, fit.width)
    if isinstance(fit, ImageFit):
        if not isinstance(column, Blobs):
            raise wrong_class(name, "bytea", column)
        return [("bytes", Numbers(column.sizes.astype(np.float64), column.missing))]
    if not isinstance(column, Numbers | Moments):
        raise wrong_class(name, "a number, boolean, date or time", column)
    return [(VALUE, column)]


def names_of(fit: Fit) -> Sequence[str]:
    """Return the names of the numbers that `numbers_of` returns."""
    if has_levels(fit):
        return ()
    if isinstance(fit, TextFit | TermsFit):
        return ("characters",)
    if isinstance(fit, VectorFit):
        return _names_of_elements(fit.width)
    return ("bytes",) if isinstance(fit, ImageFit) else (VALUE,)


def _names_of_elements(width: int) -> Sequence[str]:
    return [f"element {i + 1}" for i in range(width)] if width <= MAX_ELEMENTS else ("mean", "deviation")


def _of_vectors(column: Vectors, width: int) -> list[tuple[str, Numbers | Moments]]:
    values, names = column.values, _names_of_elements(width)
    if column.width is None:
        return [(name, Numbers(np.zeros(column.n_rows), column.missing)) for name in names]
    absent = column.absent
    if width <= MAX_ELEMENTS:
        missing = [column.missing if absent is None else column.missing | absent[:, i] for i in range(width)]
        return [(name, Numbers(values[:, i].astype(np.float64), missing[i])) for i, name in enumerate(names)]
    means, deviations = np.zeros(column.n_rows), np.zeros(column.n_rows)
    is_empty = column.missing if absent is None else column.missing | absent.all(axis=1)
    with np.errstate(all="ignore"):  # NaN and infinities are counted later
        for start in range(0, column.n_rows, _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            block = values[rows].astype(np.float64)
            if absent is None:
                means[rows], deviations[rows] = block.mean(axis=1), block.std(axis=1)
            else:
                some = np.flatnonzero(~is_empty[rows])
                block, present = block[some], ~absent[start + some]
                means[start + some] = block.mean(axis=1, where=present)
                deviations[start + some] = block.std(axis=1, where=present)
    return [(names[0], Numbers(means, is_empty)), (names[1], Numbers(deviations, is_empty))]
