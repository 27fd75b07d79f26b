"""Packing a stream of rows into buffers: for any division into batches, each row appears once, at its place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from madlib_mop.columns.layout import BadRow
from madlib_mop.packing.buffers import plan_buffers, unpack
from madlib_mop.packing.encoders import ArrayEncoder, ClassEncoder
from madlib_mop.packing.packer import Packer

FLOAT32 = np.dtype(np.float32)
finite = st.floats(-1e6, 1e6, width=32)
inputs = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=4, max_side=6), elements=finite)


def pack(packer, batches):
    buffers = [buffer for columns in batches for buffer in packer.add(columns)]
    return buffers + list(packer.finish())


@settings(deadline=None)
@given(inputs, st.integers(1, 8), st.integers(1, 5), st.integers(1, 7), st.data())
def test_unpacking_gives_every_row_once_and_in_order(array_bytes, batch, x, buffer_size, n_segments, n_batch, data):
    n_rows, width = len(x), 4
    labels = data.draw(hnp.arrays(np.int32, n_rows, elements=st.integers(1, width)))
    plan = plan_buffers(n_rows, buffer_size, range(n_segments))
    packer = Packer(plan, [ArrayEncoder("x", x.shape[1:], 700, FLOAT32), ClassEncoder("y", (width,))])
    buffers = pack(
        packer,
        (
            (
                batch([array_bytes(row) for row in x[start : start + n_batch]]),
                batch([int(label).to_bytes(4, "big") for label in labels[start : start + n_batch]]),
            )
            for start in range(0, n_rows, n_batch)
        ),
    )
    assert [buffer.buffer_id for buffer in buffers] == list(range(plan.n_buffers))
    assert [buffer.segment for buffer in buffers] == [plan.segment_of(b) for b in range(plan.n_buffers)]
    assert [buffer.n_rows for buffer in buffers] == [plan.rows_of(b) for b in range(plan.n_buffers)]
    x_back, y_back = (
        np.concatenate([unpack(buffer.values[i], buffer.shapes[i]) for buffer in buffers]) for i in range(2)
    )
    assert np.array_equal(x_back, x)
    assert np.array_equal(y_back.argmax(axis=1) + 1, labels)
    assert packer.n_rows == n_rows


def test_a_bad_row_says_which_column_it_is_in(array_bytes, batch):
    row = np.ones(2, "f4")
    packer = Packer(plan_buffers(2, 2, (0,)), [ArrayEncoder(name, (2,), 700, FLOAT32) for name in ("a", "b")])
    with pytest.raises(BadRow) as caught:
        list(packer.add([batch([array_bytes(row)] * 2), batch([array_bytes(row), array_bytes(row * np.nan)])]))
    assert (caught.value.column, caught.value.row) == ("b", 1)


def test_no_more_is_held_than_one_buffer_and_one_batch(array_bytes, batch):
    packer = Packer(plan_buffers(1000, 10, (0,)), [ArrayEncoder("x", (2,), 700, FLOAT32)])
    for _ in range(100):
        buffers = list(packer.add([batch([array_bytes(np.ones(2, "f4"))] * 10)]))
        assert [buffer.n_rows for buffer in buffers] == [10]
    assert list(packer.finish()) == []
