"""Helpers of tests of packing and of columns: PostgreSQL arrays written by hand, and encoded images."""

import io
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

OIDS = {"i2": 21, "i4": 23, "i8": 20, "f4": 700, "f8": 701}


def _array_bytes(array: np.ndarray, nulls=None, idle_bitmap=False, lower=1) -> bytes:
    """Write an array as PostgreSQL keeps it in memory, after the varlena header (src/include/utils/array.h)."""
    dims, kind = array.shape, array.dtype.str[1:]
    if array.size == 0:
        return struct.pack("=iiI", 0, 0, OIDS[kind])
    bitmap = b""
    if nulls is not None or idle_bitmap:
        present = np.ones(array.size, bool) if nulls is None else ~nulls.ravel()
        bitmap = np.packbits(present, bitorder="little").tobytes()
    n_header = 16 + 8 * len(dims) + len(bitmap)
    n_aligned = -(-n_header // 8) * 8
    header = struct.pack("=iiI", len(dims), n_aligned if bitmap else 0, OIDS[kind])
    header += struct.pack(f"={len(dims)}i", *dims) + struct.pack(f"={len(dims)}i", *[lower] * len(dims))
    elements = array.ravel() if nulls is None else array.ravel()[~nulls.ravel()]
    return header + bitmap + bytes(n_aligned - n_header) + elements.tobytes()


def _batch(values: list[bytes | None]) -> SimpleNamespace:
    """Concatenate values, as a column of a streamed batch."""
    data = bytearray(b"".join(value for value in values if value is not None))
    return SimpleNamespace(data=data, lengths=[-1 if value is None else len(value) for value in values])


def _image(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def array_bytes():
    """The function that writes one array."""
    return _array_bytes


@pytest.fixture(scope="session")
def batch():
    """The function that makes a column of a batch of values (None is NULL)."""
    return _batch


@pytest.fixture(scope="session")
def image():
    """The function that encodes pixels as PNG or JPEG."""
    return _image
