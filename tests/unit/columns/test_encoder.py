"""The encoder for each kind: values that can be checked by hand, unseen ones, NULL, and clear errors."""

import hashlib

import numpy as np
import pytest

from madlib_mop.columns import raw
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.encoding.encoder import BadFile, Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.errors import InvalidParameter, UndefinedColumn, Unsupported
from tests.helpers.unit.columns import error_text, fitted, moments, numbers, spec, target, texts, vectors

DAY = 86_400_000_000
Y = (target("y"), texts(["a", "b"]))


def encode(one, training, column, **options):
    """Return the tensors of a column, encoded with a fit to other values."""
    encoder = Encoder(fitted([(one, training), Y]), **options)
    return encoder.encode({one.name: column}).arrays


def units(one, training, column):
    return encode(one, training, column)["numbers"].tolist()


def test_numbers_are_scaled_nulls_filled_and_marked():
    rows = units(spec("x", indicator=True), numbers([1.0, 3.0, None]), numbers([1.0, None, 5.0]))
    assert rows == [[-1.0, 0.0], [0.0, 1.0], [3.0, 0.0]]


def test_nulls_that_training_did_not_have_are_filled_too():
    assert units(spec("x", impute="minimum", scale="none"), numbers([2.0, 3.0]), numbers([None])) == [[2.0]]


def test_booleans_are_0_and_1_and_null_their_mean():
    column = numbers([1, 0, None], "boolean")
    assert units(spec("b", "boolean"), numbers([1, 1, 1, 0], "boolean"), column) == [[1.0], [0.0], [0.75]]


def test_numbers_beyond_float32_are_bounded():
    rows = units(spec("x", scale="none"), numbers([1.0, 2.0]), numbers([1e300, -1e300]))
    assert rows == [[float(np.finfo(np.float32).max)], [-float(np.finfo(np.float32).max)]]


def test_dates_are_an_age_and_parts():
    rows = units(
        spec("d", "datetime", indicator=True),
        moments([0, 60 * DAY + 21_600_000_000]),
        moments([60 * DAY + 21_600_000_000, None]),
    )
    age, month, weekday, hour, null = rows[0][0], rows[0][1:3], rows[0][3:5], rows[0][5:7], rows[0][7]
    assert (age, hour, null) == (1.0, [1.0, 0.0], 0.0)  # 06:00 is a quarter of the day
    assert month == pytest.approx([np.sin(np.pi / 3), 0.5])  # the first of March
    assert weekday == pytest.approx([np.sin(4 * np.pi / 7), np.cos(4 * np.pi / 7)])  # a Wednesday
    assert rows[1] == [0.0] * 7 + [1.0]


def test_index_is_0_for_null_1_for_unseen_then_levels_by_count():
    training, column = texts(["b", "b", "a", None]), texts(["a", "b", None, "never", "a"])
    codes = encode(spec("c", "category"), training, column)["c"]
    assert codes.dtype == np.int32 and codes.tolist() == [[3], [2], [0], [1], [3]]
    filled = encode(spec("c", "category", impute="constant:a"), training, column)["c"]
    assert filled.tolist() == [[3], [2], [3], [1], [3]]


@pytest.mark.parametrize("n", [1, 40])
def test_numbers_and_booleans_as_categories(n):
    column = numbers([7, None, 8.5, -0.0] * n)
    codes = encode(spec("c", "category"), numbers([7, 7, 7, 0, 0]), column)["c"]
    assert codes.tolist() == [[2], [0], [1], [3]] * n
    flags = encode(spec("c", "category"), numbers([1, 1, 0], "boolean"), numbers([0, 1, None] * n, "boolean"))["c"]
    assert flags.tolist() == [[3], [2], [0]] * n


def test_one_hot_has_a_unit_for_others_for_each_level_and_for_null():
    one = spec("c", "category", encode="one_hot")
    assert units(one, texts(["b", "b", "a", None]), texts(["a", "b", None, "never"])) == [
        [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0],
    ]  # fmt: skip
    assert units(one, texts(["b", "a"]), texts([None])) == [[0, 0, 0]]


def test_ordinal_is_the_place_among_the_levels():
    one = spec("c", "category", encode="ordinal", levels=("s", "m", "l"), indicator=True)
    assert units(one, texts(["s"]), texts(["s", "m", "l", None, "xl"])) == [
        [0, 0], [0.5, 0], [1, 0], [0.5, 1], [0.5, 0],
    ]  # fmt: skip


def test_frequency_is_the_standardised_share():
    rows = units(spec("c", "category", encode="frequency"), texts(["a"] * 3 + ["b"]), texts(["a", "b", "c"]))
    assert rows[0][0] > rows[1][0] > rows[2][0]
    assert 3 * rows[0][0] + rows[1][0] == pytest.approx(0, abs=1e-6)


def test_hashed_levels_have_a_bucket_whether_seen_or_not():
    one = spec("c", "category", encode="hashed", max_levels=1000)
    codes = encode(one, texts(["x"]), texts(["red", None, "grün", "red"]))["c"]
    assert codes.tolist() == [[411], [0], [123], [411]]
    assert encode(one, numbers([1]), numbers([17.0, None]))["c"].tolist() == [[1 + hash_of("17", 1000)], [0]]


def hash_of(text, n):
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"madlib_mop cat").digest()
    return int.from_bytes(digest, "little") % n


def test_a_dictionary_that_grows_between_batches_is_followed():
    encoder = Encoder(fitted([(spec("c", "category"), texts(["b", "b", "a"])), Y]))
    dictionary = raw.Dictionary("c")
    found = []
    for batch in (["a", "a"], ["b", "c"], ["a", "b"]):
        codes = np.array([dictionary.code_of(text.encode()) for text in batch], np.int32)
        found += encoder.encode({"c": raw.Levels(codes, dictionary)}).arrays["c"].ravel().tolist()
    assert found == [3, 3, 2, 1, 3, 2]


def test_texts_are_units_of_their_own_and_null_is_zeros():
    one = spec("t", "text", encode="hashed_ngrams", indicator=True)
    arrays = encode(one, texts(["a b", None]), texts(["hello", None, "hello"]))
    assert arrays["numbers"].tolist() == [[0], [1], [0]]
    assert arrays["t"].shape == (3, 8) and (arrays["t"][0] == arrays["t"][2]).all()
    assert arrays["t"][0].any() and not arrays["t"][1].any()


def test_texts_are_their_terms_and_weights_and_null_has_none():
    training = texts(["red fox", "red fox", "blue fox", None])
    arrays = encode(spec("t", "text", width=64, indicator=True), training, texts(["fox", None, "fox", "zzz"]))
    assert list(arrays) == ["numbers", "t", "t_weights"] and arrays["numbers"].tolist() == [[0], [1], [0], [0]]
    indices, weights = arrays["t"], arrays["t_weights"]
    assert (indices.dtype, weights.dtype, indices.shape) == (np.int32, np.float32, weights.shape)
    assert ((indices > 0) == (weights > 0)).all() and (indices[0] == indices[2]).all()
    assert (indices > 0).any(axis=1).tolist() == [True, False, True, False], "no training row has a term of the last"
    assert np.allclose((weights[0] ** 2).sum(), 1)


def test_vectors_are_scaled_and_null_is_zeros():
    training = vectors([[0.0, 12.0], [12.0, 0.0]], 2)
    column = vectors([[12.0, 6.0], None], 2)
    assert encode(spec("v", "vector"), training, column)["v"].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert encode(spec("v", "array", scale="none"), training, column)["v"].tolist() == [[12.0, 6.0], [0.0, 0.0]]
    assert encode(spec("v", "vector"), training, vectors([None], 2))["v"].tolist() == [[0.0, 0.0]]
    assert encode(spec("v", "vector"), training, vectors([[3e38, -3e38]], 2))["v"].dtype == np.float32


def test_arrays_of_several_dimensions_keep_them():
    def arrays(rows, dimensions):
        values = np.asarray(rows, np.float32).reshape(len(rows), -1)
        return raw.Vectors(values, np.zeros(len(rows), bool), "v", dimensions=dimensions)

    training = arrays([np.arange(6), np.arange(6) + 2], (3, 2))
    one = spec("v", "array", scale="none")
    assert encode(one, training, training)["v"].tolist() == [
        [[0, 1], [2, 3], [4, 5]], [[2, 3], [4, 5], [6, 7]]
    ]  # fmt: skip
    assert encode(one, training, vectors([None], 6))["v"].shape == (1, 3, 2)
    for other, has in (((2, 3), "2 x 3"), ((), "one dimension")):
        with pytest.raises(InvalidParameter, match=f"'v' has arrays of {has}, where 3 x 2 is expected") as caught:
            encode(one, training, arrays([np.arange(6)], other))
        assert "dimensions" in caught.value.hint and "pads" not in caught.value.hint


def test_absent_elements_of_padded_arrays_are_0_and_count_in_no_statistic():
    absent = np.array([[False, False], [False, True], [False, False]])
    values = np.array([[10, 14], [12, 0], [0, 0]], np.float32)
    training = raw.Vectors(values, np.array([False, False, True]), "v", absent=absent)
    one = spec("v", "array", encode="padded", width=2, impute="zero")
    found = encode(one, training, training)["v"]  # the mean is 12, the deviation 1.63
    np.testing.assert_allclose(found, [[-2 / 1.633, 2 / 1.633], [0, 0], [0, 0]], atol=1e-3)


def test_arrays_that_are_padded_for_another_encoding_are_encoded_if_they_have_the_elements_of_this_one():
    def padded(rows, width):
        values = np.array([row + [0] * (width - len(row)) for row in rows], np.float32)
        absent = np.array([[False] * len(row) + [True] * (width - len(row)) for row in rows])
        return raw.Vectors(values, np.zeros(len(rows), bool), "v", absent=absent)

    plain = spec("v", "array", scale="none")
    training = vectors([[1.0, 2.0], [3.0, 4.0]], 2)
    assert encode(plain, training, padded([[5, 6], [7, 8]], 4))["v"].tolist() == [[5, 6], [7, 8]]
    for rows in ([[1, 2], [5]], [[1, 2], [5, 6, 7]]):
        with pytest.raises(UnreadableValue, match=f"has {len(rows[1])} elements, where 2 are expected") as caught:
            encode(plain, training, padded(rows, 4))
        assert caught.value.row == 1
    one_null = padded([[1, 2], [5, 6]], 4)
    one_null.absent[1, 0] = True
    with pytest.raises(UnreadableValue, match=r"has a NULL element \(number 1\) in row 2"):
        encode(plain, training, one_null)
    short = spec("v", "array", scale="none", encode="padded", width=2)
    assert encode(short, padded([[1, 2], [3]], 2), padded([[5], [7, 8]], 4))["v"].tolist() == [[5, 0], [7, 8]]


def test_images_are_decoded_by_whoever_can():
    one = spec("p", "image", impute="zero")
    training = raw.Blobs([b"1", None])

    def decode(files, shape):
        return np.array([np.full(shape, int(file)) for file in files], np.uint8)

    pixels = encode(one, training, raw.Blobs([b"7", None, b"9"]), decode_images=decode)["p"]
    assert pixels.shape == (3, 8, 8, 3) and pixels.dtype == np.uint8
    assert pixels[:, 0, 0, 0].tolist() == [7, 0, 9]
    many = raw.Blobs([str(number).encode() for number in range(60)])
    one = spec("p", "image", width=512)  # they are decoded in parts, because all their pixels are too many
    pixels = encode(one, training.take(np.array([0])), many, decode_images=decode)["p"]
    assert pixels.shape == (60, 512, 512, 3) and pixels[:, 0, 0, 0].tolist() == list(range(60))
    grey = spec("p", "image", width=28, encode="grey_pixels")
    assert encode(grey, training.take(np.array([0])), many, decode_images=decode)["p"].shape == (60, 28, 28, 1)
    with pytest.raises(Unsupported, match="'p' is an image"):
        encode(one, training, raw.Blobs([b"7"]))


def test_an_image_that_cannot_be_decoded_is_named_by_its_row():
    def decode(files, shape):
        if b"bad" in files:
            raise BadFile(files.index(b"bad"), "is damaged")
        return np.zeros((len(files), *shape), np.uint8)

    one = spec("p", "image", width=512, impute="zero")
    for row in (0, 3, 50, 89):
        values = [b"good", None, b"good"] * 30
        values[row] = b"bad"
        with pytest.raises(UnreadableValue, match="'p' is damaged") as caught:
            encode(one, raw.Blobs([b""]), raw.Blobs(values), decode_images=decode)
        assert (caught.value.column, caught.value.row) == ("p", row)


def test_inputs_are_contiguous_and_in_order_and_other_columns_are_not_looked_at():
    encoder = Encoder(
        fitted([(spec("c", "category"), texts(["a", "b"])), (spec("x"), numbers([1.0, 2.0])), Y])
    )
    tensors = encoder.encode({"x": numbers([1.0]), "c": texts(["a"]), "more": texts([None])})
    assert list(tensors.arrays) == ["numbers", "c"] and tensors.n_rows == 1
    many = encoder.encode({"x": numbers([1.0] * 9), "c": texts(["a"] * 9)}).arrays
    assert all(array.flags.c_contiguous for array in many.values())


@pytest.mark.parametrize(
    ("one", "training", "column", "words"),
    [
        (spec("x", impute="error"), numbers([1]), numbers([1, None]), "'x' is NULL, and its impute is error, in row 2"),
        (spec("d", "datetime", impute="error"), moments([1, 2]), moments([None]), "'d' is NULL"),
        (spec("c", "category", impute="error"), texts(["a"]), texts([None]), "'c' is NULL"),
        (spec("t", "text", impute="error"), texts(["a"]), texts([None]), "'t' is NULL"),
        (spec("v", "vector", impute="error"), vectors([[1.0]], 1), vectors([None], 1), "'v' is NULL"),
        (spec("p", "image"), raw.Blobs([b""]), raw.Blobs([None]), "'p' is NULL"),
        (spec("x"), numbers([1.0, 2.0]), numbers([1.0, np.nan]), "'x' has the value NaN"),
        (spec("x"), numbers([1.0, 2.0]), numbers([-np.inf]), "'x' has the value -Infinity"),
        (spec("d", "datetime"), moments([1, 2]), moments([raw.BEGIN]), "'d' has the value -infinity"),
        (spec("s"), moments([1, 2], "span"), moments([raw.END], "span"), "'s' has the value infinity"),
        (spec("v", "vector"), vectors([[1.0]], 1), vectors([[np.nan]], 1), "'v' has the value NaN"),
        (spec("v", "vector"), vectors([[1.0]], 1), vectors([[1.0, 2.0]], 2), "'v' has 2 elements, where 1 are"),
        (spec("x"), numbers([1.0]), texts(["1"]), "'x' must be a number or boolean"),
        (spec("x"), numbers([1.0]), moments([1]), "'x' must be a number or boolean"),
        (spec("d", "datetime"), moments([1, 2]), numbers([1.0]), "'d' must be a date or timestamp"),
        (spec("d", "datetime", encode="parts"), moments([1, 9 * 10**15]), numbers([1.0]), "'d' must be a date or time"),
        (spec("d", "datetime"), moments([1, 2]), moments([1], "time"), "'d' must be a date or timestamp"),
        (spec("s"), moments([1, 2], "span"), numbers([1.0]), "'s' must be an interval"),
        (spec("s"), moments([1, 2], "span"), moments([1]), "'s' must be an interval"),
        (spec("c", "category"), numbers([1.0, 2.0]), numbers([np.nan]), "'c' has the value NaN"),
        (spec("c", "category"), texts(["a"]), moments([1]), "'c' must be a category"),
        (spec("t", "text"), texts(["a"]), numbers([1]), "'t' must be a text"),
        (spec("v", "vector"), vectors([[1.0]], 1), numbers([1]), "'v' must be an array or vector"),
        (spec("p", "image"), raw.Blobs([b""]), numbers([1]), "'p' must be bytea"),
    ],
)
def test_what_cannot_be_encoded_is_one_clear_error(one, training, column, words):
    with pytest.raises(InvalidParameter) as caught:
        encode(one, training, column, decode_images=lambda files, side: np.zeros((len(files), side, side, 3), np.uint8))
    assert words in error_text(caught), error_text(caught)


@pytest.mark.parametrize(
    ("one", "trained", "other", "words"),
    [
        (spec("s", sql_type="interval"), "span", "time", "'s' must be an interval, as"),
        (spec("s", sql_type="interval day to second(3)"), "span", "time", "'s' must be an interval, as"),
        (spec("s", sql_type="time without time zone"), "time", "span", "'s' must be a time, as"),
        (spec("s", sql_type="time(3) with time zone"), "time", "span", "'s' must be a time, as"),
        (spec("s", "datetime", sql_type="time without time zone"), "time", "span", "'s' must be a time, as"),
        (spec("s", sql_type="hours_worked"), "span", "time", "'s' must be an interval, as"),  # a domain
        (spec("s", sql_type="opens_at"), "time", "span", "'s' must be a time, as"),
        (spec("s", "datetime", sql_type="opens_at"), "time", "span", "'s' must be a time, as"),
    ],
)
def test_a_time_is_no_interval_although_both_are_seconds(one, trained, other, words):
    seconds = [1_000_000, 3_000_000]
    assert len(encode(one, moments(seconds, trained), moments(seconds, trained))["numbers"]) == 2
    with pytest.raises(InvalidParameter) as caught:
        encode(one, moments(seconds, trained), moments(seconds, other))
    assert words in caught.value.message and caught.value.message.endswith(f"Received: {other}")


def test_a_target_of_intervals_takes_no_times():
    preprocessor = fitted(
        [(spec("x"), numbers([1, 2])), (target("y", "number", sql_type="interval"), moments([1, 2], "span"))]
    )
    with pytest.raises(InvalidParameter, match="'y' must be an interval"):
        Targets(preprocessor).encode({"y": moments([1, 2], "time")})


def test_a_column_that_is_missing_or_renamed_is_named():
    encoder = Encoder(
        fitted([(spec("age"), numbers([1.0])), (spec("c", "category"), texts(["a"])), (spec("z"), numbers([1.0])), Y])
    )
    row = {"age": numbers([1.0]), "c": texts(["a"]), "z": numbers([1.0])}
    for name in row:
        rest = {key: value for key, value in row.items() if key != name}
        with pytest.raises(UndefinedColumn, match=f"column '{name}' is missing"):
            encoder.encode(rest)
        with pytest.raises(UndefinedColumn) as caught:
            encoder.encode({**rest, name.upper(): row[name]})
        assert repr(name.upper()) in caught.value.hint
