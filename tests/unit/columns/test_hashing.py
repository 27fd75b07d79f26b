"""Hashes of rows: even, without collisions, and of the row's bytes and the seed alone."""

import hashlib
import struct

import numpy as np
import pytest

from madlib_mop.columns.hashing import LONGEST, RowHasher, with_oids


def hashes(rows, seed=1, batch_rows=10_000):
    """Return the hashes of rows of bytes, hashed in batches."""
    hasher = RowHasher(seed)
    parts = []
    for start in range(0, len(rows), batch_rows):
        part = rows[start : start + batch_rows]
        parts.append(hasher.of(b"".join(part), np.array([len(row) for row in part], np.int64)))
    return np.concatenate(parts)


def records(values):
    """Return records of two int8 columns, the second constant; the values are from 0 to 2^64 - 1."""
    return [struct.pack(">iIiQIiq", 2, 20, 8, value, 20, 8, 7) for value in values]


def test_a_hash_does_not_depend_on_the_batch_or_the_order():
    rng = np.random.default_rng(1)
    rows = [rng.bytes(n) for n in rng.integers(0, LONGEST + 100, 2000).tolist()]
    rows += [rng.bytes(n) for n in range(20)]
    whole = hashes(rows)
    for batch_rows in (1, 7, 500):
        np.testing.assert_array_equal(hashes(rows, batch_rows=batch_rows), whole)
    order = rng.permutation(len(rows))
    np.testing.assert_array_equal(hashes([rows[row] for row in order]), whole[order])


def test_equal_rows_have_equal_hashes_and_another_seed_other_ones():
    one, same = hashes([b"abcdefghij"] * 2)
    assert one.tolist() == same.tolist()
    assert not np.intersect1d(hashes(records(range(1000))), hashes(records(range(1000)), seed=2)).size


@pytest.mark.parametrize("length", [0, 4, 7, LONGEST + 1])
def test_rows_of_unusual_lengths_have_a_sha_256(length):
    row = bytes(range(256)) * 5
    digest = hashlib.sha256(struct.pack(">q", 1) + row[:length]).digest()
    np.testing.assert_array_equal(hashes([row[:length]])[0], np.frombuffer(digest[:16], ">u8"))


@pytest.mark.slow
def test_a_million_rows_that_differ_in_one_column_do_not_collide_in_either_half():
    n_rows = 1_000_000
    hasher = RowHasher(1)
    rows = np.zeros(n_rows, np.dtype([("head", "S12"), ("value", ">i8"), ("tail", "S12")]))
    rows["value"] = np.arange(n_rows)
    parts = [hasher.of(part.tobytes(), np.full(len(part), rows.dtype.itemsize)) for part in np.split(rows, 100)]
    found = np.concatenate(parts)
    for half in range(2):
        assert len(np.unique(found[:, half])) == n_rows


@pytest.mark.slow
def test_rows_that_differ_in_two_words_do_not_collide():
    rows = np.zeros((1000, 1000, 2), "<u8")
    rows[:, :, 0] = (np.arange(1000, dtype=np.uint64) << np.uint64(54))[:, None]
    rows[:, :, 1] = (np.arange(1000, dtype=np.uint64) << np.uint64(54))[None]
    hasher = RowHasher(1)
    found = np.concatenate([hasher.of(part.tobytes(), np.full(10_000, 16)) for part in np.split(rows, 100)])
    for half in range(2):
        assert len(np.unique(found[:, half])) == 1_000_000


def test_rows_of_zeros_of_every_length_differ():
    assert len(np.unique(hashes([bytes(n) for n in range(LONGEST + 10)])[:, 0])) == LONGEST + 10


@pytest.mark.parametrize("shift", [0, 16, 48])
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("bits", [0, 8, 31, 56])
def test_every_byte_of_the_hashes_of_structured_rows_is_even(shift, half, bits):
    found = hashes(records(value << shift for value in range(65_536)))[:, half]
    counts = np.bincount(((found >> np.uint64(bits)) & np.uint64(0xFF)).astype(np.int64), minlength=256)
    chi_square = ((counts - 256) ** 2 / 256).sum()
    assert 150 < chi_square < 380  # 255 degrees of freedom: outside with a probability below 1e-6


def test_one_bit_of_a_row_changes_half_of_the_bits():
    rng = np.random.default_rng(2)
    row = bytearray(rng.bytes(83))
    flipped = [bytes(row)]
    for bit in range(8 * len(row)):
        row[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(row))
        row[bit // 8] ^= 1 << bit % 8
    found = hashes(flipped)
    changed = np.unpackbits((found[1:] ^ found[0]).view(np.uint8), axis=1)
    assert abs(changed.mean() - 0.5) < 0.01
    assert np.abs(changed.mean(axis=0) - 0.5).max() < 0.12


def test_oids_are_changed_in_their_fields_only():
    def row(first, second, third):
        fields = [struct.pack(">Ii", oid, len(value) if value is not None else -1) + (value or b"") for oid, value in (
            (first, b"ab"), (second, None), (third, b"abcde" + struct.pack(">I", 70_000)),
        )]
        return struct.pack(">i", 3) + b"".join(fields)

    rows = [row(70_000, 70_001, 70_000), row(70_000, 70_001, 70_000)]
    lengths = np.array([len(row) for row in rows], np.int64)
    assert with_oids(b"".join(rows), lengths, {0: 25, 1: 0}) == row(25, 0, 70_000) * 2
    assert with_oids(memoryview(b"".join(rows)), lengths, {2: 7}) == row(70_000, 70_001, 7) * 2
