"""Encoded images, good and bad ones, and a table with a column of them beside other columns."""

import io
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image
from psycopg2.extras import execute_values

N_PETS = 48
_MODES = ("RGB", "L", "P", "RGBA", "CMYK", "1")


def encoded(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    """Return the file of an image with these pixels."""
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, kind)
    return file.getvalue()


def png(width: int, height: int, data: bytes = b"", n_bits: int = 8) -> bytes:
    """Return a PNG with a header of this size, and these bytes as the compressed pixels."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, n_bits, 2, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    parts = [struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
             for name, body in chunks]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@cache
def bomb(side: int = 8_000) -> bytes:
    """Return a small file that is an image of side x side black pixels."""
    lines = zlib.compressobj(9)
    line = bytes(1 + 3 * side)
    return png(side, side, b"".join(lines.compress(line) for _ in range(side)) + lines.flush())


_NOISE = np.random.default_rng(3).integers(0, 256, (9, 9, 3), np.uint8)


def _cut_profile() -> bytes:
    """Return a PNG whose colour profile, behind the pixels, ends within its name: Pillow raises an IndexError."""
    image, end = encoded(_NOISE)[:-12], encoded(_NOISE)[-12:]
    profile = b"iCCP\x00"
    chunk = struct.pack(">I", 1) + profile + struct.pack(">I", zlib.crc32(profile))
    return image + chunk + end


#: Files that cannot be decoded, with the words of their error.
BAD_FILES = {
    "damaged": (encoded(_NOISE)[:90], "is an image that cannot be decoded: "),
    "a cut profile": (_cut_profile(), "is an image that cannot be decoded: "),
    "too large": (png(1 << 16, 1 << 12), "is an image of 65536 x 4096 pixels, more than "),
    "text": (b"no image", "is not a JPEG or PNG image"),
    "empty": (b"", "is not a JPEG or PNG image"),
    "GIF": (b"GIF89a" + bytes(50), "is not a JPEG or PNG image"),
}


def make_pets(db, table: str = "pets", n_rows: int = N_PETS) -> None:
    """Make a table with photos of all sizes and modes, ages, categories, NULLs, and a class that the photos show."""
    random = np.random.default_rng(7)
    rows = []
    for number in range(n_rows):
        kind = "cat" if number % 2 else "dog"
        size = tuple(random.integers(5, 40, 2).tolist())
        pixels = random.integers(0, 100, (*size, 3), np.uint8) + np.uint8(150 * (number % 2))
        mode, form = _MODES[number % len(_MODES)], "PNG"
        if mode in ("CMYK", "L") or number % 3 == 0:
            mode, form = mode if mode in ("CMYK", "L") else "RGB", "JPEG"
        photo = None if number % 8 == 5 else encoded(pixels, form, mode)
        age = None if number % 7 == 3 else number * 0.5
        rows.append((number, photo, age, "xyz"[number % 3] if number % 5 else None, kind))
    connection = db.connect()
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id integer, photo bytea, age real, size text, kind text)")
        execute_values(cursor, f"INSERT INTO {table} VALUES %s", rows)
    connection.close()
