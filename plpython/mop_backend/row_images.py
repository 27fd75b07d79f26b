"""Images in rows to predict: a process of this session decodes them, before the trainer gets the row.

Images are untrusted bytes, and the trainer holds the models of all roles of the session. So the trainer gets pixels
only, and the decoder, which has the sandbox of trainers, gets images only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from mop_backend.call import CallError
from mop_backend.frames import Frame, Header
from mop_backend.interrupts import Interrupts
from mop_backend.process import Child, ChildDied

_MODULE = "madlib_mop.driver.data.decoders"
_FIELD = struct.Struct(">Ii")
_COUNT_BYTES = 4

_decoder: Child | None = None


def with_pixels(
    row: bytes, fields: Sequence[Sequence[str | int | None]], images: Mapping[str, list[int]], idle_s: float | None
) -> bytes:
    """Return a record with the pixels of its images in the place of their files.

    Parameters
    ----------
    row : bytes
        A record, as ``record_send`` writes it, whose fields end where it does.
    fields : list of (name, SQL type, oid, base type)
        One a field.
    images : dict of str to list of int
        The columns with images, and height, width and channels of each.
    idle_s : float or None
        The decoder ends after so many seconds without an image.

    Raises
    ------
    CallError
        For an image that cannot be decoded.
    """
    parts = [row[:_COUNT_BYTES]]
    position = _COUNT_BYTES
    for name, _, _, base in fields:
        oid, length = _FIELD.unpack_from(row, position)
        position += _FIELD.size
        value = row[position : position + max(length, 0)]
        position += len(value)
        if length >= 0 and base == "bytea" and name in images:
            value = _pixels(str(name), value, images[str(name)], idle_s)
            length = len(value)
        parts += [_FIELD.pack(oid, length), value]
    return b"".join(parts)


def _pixels(column: str, image: bytes, shape: list[int], idle_s: float | None) -> bytes:
    """Return the pixels of an image: height x width x channels bytes."""
    request = {"wanted": shape, "expected": shape, "idle_s": idle_s}
    try:
        header, blobs = _ask(request, image)
    except ChildDied:
        raise _bad_image(column, "is an image that crashed the decoder") from None
    if "bad" in header:
        raise _bad_image(column, header["problem"])
    (pixels,) = blobs
    if len(pixels) != math.prod(shape):
        raise CallError(f"predict: the decoder sent {len(pixels)} bytes for an image of the shape {shape}", "XX000")
    return bytes(pixels)


def _ask(request: Header, image: bytes) -> Frame:
    """Send an image to the decoder, which the first image starts. Raises ChildDied if it ends, and a new one too."""
    global _decoder
    for is_new in (_decoder is None, True):
        if _decoder is None:
            _decoder = Child(_MODULE, Interrupts())
        try:
            return _decoder.ask(request, [image])
        except ChildDied:  # maybe before it had the image: after its idle time, or because of an image before
            _forget()
            if is_new:
                raise
        except BaseException:  # cancelled: it is still decoding
            _forget()  # defence: cancelled-images
            raise
    raise AssertionError("the second decoder is new")


def _forget() -> None:
    global _decoder
    if _decoder is not None:
        _decoder.stop()
        _decoder = None


def _bad_image(column: str, problem: object) -> CallError:
    return CallError(
        f"predict: column {column!r} {problem}", "22023", hint="Replace it by NULL in a view, or leave the row out."
    )
