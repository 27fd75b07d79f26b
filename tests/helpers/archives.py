"""Zip archives written by hand, with headers that say what a test wants; and .keras files made of them."""

import json
import struct
import zlib
from dataclasses import dataclass

from tests.helpers.unit.documents import dense, keras_3

METADATA = json.dumps({"keras_version": "3.15.1", "date_saved": "2026-01-02@03:04:05"}).encode()
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(8)


@dataclass(frozen=True)
class Entry:
    """One member as the archive says it is; None stands for what is true."""

    name: str
    data: bytes = b""
    deflated: bool = False
    method: int | None = None
    size: int | None = None  # as the directory says
    stored_size: int | None = None
    crc: int | None = None
    flags: int = 0
    mode: int = 0o100644
    local_name: str | None = None  # in the member's own header
    at: int | None = None  # where the directory says that it is

    def stored(self) -> bytes:
        if not self.deflated:
            return self.data
        deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        return deflater.compress(self.data) + deflater.flush()


def zip_of(*entries: Entry, comment: bytes = b"", count: int | None = None, before: bytes = b"") -> bytes:
    """Return an archive."""
    out, directory = bytearray(before), bytearray()
    for entry in entries:
        at, stored = len(out), entry.stored()
        method = entry.method if entry.method is not None else 8 if entry.deflated else 0
        size = len(entry.data) if entry.size is None else entry.size
        n_stored = len(stored) if entry.stored_size is None else entry.stored_size
        crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
        name, local = entry.name.encode(), (entry.local_name or entry.name).encode()
        sizes = (crc, n_stored, size)
        out += struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, entry.flags, method, 0, 33, *sizes, len(local), 0)
        out += local + stored
        place = at if entry.at is None else entry.at
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 20, 20, entry.flags, method, 0, 33, *sizes, len(name), 0, 0, 0, 0,
            entry.mode << 16, place,
        ) + name  # fmt: skip
    n = len(entries) if count is None else count
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, n, n, len(directory), len(out), len(comment))
    return bytes(out + directory + end + comment)


def keras_archive(config: object = None, *more: Entry, weights: bytes = HDF5, metadata: bytes = METADATA) -> bytes:
    """Return a .keras file of an architecture and of these bytes as weights."""
    document = keras_3(dense(3)) if config is None else config
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    members = (Entry("metadata.json", metadata), Entry("config.json", text), Entry("model.weights.h5", weights))
    return zip_of(*members, *more)
