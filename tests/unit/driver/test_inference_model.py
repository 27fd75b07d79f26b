"""How evaluate and predict read a model's tables, with shapes and classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.driver.data.copied import array_literal, quoted
from madlib_mop.driver.inference.fits import shapes_fit
from madlib_mop.driver.inference.model import losses_of
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.configuration import Configuration


def output(vartype="text", values=None, loss="categorical_crossentropy"):
    return DependentOutput("y", vartype, values, None, loss)


@pytest.mark.parametrize(
    ("given_output", "n_units", "labels"),
    [
        (output(values=("a", "b")), 2, ["a", "b"]),
        (output(values=(None, "a")), 2, [None, "a"]),
        (output(values=("a", None)), 4, ["a", None, None, None]),
        (output("smallint[]"), 3, ["0", "1", "2"]),
        (output("text"), 3, ["0", "1", "2"]),
        (output("integer", loss="mse"), 1, [None]),
        (output("real[]", loss="MeanSquaredError"), 2, ["0", "1"]),
    ],
)
def test_each_unit_has_its_label(given_output, n_units, labels):
    assert given_output.labels(n_units) == labels


def test_more_classes_than_units_are_refused():
    with pytest.raises(InvalidParameter, match="has 2 outputs for 'y', which has 3 classes"):
        output(values=("a", "b", "c")).labels(2)


@pytest.mark.parametrize(
    ("given_output", "n_units", "expected"),
    [
        (output("integer"), 1, True),
        (output("integer"), 3, False),
        (output("integer", values=("1",)), 1, False),
        (output("smallint[]", loss="mse"), 3, False),
        (output("real[]", loss="mean_squared_error"), 3, True),
        (output("double precision[]", loss="Huber"), 1, True),
        (output("real[]"), 3, False),
        (output("real[]", loss=None), 3, False),
    ],
)
def test_a_number_is_told_from_a_class(given_output, n_units, expected):
    assert given_output.is_number(n_units) == expected


@pytest.mark.parametrize(
    ("wanted", "row", "fits"),
    [
        ((3,), (3,), True),
        ((3,), (4,), False),
        ((8, 8, 1), (8, 8), True),
        ((8, 8), (8, 8, 1), True),
        ((8, 8, 3), (8, 8), False),
        ((None, 3), (17, 3), True),
        ((None,), (17, 3), False),
        ((1,), (), True),
    ],
)
def test_shapes_fit_as_keras_has_it(wanted, row, fits):
    assert shapes_fit(wanted, row) == fits


FUNCTIONAL = {
    "class_name": "Functional",
    "config": {
        "layers": [{"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, 2]}}],
        "input_layers": [["x", 0, 0]],
        "output_layers": [["b", 0, 0], ["a", 0, 0]],
    },
}


@pytest.mark.parametrize(
    ("text", "losses"),
    [
        ("optimizer='sgd', loss='mse'", ["mean_squared_error", "mean_squared_error"]),
        ("optimizer='sgd', loss=['mse', 'hinge']", ["mean_squared_error", "hinge"]),
        ("optimizer='sgd', loss={'a': 'mae', 'b': 'mse'}", ["mean_squared_error", "mean_absolute_error"]),
        ("optimizer='sgd', loss='my_own'", ["my_own", "my_own"]),
        (None, [None, None]),
    ],
)
def test_each_output_has_its_loss(text, losses):
    short = {"mse": "mean_squared_error", "mae": "mean_absolute_error"}
    assert [short.get(loss, loss) for loss in losses_of(Configuration.recorded(0, text, None, FUNCTIONAL), 2)] == losses


def unquoted(literal):
    """Read a one-dimensional array literal as the server does."""
    items, inside = [], literal[1:-1]
    while inside:
        if inside.startswith('"'):
            text, inside = "", inside[1:]
            while not inside.startswith('"'):
                skip = inside.startswith("\\")
                text, inside = text + inside[skip], inside[skip + 1 :]
            items.append(text)
            inside = inside[2:]
        else:
            word, _, inside = inside.partition(",")
            assert word == "NULL"
            items.append(None)
    return items


@given(st.lists(st.none() | st.text()))
def test_texts_survive_an_array_literal(values):
    assert unquoted(array_literal(quoted(values).tolist())) == values


def test_quoted_elements_are_taken_by_index():
    assert quoted(["a", None])[np.array([1, 0, 0])].tolist() == ["NULL", '"a"', '"a"']
