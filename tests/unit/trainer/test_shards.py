"""Shards of packed buffers: independent of the division, rejected if invalid, cached up to a limit."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.trainer.data.arrival import Arrival, RowsMissing
from madlib_mop.trainer.data.shards import ShardBuilder, ShardCache
from madlib_mop.trainer.process.failures import RequestFailure


def build(columns, cuts=(), n_x=1, **more):
    """Return a shard of columns, divided into buffers before the given rows."""
    builder = ShardBuilder(n_x, len(columns) - n_x, 1.0, **more)
    edges = [0, *cuts, len(columns[0])]
    for start, stop in zip(edges, edges[1:], strict=False):
        rows = [column[start:stop] for column in columns]
        builder.add([row.shape for row in rows], [row.tobytes() for row in rows])
    return builder.finish()


def columns(n=20):
    rng = np.random.default_rng(n)
    return [rng.normal(size=(n, 3, 2)).astype(np.float32), np.eye(4, dtype=np.int16)[rng.integers(0, 4, n)]]


def message(call):
    with pytest.raises(RequestFailure) as caught:
        call()
    assert caught.value.kind == "input"
    assert caught.value.error.sqlstate == "22023"
    return caught.value.error.message


@settings(deadline=None)
@given(st.lists(st.integers(0, 20)).map(sorted), st.booleans())
def test_cuts_do_not_matter(cuts, announced):
    whole = build(columns())
    cut = build(columns(), cuts, n_rows=20 if announced else None)
    assert cut.fingerprint == whole.fingerprint
    assert (cut.n_rows, cut.n_bytes) == (20, 20 * (6 * 4 + 4 * 2))
    for got, expected in zip((*cut.xs, *cut.ys), columns(), strict=True):
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)
        assert got.ctypes.data % 64 == 0  # otherwise TensorFlow would copy it


def test_fingerprint_is_of_content_shape_and_type():
    x, y = columns()
    fingerprints = {
        build(changed).fingerprint
        for changed in (
            [x, y],
            [x + 1, y],
            [x.reshape(20, 6), y],
            [x, y[::-1]],
            [x.view(np.uint8), y],
            [x[:19], y[:19]],
        )
    }
    assert len(fingerprints) == 6


def test_uint8_stays_uint8():
    shard = build([np.arange(12, dtype=np.uint8).reshape(4, 3), np.ones((4, 2), np.uint8)])
    assert (shard.xs[0].dtype, shard.ys[0].dtype, shard.n_bytes) == (np.uint8, np.uint8, 20)


def test_ragged_rows_between_buffers_are_named():
    builder = ShardBuilder(1, 0, 1.0, names=["image"])
    builder.add([(2, 3)], [bytes(24)])
    text = message(lambda: builder.add([(5, 4)], [bytes(80)]))
    assert "column image is ragged: rows 2 to 6 have shape [4]" in text


def test_a_change_of_type_between_buffers_is_ragged():
    builder = ShardBuilder(1, 0, 1.0)
    builder.add([(2, 3)], [bytes(24)])
    assert "uint8" in message(lambda: builder.add([(2, 3)], [bytes(6)]))


def test_columns_of_different_length_are_named():
    x, y = columns()
    text = message(lambda: ShardBuilder(1, 1, 1.0).add([x.shape, (19, 4)], [x.tobytes(), y[:19].tobytes()]))
    assert "column y1 has shape [19, 4]" in text and "20 rows" in text


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 1])
def test_what_is_not_finite_is_found(value, column):
    tables = [np.zeros((30, 2), np.float32), np.zeros((30, 3), np.float32)]
    tables[column][17, 1] = value
    tables[column][19, 0] = value
    text = message(lambda: build(tables, [10, 20], names=["x", "target"]))
    assert f"column {('x', 'target')[column]} has {value} in 2 of the rows 10 to 19" in text
    assert "first in row 17" in text


@pytest.mark.parametrize(
    ("shape", "n_bytes"), [((4, 3), 47), ((4, 3), 0), ((4, 3), 24), ((4, 3), 96), ((4,), 4 * 3), ((), 4)], ids=str
)
def test_bytes_that_do_not_fit_their_shape_are_refused(shape, n_bytes):
    message(lambda: ShardBuilder(1, 0, 1.0).add([shape], [bytes(n_bytes)]))


@pytest.mark.parametrize("shape", [[-4, -3], ["4"], [4.0], [True, 12], 12, None], ids=str)
def test_shapes_that_are_none_are_refused(shape):
    message(lambda: ShardBuilder(1, 0, 1.0).add([shape], [bytes(48)]))


def test_a_shard_without_rows_is_refused():
    assert "no rows" in message(lambda: ShardBuilder(1, 0, 1.0).finish())


@pytest.mark.parametrize("announced", [19, 21])
def test_other_than_the_announced_rows_are_refused(announced):
    assert str(announced) in message(lambda: build(columns(), [7], n_rows=announced))


class TestCache:
    """Shards of 100 rows, 400 bytes each."""

    def shard(self, n=100):
        return build([np.zeros((n, 1), np.float32)])

    def test_least_recently_used_goes_first(self):
        cache = ShardCache(1200)
        for key in "abc":
            assert cache.add(key, self.shard())
        cache.take("a")
        assert cache.add("d", self.shard())
        assert cache.keys() == ["c", "a", "d"]
        assert cache.n_bytes == 1200

    def test_a_shard_replaces_one_of_the_same_key(self):
        cache = ShardCache(1200)
        for n in (100, 50):
            cache.add("a", self.shard(n))
        assert (cache.keys(), cache.n_bytes, cache.take("a").n_rows) == (["a"], 200, 50)

    def test_one_above_the_cap_stays_for_one_visit(self):
        cache = ShardCache(1200)
        cache.add("a", self.shard())
        assert not cache.add("big", self.shard(500))
        assert (cache.keys(), cache.n_bytes) == (["a"], 2400)
        assert cache.take("big").n_rows == 500
        assert cache.n_bytes == 400
        assert "'big' is not in the trainer's memory" in message(lambda: cache.take("big"))

    def test_one_above_the_cap_gives_way_to_the_next(self):
        cache = ShardCache(0)
        for key in "ab":
            cache.add(key, self.shard())
        assert cache.n_bytes == 400
        message(lambda: cache.take("a"))

    def test_dropping(self):
        cache = ShardCache(500)
        for key, n in (("a", 100), ("big", 500)):
            cache.add(key, self.shard(n))
            cache.drop(key)
            cache.drop(key)
        assert cache.n_bytes == 0


def test_inputs_of_indices_are_int32_whatever_their_bits_are_as_floats():
    x = np.array([[0x7FC00000], [1]], np.int32)  # the first would be NaN
    shard = build([np.ones((2, 1), np.float32), x, np.zeros((2, 1), np.float32)], n_x=2, index_inputs=[1])
    assert [a.dtype for a in shard.xs] == [np.float32, np.int32]
    assert np.array_equal(shard.xs[1], x)
    as_floats = message(lambda: build([np.ones((2, 1), np.float32), x, np.zeros((2, 1), np.float32)], n_x=2))
    assert "x2 has nan" in as_floats
    builder = ShardBuilder(1, 0, 1.0, index_inputs=[0])
    assert "not a packed array" in message(lambda: builder.add([(2, 1)], [b"\x01\x02"]))


@settings(deadline=None)
@given(st.lists(st.integers(0, 20)).map(sorted), st.integers(1, 25))
def test_of_a_sample_only_the_first_rows_are_kept(cuts, first_rows):
    whole, sample = build(columns()), build(columns(), cuts, first_rows=first_rows)
    assert sample.n_rows == min(first_rows, 20)
    for ours, theirs in zip((*sample.xs, *sample.ys), (*whole.xs, *whole.ys), strict=True):
        assert ours.tobytes() == theirs[:first_rows].tobytes()
    assert (sample.fingerprint == whole.fingerprint) == (first_rows >= 20)


def test_a_sample_is_kept_whatever_comes_after_it():
    shard = build(columns())
    cache = ShardCache(shard.n_bytes)
    cache.add_sample("sample:1", shard)
    assert cache.add("training:0", shard) and cache.add("training:1", shard)
    assert cache.keys() == ["sample:1", "training:1"] and cache.take("sample:1") is shard
    assert cache.n_bytes == shard.n_bytes
    cache.drop("sample:1")
    assert cache.keys() == ["training:1"]


class TestArrival:
    def arriving(self, planned=20, **more):
        arrival = Arrival()
        return arrival, ShardBuilder(1, 1, 1.0, planned_rows=planned, arrival=arrival, **more)

    def add(self, builder, rows):
        parts = [column[rows] for column in columns()]
        builder.add([part.shape for part in parts], [part.tobytes() for part in parts])

    def test_a_shard_has_its_arrays_when_its_first_rows_are_there(self):
        arrival, builder = self.arriving()
        self.add(builder, slice(0, 8))
        begun = arrival.begun()
        assert begun.n_rows == 20 and begun.n_bytes == build(columns()).n_bytes and begun.arrival is arrival
        arrival.wait_for(8)
        self.add(builder, slice(8, 20))
        arrival.end(builder.finish())
        arrival.wait_for(20)
        assert begun.whole().fingerprint == build(columns()).fingerprint
        for early, column in zip((*begun.xs, *begun.ys), columns(), strict=True):
            assert np.array_equal(early, column)
        assert build(columns()).whole().waited_s() == 0 < begun.waited_s()

    def test_who_waits_goes_on_when_rows_come(self):
        arrival, builder = self.arriving()
        seen = []
        thread = threading.Thread(target=lambda: (arrival.wait_for(12), seen.append(arrival._n_rows)))
        thread.start()
        for rows in (slice(0, 5), slice(5, 11), slice(11, 15)):
            assert not seen
            self.add(builder, rows)
        thread.join(20)
        assert seen == [15]

    def test_nothing_begins_if_it_is_not_known_how_many_rows_come(self):
        arrival, builder = self.arriving(planned=None)
        self.add(builder, slice(0, 20))
        assert arrival.begun() is None

    def test_a_shard_that_ends_early_or_is_refused_is_no_shard(self):
        arrival, builder = self.arriving()
        self.add(builder, slice(0, 8))
        arrival.end(None)
        for wait in (arrival.whole, lambda: arrival.wait_for(9), lambda: arrival.wait_for(8)):
            with pytest.raises(RowsMissing):
                wait()
