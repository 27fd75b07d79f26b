"""A space draws the same as generate_model_configs, and its examples have every value of a configuration."""

import itertools

import pytest

from madlib_mop.errors import InvalidParameter, UnreadableText
from madlib_mop.models.parameters.search_grid import stream
from madlib_mop.search import SearchSpace
from tests.helpers.unit.searches import COMPILE_GRID, FIT_GRID, draw_random, space


def test_points_are_those_of_random_search():
    """With equal grids and random_state, the texts and their order are equal; the architecture has its own stream."""
    points = list(itertools.islice(space().draw(7), 20))
    assert [point.texts for point in points] == draw_random(COMPILE_GRID, FIT_GRID, 20, 7)
    ids = stream(7, "model_id")
    assert [point.model_id for point in points] == [1 + int(ids.integers(2)) for _ in range(20)]


def test_a_small_space_is_exhausted_before_a_point_comes_twice():
    """Eight configurations in some order, then repetitions, so that any number can be requested."""
    small = space("{'loss': ['mse', 'mae'], 'optimizer': ['sgd', 'adam']}", "{'batch_size': [1, 2]}", [5])
    points = list(itertools.islice(small.draw(1), 20))
    assert len({(point.model_id, point.texts) for point in points[:8]}) == 8
    assert len({(point.model_id, point.texts) for point in points}) == 8


def test_examples_show_every_value_and_no_more():
    """One configuration for the first values, one for each other value, and the ends of ranges."""
    grid = """{'loss': ['mse', 'mae'], 'optimizer_params_list': [
        {'optimizer': ['Adam', 'SGD'], 'lr': [0.1, 0.5, 'log']}, {'optimizer': ['Adam'], 'beta_1': [0.5]}]}"""
    assert list(space(grid, "{'batch_size': [1, 2]}").examples()) == [
        ("optimizer='Adam(lr=0.1)',loss='mse'", "batch_size=1"),
        ("optimizer='Adam(lr=0.1)',loss='mae'", "batch_size=1"),
        ("optimizer='Adam(lr=0.1)',loss='mse'", "batch_size=2"),
        ("optimizer='SGD(lr=0.1)',loss='mse'", "batch_size=1"),
        ("optimizer='Adam(lr=0.5)',loss='mse'", "batch_size=1"),
        ("optimizer='Adam(beta_1=0.5)',loss='mse'", "batch_size=1"),
    ]
    assert list(space("{'loss': ['mse'], 'optimizer': ['sgd']}", None).examples()) == [
        ("loss='mse',optimizer='sgd'", "")
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], COMPILE_GRID, FIT_GRID), InvalidParameter, r"model_id_list .* Received: \[\]"),
        ((None, COMPILE_GRID, FIT_GRID), InvalidParameter, "model_id_list"),
        (([1, None], COMPILE_GRID, FIT_GRID), InvalidParameter, "model_id_list"),
        (([1], None, FIT_GRID), InvalidParameter, "compile_params_grid is missing"),
        (([1], "{'loss': ['mse']", FIT_GRID), UnreadableText, "compile_params_grid cannot be read"),
        (([1], "{'loss': ['mse'], 'optimizer_params_list': [{'lr': [1, 0.1, 'log']}]}", None), InvalidParameter, "lr"),
        (([1], COMPILE_GRID, "{'batch_size': [0.5, 8, 'log']}"), InvalidParameter, "whole numbers"),
    ],
)
def test_a_bad_space_is_an_error_when_it_is_read(arguments, error, message):
    """Before anything is drawn."""
    with pytest.raises(error, match=message):
        SearchSpace.read(*arguments)
