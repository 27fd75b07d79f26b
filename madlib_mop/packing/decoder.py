"""The process that decodes images: the bytes are untrusted, so it has little memory, no files and no sockets.

Started by `madlib_mop.packing.images` and by ``mop_backend/row_images.py``, which send frames ``{"wanted": [h, w, c] or
null, "expected": [h, w, c] or null}`` with one encoded image a blob, and get ``{"shape": [n, h, w, c]}`` with one uint8
blob, or ``{"bad": i, "problem": text, "hint": text or null}``. If a request has ``idle_s``, the process ends when no
other one comes within this time.
"""

import contextlib
import ctypes
import io
import resource
import select
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import numpy as np
from mop_backend.frames import Blob, Channel, Header, PeerGone
from PIL import Image, ImageFile, UnidentifiedImageError

FORMATS = ("JPEG", "PNG")
MAX_PIXELS = 1 << 26
MEMORY_LIMIT_BYTES = 2 << 30
Image.MAX_IMAGE_PIXELS = None  # decode_image checks the size itself, before it decodes
_SHAPE_HINT = "image_shape => '{height,width,channels}' resizes all images to one shape."
_ROUNDED_ROWS = 256
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_NATURAL_MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "CMYK": "RGB"}
_NATURAL_MODES |= dict.fromkeys(("LA", "PA", "RGBA"), "RGBA")
#: Of Pillow's raw modes of PNGs with 16 bits: the mode with 8 bits, and a raw mode that has the low bytes.
_DEEP_MODES: dict[object, tuple[str, str | None]] = {
    "I;16B": ("L", None),
    "RGB;16B": ("RGB", "RGB;16L"),
    "RGBA;16B": ("RGBA", "RGBA;16L"),
    "LA;16B": ("LA", "RGBA"),
}


class BadImage(Exception):
    """One image cannot be decoded; the message has the reason."""


def decode_image(encoded: Blob, shape: tuple[int, ...] | None) -> np.ndarray:
    """Decode one JPEG or PNG.

    Parameters
    ----------
    encoded : bytes
        The file's content.
    shape : tuple of int or None
        (h, w) to resize to, (h, w, c) to convert to gray (1), RGB (3) or RGBA (4) too, or None to leave it as it is:
        gray stays one channel, palettes and CMYK become RGB, gray with alpha becomes RGBA. Channels of 16 bits are
        rounded to 8.

    Returns
    -------
    numpy.ndarray
        (h, w, c) uint8.

    Raises
    ------
    BadImage
        If it is not such an image, is damaged, or too large.
    """
    try:
        image: Image.Image = (opened := Image.open(io.BytesIO(encoded), formats=FORMATS))
        if image.width * image.height > MAX_PIXELS:
            raise BadImage(f"is an image of {image.width} x {image.height} pixels, more than {MAX_PIXELS}")
        if opened.format == "PNG" and opened.tile and opened.tile[0][3] in _DEEP_MODES:
            image = _in_8_bits(encoded, opened)
        mode = _NATURAL_MODES.get(image.mode)
        if mode is None:
            raise BadImage(f"is an image of mode {image.mode!r}, which is not supported: use a mode of JPEG or PNG")
        image = image.convert(_MODES[shape[2]] if shape and len(shape) == 3 else mode)
    except (BadImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadImage(f"is not a {' or '.join(FORMATS)} image") from None
    except Exception as error:  # noqa: BLE001 -- Pillow raises errors of many classes for damaged files
        raise BadImage(f"is an image that cannot be decoded: {error}") from None
    if shape and (image.height, image.width) != tuple(shape[:2]):
        image = image.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def _in_8_bits(encoded: Blob, image: ImageFile.ImageFile) -> Image.Image:
    """Return a PNG with 16 bits a channel as an image of 8 bits, each value rounded: Pillow leaves out the low bytes.

    So it is decoded twice. A raw mode of the other byte order has the low bytes. Of gray with alpha, which has none, a
    raw mode of four bytes has all of them.
    """
    form = str(image.tile[0][3])
    mode, low_mode = _DEEP_MODES[form]
    found: np.ndarray
    if low_mode is None:
        found = np.asarray(image).astype(np.uint16, copy=False)[:, :, np.newaxis]
    else:
        low = Image.open(io.BytesIO(encoded), formats=("PNG",))
        low.tile = [low.tile[0]._replace(args=low_mode)]
        pixels = np.asarray(low).astype(np.uint16)
        if mode == "LA":
            found = pixels[:, :, ::2] << 8 | pixels[:, :, 1::2]
        else:
            found = np.asarray(image).astype(np.uint16) << 8 | pixels
    rounded = np.empty(found.shape, np.uint8)
    for start in range(0, len(found), _ROUNDED_ROWS):
        rows = slice(start, start + _ROUNDED_ROWS)
        rounded[rows] = (found[rows].astype(np.uint32) * 255 + 32_895) >> 16  # value / 257, to the nearest
    return Image.fromarray(rounded[:, :, 0] if mode == "L" else rounded, mode)


def decode_batch(
    images: Sequence[Blob], wanted: tuple[int, ...] | None, expected: tuple[int, ...] | None
) -> tuple[Header, list[Blob]]:
    """Decode a request's images, which must have the expected shape or that of the first; return header and blobs."""
    decoded: list[np.ndarray] = []
    for i, encoded in enumerate(images):
        try:
            pixels = decode_image(encoded, wanted)
        except BadImage as error:
            return {"bad": i, "problem": str(error), "hint": None}, []
        except MemoryError:
            return {"bad": i, "problem": "is an image that needs too much memory to decode", "hint": None}, []
        expected = expected or pixels.shape
        if pixels.shape != expected:
            problem = f"is an image of the shape {list(pixels.shape)}, but {list(expected)} is expected"
            return {"bad": i, "problem": problem, "hint": _SHAPE_HINT}, []
        decoded.append(pixels)
    tensor = np.stack(decoded)
    return {"shape": list(tensor.shape)}, [tensor.data]


def drop_rights() -> None:
    """Limit this process: memory, no files to write, none to open beyond a few, no core, gone with its parent."""
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_LIMIT_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 16),
    ):
        with contextlib.suppress(ValueError, OSError):  # a lower hard limit is sufficient
            resource.setrlimit(limit, (value, value))
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def main(guards: list[str]) -> None:
    """Answer requests on standard input until it is closed.

    Parameters
    ----------
    guards : list of str
        ``module:function`` of further restrictions; each is called once, after all libraries are loaded.
    """
    Image.preinit()
    drop_rights()
    for guard in guards:
        module, _, function = guard.partition(":")
        getattr(import_module(module), function)()
    channel = Channel(sys.stdin.fileno(), sys.stdout.fileno())
    with contextlib.suppress(PeerGone):
        idle_s = None
        while select.select([channel.read_fd], [], [], idle_s)[0]:
            header, images = channel.receive()
            idle_s = header.get("idle_s")
            shapes = (tuple(header[name]) if header[name] else None for name in ("wanted", "expected"))
            channel.send(*decode_batch(images, *shapes))
