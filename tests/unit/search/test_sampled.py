"""Searches with Optuna's samplers: batches, dimensions, and the convergence of TPE."""

import math
import random
import statistics

import optuna
import pytest

from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params
from madlib_mop.search import Add, make_search
from tests.helpers.unit.searches import Laboratory, earlier, search_of, space


def keys(actions):
    return [action.proposal.mst_key for action in actions if isinstance(action, Add)]


@pytest.mark.parametrize(
    ("num_configs", "n_slots", "sizes"),
    [(5, 2, [2, 2, 1]), (7, 3, [3, 4]), (9, 4, [4, 5]), (10, 4, [4, 4, 2]), (2, 6, [2]), (6, 3, [3, 3]), (1, 1, [1])],
)
@pytest.mark.parametrize("algorithm", ["rand", "tpe"])
def test_hyperopt_asks_in_batches_of_the_segments(num_configs, n_slots, sizes, algorithm):
    """The next batch starts after the last model of the previous one; a small remainder joins the last batch."""
    lab = Laboratory(search_of("hyperopt", f"num_configs={num_configs}, num_iterations=3, algorithm={algorithm}"))
    lab.call("start", n_slots)
    while not lab.search.done:
        lab.result(max(lab.awaited))
    assert [len(actions) for actions in lab.said if actions] == sizes
    assert set(lab.reached.values()) == {3} and sorted(lab.reached) == list(range(1, num_configs + 1))


def test_tpe_asks_for_one_whenever_one_ends():
    """No model waits for another; a failed one is replaced too."""
    lab = Laboratory(search_of("tpe", "num_configs=5, num_iterations=2"))
    assert keys(lab.call("start", 2)) == [1, 2]
    assert keys(lab.result(2)) == [3]
    assert keys(lab.failed(3)) == [4]
    assert keys(lab.result(1)) == [5]
    assert lab.result(5) == [] and not lab.search.done
    assert lab.result(4) == [] and lab.search.done


def best_of(method, params, random_state, n_slots=4):
    """Return a search's least distance to the optimum, lr = 0.01 and momentum = 0.9."""

    def loss(text, key, epoch):
        arguments = parse_compile_params(text).optimizer.kwargs
        if "momentum" not in arguments:
            return 9.0
        return (math.log10(arguments["learning_rate"]) + 2) ** 2 + 100 * (arguments["momentum"] - 0.9) ** 2

    grid = """{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [1e-6, 1.0, 'log']},
        {'optimizer': ['SGD'], 'lr': [1e-6, 1.0, 'log'], 'momentum': [0.5, 0.999, 'linear']}]}"""
    search = make_search(method, params, space(grid), random_state)
    return min(Laboratory(search, loss).run(n_slots, random.Random(random_state)).losses.values())


@pytest.mark.one_case
@pytest.mark.parametrize(("method", "params"), [("hyperopt", "algorithm=tpe"), ("tpe", "")])
def test_tpe_comes_nearer_than_random_search(method, params):
    """On a function with its minimum in one branch of the space, by a factor of more than 2 (mean of six seeds)."""

    def mean(method, params):
        return statistics.geometric_mean(best_of(method, f"num_configs=40, {params}", state) for state in range(6))

    assert mean(method, params) < mean("hyperopt", "algorithm=rand") / 2


def test_infinite_losses_and_failures_teach_the_sampler_to_look_elsewhere():
    """If all SGD models fail, most of the later configurations use Adam."""
    grid = """{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']},
                                                          {'optimizer': ['SGD'], 'lr': [0.001, 0.1, 'log']}]}"""
    lab = Laboratory(make_search("tpe", "num_configs=60", space(grid), 4))
    lab.call("start", 3)
    while not lab.search.done:
        key = min(lab.awaited)
        if "SGD" not in lab.params_of[key]:
            lab.result(key, 1.0)
        elif key % 2:
            lab.failed(key)
        else:
            lab.result(key, math.nan)
    late = [lab.params_of[key] for key in range(31, 61)]
    assert sum("Adam" in text for text in late) > 20


def test_every_kind_of_dimension_stays_within_its_grid():
    """Integers stay integers, ranges keep their bounds, and arguments occur with their own optimizer only."""
    grid = """{'loss': ['mse', 'mae'], 'metrics': [['mae'], None],
               'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log'], 'amsgrad': [True, False],
                                          'beta_1': [0.8, 0.99, 'log_near_one']},
                                         {'optimizer': ['SGD'], 'lr': [0.5], 'momentum': [0.1, 0.2, 'linear']}]}"""
    fit = "{'batch_size': [3, 9, 'linear'], 'epochs': [1, 2], 'class_weight': [{0: 1.0, 1: 2.0}]}"
    for algorithm in ("rand", "tpe"):
        search = make_search("hyperopt", f"num_configs=60, algorithm={algorithm}", space(grid, fit), 1)
        lab = Laboratory(search, loss=lambda text, key, epoch: 1.0 / key).run(5, random.Random(1))
        proposals = [action.proposal for action in lab.actions]
        assert {p.model_id for p in proposals} == {1, 2}
        fits = [parse_fit_params(p.fit_params) for p in proposals]
        assert {one.batch_size for one in fits} <= set(range(3, 10)) and len({one.batch_size for one in fits}) > 3
        assert {one.epochs for one in fits} == {1, 2} and all(one.class_weight == {0: 1.0, 1: 2.0} for one in fits)
        names = set()
        for arguments in (parse_compile_params(p.compile_params).optimizer for p in proposals):
            names.add(arguments.name)
            if arguments.name == "Adam":
                assert 0.001 <= arguments.kwargs["learning_rate"] <= 0.1
                assert 0.8 <= arguments.kwargs["beta_1"] <= 0.99
                assert "momentum" not in arguments.kwargs
            else:
                assert arguments.kwargs["learning_rate"] == 0.5 and 0.1 <= arguments.kwargs["momentum"] <= 0.2
        assert names == {"Adam", "SGD"}


_REST = "loss='categorical_crossentropy',metrics=['accuracy']"
#: What the library draws last of 14 configurations with Optuna 4.9.0, without and with earlier runs.
OF_OPTUNA_4 = {
    ("hyperopt", False): [
        (1, "SGD(lr=0.01,momentum=0.98688835477177)", 10),
        (2, "SGD(lr=0.01,momentum=0.988944766476432)", 4),
        (2, "SGD(lr=0.01,momentum=0.9599167100255165)", 6),
    ],
    ("hyperopt", True): [
        (2, "AdamW(lr=0.025887277953664422,amsgrad=False)", 10),
        (2, "AdamW(lr=0.008307890834758951,amsgrad=False)", 25),
        (2, "AdamW(lr=0.038614936002006384,amsgrad=False)", 44),
    ],
    ("tpe", False): [
        (1, "SGD(lr=0.01,momentum=0.98688835477177)", 10),
        (2, "SGD(lr=0.1,momentum=0.9889365544258473)", 25),
        (2, "SGD(lr=0.01,momentum=0.9599167100255165)", 4),
    ],
    ("tpe", True): [
        (2, "AdamW(lr=0.01726145894258127,amsgrad=False)", 10),
        (2, "AdamW(lr=0.006984486001238329,amsgrad=False)", 25),
        (2, "AdamW(lr=0.004715535420293769,amsgrad=False)", 25),
    ],
}


@pytest.mark.parametrize(("method", "is_experienced"), OF_OPTUNA_4)
def test_a_search_that_began_with_optuna_4_goes_on_with_the_same_configurations(method, is_experienced):
    """A resume repeats the recorded decisions: Optuna 5 must make the same ones, bit for bit."""
    past = earlier() if is_experienced else ()
    search = make_search(method, "num_configs=14, num_iterations=1", space(), 7, past)
    lab = Laboratory(search).run(3, random.Random(7))
    proposals = [action.proposal for action in lab.actions if isinstance(action, Add)][-3:]
    assert [(p.model_id, p.compile_params, p.fit_params) for p in proposals] == [
        (model_id, f"optimizer='{optimizer}',{_REST}", f"batch_size={size},epochs=1")
        for model_id, optimizer, size in OF_OPTUNA_4[method, is_experienced]
    ]


@pytest.mark.parametrize(("method", "is_optunas"), [("tpe", True), ("hyperopt", True), ("pbt", False)])
def test_a_search_says_which_library_draws_its_configurations(method, is_optunas):
    assert search_of(method).sampler_version == (f"optuna {optuna.__version__}" if is_optunas else None)


def test_optuna_says_nothing(capfd):
    """Neither its log nor its warnings reach the driver's output."""
    Laboratory(search_of("tpe")).run(2, random.Random(1))
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
