"""The arithmetic of model averaging: NumPy in float64, rounded once, part by part."""

import ml_dtypes
import numpy as np
import pytest
from mop_backend.messages import StateDescription

from madlib_mop.trainer.data.averaging import add, describe, finish
from madlib_mop.trainer.data.parts import GROUPS, StateError, TensorSpec
from madlib_mop.trainer.data.state import (
    UNDECIDED,
    count_forward_parts,
    decode_state,
    digest_of,
    encode_state,
    weights_of,
)

ROWS = (13, 1, 700)


def tensors(seed: int) -> dict[str, list[np.ndarray]]:
    """Return a state's tensors: all kinds of numbers, an empty tensor, one that does not fit into a part."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return {
        "weights": [normal(40, 50), normal(50), normal(0, 3), rng.normal(size=7)],
        "variables": [rng.integers(0, 99, 2, dtype=np.uint32), np.array(rng.random() < 0.5)],
        "optimizer": [np.array(seed + 5), normal(), normal(9).astype(np.float16), normal(9).astype(ml_dtypes.bfloat16)],
    }


def encoded(values: dict[str, list[np.ndarray]], static_batch: int = 16) -> list[bytes]:
    specs = {group: [TensorSpec(v.shape, v.dtype.name) for v in values[group]] for group in GROUPS}
    parts = encode_state(specs, lambda g, i: values[g][i], static_batch=static_batch, part_bytes=2048)
    return [bytes(part) for part in parts]


def averaged(states: list[list[bytes]], rows=ROWS) -> list[bytes]:
    """Return the average of whole states, computed one after the other, part by part."""
    parts = []
    for part in zip(*states, strict=True):
        total, n_rows, summed = part[0], rows[0], False
        for more, n_more in zip(part[1:], rows[1:], strict=True):
            total = add(total, more, (n_rows, n_more), (summed, False))
            n_rows, summed = n_rows + n_more, True
        parts.append(bytes(finish(total, n_rows, summed)))
    return parts


def mean(values: list[np.ndarray]) -> np.ndarray:
    """Return the expected average."""
    if values[0].dtype.kind in "iub":
        return values[0]
    total = ROWS[0] * values[0].astype(np.float64)
    for n, value in zip(ROWS[1:], values[1:], strict=True):
        total = total + n * value.astype(np.float64)
    return (total / sum(ROWS)).astype(values[0].dtype)


def test_an_average_is_numpys_and_has_the_bytes_of_a_state():
    drawn = [tensors(seed) for seed in (1, 2, 3)]
    expected = {group: [mean([d[group][i] for d in drawn]) for i in range(len(drawn[0][group]))] for group in GROUPS}
    parts = averaged([encoded(values) for values in drawn])
    assert len(parts) > 3
    assert parts == encoded(expected, UNDECIDED)
    assert decode_state(parts).static_batch == UNDECIDED


def test_one_state_and_equal_ones_are_their_own_average():
    values = tensors(1)
    values["weights"][1][:3] = -0.0, 1e-45, 3e38
    assert averaged([encoded(values)], (5,)) == encoded(values, UNDECIDED)
    values["weights"].pop()  # float64 values are rounded as float64
    assert averaged([encoded(values)] * 3) == encoded(values, UNDECIDED)


def test_sums_can_be_merged():
    a, b, c, d = (encoded(tensors(seed))[0] for seed in (1, 2, 3, 4))
    both = add(add(a, b, (2, 3), (False, False)), add(c, d, (4, 5), (False, False)), (5, 9), (True, True))
    found = decode_state_part(finish(both, 14, True))
    weights = [np.asarray(decode_state_part(part), np.float64) for part in (a, b, c, d)]
    assert np.array_equal(
        found, (((2 * weights[0] + 3 * weights[1]) + (4 * weights[2] + 5 * weights[3])) / 14).astype(np.float32)
    )


def decode_state_part(part) -> np.ndarray:
    """Return the numbers of a part with one slice of float32."""
    data = bytes(part)
    return np.frombuffer(data[8 + int.from_bytes(data[:8], "little") :], np.float32)


def test_what_was_compiled_does_not_matter_but_everything_else_does():
    add(encoded(tensors(1), 16)[0], encoded(tensors(2), 0)[0], (1, 1), (False, False))
    parts, wider = encoded(tensors(1)), tensors(1)
    wider["weights"][0] = np.zeros((40, 51), np.float32)
    for other in (parts[1], encoded(wider)[0]):
        with pytest.raises(StateError, match="not of the same place"):
            add(parts[0], other, (1, 1), (False, False))
    for junk in (b"", b"\0" * 40, parts[0][:-1]):
        with pytest.raises(StateError):
            add(parts[0], junk, (1, 1), (False, False))


def test_a_description_has_the_digests_of_a_visit():
    parts = encoded(tensors(1))
    found = describe(parts)
    weights = weights_of(parts)
    digests = digest_of(parts), digest_of([weights])
    assert found == StateDescription(*digests, len(weights), count_forward_parts(parts))
    with pytest.raises(StateError):
        describe(parts[:-1])
