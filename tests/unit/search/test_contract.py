"""The contract of every search with the driver, for any results of its models."""

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params
from madlib_mop.schedule import SCHEDULES
from madlib_mop.search import METHODS as LIBRARY
from madlib_mop.search import Add, Exploit, Extend, Finish, Stop, method_name, search_class
from madlib_mop.search import methods as methods_folder
from tests.helpers.unit.searches import (
    METHODS,
    SMALLEST,
    SYNCHRONOUS,
    Laboratory,
    epochs_made,
    search_of,
    train_on_scheduler,
)

methods = st.sampled_from(sorted(METHODS))
seeds = st.integers(0, 2**31 - 1)
slots = st.integers(1, 6)
light = settings(max_examples=20, deadline=None)


def test_every_method_of_the_library_is_tested():
    assert set(METHODS) == set(SMALLEST) == set(LIBRARY)


def test_each_module_in_the_folder_is_a_method_and_the_default_is_first():
    modules = {path.stem for path in Path(methods_folder.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(LIBRARY) == modules and len(LIBRARY) == len(modules)
    assert LIBRARY[0] == method_name(None) and list(LIBRARY[1:]) == sorted(LIBRARY[1:])
    assert all(search_class(method).__module__.endswith(f".{method}") for method in LIBRARY)


@light
@given(methods, slots, seeds)
def test_a_search_ends_whatever_fails(method, n_slots, seed):
    """Every fifth model fails or has an infinite loss: the laboratory checks that a driver can execute each action."""
    lab = Laboratory(search_of(method, random_state=seed))
    lab.run(n_slots, random.Random(seed), fail=0.2, nan=0.2, hurry=0.2)
    finite = {key: loss for key, loss in lab.losses.items() if math.isfinite(loss)}
    assert lab.search.best() == min(finite, key=lambda key: (finite[key], key), default=None)


@light
@given(methods, slots, seeds)
def test_every_configuration_is_one_that_can_be_trained(method, n_slots, seed):
    """The parsers read all texts back, with values within the grids."""
    lab = Laboratory(search_of(method, random_state=seed)).run(n_slots, random.Random(seed))
    for action in lab.actions:
        if not isinstance(action, Add | Exploit):
            continue
        texts = action.proposal if isinstance(action, Add) else action
        compiled, fit = parse_compile_params(texts.compile_params), parse_fit_params(texts.fit_params)
        assert 4 <= fit.batch_size <= 64 and fit.epochs == 1
        arguments = compiled.optimizer.kwargs
        if compiled.optimizer.name == "SGD":
            assert arguments["learning_rate"] in (0.01, 0.1, 0.5) and 0.5 <= arguments["momentum"] <= 0.99
        else:
            assert 0.0001 <= arguments["learning_rate"] <= 0.1 and "momentum" not in arguments


@light
@given(methods, slots, seeds)
def test_the_same_calls_give_the_same_actions(method, n_slots, seed):
    """A resume repeats the recorded calls on a new search, which then has the state of the old one."""
    lab = Laboratory(search_of(method, random_state=seed)).run(n_slots, random.Random(seed), 0.1, 0.1, hurry=0.3)
    again = search_of(method, random_state=seed)
    assert [getattr(again, name)(*arguments) for name, arguments in lab.calls] == lab.said
    assert again.done and again.best() == lab.search.best()


@light
@given(st.sampled_from(SYNCHRONOUS), slots, seeds, st.randoms(use_true_random=False), st.sets(st.integers(1, 16)))
def test_the_order_within_a_round_does_not_matter(method, n_slots, seed, rng, bad):
    """A synchronous search makes the same decisions for any order of a round's results."""

    def loss(params, key, epoch):
        return math.nan if key in bad else float((key * 7919 + epoch) % 11)

    one = Laboratory(search_of(method, random_state=seed), loss).run(n_slots, random.Random(1))
    other = Laboratory(search_of(method, random_state=seed), loss).run(n_slots, rng)
    assert one.of_model() == other.of_model()


@pytest.mark.parametrize("method", METHODS)
def test_another_random_state_gives_another_search(method):
    """Configurations depend on random_state."""
    one, other, again = (search_of(method, random_state=state).start(4) for state in (1, 2, 1))
    assert one == again != other


@pytest.mark.parametrize("method", METHODS)
def test_all_failed_is_a_search_that_is_done(method):
    """A search whose models all fail ends without a best model."""
    lab = Laboratory(search_of(method)).run(3, random.Random(1), fail=1.0)
    assert lab.search.best() is None
    assert not any(isinstance(action, Extend | Exploit | Stop) for action in lab.actions)


@pytest.mark.parametrize("method", METHODS)
def test_a_budget_ends_a_search_with_the_best_so_far(method):
    """After finish nothing more is proposed; models in training may still end, and may be the best."""
    lab = Laboratory(search_of(method, "budget_s=60"), loss=lambda params, key, epoch: 10.0 - key)
    lab.call("start", 2)
    lab.result(1)
    (action,) = lab.call("finish")
    assert isinstance(action, Finish) and "budget" in action.reason
    assert lab.search.done and lab.search.best() == 1
    assert lab.call("finish") == []
    assert lab.result(2) == [] and lab.search.best() == 2


def test_after_the_end_a_model_may_be_evaluated_before_its_promise():
    """A model that finish ended early counts with the epoch that it has reached."""
    lab = Laboratory(search_of("hyperopt", "num_configs=2, num_iterations=5"))
    lab.call("start", 2)
    with pytest.raises(ValueError, match="must be evaluated at 5, received 2"):
        lab.search.result(1, 2, 0.5)
    lab.call("finish")
    assert lab.search.result(1, 2, 0.5) == [] and lab.search.best() == 1


def test_a_report_that_nobody_waits_for_is_refused():
    """A driver that reports twice, or too early, gets an error, and the search is unchanged."""
    search = search_of("pbt")
    with pytest.raises(ValueError, match="not in training"):
        search.result(1, 2, 0.5)
    search.start(3)
    with pytest.raises(ValueError, match="started once"):
        search.start(3)
    assert search.result(1, 2, 0.5) == []
    for again in (lambda: search.result(1, 2, 0.5), lambda: search.failed(1), lambda: search.failed(99)):
        with pytest.raises(ValueError, match="not in training"):
            again()


@settings(max_examples=40, deadline=None)
@given(methods, st.sampled_from(sorted(SCHEDULES)), st.integers(1, 5), seeds)
def test_searches_run_to_their_end_on_the_scheduler(method, schedule, p, seed):
    """There is no deadlock; every model is trained for exactly the requested epochs."""
    rng = random.Random(seed)
    lab = Laboratory(search_of(method, random_state=seed))
    simulation, ends = train_on_scheduler(lab, schedule, p, lambda model, *_: (1 + model % 3) * rng.uniform(0.9, 1.1))
    assert lab.search.done and not lab.awaited
    assert epochs_made(simulation.visits, p) == ends


@settings(max_examples=25, deadline=None)
@given(methods, st.integers(1, 4), st.integers(1, 12), seeds)
def test_a_budget_leaves_whole_epochs_behind(method, p, budget, seed):
    """When a search is finished, each model ends after its current epoch."""
    rng = random.Random(seed)
    lab = Laboratory(search_of(method, random_state=seed))
    simulation, ends = train_on_scheduler(lab, "rotation", p, lambda *_: rng.uniform(0.5, 1.5), budget)
    assert lab.search.done
    made = epochs_made(simulation.visits, p)
    assert {key: made.get(key, 0) for key in ends} == ends


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_with_rotation_a_synchronous_search_depends_on_random_state_alone(method):
    """For any cost of visits, each model makes the same visits in the same order, with the same decisions."""
    runs = []
    for seed in (1, 2):
        rng = random.Random(seed)
        lab = Laboratory(search_of(method, random_state=5))
        simulation, _ = train_on_scheduler(lab, "rotation", 3, lambda *_, rng=rng: rng.uniform(0.1, 3))
        visits = {key: [v for v in simulation.visits if v.unit == (key,)] for key in lab.params_of}
        runs.append((lab.of_model(), visits))
    assert runs[0] == runs[1]


def test_optuna_is_imported_only_for_what_needs_it():
    """A driver that does not use Optuna's samplers does not import Optuna."""
    code = (
        "import sys; from madlib_mop.search import SearchSpace, make_search;"
        "space = SearchSpace.read([1], \"{'loss': ['mse'], 'optimizer': ['sgd']}\", None);"
        "[make_search(method, None, space, 1).start(2) for method in ('hyperband', 'asha', 'pbt')];"
        "before = 'optuna' in sys.modules; make_search('tpe', None, space, 1);"
        "print(before, 'optuna' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
