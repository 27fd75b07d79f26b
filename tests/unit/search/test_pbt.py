"""Population based training: which models copy which, and how parameters change."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params
from madlib_mop.search import Exploit, Extend, Stop
from madlib_mop.search.perturbation import perturbed
from tests.helpers.unit.searches import Laboratory, search_of, space


def generation(lab, losses):
    """End a generation with these losses, None for a failure; return the search's actions."""
    for key, loss in losses.items():
        said = lab.failed(key) if loss is None else lab.result(key, loss)
    return said


def test_the_worst_quarter_copies_the_best():
    """Of eight models, each of the worst two copies one of the best two; all continue to the same epoch."""
    lab = Laboratory(search_of("pbt", "population=8, num_iterations=5, interval=2"))
    assert {action.proposal.last_epoch for action in lab.call("start", 3)} == {2}
    said = generation(lab, {1: 0.5, 2: 0.1, 3: 0.6, 4: 0.9, 5: 0.2, 6: 0.8, 7: 0.7, 8: 0.4})
    assert [(type(action), action.mst_key, action.last_epoch) for action in said] == [
        (Exploit, 4, 4), (Exploit, 6, 4), *((Extend, key, 4) for key in (1, 2, 3, 5, 7, 8))
    ]  # fmt: skip
    assert {action.source for action in said[:2]} <= {2, 5}
    said = generation(lab, dict.fromkeys(range(1, 9), 0.3))
    assert {action.last_epoch for action in said} == {5}, "the last generation is as long as what is left"
    assert {action.mst_key for action in said if isinstance(action, Exploit)} == {7, 8}, "of equals the larger keys"
    assert generation(lab, dict.fromkeys(range(1, 9), 0.3)) == [] and lab.search.done


def test_an_architecture_comes_with_its_state():
    """A model that copies one of another architecture has that architecture from then on."""
    lab = Laboratory(search_of("pbt", "population=6, num_iterations=40, interval=1, quantile=0.5", 2))
    model_id = {a.proposal.mst_key: a.proposal.model_id for a in lab.call("start", 1)}
    assert set(model_id.values()) == {1, 2}
    changed = 0
    while not lab.search.done:
        said = generation(lab, {key: float((key * 5 + lab.reached.get(key, 0)) % 7) for key in sorted(model_id)})
        before = dict(model_id)
        for action in said:
            if isinstance(action, Exploit):
                assert action.model_id == before[action.source]
                changed += before[action.mst_key] != action.model_id
                model_id[action.mst_key] = action.model_id
    assert changed


def test_models_without_a_finite_loss_copy_and_failed_ones_leave():
    """The remaining models continue; a failed model is neither source nor target of a copy."""
    lab = Laboratory(search_of("pbt", "population=5, num_iterations=4, interval=2"))
    lab.call("start", 3)
    said = generation(lab, {1: math.nan, 2: None, 3: math.inf, 4: 0.5, 5: math.nan})
    assert [(type(action), action.mst_key) for action in said] == [
        (Exploit, 1), (Exploit, 3), (Exploit, 5), (Extend, 4)
    ]  # fmt: skip
    assert {action.source for action in said[:3]} == {4}


def test_a_population_that_is_lost_is_stopped():
    """Without a finite loss there is nothing to copy."""
    lab = Laboratory(search_of("pbt", "population=3, num_iterations=4"))
    lab.call("start", 3)
    said = generation(lab, {1: math.nan, 2: None, 3: math.inf})
    assert [(type(action), action.mst_key) for action in said] == [(Stop, 1), (Stop, 3)]
    assert lab.search.done and lab.search.best() is None


def test_one_survivor_goes_on_alone():
    """A single model has no source to copy."""
    lab = Laboratory(search_of("pbt", "population=2, num_iterations=4"))
    lab.call("start", 3)
    assert generation(lab, {1: None, 2: 0.5}) == [Extend(2, 4)]


GRID = """{'loss': ['mse', 'mae'], 'loss_weights': [[1.0], [2.0]], 'metrics': [['mae']], 'optimizer_params_list': [
    {'optimizer': ['SGD', 'RMSprop'], 'lr': [0.001, 0.1, 'log'], 'momentum': [0.0, 0.5, 0.9, 0.99]},
    {'optimizer': ['Adam'], 'lr': [0.1, 0.001, 0.01], 'beta_1': [0.5, 0.95, 'log_near_one'], 'amsgrad': [True, False],
     'epsilon': [1e-8, 1e-6, 'linear']}]}"""
FIT = "{'batch_size': [2, 9, 'linear'], 'epochs': [1, 2, 3], 'shuffle': [True, False]}"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_perturbed_parameters_stay_inside_of_the_grids(seed, n):
    """After any number of steps, numbers are within their ranges or lists; shapes do not change."""
    rng = np.random.default_rng(seed)
    first = point = next(space(GRID, FIT).draw(seed))
    for _ in range(n):
        point = perturbed(point, space(GRID, FIT), rng)
        assert point.model_id == first.model_id
        compiled, fit = parse_compile_params(point.texts[0]), parse_fit_params(point.texts[1])
        began, began_fit = parse_compile_params(first.texts[0]), parse_fit_params(first.texts[1])
        assert (compiled.loss, compiled.optimizer.name) == (began.loss, began.optimizer.name)
        assert (fit.epochs, fit.shuffle) == (began_fit.epochs, began_fit.shuffle)
        assert 2 <= fit.batch_size <= 9
        now, then = compiled.optimizer.kwargs, began.optimizer.kwargs
        if compiled.optimizer.name == "Adam":
            assert now["learning_rate"] in (0.001, 0.01, 0.1) and 0.5 <= now["beta_1"] <= 0.95
            assert 1e-8 <= now["epsilon"] <= 1e-6 and now["amsgrad"] == then["amsgrad"]
        else:
            assert 0.001 <= now["learning_rate"] <= 0.1 and now["momentum"] in (0.0, 0.5, 0.9, 0.99)
            assert bool(now["momentum"]) == bool(then["momentum"]), "a state without momentum stays one"


def test_three_quarters_of_the_steps_are_by_a_fifth():
    """Multiplied by 0.8 or 1.2 with equal probability, and drawn again in a quarter of the steps."""
    grid = space("{'loss': ['mse'], 'optimizer_params_list': [{'lr': [1e-30, 1.0, 'log']}]}", "")
    rng, point, factors = np.random.default_rng(1), next(grid.draw(1)), []
    for _ in range(2000):
        after = perturbed(point, grid, rng)
        factors.append(round(after.choice.optimizer["lr"] / point.choice.optimizer["lr"], 9))
        point = after
    assert factors.count(0.8) == pytest.approx(750, abs=80)
    assert factors.count(1.2) == pytest.approx(750, abs=80)


def test_a_small_whole_number_changes_too():
    """A batch size of 2 becomes 1 or 3: a change by a fifth would be rounded to zero."""
    grid = space("{'loss': ['mse'], 'optimizer': ['sgd']}", "{'batch_size': [1, 1000000, 'log']}")
    rng, seen = np.random.default_rng(1), []
    points = (point for point in grid.draw(1) if point.choice.fit["batch_size"] == 2)
    point = next(points)
    for _ in range(200):
        seen.append(perturbed(point, grid, rng).choice.fit["batch_size"])
    assert seen.count(1) > 50 and seen.count(3) > 50
