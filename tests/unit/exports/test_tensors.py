"""The header of a safetensors file: what safetensors writes is read, and each contradiction is one clear error."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from madlib_mop.errors import MopError
from madlib_mop.exports.tensors import read_header

ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array(7, np.int64), "c": np.zeros((0, 4), np.float16),
}  # fmt: skip


def file_of(header, body=b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


def test_what_safetensors_writes_is_read():
    data = save(ARRAYS, {"weights": json.dumps(["b", "c", "a"])})
    found = read_header(data)
    assert found.order == ("b", "c", "a")
    for name, array in ARRAYS.items():
        tensor = found.tensors[name]
        assert np.array_equal(np.frombuffer(data[tensor.start : tensor.end], tensor.dtype).reshape(tensor.shape), array)
    assert read_header(save(ARRAYS)).order is None


@pytest.mark.parametrize("data, text", [
    (b"\x01", "ends behind the file"),
    ((1 << 60).to_bytes(8, "little") + b"{}", "ends behind the file"),
    (file_of(b"{"), "its header is not JSON"),
    (file_of(b"[" * 99_999), "its header is not JSON"),
    (file_of([]), "its header is not an object"),
    (file_of({"x/" * 501: entry()}, bytes(8)), "a name of more than 1,000 characters"),
    (file_of({"x": []}), "tensor 'x' is not described"),
    (file_of({"x": entry(shape=[-1])}, bytes(8)), "tensor 'x' is not described"),
    (file_of({"x": entry(shape=[2.0])}, bytes(8)), "tensor 'x' is not described"),
    (file_of({"x": entry(shape=[True])}, bytes(8)), "tensor 'x' is not described"),
    (file_of({"x": entry(shape=[1] * 99)}, bytes(8)), "tensor 'x' is not described"),
    (file_of({"x": entry(data_offsets=[8])}, bytes(8)), "tensor 'x' is not described"),
    (file_of({"x": entry(dtype="O")}, bytes(8)), "tensor 'x' of the safetensors file is of type 'O'"),
    (file_of({"x": entry(dtype=[])}, bytes(8)), "is of type"),
    (file_of({"x": entry(shape=[3])}, bytes(8)), "another size than its shape says"),
    (file_of({"x": entry()}, bytes(7)), "another size than its shape says"),
    (file_of({"x": entry()}, bytes(9)), "its tensors do not fill it"),
    (file_of({"x": entry(), "y": entry()}, bytes(8)), "overlap, or leave a gap"),
    (file_of({"x": entry(), "y": entry(data_offsets=[12, 20])}, bytes(20)), "overlap, or leave a gap"),
    (file_of({"x": entry(), "__metadata__": {"weights": "["}}, bytes(8)), "its list of weights is not a list of names"),
    (file_of({"x": entry(), "__metadata__": {"weights": "[1]"}}, bytes(8)), "is not a list of names"),
    (file_of({"x": entry(), "__metadata__": {"weights": '["y"]'}}, bytes(8)), "does not name each tensor once"),
])  # fmt: skip
def test_a_damaged_header_is_one_clear_error(data, text):
    with pytest.raises(MopError, match=text):
        read_header(data)
