"""Grids have all combinations, random search is repeatable, and the parser reads their output back."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.errors import InvalidParameter, MopError, UnreadableText
from madlib_mop.models.parameters import keras_names
from madlib_mop.models.parameters.literals import CallSpec, write_value
from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params
from madlib_mop.models.parameters.search_grid import draw_value, expand_grid, iterate_random, search_type
from tests.helpers.unit.searches import draw_random

GRID = """{'loss': ['categorical_crossentropy', 'mse'],
           'optimizer_params_list': [{'optimizer': ['Adam', 'sgd'], 'lr': [0.1, 0.01]},
                                     {'optimizer': ['SGD'], 'momentum': [0.9], 'nesterov': [True, False]}],
           'metrics': [['accuracy'], ['accuracy', 'mae']]}"""
FIT_GRID = "{'batch_size': [8, 32], 'epochs': [4]}"
RANGES = """{'loss': ['mse'],
             'optimizer_params_list': [{'optimizer': ['Adam', 'SGD'], 'lr': [0.0001, 0.1, 'log']}]}"""


def parsed(texts):
    return [(parse_compile_params(one), parse_fit_params(other)) for one, other in texts]


def test_grid_has_every_combination_once():
    found = parsed(expand_grid(GRID, FIT_GRID))
    expected = set()
    optimizers = [f"{n}(lr={r})" for n in ("Adam", "SGD") for r in (0.1, 0.01)]
    optimizers += [f"SGD(momentum=0.9,nesterov={n})" for n in (True, False)]
    for optimizer, loss, metrics, size in itertools.product(
        optimizers, ("categorical_crossentropy", "mse"), (["accuracy"], ["accuracy", "mae"]), (8, 32)
    ):
        params = parse_compile_params(f"optimizer='{optimizer}', loss='{loss}', metrics={metrics}")
        expected.add((params.key, size))
    assert len(found) == len(expected) == 48
    assert {(one.key, other.batch_size) for one, other in found} == expected
    assert {other.epochs for _, other in found} == {4}


def test_texts_are_written_as_users_write_them():
    first, *_ = expand_grid(
        "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['adam'], 'lr': [0.01]}]}", FIT_GRID
    )
    assert first == ("optimizer='Adam(lr=0.01)',loss='mse'", "batch_size=8,epochs=4")


def test_a_single_metric_and_a_list_of_metrics_are_both_choices():
    grid = "{'loss': ['mse'], 'optimizer': ['adam'], 'metrics': ['mae', ['mae', 'mape']]}"
    assert [one.metrics for one, _ in parsed(expand_grid(grid, ""))] == [["mae"], ["mae", "mape"]]


def test_an_optimizer_without_a_name_is_rmsprop_as_in_madlib():
    ((text, fit_text),) = expand_grid("{'loss': ['mse'], 'optimizer_params_list': [{'lr': [0.1]}]}", None)
    assert (text, fit_text) == ("optimizer='RMSprop(lr=0.1)',loss='mse'", "")


def test_json_grids_are_read():
    grid = '{"loss": ["mse"], "optimizer_params_list": [{"optimizer": ["SGD"], "nesterov": [true, false]}]}'
    assert [one.optimizer.kwargs["nesterov"] for one, _ in parsed(expand_grid(grid, '{"shuffle": [true]}'))] == [
        True,
        False,
    ]


_NUMBERS = st.floats(1e-6, 1, allow_nan=False)
_NAMES = st.sampled_from(["a", "it's", '"q"', "x,y)", "\\"])  # TensorFlow takes such names of metrics only
_METRICS = st.sampled_from(["accuracy", "mse", CallSpec("AUC", (), {"curve": "PR"})]) | st.builds(
    lambda name: CallSpec("AUC", (), {"name": name}), _NAMES
)
_OPTIMIZERS = st.fixed_dictionaries(
    {"lr": st.lists(_NUMBERS, min_size=1, max_size=2)},
    optional={
        "optimizer": st.lists(st.sampled_from(sorted(keras_names.OPTIMIZERS)), min_size=1, max_size=2),
        "use_ema": st.lists(st.booleans(), min_size=1, max_size=2),
        "clipnorm": st.lists(st.none() | _NUMBERS, min_size=1, max_size=2),
        "name": st.lists(st.sampled_from(["a", "b.c", "x>y", "0-_"]), min_size=1, max_size=2),
    },
)
_COMPILE_GRIDS = st.fixed_dictionaries(
    {
        "loss": st.lists(st.sampled_from(["mse", CallSpec("Huber", (), {"delta": 2.0})]), min_size=1, max_size=2),
        "optimizer_params_list": st.lists(_OPTIMIZERS, min_size=1, max_size=2),
    },
    optional={"metrics": st.lists(_METRICS | st.lists(_METRICS, max_size=2) | st.none(), min_size=1, max_size=2)},
)
_FIT_GRIDS = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.lists(st.integers(1, 512), min_size=1, max_size=3),
        "shuffle": st.lists(st.booleans(), min_size=1, max_size=2),
        "class_weight": st.lists(st.dictionaries(st.integers(0, 5), _NUMBERS, min_size=1), min_size=1, max_size=2),
    },
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(_COMPILE_GRIDS, _FIT_GRIDS, st.integers(0, 2**31))
def test_every_text_that_is_written_is_read_back(compile_grid, fit_grid, random_state):
    texts = write_value(compile_grid), write_value(fit_grid)
    grid = expand_grid(*texts)
    n = sum(math.prod(map(len, item.values())) for item in compile_grid["optimizer_params_list"])
    n *= math.prod(len(compile_grid[key]) for key in compile_grid if key != "optimizer_params_list")
    assert len(grid) == n * math.prod(map(len, fit_grid.values()))
    for compile_params, fit_params in parsed(grid):
        assert compile_params.learning_rate in {
            rate for item in compile_grid["optimizer_params_list"] for rate in item["lr"]
        }
        assert fit_params.batch_size in fit_grid.get("batch_size", [32])
    drawn = draw_random(*texts, 5, random_state)
    assert set(drawn) <= set(grid)
    assert drawn == draw_random(*texts, 5, random_state)


def test_random_state_makes_search_repeatable_and_none_does_not():
    assert draw_random(RANGES, FIT_GRID, 20, 3) == draw_random(RANGES, FIT_GRID, 20, 3)
    assert draw_random(RANGES, FIT_GRID, 20, 3) != draw_random(RANGES, FIT_GRID, 20, 4)
    assert draw_random(RANGES, FIT_GRID, 20, None) != draw_random(RANGES, FIT_GRID, 20, None)


def test_more_draws_begin_with_the_same_ones():
    assert draw_random(RANGES, FIT_GRID, 20, 3)[:7] == draw_random(RANGES, FIT_GRID, 7, 3)


def test_each_dimension_has_a_stream_of_its_own():
    rates = [one.learning_rate for one, _ in parsed(draw_random(RANGES, FIT_GRID, 10, 5))]
    more = RANGES.replace("'loss': ['mse']", "'loss': ['mse', 'mae'], 'metrics': ['mse', 'mae']")
    drawn = parsed(draw_random(more, "{'batch_size': [1, 2, 3]}", 10, 5))
    assert [one.learning_rate for one, _ in drawn] == rates
    assert {one.loss for one, _ in drawn} == {"mse", "mae"}


@pytest.mark.parametrize(
    "low,high,distribution,quantile",
    [
        (0.0, 10.0, "linear", lambda q: 10 * q),
        (1e-4, 1e-1, "log", lambda q: 10 ** (-4 + 3 * q)),
        (0.9, 0.999, "log_near_one", lambda q: 1 - 10 ** (-1 - 2 * q)),
    ],
)  # fmt: skip
def test_ranges_have_the_documented_distributions(low, high, distribution, quantile):
    grid = f"{{'loss': ['mse'], 'optimizer_params_list': [{{'lr': [{low}, {high}, '{distribution}']}}]}}"
    rates = np.array([one.learning_rate for one, _ in parsed(draw_random(grid, "", 2000, 1))])
    assert rates.min() >= low and rates.max() <= high
    for q in (0.25, 0.5, 0.75):
        assert np.mean(rates <= quantile(q)) == pytest.approx(q, abs=0.04)


def test_ranges_of_whole_numbers_give_whole_numbers():
    drawn = parsed(draw_random("{'loss': ['mse'], 'optimizer': ['adam']}", "{'batch_size': [4, 64, 'log']}", 200, 1))
    sizes = {other.batch_size for _, other in drawn}
    assert all(isinstance(size, int) and 4 <= size <= 64 for size in sizes)
    assert len(sizes) > 20


@pytest.mark.parametrize("text,kind", [("grid", "grid"), ("G", "grid"), ("Random", "random"), ("rand", "random")])
def test_search_type_is_any_prefix(text, kind):
    assert search_type(text) == kind


@pytest.mark.parametrize("text", ["", None, "gridd", "bayes"])
def test_other_search_types_are_refused(text):
    with pytest.raises(InvalidParameter, match="search_type"):
        search_type(text)


BAD_GRIDS = {
    "{foo='bar'}": (UnreadableText, "cannot be read"),
    "['loss']": (UnreadableText, "is not a dict"),
    "{'loss': open('x')}": (InvalidParameter, "must be a list"),
    "{'loss': [__import__('os').system('x')]}": (UnreadableText, "only literal values"),
    "{'loss': 'mse'}": (InvalidParameter, "must be a list of one or more. Received: 'mse'"),
    "{'loss': []}": (InvalidParameter, "must be a list"),
    "{'los': ['mse']}": (InvalidParameter, "'los'"),
    "{1: ['mse']}": (InvalidParameter, "Received: 1"),
    "{'optimizer_params_list': [{}]}": (InvalidParameter, "Received: {}"),
    "{'optimizer_params_list': ['adam']}": (InvalidParameter, "Received: 'adam'"),
    "{'optimizer_params_list': [{'lr': 0.1}]}": (InvalidParameter, "Received: 0.1"),
    "{'loss': ['mse'], 'optimizer_params_list': [{'loss': ['mse']}]}": (InvalidParameter, "inside and outside"),
    "{'optimizer': ['adam'], 'optimizer_params_list': [{'lr': [0.1]}]}": (InvalidParameter, "are mutually exclusive"),
    "{'optimizer_params_list': [{'optimizer': ['adm']}]}": (InvalidParameter, "'adm'"),
    "{'optimizer_params_list': [{'optimizer': [3]}]}": (InvalidParameter, "Received: 3"),
    "": (InvalidParameter, "is missing"),
    None: (InvalidParameter, "is missing"),
}


@pytest.mark.parametrize("text", BAD_GRIDS, ids=str)
def test_bad_grids_are_errors_of_grid_and_of_random_search(text):
    error, message = BAD_GRIDS[text]
    for search in (lambda: expand_grid(text, FIT_GRID), lambda: draw_random(text, FIT_GRID, 1, 1)):
        with pytest.raises(error) as caught:
            search()
        assert message in caught.value.message


BAD_RANGES = {
    "[0.1, 0.01, 'log']": "[low, high, distribution]",
    "[0.1, 'log']": "[low, high, distribution]",
    "['log']": "[low, high, distribution]",
    "[0.1, 0.2, 'normal']": "'normal'",
    "[0, 0.1, 'log']": "above 0",
    "[0.9, 1, 'log_near_one']": "below 1",
}


@pytest.mark.parametrize("values", BAD_RANGES)
def test_bad_ranges_are_errors_before_anything_is_drawn(values):
    grid = f"{{'loss': ['mse'], 'optimizer_params_list': [{{'lr': {values}}}]}}"
    with pytest.raises(MopError) as caught:
        iterate_random(grid, FIT_GRID, 1)
    assert BAD_RANGES[values] in caught.value.message


def test_a_grid_has_no_ranges():
    with pytest.raises(InvalidParameter, match="used in random search"):
        expand_grid(RANGES, FIT_GRID)
    with pytest.raises(InvalidParameter, match="used in random search"):
        expand_grid(GRID, "{'batch_size': [8, 32, 'linear']}")


def test_a_grid_too_large_is_refused_without_being_built():
    grid = "{'batch_size': " + str(list(range(1, 500))) + ", 'epochs': " + str(list(range(1, 500))) + "}"
    with pytest.raises(InvalidParameter, match="249,001"):
        expand_grid("{'loss': ['mse'], 'optimizer': ['adam']}", grid)


@pytest.mark.parametrize("random_state", [-1, "a"])
def test_bad_numbers_are_refused(random_state):
    with pytest.raises(InvalidParameter):
        draw_random(RANGES, FIT_GRID, 5, random_state)


def test_whole_numbers_of_a_linear_range_are_drawn_equally_often():
    """Rounded numbers of the range would give the ends half as often."""
    rng, n_draws = np.random.default_rng(3), 8000
    drawn = [draw_value(rng, "batch_size", [1, 4, "linear"]) for _ in range(n_draws)]
    counts = [drawn.count(value) for value in (1, 2, 3, 4)]
    assert sum(counts) == n_draws and all(type(value) is int for value in drawn)
    assert all(abs(count - n_draws / 4) < 5 * (n_draws * 3 / 16) ** 0.5 for count in counts), counts
