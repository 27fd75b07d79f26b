"""Rows of arrays, numbers side by side, images and classes to tensors, without statistics: for tables of arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.encoding.encoder import PART_BYTES, BadFile, Tensors
from madlib_mop.columns.encoding.targets import class_labels
from madlib_mop.columns.raw import Numbers, RawColumn, Vectors

#: Decodes image files to uint8 (n, height, width, channels): to the wanted size, (h, w), (h, w, c) or None, all of the
#: expected shape, or None; raises BadFile.
ScalingDecoder = Callable[[Sequence[bytes], tuple[int, ...] | None, tuple[int, ...] | None], npt.NDArray[np.uint8]]
#: Checks the shape of the rows of an input, by its number, when the first row shows it.
ShapeCheck = Callable[[int, tuple[int, ...]], None]

_NULL_HINT = "Exclude such rows with a view or a WHERE clause."
Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class FixedInput:
    """An input.

    Attributes
    ----------
    name : str
        Of its column among those that were read: arrays become float32, files of images uint8.
    wanted : tuple of int or None
        Size of images: (h, w) or (h, w, c); None keeps theirs.
    """

    name: str
    wanted: tuple[int, ...] | None = None


class FixedEncoder:
    """Encodes the inputs of a table of arrays; all rows of an input have the shape of the first one.

    Parameters
    ----------
    inputs : sequence of FixedInput
    divisor : float
        Arrays are divided by it, in float32. Images are not: the trainer divides them.
    decode : callable
    check : callable
        Called once for each input, before its first rows are encoded.
    """

    def __init__(
        self,
        inputs: Sequence[FixedInput],
        divisor: float,
        decode: ScalingDecoder,
        check: ShapeCheck = lambda number, shape: None,
    ):
        self.inputs = tuple(inputs)
        self._divisor = np.float32(divisor)
        self._decode = decode
        self._check = check
        self._shapes: dict[int, tuple[int, ...]] = {}

    def encode(self, raw: Mapping[str, RawColumn]) -> Tensors:
        """Return the tensors of some rows: float32 (n_rows, *shape) of arrays, uint8 (n_rows, h, w, c) of images.

        Raises
        ------
        UnreadableValue
            For NULL, for an image that cannot be decoded or has another shape than the first one.
        """
        arrays: dict[str, Array] = {}
        for number, one in enumerate(self.inputs):
            column = raw[one.name]
            _require_values(one.name, column)
            key = one.name if one.name not in arrays else f"{one.name} ({number + 1})"  # a column may be two inputs
            arrays[key] = self._pixels(number, column) if isinstance(column, Blobs) else self._divided(number, column)
        return Tensors(raw[self.inputs[0].name].n_rows, arrays)

    def _divided(self, number: int, column: RawColumn) -> npt.NDArray[np.float32]:
        assert isinstance(column, Vectors), "it is read as arrays"
        shape = _shape_of(column)
        self._found(number, shape)
        values = column.values if self._divisor == 1 else column.values / self._divisor
        return values.reshape(column.n_rows, *shape)

    def _pixels(self, number: int, column: Blobs) -> npt.NDArray[np.uint8]:
        one, pixels = self.inputs[number], None
        for rows, files in column.pieces(PART_BYTES, self._most_images(number)):
            try:
                if number not in self._shapes:
                    self._found(number, self._decode(files[:1], one.wanted, None).shape[1:])
                if pixels is None:
                    pixels = np.empty((column.n_rows, *self._shapes[number]), np.uint8)
                pixels[rows] = self._decode(files, one.wanted, self._shapes[number])
            except BadFile as bad:
                raise UnreadableValue(one.name, rows[bad.number], bad.problem, bad.hint) from None
        assert pixels is not None, "a batch has rows"
        return pixels

    def _most_images(self, number: int) -> int:
        shape = self._shapes.get(number)
        return 1 if shape is None else max(1, PART_BYTES // int(np.prod(shape, dtype=np.int64)))

    def _found(self, number: int, shape: tuple[int, ...]) -> None:
        known = self._shapes.get(number)
        if known is None:
            self._check(number, shape)
            self._shapes[number] = shape
        elif shape != known:
            raise _other_shape(self.inputs[number].name, known, shape)


@dataclass(frozen=True)
class FixedTarget:
    """A target.

    Attributes
    ----------
    name : str
    width : int or None
        Of classes: the width of their one-hot labels. None: arrays, which keep their values.
    as_index : bool
        Whether classes become their numbers, from 0, instead of one-hot labels.
    is_int16 : bool
        Whether arrays become int16, which have integers that fit; else float32.
    """

    name: str
    width: int | None = None
    as_index: bool = False
    is_int16: bool = False


class FixedTargets:
    """Encodes the targets of a table of arrays; those of classes are read as positions among the classes, from 1.

    Parameters
    ----------
    targets : sequence of FixedTarget
    """

    def __init__(self, targets: Sequence[FixedTarget]):
        self._targets = {one.name: one for one in targets}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def encode(self, raw: Mapping[str, RawColumn]) -> dict[str, Array]:
        """Return the tensors: int16 (n_rows, width) or (n_rows, 1) of classes, (n_rows, *shape) of arrays.

        Raises
        ------
        UnreadableValue
            For a value that is no class, and for NULL; for an array of another shape than the first one.
        """
        return {name: self.encode_one(name, raw[name]) for name in self._targets}

    def encode_one(self, name: str, column: RawColumn) -> Array:
        """Return the tensor of one target; as `encode`."""
        one = self._targets[name]
        if one.width is None:
            return self._of_arrays(one, column)
        assert isinstance(column, Numbers), "positions are numbers"
        if column.missing.any():
            row = int(np.argmax(column.missing))
            raise UnreadableValue(name, row, "has a value that is not among the class values")
        return class_labels(column.values.astype(np.int64) - 1, one.width, one.as_index)

    def _of_arrays(self, one: FixedTarget, column: RawColumn) -> Array:
        assert isinstance(column, Vectors), "it is read as arrays"
        _require_values(one.name, column)
        shape = _shape_of(column)
        known = self._shapes.setdefault(one.name, shape)
        if shape != known:
            raise _other_shape(one.name, known, shape)
        values: Array = column.values.reshape(column.n_rows, *shape)
        if not one.is_int16:
            return values
        integers = values.astype(np.int16)
        if (integers != values).any():
            row = int(np.argmax((integers != values).reshape(column.n_rows, -1).any(axis=1)))
            problem = (
                "contains an integer that does not fit into smallint; the table was changed while it was being packed"
            )
            raise UnreadableValue(one.name, row, problem)
        return integers


def _require_values(name: str, column: RawColumn) -> None:
    if column.missing.any():
        raise UnreadableValue(name, int(np.argmax(column.missing)), "is NULL", _NULL_HINT)


def _shape_of(column: Vectors) -> tuple[int, ...]:
    """Return the shape of a row, of arrays that all have one."""
    return column.dimensions or column.values.shape[1:]


def _other_shape(name: str, expected: tuple[int, ...], received: tuple[int, ...]) -> UnreadableValue:
    problem = f"has the shape {list(received)}, but {list(expected)} is expected"
    return UnreadableValue(name, 0, problem, "All rows of a column must have one shape.")
