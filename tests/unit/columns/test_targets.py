"""Targets: classes and numbers to tensors, and outputs back; one clear error for each bad row."""

import numpy as np
import pytest

from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.errors import InvalidParameter, UndefinedColumn
from tests.helpers.unit.columns import error_text, fitted, moments, numbers, spec, target, texts


def targets(*pairs):
    return Targets(fitted([(spec("x"), numbers(range(pairs[0][1].n_rows))), *pairs]))


COLORS = texts(["red", "green", "blue", "green"])


def test_classes_are_one_hot_or_the_number_of_the_class():
    one_hot = targets((target("y"), COLORS))
    rows = one_hot.encode({"y": COLORS})["y"]
    assert rows.dtype == np.int16 and rows.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert one_hot.shape("y") == (3,)
    index = targets((target("y", encode="index"), COLORS))
    rows = index.encode({"y": COLORS})["y"]
    assert rows.dtype == np.int16 and rows.tolist() == [[2], [1], [0], [1]] and index.shape("y") == (1,)


def test_numbers_and_booleans_are_classes_too():
    ten = targets((target("y"), numbers([10, 9, 10])))
    assert ten.encode({"y": numbers([9, 10])})["y"].tolist() == [[1, 0], [0, 1]]
    flags = numbers([1, 0, 1], "boolean")
    assert targets((target("y", "boolean"), flags)).encode({"y": flags})["y"].tolist() == [[0, 1], [1, 0], [0, 1]]


def test_probabilities_become_the_most_probable_class_the_first_of_equals():
    found = targets((target("y"), COLORS)).decode({"y": np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]], np.float32)})["y"]
    assert [found.classes[code] for code in found.codes] == ["green", "blue"]
    assert found.probabilities.shape == (2, 3) and found.numbers is None


def test_one_unit_of_two_classes_is_the_probability_of_the_second():
    found = targets((target("y", "boolean", encode="index"), numbers([0, 1], "boolean"))).decode(
        {"y": np.array([[0.25], [0.75]])}
    )["y"]
    assert [found.classes[code] for code in found.codes] == ["false", "true"]
    assert found.probabilities.tolist() == [[0.75, 0.25], [0.25, 0.75]]


@pytest.mark.parametrize("scale", ["standard", "min_max", "log1p", "none"])
def test_numbers_are_brought_back(scale):
    values = [-5.0, 0.0, 12.5, 1000.0]
    both = targets((target("y", "number", scale=scale), numbers(values)))
    units = both.encode({"y": numbers(values)})["y"]
    assert units.dtype == np.float32 and units.shape == (4, 1)
    assert both.decode({"y": units})["y"].numbers == pytest.approx(values, rel=1e-5, abs=1e-4)


def test_a_standardised_target_has_mean_0_and_deviation_1():
    units = targets((target("y", "number"), numbers([1, 2, 3, 4]))).encode({"y": numbers([1, 2, 3, 4])})["y"]
    assert units.mean() == pytest.approx(0, abs=1e-7) and units.std() == pytest.approx(1)


def test_intervals_are_predicted_in_seconds():
    spans = moments([1_000_000, 3_000_000], "span")
    both = targets((target("y", "number"), spans))
    assert both.decode({"y": both.encode({"y": spans})["y"]})["y"].numbers.tolist() == [1.0, 3.0]


def test_several_targets_are_several_tensors():
    several = targets((target("y"), COLORS), (target("z", "number"), numbers([1, 2, 3, 4])))
    rows = several.encode({"y": COLORS, "z": numbers([1, 2, 3, 4])})
    assert several.names == ("y", "z") and [rows[name].shape for name in ("y", "z")] == [(4, 3), (4, 1)]


NUMBER = (target("y", "number"), numbers([1, 2, 3, 4]))


@pytest.mark.parametrize(
    ("pair", "column", "words"),
    [
        ((target("y"), COLORS), texts(["red", "pink"]), ["'y' has class 'pink', which no training row has", "levels"]),
        ((target("y"), numbers([1, 2])), numbers([3]), ["'y' has class '3'"]),
        ((target("y"), COLORS), texts(["red", None, None]),
         ["'y' is a target, and it is NULL in row 2 of its batch", "WHERE y IS NOT NULL"]),
        (NUMBER, numbers([1, None]), ["'y' is a target, and it is NULL in row 2 of its batch"]),
        (NUMBER, numbers([np.inf]), ["'y' has the value Infinity"]),
        (NUMBER, texts(["1"]), ["'y' must be a number"]),
        ((target("y"), COLORS), moments([1]), ["'y' must be a category"]),
    ],
)
def test_a_bad_target_is_one_clear_error(pair, column, words):
    with pytest.raises(InvalidParameter) as caught:
        targets(pair).encode({"y": column})
    assert all(word in error_text(caught) for word in words), error_text(caught)


def test_a_target_that_is_missing_and_an_output_of_another_shape_are_errors():
    with pytest.raises(UndefinedColumn, match="target 'y' is missing"):
        targets(NUMBER).encode({"x": numbers([1])})
    with pytest.raises(InvalidParameter, match=r"one number a row. Received: shape \(2, 3\)"):
        targets(NUMBER).decode({"y": np.zeros((2, 3))})
    with pytest.raises(InvalidParameter, match=r"3 classes a row. Received: shape \(2, 2\)"):
        targets((target("y"), COLORS)).decode({"y": np.zeros((2, 2))})
