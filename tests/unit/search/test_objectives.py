"""Searches with several objectives: the texts, the order of models, and what each method makes of it."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.catalog.rows.plan import SearchPlan
from madlib_mop.driver.changes.search import search_of
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.parser import parse_compile_params
from madlib_mop.models.sizes import NetworkSize
from madlib_mop.search import Add, costs_of, first_front, make_search, read_constraints, read_objective
from madlib_mop.search.objectives import in_order
from tests.helpers.unit.rows import a_search
from tests.helpers.unit.searches import COMPILE_GRID, METHODS, SYNCHRONOUS, Laboratory, earlier, space

SEEDS = st.integers(0, 2**31 - 1)
LIGHT = settings(max_examples=15, deadline=None)
#: Of the architectures of the tests: the second one is ten times as large.
COSTS = {1: (100, 400), 2: (1000, 4000)}
SIZE = NetworkSize(n_layers=2, n_weights=50, n_multiplications=40, n_activations=12)


def search_with(method: str, costs=COSTS, random_state: int = 1, params: str | None = None, past=()):
    return make_search(method, params or METHODS[method], space(), random_state, past, costs=costs)


@pytest.mark.parametrize(
    "text, names",
    [
        (None, ()),
        ("", ()),
        ("loss", ()),
        ("Loss, SIZE_BYTES", ("size_bytes",)),
        (" multiplications ,loss", ("multiplications",)),
    ],
)
def test_an_objective_is_the_loss_and_costs(text, names):
    assert read_objective(text) == names


@pytest.mark.parametrize(
    "text, error",
    [
        ("accuracy", "objective is unknown. Received: 'accuracy'"),
        ("loss,", "objective is unknown. Received: ''"),
        ("loss, loss", "objective has a word twice. Received: 'loss, loss'"),
        ("size_bytes", "objective must name the loss"),
    ],
)
def test_another_objective_is_an_error_that_lists_them(text, error):
    with pytest.raises(InvalidParameter) as caught:
        read_objective(text)
    assert caught.value.message.startswith(error) and "loss, multiplications, size_bytes" in caught.value.hint


def test_constraints_are_limits_of_costs():
    assert read_constraints(None) == read_constraints(" ") == {}
    assert read_constraints("size_bytes <= 4000,Multiplications<=7") == {"size_bytes": 4000, "multiplications": 7}


@pytest.mark.parametrize(
    "text, error",
    [
        *((text, "constraints must be a list such as 'size_bytes <= 100000'. Received:")
          for text in ("loss <= 1", "size_bytes < 5", "size_bytes <= -5", "size_bytes <= 1e3", "size_bytes <= 5,")),
        ("size_bytes <= 5, size_bytes <= 6", "constraints limit size_bytes twice"),
    ],
)  # fmt: skip
def test_what_is_no_constraint_is_an_error(text, error):
    with pytest.raises(InvalidParameter) as caught:
        read_constraints(text)
    assert caught.value.message.startswith(error) and "<= and a whole number" in caught.value.hint


def test_costs_follow_from_the_size_of_the_network():
    assert costs_of(SIZE, ("size_bytes", "multiplications")) == (200, 40)
    assert costs_of(SIZE, ()) == ()


def fronts_of(results, costs):
    """Return the fronts by comparing all pairs."""

    def surpasses(a, b):
        one, other = (a[0], *costs[a[1]]), (b[0], *costs[b[1]])
        return all(x <= y for x, y in zip(one, other, strict=True)) and (one != other or a[1] < b[1])

    left, fronts = set(results), []
    while left:
        fronts.append(sorted(b for b in left if not any(surpasses(a, b) for a in left if a is not b)))
        left -= set(fronts[-1])
    return fronts


few = st.integers(0, 3)


@given(st.lists(st.tuples(few, few, few), max_size=25))
def test_models_are_in_the_order_of_their_fronts(figures):
    results = [(float(loss), key) for key, (loss, _, _) in enumerate(figures)]
    costs = {key: (a, b) for key, (_, a, b) in enumerate(figures)}
    fronts = fronts_of(results, costs)
    assert in_order(results, costs) == [one for front in fronts for one in front]
    assert first_front(results, costs) == [key for _, key in (fronts[0] if fronts else [])]


def test_an_infinite_loss_is_the_last_one_however_small_the_network():
    results = [(math.inf, 1), (2.0, 2), (1.0, 3)]
    assert in_order(results, {1: (1,), 2: (5,), 3: (9,)}) == [(1.0, 3), (2.0, 2), (math.inf, 1)]
    assert in_order(results, {}) == [(1.0, 3), (2.0, 2), (math.inf, 1)]


@LIGHT
@given(st.sampled_from(sorted(METHODS)), st.integers(1, 6), SEEDS, st.booleans())
def test_a_search_with_several_objectives_ends_and_is_repeated_by_a_resume(method, n_slots, seed, is_experienced):
    past = earlier() if is_experienced else ()
    lab = Laboratory(search_with(method, random_state=seed, past=past))
    lab.run(n_slots, random.Random(seed), fail=0.2, nan=0.2, hurry=0.2)
    again = search_with(method, random_state=seed, past=past)
    assert [getattr(again, name)(*arguments) for name, arguments in lab.calls] == lab.said


@pytest.mark.parametrize("method", METHODS)
def test_a_search_ends_if_no_model_has_a_finite_loss(method):
    for past in ((), earlier()):
        lab = Laboratory(search_with(method, past=past)).run(3, random.Random(1), nan=1.0)
        assert lab.search.best() is None


def test_a_resumed_search_has_the_costs_of_the_record():
    names = ("multiplications", "size_bytes")
    costs = {str(key): of for key, of in COSTS.items()}
    plan = a_search("tpe", model_ids=[1, 2], compile_params_grid=COMPILE_GRID, objective=names, costs=costs)
    read = SearchPlan.from_json(json.loads(json.dumps(plan.as_json())))
    assert tuple(read.objective) == names and search_of(read).costs == COSTS
    assert not {"objective", "costs"} & a_search().as_json().keys()


@LIGHT
@given(st.sampled_from(SYNCHRONOUS), st.integers(1, 6), SEEDS, st.randoms(use_true_random=False))
def test_the_order_within_a_round_does_not_matter(method, n_slots, seed, rng):
    one = Laboratory(search_with(method, random_state=seed)).run(n_slots, random.Random(1))
    other = Laboratory(search_with(method, random_state=seed)).run(n_slots, rng)
    assert one.of_model() == other.of_model()


def n_trained_longest(method: str, params: str, costs) -> dict[int, int]:
    """Return how many models of each architecture a search trains to its end; the larger one is a little better."""
    search, model_ids = search_with(method, costs, params=params), {}

    def loss(text: str, key: int, epoch: int) -> float:
        return 1.0 + 0.001 * key - 0.5 * (model_ids[key] == 2)

    class Noting(Laboratory):
        def _apply(self, action):
            if isinstance(action, Add):
                model_ids[action.proposal.mst_key] = action.proposal.model_id
            super()._apply(action)

    lab = Noting(search, loss).run(3, random.Random(1))
    longest = [key for key, epoch in lab.reached.items() if epoch == max(lab.reached.values())]
    return {model_id: sum(model_ids[key] == model_id for key in longest) for model_id in (1, 2)}


@pytest.mark.parametrize(
    ("method", "params"), [("hyperband", "R=16, eta=2, skip_last=2"), ("asha", "R=4, eta=2, num_configs=16")]
)
def test_halving_continues_the_small_networks_too(method, params):
    """With the loss alone, only the large ones, which are better, make all iterations."""
    assert n_trained_longest(method, params, {})[1] == 0
    assert n_trained_longest(method, params, COSTS)[1] > 0


GRID = """{'loss': ['mse'], 'optimizer_params_list': [
    {'optimizer': ['AdamW'], 'lr': [1e-5, 1.0, 'log'], 'weight_decay': [1e-6, 1e-1, 'log']}]}"""
OF_FIVE = {model_id: (10 * 4 ** (model_id - 1),) for model_id in range(1, 6)}


def area_of_front(params: str, random_state: int) -> float:
    """Return the area that the models of a search surpass, up to a loss of 2 and a cost of 10,000 (in its logarithm).

    The larger of five networks are better, and need a lower learning rate.
    """
    search = make_search("hyperopt", params, space(GRID, model_ids=range(1, 6)), random_state, costs=OF_FIVE)
    lab, model_ids = Laboratory(search), {}

    def loss(text: str, key: int, epoch: int) -> float:
        model_ids.update((a.proposal.mst_key, a.proposal.model_id) for a in lab.actions if isinstance(a, Add))
        arguments = parse_compile_params(text).optimizer.kwargs
        rate, decay = math.log10(arguments["learning_rate"]), math.log10(arguments["weight_decay"])
        return 0.3 + 0.5 / model_ids[key] + 0.25 * (rate + 2 + 0.3 * model_ids[key]) ** 2 + 0.05 * (decay + 3) ** 2

    lab.loss = loss
    lab.run(4, random.Random(random_state))
    points = sorted((OF_FIVE[model_ids[key]][0], found) for key, found in lab.losses.items())
    area, lowest = 0.0, 2.0
    for cost, found in points:
        area += (4 - math.log10(cost)) * max(0.0, lowest - found)
        lowest = min(lowest, found)
    return area


@pytest.mark.parametrize("method", ["tpe", "hyperopt"])
def test_the_sampler_learns_from_costs(method):
    reversed_costs = {1: COSTS[2], 2: COSTS[1]}  # with the loss alone, it looks at the first architecture
    searches = (search_with(method, costs, params="num_configs=40") for costs in (reversed_costs, {}))
    one, other = (Laboratory(search).run(2, random.Random(1)) for search in searches)
    assert one.said[0] == other.said[0] and one.said != other.said


@pytest.mark.slow
def test_the_sampler_finds_better_networks_of_all_sizes_than_random_draws():
    """Mean of eight seeds; without the costs, the sampler looks at the large networks only."""
    tpe, rand = (
        sum(area_of_front(f"num_configs=48, algorithm={algorithm}", state) for state in range(8)) / 8
        for algorithm in ("tpe", "rand")
    )
    assert tpe > rand


def test_without_costs_a_search_is_that_with_one_objective():
    for method in METHODS:
        one, other = (Laboratory(search).run(3, random.Random(1)) for search in (
            search_with(method, {}), make_search(method, METHODS[method], space(), 1)))  # fmt: skip
        assert one.said == other.said
