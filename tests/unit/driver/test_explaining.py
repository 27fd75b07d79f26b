"""What the driver does with rows and numbers that it cannot trust: packed tables by hand, and numbers that are none."""

from types import SimpleNamespace

import numpy as np
import pytest

from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.driver.commands import explaining
from madlib_mop.driver.commands.explaining import _columns, _Losses, _most_rows, _Network, _row_bytes, as_json
from madlib_mop.errors import InvalidParameter
from madlib_mop.explaining.dependence import ColumnValue
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
    rows = SimpleNamespace(
        columns=names, independent=names[:-1], index_inputs=preprocessor.index_inputs, relation="shop.packed",
        parts=[0], buffers=lambda part: [(shapes, blobs)],
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
    assert as_json(np.float64(number)) == expected


def test_fewer_rows_are_drawn_if_they_are_wide(packed):
    preprocessor, arrays = packed
    row_bytes = sum(values[:1].nbytes for values in arrays[:-1])
    assert _most_rows(preprocessor, 100) == 100
    assert _most_rows(preprocessor, 100, 7 * row_bytes) == 7 and _most_rows(preprocessor, 100, 1) == 2


def test_fewer_rows_are_drawn_if_their_outputs_are_wide(packed):
    """What is kept of a row beside its inputs counts: by its units, of the table's model or of its architecture."""
    preprocessor, arrays = packed
    row_bytes = sum(values[:1].nbytes for values in arrays[:-1])
    narrow, wide = (model_of(units) for units in ([2], [10_000]))
    assert _row_bytes(narrow, preprocessor) >= 2 * 20 and _row_bytes(wide, preprocessor) >= 10_000 * 20
    assert _row_bytes(model_of([None]), preprocessor) == _row_bytes(narrow, preprocessor)
    more = _row_bytes(wide, preprocessor)
    assert _most_rows(preprocessor, 100, 7 * (row_bytes + more), more_bytes=more) == 7


def model_of(units):
    return SimpleNamespace(
        shape=SimpleNamespace(output_units=units), normalizing_const=1.0, request=lambda compiled: {}
    )  # fmt: skip


def asked(preprocessor, n_units, n_values):
    """Ask a network for the outputs of 20 rows; return the numbers of rows by request, and the outputs or the error."""
    sent = []

    def ask(request, blobs):
        if request["op"] == "predict_load":
            return {}, []
        n_rows = request["shapes"][0][0]
        sent.append(n_rows)
        return {"shapes": [[n_rows, n_values]]}, [np.zeros((n_rows, n_values), np.float32)]

    network = _Network(SimpleNamespace(ask=ask), model_of([n_units]), b"", preprocessor)
    try:
        return sent, network.outputs([np.zeros((20, 1), np.float32)])
    except InvalidParameter as error:
        return sent, error


def test_the_rows_of_a_request_are_fewer_if_their_outputs_are_wide(packed):
    sent, (output,) = asked(packed[0], 1 << 20, 2)
    assert sent == [7, 7, 6] and output.shape == (20, 2)  # 32 MiB hold less than 8 rows of 4 MiB and their inputs


def test_outputs_of_another_shape_are_an_error_after_the_first_request(packed):
    sent, error = asked(packed[0], 1 << 20, 5)
    assert sent == [7] and isinstance(error, InvalidParameter) and "2 classes" in error.message


class Drawn(Exception):
    """Raised in place of a draw, with its arguments."""


@pytest.mark.parametrize("command", [explaining.importance, explaining.partial_dependence])
def test_the_commands_draw_fewer_rows_for_wide_outputs(command, packed, monkeypatch):
    def draw(*args):
        raise Drawn(*args)

    labelled = SimpleNamespace(rows_of=lambda models: [SimpleNamespace()])
    monkeypatch.setattr(explaining, "find_labelled", lambda *args: labelled)
    monkeypatch.setattr(explaining, "DrawnRows", draw)
    arguments = {
        "metric": None, "source_table": "t", "max_rows": 1_000_000, "seed": 1, "feature": "note", "of_class": None,
        "n_repeats": 1, "n_values": 2,
    }  # fmt: skip
    found = []
    for n_units in (2, 10_000):
        monkeypatch.setattr(explaining, "model_of_rows", lambda call, n=n_units: (model_of([n]), packed[0]))
        with pytest.raises(Drawn) as caught:
            command(SimpleNamespace(arguments=arguments, session=None))
        found.append(caught.value.args)
    assert 2000 < found[1][0] <= (512 << 20) // (10_000 * 20) < 100_000 < found[0][0]
    if command is explaining.partial_dependence:
        _, _, label_bytes, most_bytes = found[0]
        texts = [None, "x" * 1000]
        assert [label_bytes((ColumnValue(0.0, text),)) >= 1000 for text in texts] == [False, True]
        assert most_bytes == 256 << 20
