"""Parses SQL arrays of numbers for predict.py: an array's memory in, shape, type, bytes and NULLs out."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mop_backend.call import CallError

#: Oid of an element type -> NumPy's name of the type.
_TYPES = {21: "i2", 23: "i4", 20: "i8", 700: "f4", 701: "f8"}
_SIZES = {"i2": 2, "i4": 4, "i8": 8, "f4": 4, "f8": 8}
_HEADER = struct.Struct("=iII")
_SHAPES = [struct.Struct(f"={n_dims}i") for n_dims in range(7)]
_VARLENA_BYTES = 4  # for arrays, but not for bytea
_NO_NULL = 0xFF  # a byte of the bitmap of 8 elements
_MAKE = "Create it with madlib_mop.array_bytes(<array>::real[])."


class Array:
    """The numbers of one SQL array.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        As NumPy names it.
    data : bytes-like
        The elements; 0 where one is NULL.
    nulls : list of int
        Which elements are NULL.
    """

    __slots__ = ("data", "dtype", "nulls", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: str, data: bytearray | memoryview, nulls: Sequence[int] = ()):
        self.shape = shape
        self.dtype = dtype
        self.data = data
        self.nulls = nulls

    @classmethod
    def read(cls, value: bytes | None, function: str, allow_null: bool | None) -> Array:
        """Read the memory of one array (see madlib_mop/columns/layout.py for its layout).

        Parameters
        ----------
        value : bytes or None
        function : str
            For messages.
        allow_null : bool
            Whether elements may be NULL.

        Raises
        ------
        CallError
            If it is not an array of numbers, is empty, or has a NULL element that is not allowed.
        """
        if value is None:
            raise _refused(function, "an input is NULL", "Exclude such rows.")
        n_bytes = len(value)
        n_dims, bitmap_end, element_type = _HEADER.unpack_from(value) if n_bytes >= _HEADER.size else (-1, 0, 0)
        start = _HEADER.size + 8 * n_dims
        dtype = _TYPES.get(element_type)
        if not 0 <= n_dims <= 6 or start > n_bytes or dtype is None:
            raise _refused(function, "an input is not an array of numbers", _MAKE)
        shape = _SHAPES[n_dims].unpack_from(value, _HEADER.size)
        if not n_dims:
            raise _refused(function, "x is an empty array", "Exclude such rows.")
        n_elements = 1
        for size in shape:
            n_elements *= size
        size = _SIZES[dtype]
        if min(shape) < 1 or n_elements > 8 * n_bytes:
            raise _refused(function, "an input is not an array of numbers", _MAKE)
        nulls: Sequence[int] = ()
        if bitmap_end:
            nulls = _nulls(value[start : start + (n_elements + 7) // 8], n_elements)
            start = bitmap_end - _VARLENA_BYTES
        if nulls and not allow_null:
            raise _refused(
                function,
                f"x contains a NULL element at {_place(nulls[0], shape)}",
                "Replace it, exclude the row, or use allow_null => true, which returns NULL for such a row.",
            )
        data = memoryview(value)[start:]
        if len(data) != (n_elements - len(nulls)) * size:
            raise _refused(function, "an input is not an array of numbers", _MAKE)
        return cls(shape, dtype, _filled(data, nulls, n_elements, size) if nulls else data, nulls)

    def rows_with_nulls(self, n_rows: int) -> set[int]:
        """Return the numbers of the rows that have a NULL element, where the array is that many rows."""
        n_elements = 1
        for size in self.shape:
            n_elements *= size
        return {i * n_rows // n_elements for i in self.nulls}


def _nulls(bitmap: bytes, n_elements: int) -> Sequence[int]:
    """Return the elements whose bit is not set. Only bytes with such a bit are read bit by bit."""
    some = ((8 * place, byte) for place, byte in enumerate(bitmap) if byte != _NO_NULL)
    return [first + bit for first, byte in some for bit in range(min(8, n_elements - first)) if not byte >> bit & 1]


def _place(element: int, shape: tuple[int, ...]) -> str:
    """Return the subscripts of an element, from 1, as in ``[2][3]``."""
    subscripts = []
    for size in reversed(shape):
        element, subscript = divmod(element, size)
        subscripts.append(f"[{subscript + 1}]")
    return "".join(reversed(subscripts))


def _filled(data: memoryview, nulls: Sequence[int], n_elements: int, size: int) -> bytearray:
    """Insert zeros for NULL elements, which an array's memory omits."""
    whole, start, before = bytearray(n_elements * size), 0, 0
    for i in [*nulls, n_elements]:
        n_bytes = (i - before) * size
        whole[before * size : i * size] = data[start : start + n_bytes]
        start, before = start + n_bytes, i + 1
    return whole


def _refused(function: str, message: str, hint: str) -> CallError:
    return CallError(f"{function}: {message}", "22023", hint=hint)
