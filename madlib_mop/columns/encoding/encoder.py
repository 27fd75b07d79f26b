"""Rows to tensors, by a preprocessor: the one encoder of packing, evaluation, every form of predict, and exports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.encoding.inputs import (
    IndexInput,
    TermsInput,
    TextInput,
    UnitsOfCategory,
    VectorInput,
    null_value,
    wrong_class,
)
from madlib_mop.columns.encoding.scaled import ScaledUnits
from madlib_mop.columns.preprocessors.fits import DateFit, FittedColumn, ImageFit, TermsFit, TextFit, VectorFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.raw import RawColumn
from madlib_mop.columns.transforms.categories import CategoryFit
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.errors import UndefinedColumn, Unsupported

#: Decodes image files to uint8 (n, height, width, channels), of the given shape of one; raises BadFile.
ImageDecoder = Callable[[Sequence[bytes], tuple[int, int, int]], npt.NDArray[np.uint8]]


#: Files are decoded in parts of up to this many bytes, and of pixels with up to this many bytes.
PART_BYTES = 32 << 20
_IMAGE_HINT = "Replace it by NULL in a view, leave the row out, or ignore the column."


class BadFile(Exception):
    """One of the files for an `ImageDecoder` cannot be decoded.

    Attributes
    ----------
    number : int
        Which one, 0-based.
    problem : str
        The problem, as the text after the column's name.
    hint : str or None
        What to do, if the decoder knows.
    """

    def __init__(self, number: int, problem: str, hint: str | None = None):
        super().__init__(number, problem)
        self.number = number
        self.problem = problem
        self.hint = hint


@dataclass(frozen=True, eq=False)
class Tensors:
    """What a network gets of some rows.

    Attributes
    ----------
    n_rows : int
    arrays : dict of str to numpy.ndarray
        By the names and in the order of `Preprocessor.tensors`; each of its ``dtype`` and of (n_rows, *``shape``),
        contiguous.
    """

    n_rows: int
    arrays: dict[str, npt.NDArray[np.generic]]


class Encoder:
    """Encodes rows; a row has the same bits whether it comes alone or among others, on every processor.

    Not for several threads at once: tables of levels are kept from call to call.

    Parameters
    ----------
    preprocessor : Preprocessor
    decode_images : callable or None
        From files and the shape of one image to uint8 (n, height, width, channels); needed if an input is an image. It
        gets many files at once, up to a limit of bytes.
    """

    def __init__(self, preprocessor: Preprocessor, decode_images: ImageDecoder | None = None):
        self.preprocessor = preprocessor
        self._decode_images = decode_images
        self._tensors = preprocessor.tensors
        self._first = preprocessor.inputs[0].name
        self._n_units = next((t.shape[0] for t in self._tensors if t.kind == "numbers"), 0)
        self._scaled = ScaledUnits()
        self._categories: list[tuple[str, int, UnitsOfCategory]] = []
        self._nulls: list[tuple[str, int]] = []
        self._own: list[tuple[str, str, IndexInput | TextInput | VectorInput]] = []
        self._terms: list[tuple[str, str, str, TermsInput]] = []
        self._images: list[tuple[str, str, ImageFit]] = []
        own: dict[str, list[str]] = {}
        for tensor in self._tensors:
            if tensor.kind != "numbers":
                own.setdefault(tensor.columns[0], []).append(tensor.name)
        unit = 0
        for column in preprocessor.inputs:
            self._add(column, unit, own.get(column.name, [""]))
            unit += len(column.units())
        self._scaled.seal()

    def _add(self, column: FittedColumn, unit: int, tensors: Sequence[str]) -> None:
        """Plan one column, whose first unit in the matrix of numbers is ``unit``; its own tensors are ``tensors``."""
        fit, name, tensor = column.fit, column.name, tensors[0]
        if isinstance(fit, NumberFit | DateFit):
            self._scaled.add(column, unit)
        elif isinstance(fit, CategoryFit):
            if fit.encode in ("index", "hashed"):
                self._own.append((tensor, name, IndexInput(name, fit)))
            else:
                self._categories.append((name, unit, UnitsOfCategory(name, fit)))
        elif isinstance(fit, TextFit | TermsFit | VectorFit | ImageFit):
            if fit.indicator:
                self._nulls.append((name, unit))
            if isinstance(fit, TextFit):
                self._own.append((tensor, name, TextInput(name, fit)))
            elif isinstance(fit, TermsFit):
                self._terms.append((tensor, tensors[1], name, TermsInput(name, fit)))
            elif isinstance(fit, VectorFit):
                self._own.append((tensor, name, VectorInput(name, fit)))
            else:
                self._images.append((tensor, name, fit))

    def encode(self, raw: Mapping[str, RawColumn]) -> Tensors:
        """Return the tensors of some rows.

        Parameters
        ----------
        raw : mapping of str to raw column
            By column name, all of one length; columns that are no inputs are not looked at.

        Raises
        ------
        UndefinedColumn
            If an input is missing.
        InvalidParameter
            For NaN and infinities, and for a column of another type.
        UnreadableValue
            For NULL where ``impute`` is ``error``, and for an image that cannot be decoded.
        """
        try:
            n_rows = raw[self._first].n_rows
            arrays: dict[str, npt.NDArray[np.generic]] = {}
            if self._n_units:
                units = np.empty((self._n_units, n_rows), np.float32)
                self._scaled.write(raw, units)
                for name, unit, category in self._categories:
                    category.write(raw[name], units, unit)
                for name, unit in self._nulls:
                    units[unit] = raw[name].missing
                arrays[self._tensors[0].name] = np.ascontiguousarray(units.T)
            for tensor, name, own in self._own:
                arrays[tensor] = own.encode(raw[name])
            for tensor, weights, name, terms in self._terms:
                arrays[tensor], arrays[weights] = terms.encode(raw[name])
            for tensor, name, fit in self._images:
                arrays[tensor] = self._pixels(raw[name], name, fit)
        except KeyError:
            self._check_names(raw)
            raise
        if self._images or self._terms:
            arrays = {tensor.name: arrays[tensor.name] for tensor in self._tensors}
        return Tensors(n_rows, arrays)

    def _pixels(self, column: RawColumn, name: str, fit: ImageFit) -> npt.NDArray[np.uint8]:
        if not isinstance(column, Blobs):
            raise wrong_class(name, "bytea", column)
        if self._decode_images is None:
            raise Unsupported(f"column {name!r} is an image, and images are not decoded here")
        if not fit.accepts_null and column.missing.any():
            raise null_value(name, column.missing)
        pixels = np.zeros((column.n_rows, *fit.shape), np.uint8)
        for rows, files in column.pieces(PART_BYTES, max(1, PART_BYTES // pixels[:1].nbytes)):
            try:
                pixels[rows] = self._decode_images(files, fit.shape)
            except BadFile as bad:
                raise UnreadableValue(name, rows[bad.number], bad.problem, _IMAGE_HINT) from None
        return pixels

    def _check_names(self, raw: Mapping[str, RawColumn]) -> None:
        for column in self.preprocessor.inputs:
            if column.name not in raw:
                alike = [name for name in raw if name.lower() == column.name.lower()]
                raise UndefinedColumn(
                    f"column {column.name!r} is missing: the network was trained with it",
                    hint=f"Rename {alike[0]!r} in a view." if alike else "Add it to the row, with its name and type.",
                )
