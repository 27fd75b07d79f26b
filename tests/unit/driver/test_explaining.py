"""What the driver does with rows and numbers that it cannot trust: packed tables by hand, and numbers that are none."""

from types import SimpleNamespace

import numpy as np
import pytest

from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.driver.commands.explaining import _as_json, _columns, _Losses, _most_rows
from madlib_mop.errors import InvalidParameter
from tests.helpers.unit.explained import encoded, some_rows

N_ROWS = 12


@pytest.fixture(scope="module")
def packed():
    """Return a preprocessor, and the arrays of a buffer: inputs and the target."""
    raw = some_rows(N_ROWS)
    preprocessor, _, inputs = encoded(raw)
    return preprocessor, [*inputs, *Targets(preprocessor).encode(raw).values()]


def read(preprocessor, arrays, **changes):
    """Read one buffer; ``changes``: other shapes or bytes by the number of the column, as ``shape0`` and ``bytes0``."""
    names = [*(tensor.name for tensor in preprocessor.tensors), "y"]
    shapes = [changes.get(f"shape{i}", list(values.shape)) for i, values in enumerate(arrays)]
    blobs = [changes.get(f"bytes{i}", values.tobytes()) for i, values in enumerate(arrays)]
    index = tuple(i for i, tensor in enumerate(preprocessor.tensors) if tensor.kind == "index")
    rows = SimpleNamespace(
        columns=names, independent=names[:-1], index_inputs=index, relation="shop.packed", parts=[0],
        buffers=lambda part: [(shapes, blobs)],
    )  # fmt: skip
    return list(_columns(rows, preprocessor, "background"))


def test_a_buffer_is_read_as_it_was_packed(packed):
    (found,) = read(*packed)
    assert all(np.array_equal(a, b) for a, b in zip(found, packed[1], strict=True))
    empty = [[0, *values.shape[1:]] for values in packed[1]]
    assert read(*packed, **{f"shape{i}": shape for i, shape in enumerate(empty)}) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape0": None}, "not a packed array"),
        ({"shape0": [N_ROWS, 3]}, "not a packed array"),
        ({"shape0": [N_ROWS + 1, 1], "bytes0": bytes(4 * (N_ROWS + 1))}, "has 12 rows in a buffer of 13"),
        ({"shape0": [N_ROWS, 1], "bytes0": bytes(4 * N_ROWS)}, "has rows of float32 [1], and the model takes float32"),
        ({"shape0": [N_ROWS, 1], "bytes0": bytes(N_ROWS)}, "has rows of uint8 [1]"),
    ],
)
def test_a_buffer_of_another_form_is_one_clear_error(packed, changes, words):
    with pytest.raises(InvalidParameter) as caught:
        read(*packed, **changes)
    assert words in caught.value.message, caught.value.message


def test_a_class_that_the_model_does_not_have_is_one_clear_error():
    raw = some_rows(N_ROWS)
    preprocessor, _, _ = encoded(raw)
    (column,) = preprocessor.targets
    assert column.fit.encode == "one_hot"
    by_index = SimpleNamespace(name="y", fit=type(column.fit)(column.fit.classes, "index"))
    known = SimpleNamespace(targets=(by_index,))
    for code in (-1, 2):
        with pytest.raises(InvalidParameter, match="'y' has a class that the model does not have"):
            _Losses(known, [np.array([[0], [code]], np.int16)], {})


@pytest.mark.parametrize(("number", "expected"), [(1.5, 1.5), (np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_json_has_no_numbers_that_are_not_finite(number, expected):
    assert _as_json(np.float64(number)) == expected


def test_fewer_rows_are_drawn_if_they_are_wide(packed):
    preprocessor, arrays = packed
    row_bytes = sum(values[:1].nbytes for values in arrays[:-1])
    assert _most_rows(preprocessor, 100) == 100
    assert _most_rows(preprocessor, 100, 7 * row_bytes) == 7 and _most_rows(preprocessor, 100, 1) == 2
