"""The rows that benchmarks copy in the binary format are those that PostgreSQL reads."""

import struct

import numpy as np
from tables import _Rows


def test_the_bytes_of_two_rows():
    x, y = np.array([[[1.0, 2.0]], [[3.0, -0.5]]], np.float32), np.array([7, 8])
    expected = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
    for number in (0, 1):
        array = struct.pack(">iii", 2, 0, 700) + struct.pack(">iiii", 1, 1, 2, 1)
        for value in x[number].ravel():
            array += struct.pack(">if", 4, value)
        expected += struct.pack(">hii", 3, 4, number) + struct.pack(">i", len(array)) + array
        expected += struct.pack(">ii", 4, y[number])
    expected += struct.pack(">h", -1)
    assert _Rows(x, y).read() == expected
    small, read = _Rows(x, y), b""
    while piece := small.read(5):
        read += piece
    assert read == expected
