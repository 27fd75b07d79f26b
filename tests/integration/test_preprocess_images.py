"""Columns of encoded images: decoded to uint8, resized on request; an error names the row of an invalid image."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.helpers.packing import Caller

pytestmark = pytest.mark.one_session

PIXELS = np.random.default_rng(5).integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)


def encoded(pixels, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def caller(db):
    connection = db.connect()
    caller = Caller(connection)
    caller.segments(2)
    caller.table("photos", "x bytea, y text", [(encoded(one), "ab"[i % 2]) for i, one in enumerate(PIXELS)])
    yield caller
    connection.close()


def test_images_become_uint8_and_the_constant_is_left_to_the_trainer(caller):
    caller.train("photos", "photos_packed", normalizing_const=255, buffer_size=2)
    caller.validate("photos", "photos_valid", "photos_packed", buffer_size=3)
    x = caller.tensor("photos_valid", "x")
    assert x.dtype == np.uint8
    assert np.array_equal(x, PIXELS)
    assert caller.summary("photos_packed")["normalizing_const"] == 255
    shuffled = caller.tensor("photos_packed", "x")
    assert sorted(one.tobytes() for one in shuffled) == sorted(one.tobytes() for one in PIXELS)


@pytest.mark.one_case
@pytest.mark.parametrize(("wanted", "shape"), [([3, 2], (3, 2, 3)), ([12, 10, 1], (12, 10, 1)), ([6, 5, 4], (6, 5, 4))])
def test_images_are_resized_when_asked(caller, wanted, shape):
    name = f"resized_{wanted[0]}"
    caller.train("photos", name, image_shape=wanted)
    assert caller.tensor(name, "x").shape == (7, *shape)
    caller.validate("photos", f"{name}_valid", name, image_shape=wanted)
    assert caller.tensor(f"{name}_valid", "x").shape == (7, *shape)


def test_validation_images_of_another_size_are_refused_with_the_way_out(caller):
    caller.train("photos", "small", image_shape=[3, 2])
    refusal = caller.refused(caller.validate, "photos", "never", "small")
    assert refusal.message == (
        "validation_preprocessor_dl: column 'x' has rows of the shape [6, 5, 3], but column 'x' of public.small has"
        " [3, 2, 3]"
    )
    assert refusal.hint == "image_shape resizes encoded images."


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"no image", "is not a JPEG or PNG image"),
        (encoded(PIXELS[0])[:60], "is an image that cannot be decoded: "),
        (encoded(PIXELS[0][:3]), "is an image of the shape [3, 5, 3], but [6, 5, 3] is expected"),
    ],
)
def test_a_row_that_is_no_such_image_is_named(caller, bad, problem):
    caller.rows("DROP TABLE IF EXISTS spoilt")
    caller.table("spoilt", "x bytea, y text", [(encoded(PIXELS[0]), "a"), (encoded(PIXELS[1]), "b"), (bad, "b")])
    caller.train("photos", f"like_{len(bad)}")
    refusal = caller.refused(caller.validate, "spoilt", "never", f"like_{len(bad)}")
    assert refusal.sqlstate == "22023"
    assert refusal.message.startswith(f"validation_preprocessor_dl: column 'x' {problem}")
    assert refusal.message.endswith("(row with ctid (0,3))")


@pytest.mark.parametrize("shape", [[0, 3], [3], [3, 3, 2], [3, 3, 3, 3], [9000, 1], [None, 3]])
def test_a_bad_image_shape_is_refused(caller, shape):
    refusal = caller.refused(caller.train, "photos", "never", image_shape=shape)
    assert refusal.sqlstate == "22023"
    assert refusal.message == (
        "training_preprocessor_dl: image_shape must be {height,width} or {height,width,channels}."
        f" Received: {shape}"
    )
