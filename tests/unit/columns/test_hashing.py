"""Hashes of rows: even, without collisions, and of the values as they are read and the seed alone."""

import hashlib
import struct

import numpy as np
import pytest

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.hashing import LONGEST, RowHasher, mixed
from madlib_mop.columns.raw import Numbers, Vectors
from madlib_mop.columns.records import Field, RecordReader
from tests.helpers.unit.columns import moments, numbers, texts, vectors


def hashes(columns, seed=1, batch_rows=10_000):
    """Return the hashes of rows, hashed in batches."""
    hasher = RowHasher(seed)
    n_rows = columns[0].n_rows
    parts = [np.arange(start, min(start + batch_rows, n_rows)) for start in range(0, n_rows, batch_rows)]
    return np.concatenate([hasher.of([column.take(rows) for column in columns]) for rows in parts])


def files(values):
    return Blobs(list(values))


def plain(values):
    return Numbers(np.asarray(values, float), np.zeros(len(values), bool))


def sent(reader, *values):
    """Return the column of values of a type in PostgreSQL's binary form; None is NULL."""
    row = [struct.pack(">iI", 1, 23) + (struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v)
           for v in values]  # fmt: skip
    return RecordReader([Field("c", reader, 23, reader)]).read(b"".join(row), [len(one) for one in row])[0]


def numeric(*digits, weight=0, scale=0, sign=0):
    return struct.pack(f">hhHH{len(digits)}H", len(digits), weight, sign, scale, *digits)


def array(*items, oid=701, lower=1, flags=0):
    head = struct.pack(">iiI", 1, flags, oid) + struct.pack(">ii", len(items), lower)
    return head + b"".join(struct.pack(">i", len(item)) + item for item in items)


@pytest.mark.parametrize(
    ("reader", "one", "other"),
    [
        ("numeric", numeric(1, 5000, scale=1), numeric(1, 5000, scale=2)),  # 1.5 and 1.50
        ("numeric", numeric(), numeric(scale=3)),  # 0 and 0.000
        ("float8", struct.pack(">d", 0.0), struct.pack(">d", -0.0)),
        ("float4", struct.pack(">f", 0.0), struct.pack(">f", -0.0)),
        ("interval", struct.pack(">qii", 0, 1, 0), struct.pack(">qii", 86_400_000_000, 0, 0)),  # 1 day, 24 hours
        ("timetz", struct.pack(">qi", 5, 0), struct.pack(">qi", 5, -3600)),
        ("bpchar", b"ab", b"ab  "),
        ("_float8", array(struct.pack(">d", 0.0)), array(struct.pack(">d", -0.0), lower=0, flags=1)),
        ("_numeric", array(numeric(1, 5000, scale=1), oid=1700), array(numeric(1, 5000, scale=4), oid=1700)),
    ],
)
def test_equal_values_that_are_sent_as_other_bytes_have_equal_hashes(reader, one, other):
    assert one != other
    column = sent(reader, one, other, None)
    found = RowHasher(7).of([column])
    assert found[0].tolist() == found[1].tolist() != found[2].tolist()
    many = sent(reader, *[one, other] * 20)  # which are read together
    assert len(np.unique(RowHasher(7).of([many]), axis=0)) == 1
    np.testing.assert_array_equal(RowHasher(7).of([many])[0], found[0])


def test_bigints_that_one_float_stands_for_have_other_hashes():
    limits = [2**53, 2**53 + 1, 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1]
    for repeated in (1, 20):
        column = sent("int8", *[struct.pack(">q", value) for value in limits] * repeated)
        assert column.integers().tolist() == limits * repeated
        assert len(np.unique(RowHasher(1).of([column]), axis=0)) == len(limits)


def test_texts_that_a_collation_takes_for_equal_differ_in_the_second_half_only():
    words = texts(["Åse", "åse", "ase", "b", None])
    first, second = RowHasher(1).of([words, plain([1, 1, 1, 1, 1])], {0}).T
    assert len(set(first.tolist())) == 3 and first[0] == first[1] == first[2]
    assert len(set(second.tolist())) == 5
    assert len(set(RowHasher(1).of([words, plain([1, 1, 1, 1, 1])])[:, 0].tolist())) == 5


def test_null_is_a_value_of_its_own_in_every_column():
    columns = [
        numbers([0, None]), moments([0, None]), texts(["", None]), vectors([[0.0], None], 1), files([b"", None]),
    ]  # fmt: skip
    for column in columns:
        one, other = hashes([column])
        assert one.tolist() != other.tolist()
    every = [np.array([place >> i & 1 for place in range(32)]) for i in range(5)]
    assert len(np.unique(hashes([c.take(chosen) for c, chosen in zip(columns, every, strict=True)]), axis=0)) == 32


def test_a_hash_does_not_depend_on_the_batch_or_the_order():
    rng = np.random.default_rng(1)
    values = [rng.bytes(n) for n in rng.integers(0, LONGEST + 100, 2000).tolist()] + [rng.bytes(n) for n in range(20)]
    n_rows = len(values)
    words = [None if i % 7 == 0 else str(i % 50) * (i % 5) for i in range(n_rows)]
    columns = [
        plain(rng.integers(0, 9, n_rows)), files(values), texts(words), moments(rng.integers(-5, 5, n_rows).tolist()),
        Vectors(rng.normal(size=(n_rows, 3)).astype(np.float32), rng.random(n_rows) < 0.1),
    ]  # fmt: skip
    whole = hashes(columns)
    for batch_rows in (1, 7, 500):
        np.testing.assert_array_equal(hashes(columns, batch_rows=batch_rows), whole)
    order = rng.permutation(n_rows)
    np.testing.assert_array_equal(hashes([column.take(order) for column in columns]), whole[order])


def test_another_seed_and_other_columns_give_other_hashes():
    column, same = plain(range(1000)), plain(np.zeros(1000))
    assert not np.intersect1d(hashes([column]), hashes([column], seed=2)).size
    assert not np.intersect1d(hashes([column, same]), hashes([same, column])[1:]).size


def test_long_bytes_have_a_sha_256():
    row = bytes(range(256)) * 5
    digest = hashlib.sha256(struct.pack(">q", 1) + row).digest()
    np.testing.assert_array_equal(RowHasher(1).of_bytes([row])[0], np.frombuffer(digest[:16], ">u8"))


@pytest.mark.slow
def test_a_million_rows_that_differ_in_one_column_do_not_collide_in_either_half():
    n_rows = 1_000_000
    found = hashes([plain(np.zeros(n_rows)), plain(np.arange(n_rows)), plain(np.ones(n_rows))])
    for half in range(2):
        assert len(np.unique(found[:, half])) == n_rows


@pytest.mark.slow
def test_rows_that_differ_in_two_columns_do_not_collide():
    one, other = np.divmod(np.arange(1_000_000), 1000)
    found = hashes([plain(one), plain(other)])
    for half in range(2):
        assert len(np.unique(found[:, half])) == 1_000_000


def test_texts_of_zeros_of_every_length_differ():
    assert len(np.unique(RowHasher(1).of_bytes([bytes(n) for n in range(LONGEST + 10)])[:, 0])) == LONGEST + 10


@pytest.mark.parametrize("shift", [0, 16, 48])
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("bits", [0, 8, 31, 56])
def test_every_byte_of_the_hashes_of_structured_rows_is_even(shift, half, bits):
    values = moments([(value << shift) - (2**64 if value << shift >= 2**63 else 0) for value in range(65_536)])
    found = hashes([values, plain(np.full(65_536, 7.0))])[:, half]
    counts = np.bincount(((found >> np.uint64(bits)) & np.uint64(0xFF)).astype(np.int64), minlength=256)
    chi_square = ((counts - 256) ** 2 / 256).sum()
    assert 150 < chi_square < 380  # 255 degrees of freedom: outside with a probability below 1e-6


def test_one_bit_of_a_value_changes_half_of_the_bits():
    rng = np.random.default_rng(2)
    row = bytearray(rng.bytes(83))
    flipped = [bytes(row)]
    for bit in range(8 * len(row)):
        row[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(row))
        row[bit // 8] ^= 1 << bit % 8
    of_numbers = np.array([1.0, *(np.int64(4607182418800017408 ^ 1 << bit).view(float) for bit in range(51))])
    # of a number there are 51 bits, of a file 664
    for found, of_all, of_one in ((hashes([files(flipped)]), 0.01, 0.12), (hashes([plain(of_numbers)]), 0.02, 0.25)):
        changed = np.unpackbits((found[1:] ^ found[0]).view(np.uint8), axis=1)
        assert abs(changed.mean() - 0.5) < of_all
        assert np.abs(changed.mean(axis=0) - 0.5).max() < of_one


def test_a_mixed_key_is_different_for_each_key_and_the_same_for_ever():
    assert mixed(np.array([0, 1, -1])).tolist() == [
        16294208416658607535, 10451216379200822465, 16490336266968443936,
    ]  # fmt: skip
    assert len(np.unique(mixed(np.arange(100_000)))) == 100_000
