"""Past experience in every method: earlier configurations come first, and teach the model of the sampled searches."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.models.parameters.parser import parse_compile_params
from madlib_mop.search import WORST, Add, PastTrial, make_search
from madlib_mop.search.past import best_points, count_first, spread
from tests.helpers.unit.searches import METHODS, SYNCHRONOUS, Laboratory, earlier, space

SEEDS = st.integers(0, 2**31 - 1)
LIGHT = settings(max_examples=15, deadline=None)
GRID = """{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [1e-6, 1.0, 'log']},
    {'optimizer': ['SGD'], 'lr': [1e-6, 1.0, 'log'], 'momentum': [0.5, 0.999, 'log_near_one']}]}"""


def search_with(method: str, past, random_state: int = 1, params: str | None = None, grid=None):
    searched = space(grid) if grid else space()
    return make_search(method, METHODS[method] if params is None else params, searched, random_state, past)


def proposed(lab: Laboratory) -> list[tuple]:
    """Return the configurations in the order of their proposals."""
    proposals = [action.proposal for action in lab.actions if isinstance(action, Add)]
    return [(p.model_id, p.compile_params, p.fit_params) for p in proposals]


@LIGHT
@given(st.sampled_from(sorted(METHODS)), st.integers(1, 6), SEEDS)
def test_the_best_earlier_configurations_are_tried_first_and_once(method, n_slots, seed):
    """A quarter of all configurations of the search, and none that had no finite loss."""
    past = earlier()
    search = search_with(method, past, seed)
    lab = Laboratory(search).run(n_slots, random.Random(seed), fail=0.1, nan=0.1)
    best = [trial.point.key for trial in (past[-1], *past[-3::-1])]
    n_first = max(1, search.n_configurations // 4)
    keys = proposed(lab)
    assert search.n_configurations == len(keys)
    assert keys[:n_first] == best[:n_first] and len(search.tried_first) == n_first
    if not search.has_model:
        assert not set(best[:n_first]) & set(keys[n_first:])


@pytest.mark.slow
@LIGHT
@given(st.sampled_from(sorted(METHODS)), st.integers(1, 6), SEEDS)
def test_the_same_calls_give_the_same_actions(method, n_slots, seed):
    """A resume makes the search again with the recorded configurations."""
    lab = Laboratory(search_with(method, earlier(), seed)).run(n_slots, random.Random(seed), fail=0.1, nan=0.1)
    again = search_with(method, earlier(), seed)
    assert [getattr(again, name)(*arguments) for name, arguments in lab.calls] == lab.said


@pytest.mark.slow
@LIGHT
@given(st.sampled_from(SYNCHRONOUS), st.integers(1, 6), SEEDS, st.randoms(use_true_random=False))
def test_the_order_within_a_round_does_not_matter(method, n_slots, seed, rng):
    one = Laboratory(search_with(method, earlier(), seed)).run(n_slots, random.Random(1))
    other = Laboratory(search_with(method, earlier(), seed)).run(n_slots, rng)
    assert one.of_model() == other.of_model()


@pytest.mark.parametrize("method", METHODS)
def test_less_than_a_quarter_is_filled_with_draws(method):
    (trial,) = earlier()[-1:]
    search = search_with(method, [trial, trial])
    keys = proposed(Laboratory(search).run(2, random.Random(1)))
    assert len(search.tried_first) == 1 and keys[0] == trial.point.key and len(keys) == search.n_configurations


@pytest.mark.parametrize("n_past, n_configs, n_taken", [(100, 16, 64), (40, 16, 40), (100, 80, 80)])
def test_the_model_of_a_short_search_takes_more_earlier_trials_than_it_has_own(n_past, n_configs, n_taken):
    """Evenly from the best to the worst."""
    past = earlier(n_past)
    search = search_with("tpe", past, params=f"num_configs={n_configs}")
    search.start(1)
    values = [trial.value for trial in search._study._past]
    assert len(values) == n_taken and values == sorted(values)
    assert (values[0], values[-1]) == (pytest.approx(0.1 + 0.9 * 0.5 / n_past), WORST)


@pytest.mark.parametrize("method", METHODS)
def test_without_past_experience_nothing_changes(method):
    assert search_with(method, ()).start(4) == make_search(method, METHODS[method], space(), 1).start(4)


def distance(text: str, rate: float = 0.01) -> float:
    """Return the distance of a configuration from an optimum: SGD with this learning rate and a momentum of 0.9."""
    arguments = parse_compile_params(text).optimizer.kwargs
    if "momentum" not in arguments:
        return 9.0
    return (math.log10(arguments["learning_rate"]) - math.log10(rate)) ** 2 + 100 * (arguments["momentum"] - 0.9) ** 2


def learned(rate: float, n: int = 16) -> list[PastTrial]:
    """Return earlier trials of a table with this optimum."""
    points = itertools.islice(space(GRID).draw(7), n)
    ranked = sorted(points, key=lambda point: distance(point.texts[0], rate))
    return [PastTrial(point, (k + 0.5) / n) for k, point in enumerate(ranked)]


def losses(past, random_state: int, n_configs: int, method: str = "tpe") -> list[float]:
    """Return the distances of all configurations of a search, in the order of their proposals."""
    search = search_with(method, past, random_state, f"num_configs={n_configs}", GRID)
    lab = Laboratory(search, lambda text, key, epoch: distance(text)).run(2, random.Random(random_state))
    return [lab.losses[key] for key in sorted(lab.losses)]


@pytest.mark.one_case
@pytest.mark.parametrize("method", ["tpe", "hyperopt"])
def test_the_model_learns_from_earlier_trials(method):
    """Also without those that are tried again, the proposals are better than those of a search that knows nothing."""
    states = range(8)
    taught = [losses(learned(0.01), state, 16, method)[4:] for state in states]
    untaught = [losses((), state, 16, method)[4:] for state in states]
    assert statistics.median(map(statistics.median, taught)) < statistics.median(map(statistics.median, untaught)) / 2


@pytest.mark.parametrize(
    ("n_past", "n_configurations", "n_first"),
    [(0, 16, 4), (16, 16, 4), (64, 16, 6), (200, 16, 8), (200, 100, 25), (3, 3, 1), (50, 1, 1), (50, 2, 1)],
)
def test_many_earlier_trials_let_more_be_tried_first(n_past, n_configurations, n_first):
    assert count_first(n_past, n_configurations) == n_first


@pytest.mark.slow
@pytest.mark.parametrize("n_past", [16, 200])
def test_own_results_outweigh_earlier_ones_of_a_table_that_is_different(n_past):
    """Earlier trials with another optimum cost some configurations, but do not keep the search from its own optimum."""
    misled = [min(losses(learned(1e-5, n_past), state, 60)) for state in range(6)]
    untaught = [min(losses((), state, 60)) for state in range(6)]
    assert statistics.median(misled) < 0.05 and statistics.median(untaught) < 0.05


def test_optuna_says_nothing(capfd):
    lab = Laboratory(search_with("tpe", earlier(grid=GRID), grid=GRID)).run(2, random.Random(1), fail=0.2, nan=0.2)
    assert lab.search.done
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_the_best_of_several_runs_are_distinct():
    """Of equal places, those of the run that is named first come first."""
    one, other, third = (trial.point for trial in earlier(3))
    past = [PastTrial(one, 0.5), PastTrial(other, 0.1), PastTrial(other, 0.2), PastTrial(third, 0.5)]
    assert best_points(past, 3) == (other, one, third)
    assert best_points(past, 1) == (other,) and best_points([PastTrial(one, WORST)], 2) == ()


@pytest.mark.parametrize(
    ("n_items", "n", "expected"),
    [(3, 5, [0, 1, 2]), (3, 3, [0, 1, 2]), (10, 4, [0, 3, 6, 9]), (10, 2, [0, 9]), (10, 1, [0]), (0, 3, [])],
)
def test_a_spread_keeps_the_ends(n_items, n, expected):
    assert spread(list(range(n_items)), n) == expected
