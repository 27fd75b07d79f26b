"""The division of rows into buffers and of buffers among segments, and the way back from a packed value."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.packing.buffers import TARGET_BUFFER_BYTES, default_buffer_size, plan_buffers, unpack

segment_sets = st.sets(st.integers(0, 40), min_size=1, max_size=17).map(tuple)


def test_the_documented_example_of_seventeen_rows():
    plan = plan_buffers(17, 5, (0,))
    assert [plan.rows_of(b) for b in range(plan.n_buffers)] == [5, 5, 5, 2]


@pytest.mark.parametrize(
    ("n_rows", "size", "n_segments", "expected"),
    [
        (17, 5, 2, [5, 4, 5, 3]),
        (100, 100, 4, [25] * 4),
        (100, 1000, 3, [34, 33, 33]),
        (9, 1, 4, [1] * 9),
        (3, 8, 7, [1, 1, 1]),
        (1, 1, 1, [1]),
    ],
)
def test_buffers_have_these_rows(n_rows, size, n_segments, expected):
    plan = plan_buffers(n_rows, size, range(n_segments))
    assert [plan.rows_of(b) for b in range(plan.n_buffers)] == expected


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 6000), segment_sets)
def test_every_row_is_in_one_buffer_and_shards_are_even(n_rows, size, segments):
    plan = plan_buffers(n_rows, size, segments)
    rows = [plan.rows_of(b) for b in range(plan.n_buffers)]
    shards = dict.fromkeys(segments, 0)
    for buffer_id, n in enumerate(rows):
        shards[plan.segment_of(buffer_id)] += n
    assert sum(rows) == n_rows
    assert all(1 <= n <= min(size, plan.rows_per_buffer) for n in rows)
    last_of_its_segment = [plan.segment_of(b) != plan.segment_of(b + 1) for b in range(len(rows) - 1)]
    assert {n for n, last in zip(rows, last_of_its_segment, strict=False) if not last} <= {plan.rows_per_buffer}
    assert max(shards.values()) - min(shards.values()) <= 1
    assert plan.rows_per_buffer == math.ceil(n_rows / (len(segments) * math.ceil(n_rows / size / len(segments))))


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 9))
def test_which_rows_a_segment_has_does_not_depend_on_the_buffers(n_rows, size, other_size, n_segments):
    shards = []
    for rows in (size, other_size):
        plan = plan_buffers(n_rows, rows, range(n_segments))
        places = [plan.segment_of(b) for b in range(plan.n_buffers) for _ in range(plan.rows_of(b))]
        shards.append(places)
    assert shards[0] == shards[1]


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 1024))
def test_the_default_size_aims_at_eight_megabytes_and_spares_no_segment(n_rows, row_bytes, n_segments):
    size = default_buffer_size(n_rows, row_bytes, n_segments)
    assert 1 <= size <= math.ceil(n_rows / n_segments)
    assert size == 1 or size * row_bytes <= TARGET_BUFFER_BYTES


@settings(deadline=None)
@given(
    st.sampled_from([np.uint8, np.int16, np.float32]),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_unpack_undoes_tobytes(dtype, shape, seed):
    tensor = np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)
    back = unpack(tensor.tobytes(), shape)
    assert back.dtype == dtype
    assert np.array_equal(back, tensor)


@pytest.mark.parametrize(("value", "shape"), [(b"123", [2]), (bytes(24), [3]), (b"1", [0]), (bytes(12), [4])])
def test_unpack_refuses_a_value_that_has_not_that_shape(value, shape):
    with pytest.raises(ValueError, match=f"{len(value)} bytes cannot have the shape"):
        unpack(value, shape)
