"""Conversion of encoded images to uint8 tensors, in processes; a hostile image can at most end its process."""

import platform
import struct
import zlib

import numpy as np
import pytest

from madlib_mop.columns.layout import BadRow
from madlib_mop.driver.data.decoders import image_decoders
from madlib_mop.packing import images
from madlib_mop.packing.decoder import MAX_PIXELS, BadImage, decode_image
from madlib_mop.packing.images import DecoderPool
from madlib_mop.trainer.process.syscalls import ARCHITECTURES
from tests.helpers.images import BAD_FILES


@pytest.fixture(scope="module")
def pool():
    with DecoderPool(2) as pool:
        yield pool


@pytest.fixture
def pixels():
    return np.random.default_rng(3).integers(0, 256, (9, 12, 10, 3), dtype=np.uint8)


def png_header(width, height):
    """Return a PNG with a header of this size, without pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    begin = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return begin + struct.pack(">I", 1000) + b"IDAT"


def test_png_pixels_come_back_in_order(pool, pixels, image):
    assert np.array_equal(pool.decode([image(one) for one in pixels], None, (12, 10, 3)), pixels)


@pytest.mark.parametrize(("mode", "n_channels"), [("L", 1), ("1", 1), ("RGB", 3), ("P", 3), ("RGBA", 4), ("LA", 4)])
def test_channels_are_those_of_the_image(pixels, image, mode, n_channels):
    assert decode_image(image(pixels[0], mode=mode), None).shape == (12, 10, n_channels)


def test_jpeg_is_close_to_its_pixels(image):
    flat = np.full((16, 16, 3), (200, 30, 90), np.uint8)
    decoded = decode_image(image(flat, "JPEG"), None)
    assert np.abs(decoded.astype(int) - flat).max() <= 4


@pytest.mark.parametrize("wanted", [(6, 5), (24, 20, 1), (12, 10, 4), (3, 7, 3)])
def test_images_are_resized_and_converted_as_asked(pool, pixels, image, wanted):
    channels = wanted[2] if len(wanted) == 3 else 3
    decoded = pool.decode([image(one) for one in pixels], wanted, (*wanted[:2], channels))
    assert decoded.shape == (9, *wanted[:2], channels)


@pytest.mark.parametrize(
    ("encoded", "problem"),
    [
        (b"", "is not a JPEG or PNG image"),
        (b"GIF89a" + bytes(50), "is not a JPEG or PNG image"),
        (png_header(100, 100), "cannot be decoded"),
        (png_header(1 << 14, MAX_PIXELS >> 13), f"more than {MAX_PIXELS}"),
    ],
)
def test_what_is_no_good_image_is_refused_with_the_reason(encoded, problem):
    with pytest.raises(BadImage, match=problem):
        decode_image(encoded, None)


def deep_png(values, color_type):
    """Return a PNG with 16 bits a channel: values uint16 (h, w, c), each row with a filter of its own."""
    lines = []
    for number, row in enumerate(values):
        line = np.frombuffer(row.astype(">u2").tobytes(), np.uint8).astype(int)
        width = 2 * values.shape[2]
        before = np.concatenate([np.zeros(width, int), line[:-width]]) if number % 2 else np.zeros(len(line), int)
        lines.append(bytes([number % 2]) + ((line - before) % 256).astype(np.uint8).tobytes())  # none, or Sub
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, color_type, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"".join(lines))), (b"IEND", b"")]
    parts = [struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
             for name, body in chunks]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(("color_type", "n_channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_a_channel_are_rounded_to_eight(color_type, n_channels):
    values = np.random.default_rng(1).integers(0, 65_536, (300, 7, n_channels)).astype(np.uint16)
    values[0, :4, 0] = [0, 128, 129, 65_535]
    rounded = np.rint(values / 257).astype(np.uint8)
    expected = np.stack([rounded[..., 0]] * 3 + [rounded[..., 1]], axis=-1) if color_type == 4 else rounded
    np.testing.assert_array_equal(decode_image(deep_png(values, color_type), None), expected)
    assert decode_image(deep_png(values, color_type), (5, 6, 1)).shape == (5, 6, 1)


@pytest.mark.parametrize("where", [0, 4, 8])
def test_the_image_that_is_not_like_the_others_is_named(pool, pixels, image, where):
    encoded = [image(one) for one in pixels]
    encoded[where] = image(pixels[where][:5])
    with pytest.raises(BadRow) as caught:
        pool.decode(encoded, None, (12, 10, 3))
    assert caught.value.row == where
    assert caught.value.problem == "is an image of the shape [5, 10, 3], but [12, 10, 3] is expected"
    assert "image_shape" in caught.value.hint


def test_an_image_that_ends_its_decoder_is_named_and_the_pool_lives_on(pixels, image, monkeypatch):
    encoded = [image(one) for one in pixels]
    fatal = encoded[5]

    class Fragile(images._Decoder):
        def __init__(self, guards):
            super().__init__(guards)
            send = self.channel.send
            self.channel.send = lambda header, blobs: self._end_by(blobs) or send(header, blobs)

        def _end_by(self, blobs):
            if fatal in blobs:
                self._process.kill()
                self._process.wait()

    monkeypatch.setattr(images, "_Decoder", Fragile)
    with images.DecoderPool(2) as pool:
        with pytest.raises(BadRow, match="row 5 is an image that crashed the decoder"):
            pool.decode(encoded, None, (12, 10, 3))
        assert np.array_equal(pool.decode(encoded[:5], None, (12, 10, 3)), pixels[:5])


def test_decoders_cannot_write_files_and_have_little_memory(pool, pixels, image):
    pool.decode([image(pixels[0])], None)
    limits = {}
    with open(f"/proc/{pool._decoders[0]._process.pid}/limits") as file:
        for line in file:
            limits[line[:26].strip()] = line[26:].split()[0]
    assert limits["Max file size"] == "0"
    assert limits["Max core file size"] == "0"
    assert int(limits["Max address space"]) <= 2 << 30
    assert int(limits["Max open files"]) <= 16


@pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="the sandbox does not know this machine")
def test_the_drivers_decoders_are_shut_in(pixels, image):
    with image_decoders() as pool:
        encoded = [image(one, kind) for one in pixels[:5] for kind in ("PNG", "JPEG")][1:]
        decoded = pool.decode(encoded, (4, 4), (4, 4, 3))
        with open(f"/proc/{pool._decoders[0]._process.pid}/status") as file:
            status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    assert decoded.shape == (9, 4, 4, 3)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_closing_the_pool_ends_its_processes(pixels, image):
    with DecoderPool(2) as pool:
        pool.decode([image(one) for one in pixels], None, (12, 10, 3))
        processes = [decoder._process for decoder in pool._decoders]
        assert len(processes) == 2
    assert [process.poll() is not None for process in processes] == [True, True]


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_decoded_does_not_end_the_decoder(name):
    file, words = BAD_FILES[name]
    with pytest.raises(BadImage, match=words):
        decode_image(file, None)
