"""The format of training states: lossless, in bounded parts, with deterministic bytes; damage is detected."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.trainer.data.parts import GROUPS, SMALLEST_PART_BYTES, StateError, TensorSpec, parse_header
from madlib_mop.trainer.data.state import (
    FORWARD_GROUPS,
    count_forward_parts,
    decode_state,
    digest_of,
    encode_state,
    weights_in_turn,
    weights_of,
)

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint32", "uint8", "bool"]


def tensor(shape, dtype, seed=0):
    values = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, shape)
    return np.asarray(values, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def encode(tensors, part_bytes=SMALLEST_PART_BYTES, static_batch=0):
    specs = {group: [TensorSpec(t.shape, t.dtype.name) for t in tensors[group]] for group in GROUPS}
    return encode_state(
        specs, lambda group, index: tensors[group][index], static_batch=static_batch, part_bytes=part_bytes
    )


def example(part_bytes=SMALLEST_PART_BYTES):
    """A state of nine tensors, one of them far larger than a part."""
    tensors = {
        "weights": [tensor((40, 50), "float32", 1), tensor((50,), "float32", 2), tensor((), "int32", 3)],
        "variables": [tensor((2,), "uint32", 4)],
        "optimizer": [tensor((), "int64", 5), tensor((), "float32", 6), tensor((30, 11), "float32", 7)],
    }
    return tensors, encode(tensors, part_bytes, static_batch=32)


shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
groups = st.lists(st.builds(tensor, shapes, st.sampled_from(DTYPES), st.integers(0, 9)), max_size=8)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries({group: groups for group in GROUPS}),
    st.integers(SMALLEST_PART_BYTES, 4 * SMALLEST_PART_BYTES),
    st.integers(0, 1000),
)
def test_what_goes_in_comes_out(tensors, part_bytes, static_batch):
    parts = encode(tensors, part_bytes, static_batch)
    assert all(len(part) <= part_bytes for part in parts)
    decoded = decode_state(parts)
    assert decoded.static_batch == static_batch
    for group in GROUPS:
        assert len(decoded.specs(group)) == len(tensors[group])
        for index, expected in enumerate(tensors[group]):
            got = decoded.read(group, index)
            assert got.dtype == expected.dtype
            assert np.array_equal(got, expected)
    flat = np.concatenate([np.asarray(t, np.float32).ravel() for t in tensors["weights"]] or [np.empty(0, np.float32)])
    assert weights_of(parts) == flat.tobytes()
    assert encode(tensors, part_bytes, static_batch) == parts


def test_the_first_parts_are_enough_for_a_forward_pass():
    tensors, parts = example()
    needed = count_forward_parts(parts)
    assert 1 < needed < len(parts)
    first = decode_state(parts[:needed], FORWARD_GROUPS)
    for group in FORWARD_GROUPS:
        for index, expected in enumerate(tensors[group]):
            assert np.array_equal(first.read(group, index), expected)
    assert weights_of(parts[:needed]) == weights_of(parts)
    with pytest.raises(StateError):
        decode_state(parts[: needed - 1], FORWARD_GROUPS)
    with pytest.raises(StateError):
        decode_state(parts[:needed])


def test_a_large_optimizer_begins_a_part_of_its_own():
    """An evaluation on another host receives only weights, even if the whole state would fit into one part."""
    weights = [np.ones((100, 100), np.float32)]
    tensors = {"weights": weights, "variables": [], "optimizer": [*weights, *weights]}
    parts = encode(tensors, 1 << 20, 0)
    assert (len(parts), count_forward_parts(parts)) == (2, 1)
    assert 40_000 <= len(parts[0]) < 41_000
    few = {"weights": weights, "variables": [], "optimizer": [np.ones(10, np.float32)]}
    assert len(encode(few, 1 << 20, 0)) == 1


@pytest.mark.parametrize("part_bytes", [SMALLEST_PART_BYTES, 1 << 20])
def test_every_part_opens_with_the_safetensors_library(part_bytes):
    tensors, parts = example(part_bytes)
    read = {}
    for part in parts:
        read.update(safetensors.numpy.load(bytes(part)))
    for group in GROUPS:
        for index, expected in enumerate(tensors[group]):
            name = f"{group}/{index}"
            if name not in read:
                slices = sorted((int(k.rpartition("/")[2]), v) for k, v in read.items() if k.startswith(name + "/"))
                assert len(slices) > 1
                read[name] = np.concatenate([values for _, values in slices]).reshape(expected.shape)
            assert np.array_equal(read[name], expected)


def test_digest_is_of_the_parts_in_order():
    import hashlib

    parts = example()[1]
    assert len(parts) > 3
    assert digest_of(parts) == hashlib.sha256(b"".join(parts)).hexdigest()


def test_bytes_do_not_depend_on_the_process():
    code = "from tests.unit.trainer.test_state import *; print(digest_of(example()[1]))"
    paths = [path for path in sys.path if path]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}; {code}"]
    prints = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert prints == {digest_of(example()[1]) + "\n"}


def test_only_one_tensor_is_read_at_a_time():
    tensors, parts = example()
    alive = []

    def read(group, index):
        alive.append((group, index))
        return tensors[group][index]

    specs = {group: [TensorSpec(t.shape, t.dtype.name) for t in tensors[group]] for group in GROUPS}
    assert encode_state(specs, read, static_batch=32, part_bytes=SMALLEST_PART_BYTES) == parts
    assert alive == [(group, index) for group in GROUPS for index in range(len(tensors[group]))]


def test_parts_that_are_too_small_for_their_headers_are_refused():
    with pytest.raises(StateError, match="too small"):
        example(SMALLEST_PART_BYTES - 1)


def test_a_dtype_without_a_code_is_refused():
    with pytest.raises(StateError, match="complex64"):
        encode({"weights": [np.zeros(3, np.complex64)], "variables": [], "optimizer": []})


def test_a_tensor_that_is_not_as_announced_is_refused():
    specs = {"weights": [TensorSpec((3,), "float32")], "variables": [], "optimizer": []}
    with pytest.raises(StateError, match="expected float32"):
        encode_state(specs, lambda *_: np.zeros(4, np.float32))


def reheaded(part, change):
    """Return the part with a changed header."""
    n = int.from_bytes(part[:8], "little")
    header = json.loads(bytes(part[8 : 8 + n]))
    metadata = json.loads(header["__metadata__"]["madlib_mop"])
    change(header, metadata)
    header["__metadata__"]["madlib_mop"] = json.dumps(metadata)
    text = json.dumps(header).encode()
    return bytearray(len(text).to_bytes(8, "little") + text + bytes(part[8 + n :]))


def rename(old, new):
    def change(header, metadata):
        header[new] = header.pop(old)

    return change


def in_whole(change):
    """Damage to the header of a state in one part."""
    return lambda parts: [reheaded(example(1 << 20)[1][0], change)]


DAMAGES = {
    "no parts": lambda parts: [],
    "a part is missing": lambda parts: parts[:-1],
    "the first part is missing": lambda parts: parts[1:],
    "a part is there twice": lambda parts: [*parts[:2], *parts[1:]],
    "parts change places": lambda parts: [parts[1], parts[0], *parts[2:]],
    "a part of another state": lambda parts: [encode({**example()[0], "variables": []})[0], *parts[1:]],
    "a part is cut short": lambda parts: [parts[0][:-1], *parts[1:]],
    "a part has more": lambda parts: [bytes(parts[0]) + b"x", *parts[1:]],
    "a part ends in its header": lambda parts: [parts[0][:20], *parts[1:]],
    "an empty part": lambda parts: [b"", *parts[1:]],
    "no safetensors": lambda parts: [b"\x80\x04pickle" * 10],
    "safetensors of others": lambda parts: [safetensors.numpy.save({"a": np.zeros(3, np.float32)})],
    "a tensor is missing": in_whole(rename("optimizer/2", "optimizer/3")),
    "a tensor too many": in_whole(lambda h, m: m["counts"].__setitem__(2, 2)),
    "a tensor of no group": in_whole(rename("optimizer/2", "other/2")),
    "a negative index": in_whole(rename("optimizer/2", "optimizer/-1")),
    "a wrong shape": in_whole(lambda h, m: h["weights/1"].update(shape=[51])),
    "a negative shape": in_whole(lambda h, m: h["weights/1"].update(shape=[-50, -1])),
    "an unknown dtype": in_whole(lambda h, m: h["weights/1"].update(dtype="C64")),
    "overlapping tensors": in_whole(lambda h, m: h["weights/1"].update(data_offsets=[0, 200])),
    "another format": in_whole(lambda h, m: m.update(format="madlib_mop.state/2")),
    "a damaged batch size": in_whole(lambda h, m: m.update(static_batch="32")),
    "a header that is no object": lambda parts: [bytearray((2).to_bytes(8, "little") + b"[]")],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_an_error(damage):
    parts = DAMAGES[damage](example()[1])
    with pytest.raises(StateError):
        decode_state(parts)


@pytest.mark.parametrize(
    "damage",
    ["no parts", "the first part is missing", "a part is there twice", "parts change places", "a part of another state",
     "a part is cut short", "an empty part", "no safetensors", "a wrong shape", "overlapping tensors"],
)  # fmt: skip
def test_damage_of_weights_is_an_error_of_those_that_are_read_in_turn(damage):
    parts = DAMAGES[damage](example()[1])
    with pytest.raises(StateError):
        list(weights_in_turn(parts))


def test_weights_that_are_read_in_turn_need_all_their_parts():
    parts = example()[1]
    last = max(n for n, part in enumerate(parts) if any(p.group == "weights" for p in parse_header(part, n).pieces))
    with pytest.raises(StateError, match="does not have all weights"):
        list(weights_in_turn(parts[:last]))
    assert b"".join(weights_in_turn(parts[: last + 1])) == weights_of(parts)


def test_weights_are_read_in_turn_with_one_part_in_memory():
    tensors, parts = example()
    read = []

    def reading():
        for number, part in enumerate(parts):
            read.append(number)
            yield part

    found = [(bytes(piece), read[-1]) for piece in weights_in_turn(reading())]
    flat = b"".join(np.asarray(one, np.float32).tobytes() for one in tensors["weights"])
    assert b"".join(piece for piece, _ in found) == flat
    assert [number for _, number in found] == sorted(number for _, number in found) and found[0][1] == 0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_header_never_breaks_the_reader(data):
    """After a change of any byte, the result is one of our errors or a readable state."""
    parts = [bytearray(part) for part in example()[1]]
    part = data.draw(st.integers(0, len(parts) - 1))
    header_end = 8 + int.from_bytes(parts[part][:8], "little")
    position = data.draw(st.integers(0, header_end - 1))
    parts[part][position] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_state(parts)
        for group in GROUPS:
            for index in range(len(decoded.specs(group))):
                decoded.read(group, index)
    except StateError:
        pass
    try:
        weights_of(parts)
    except StateError:
        pass


def test_a_state_is_written_beside_its_parts_and_little_more():
    """Peak memory while a state of one 16 MB tensor is written in 1 MB parts: the parts and that tensor."""
    import tracemalloc

    big = np.zeros(4 << 20, np.float32)
    specs = {"weights": [TensorSpec(big.shape, "float32")], "variables": [], "optimizer": []}
    tracemalloc.start()
    encode_state(specs, lambda *_: big, part_bytes=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * big.nbytes
