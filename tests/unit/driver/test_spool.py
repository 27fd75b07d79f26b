"""All rows of a table as typed columns: the same in memory and with a file."""

import tracemalloc

import numpy as np
import pytest

from madlib_mop.columns import raw
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.raw import Blobs, Levels, Moments, Numbers, Vectors, dictionary_of
from madlib_mop.driver.columns import spool as spooling
from madlib_mop.driver.columns.spool import Spool
from madlib_mop.errors import OutOfResources


def batch(start: int, n: int):
    rows = np.arange(start, start + n)
    names = [f"t{i % 5}" for i in rows][::-1]  # different codes in each batch
    levels = dictionary_of(dict.fromkeys(names))
    codes = np.array([levels.find(name.encode()) for name in names], np.int32)
    codes[rows % 7 == 0] = -1
    missing = rows % 3 == 0
    vectors = Vectors(np.zeros((n, 0), np.float32), np.ones(n, bool), "v")
    if start:
        vectors = Vectors(np.stack([rows, -rows], axis=1).astype(np.float32), np.zeros(n, bool), "v")
    return [
        Numbers(np.where(missing, 0, rows * 0.5), missing),
        Moments(rows.astype(np.int64) * 10**6, ~missing),
        Levels(codes, levels),
        vectors,
        Blobs([None if i % 4 == 0 else bytes([i % 256]) * (i % 3) for i in rows]),
    ]


def spooled(**limits):
    spool = Spool(**limits)
    for start in (0, 10, 25, 60):
        spool.add(batch(start, {0: 10, 10: 15, 25: 35, 60: 1}[start]))
    return spool


@pytest.mark.parametrize("in_memory_bytes", [0, 500, 1 << 20])
def test_rows_come_back_as_they_were(in_memory_bytes):
    spool = spooled(in_memory_bytes=in_memory_bytes)
    numbers, moments, levels, vectors, blobs = spool.columns()
    whole = [batch(start, n) for start, n in ((0, 10), (10, 15), (25, 35), (60, 1))]
    assert spool.n_rows == numbers.n_rows == 61
    for i, column in enumerate((numbers, moments)):
        assert np.array_equal(column.values, np.concatenate([b[i].values for b in whole]))
        assert np.array_equal(column.missing, np.concatenate([b[i].missing for b in whole]))
    assert levels.texts() == [text for b in whole for text in b[2].texts()]
    assert vectors.values.shape == (61, 2) and not vectors.values[:10].any() and vectors.missing[:10].all()
    assert np.array_equal(vectors.values[10:], np.concatenate([b[3].values for b in whole[1:]]))
    assert list(blobs.values) == [value for b in whole for value in b[4].values]


def test_no_more_is_held_than_the_limit_and_a_batch(monkeypatch):
    """The other rows are in the file, also when all of them are asked for."""
    monkeypatch.setattr(spooling, "_COPY_BYTES", 1 << 16)
    n_batches, n_rows = 200, 100
    spool = Spool(in_memory_bytes=1 << 20)
    tracemalloc.start()
    try:
        for number in range(n_batches):
            values = np.full((n_rows, 256), number, np.float32)
            spool.add([Vectors(values, np.zeros(n_rows, bool), "v")])
        (vectors,) = spool.columns()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 << 20 < vectors.values.nbytes // 8
    assert np.array_equal(vectors.values[::n_rows, 0], np.arange(n_batches))


def test_a_file_takes_no_more_than_the_caller_may_use():
    with pytest.raises(OutOfResources, match="temp_file_limit"):
        spooled(in_memory_bytes=0, limit_bytes=200)
    assert spooled(in_memory_bytes=0, limit_bytes=1 << 20).n_rows == 61


def test_vectors_of_another_width_are_refused():
    spool = spooled()
    wide = batch(100, 4)
    wide[3] = Vectors(np.zeros((4, 3), np.float32), np.arange(4) < 1, "v")
    with pytest.raises(UnreadableValue, match="3 elements, where 2 are expected") as caught:
        spool.add(wide)
    assert caught.value.row == 1, "the first that is not NULL"


def test_a_text_with_too_many_values_is_counted_and_not_kept(monkeypatch):
    monkeypatch.setattr(raw.Dictionary.__init__, "__defaults__", ("", 4))
    spool = Spool()
    for start in (0, 3, 6):
        texts = [f"t{i}" for i in range(start, start + 3)]
        levels = raw.Dictionary("c", 100)
        codes = np.array([levels.code_of(text.encode()) for text in texts], np.int32)
        spool.add([Numbers(np.zeros(3), np.zeros(3, bool)), Levels(codes, levels)])
    numbers, texts = spool.columns()
    assert numbers.n_rows == 9 and texts is None
    assert spool.overflowed[1].n_rows == 6 and spool.overflowed[1].n_distinct >= 6
