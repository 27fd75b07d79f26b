"""Rows of arrays, numbers side by side and images to tensors, without statistics: for tables of arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.encoding.encoder import PART_BYTES, BadFile, Tensors
from madlib_mop.columns.raw import RawColumn, Vectors

#: Decodes image files to uint8 (n, height, width, channels): to the wanted size, (h, w), (h, w, c) or None, all of the
#: expected shape, or None; raises BadFile.
ScalingDecoder = Callable[[Sequence[bytes], tuple[int, ...] | None, tuple[int, ...] | None], npt.NDArray[np.uint8]]
#: Checks the shape of the rows of an input, by its number, when the first row shows it.
ShapeCheck = Callable[[int, tuple[int, ...]], None]

_NULL_HINT = "Exclude such rows with a view or a WHERE clause."


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
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        for number, one in enumerate(self.inputs):
            column = raw[one.name]
            if column.missing.any():
                raise UnreadableValue(one.name, int(np.argmax(column.missing)), "is NULL", _NULL_HINT)
            key = one.name if one.name not in arrays else f"{one.name} ({number + 1})"  # a column may be two inputs
            arrays[key] = self._pixels(number, column) if isinstance(column, Blobs) else self._divided(number, column)
        return Tensors(raw[self.inputs[0].name].n_rows, arrays)

    def _divided(self, number: int, column: RawColumn) -> npt.NDArray[np.float32]:
        assert isinstance(column, Vectors), "it is read as arrays"
        shape = column.dimensions or column.values.shape[1:]
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
        if number not in self._shapes:
            self._check(number, shape)
            self._shapes[number] = shape
