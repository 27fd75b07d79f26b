"""Weights in buffers that are cut anywhere become the same arrays as in one piece."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.models.flat_weights import arrays_of

SHAPES = [(3, 4), (4,), (), (0, 5), (2, 2, 3), (1,)]
FLAT = np.arange(30, dtype=np.float32)


def cut(places):
    data, places = FLAT.tobytes(), [0, *sorted(places), FLAT.nbytes]
    return [data[a:b] for a, b in zip(places, places[1:], strict=False)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, FLAT.nbytes), max_size=12))
def test_arrays_do_not_depend_on_where_the_buffers_are_cut(places):
    found = list(arrays_of(cut(places), SHAPES))
    assert [array.shape for array in found] == SHAPES and {array.dtype for array in found} == {np.dtype(np.float32)}
    assert np.concatenate([array.ravel() for array in found]).tolist() == FLAT.tolist()


def test_an_array_in_one_buffer_is_no_copy():
    data = bytearray(FLAT.tobytes())
    whole, second = arrays_of([data], [(25,), (5,)])
    assert np.shares_memory(whole, np.frombuffer(data, np.uint8)) and second.tolist() == [25, 26, 27, 28, 29]


def test_a_buffer_is_used_before_the_next_one_is_made():
    made = []

    def buffers():
        for number, buffer in enumerate(cut([40, 80])):
            made.append(number)
            yield buffer

    arrays = arrays_of(buffers(), [(10,), (5,), (15,)])
    next(arrays)
    assert made == [0]
    next(arrays)
    assert made == [0, 1]
    with pytest.raises(StopIteration):
        next(arrays)
        next(arrays)
