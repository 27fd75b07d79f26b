"""NULL elements of SQL arrays: they are found in any number of elements, in a time that grows with this number."""

import json
import struct
import subprocess
import sys

import pytest

from tests.helpers.clones import ROOT

FLOAT4 = 700
#: Code for a process without PostgreSQL, which reads an array from its input.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
sys.modules["plpy"] = plpy
from mop_backend.arrays import Array
from mop_backend.call import CallError
value = sys.stdin.buffer.read()
array = Array.read(value, "predict", True)
sums = [sum(memoryview(array.data).cast("f"))]
try:
    Array.read(value, "predict", False)
except CallError as error:
    sums.append(str(error))
print(json.dumps([list(array.shape), list(array.nulls), sorted(array.rows_with_nulls(array.shape[0])), *sums]))
"""


def memory(shape: tuple[int, ...], nulls: set[int]) -> bytes:
    """Return the memory of an array of ones, without its length word, as array_bytes returns it."""
    n_elements = 1
    for size in shape:
        n_elements *= size
    bitmap = bytearray(b"\xff" * (n_elements // 8) + bytes([(1 << n_elements % 8) - 1] * (n_elements % 8 > 0)))
    for i in nulls:
        bitmap[i // 8] &= ~(1 << i % 8)
    start = 16 + 8 * len(shape) + len(bitmap)  # with the length word
    start += -start % 8
    head = struct.pack("=iII", len(shape), start, FLOAT4) + struct.pack(f"={len(shape)}i", *shape)
    head += struct.pack("=i", 1) * len(shape) + bitmap
    return head.ljust(start - 4, b"\0") + struct.pack("=f", 1.0) * (n_elements - len(nulls))


@pytest.mark.parametrize(
    "shape, nulls, rows",
    [
        ((5,), [0, 4], [0, 4]),
        ((3, 5), [], []),
        ((3, 5), [7, 8, 14], [1, 2]),
        ((4096, 1024), [0, 2**21, 2**22 - 1], [0, 2048, 4095]),  # quadratic, it would take minutes
    ],
)
def test_null_elements_are_found(shape, nulls, rows):
    code = _CODE.format(paths=[str(ROOT / "plpython")])
    done = subprocess.run([sys.executable, "-c", code], input=memory(shape, set(nulls)), capture_output=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found_shape, found, found_rows, total, *refused = json.loads(done.stdout)
    n_elements = 1
    for size in shape:
        n_elements *= size
    assert (tuple(found_shape), found, found_rows, total) == (shape, nulls, rows, n_elements - len(nulls))
    assert refused == (["predict: x contains a NULL element at " + _place(nulls[0], shape)] if nulls else [])


def _place(element: int, shape: tuple[int, ...]) -> str:
    return f"[{element + 1}]" if len(shape) == 1 else f"[{element // shape[1] + 1}][{element % shape[1] + 1}]"
