"""ASHA's promotions: a small example by hand, and a slow, simple reference."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.errors import InvalidParameter
from madlib_mop.search import Add, Extend, GivenPoint, Stop, make_search, parse_params
from tests.helpers.unit.searches import Laboratory, search_of, space


def brief(actions):
    """Write actions in a few letters."""
    return [
        f"add {a.proposal.mst_key} to {a.proposal.last_epoch}"
        if isinstance(a, Add)
        else f"extend {a.mst_key} to {a.last_epoch}"
        if isinstance(a, Extend)
        else f"stop {a.mst_key}"
        for a in actions
    ]


def test_a_small_example_by_hand():
    """One slot, eta 2, rungs at 1, 2 and 4 epochs: a model continues once it is in the better half of its rung."""
    lab = Laboratory(search_of("asha", "R=4, eta=2, num_configs=4"))
    assert brief(lab.call("start", 1)) == ["add 1 to 1"]
    assert brief(lab.result(1, 0.5)) == ["add 2 to 1"], "half of one is none"
    assert brief(lab.result(2, 0.4)) == ["extend 2 to 2"]
    assert brief(lab.result(2, 0.3)) == ["add 3 to 1"], "2 is the one of two that went on, and alone at its rung"
    assert brief(lab.result(3, 0.2)) == ["extend 3 to 2"], "now the best of three"
    assert brief(lab.result(3, 0.25)) == ["extend 3 to 4"], "and of two at the second rung"
    assert brief(lab.result(3, 0.1)) == ["add 4 to 1"]
    assert brief(lab.result(4, 0.9)) == ["stop 1", "stop 2", "stop 4"], "the better two of four went on before"
    assert lab.search.done and lab.search.best() == 3


def test_a_model_that_waits_may_be_promoted_later():
    """Later, worse models make it one of the best third; until then it occupies no slot."""
    lab = Laboratory(search_of("asha", "R=3, eta=3, num_configs=6"))
    lab.call("start", 1)
    assert brief(lab.result(1, 0.5)) == ["add 2 to 1"]
    assert brief(lab.result(2, 0.1)) == ["add 3 to 1"]
    assert brief(lab.result(3, 0.6)) == ["extend 2 to 3"]
    assert brief(lab.result(2, 0.1)) == ["add 4 to 1"]
    assert brief(lab.result(4, 0.7)) == ["add 5 to 1"]
    assert brief(lab.result(5, 0.8)) == ["add 6 to 1"]
    assert brief(lab.result(6, 0.9)) == ["extend 1 to 3"]
    assert brief(lab.result(1, 0.4)) == ["stop 3", "stop 4", "stop 5", "stop 6"]


def test_near_the_end_of_the_budget_the_best_model_that_waits_takes_the_place_of_a_new_one():
    """Three slots, eta 3: without a budget, none is promoted before the third result."""
    lab = Laboratory(search_of("asha", "R=9, eta=3, num_configs=9"))
    assert lab.search.enough_iterations == 3
    assert brief(lab.call("start", 3)) == ["add 1 to 1", "add 2 to 1", "add 3 to 1"]
    assert lab.call("time_left", 2) == []
    assert brief(lab.result(2, 0.5)) == ["extend 2 to 3"], "a new model could not come to the second rung"
    assert brief(lab.result(1, 0.9)) == ["extend 1 to 3"]
    lab.call("time_left", 3)
    assert brief(lab.result(3, 0.7)) == ["add 4 to 1"], "the time is enough after all"
    assert brief(lab.result(4, 0.6)) == ["add 5 to 1"]
    lab.call("time_left", 1)
    assert brief(lab.result(2, 0.8)) == ["extend 4 to 3"], "0.6 is the lowest loss of those that wait at any rung"
    assert brief(lab.result(1, 0.1)) == ["extend 1 to 9"], "also from the second rung"
    assert brief(lab.failed(5)) == ["extend 3 to 3"]
    assert brief(lab.result(4, 0.4)) == ["extend 4 to 9"], "0.4 is less than the 0.8 of model 2"
    assert brief(lab.failed(4)) == ["extend 2 to 9"]
    assert brief(lab.result(3, math.nan)) == ["add 6 to 1"], "none waits any more"


def test_a_budget_that_is_short_for_new_models_is_told_once():
    search = search_of("asha", "R=9, eta=3")
    search.start(1)
    for left in (2, 1, 3, 0):
        search.time_left(left)
    (said,) = search.notices
    assert said.startswith("the rest of the time budget is too short for a new model to go on")


def test_with_all_configurations_begun_the_budget_promotes_no_more_than_before():
    """Where no new model is left, the promotions are those of the paper."""
    lab = Laboratory(search_of("asha", "R=9, eta=3, num_configs=2"))
    lab.call("start", 2)
    lab.call("time_left", 0)
    assert lab.result(1, 0.5) == [] and brief(lab.result(2, 0.4)) == ["stop 1", "stop 2"]


def test_with_one_rung_the_budget_is_of_no_use():
    search = search_of("asha", "R=2, eta=3, num_configs=2")
    assert search.enough_iterations == 0
    with pytest.raises(ValueError, match="a number from 0 to 0 is reported, received 1"):
        search.time_left(1)


class Reference:
    """Algorithm 2 of the paper in its simplest form: everything is sorted again at each step."""

    def __init__(self, r, R, eta, num_configs):
        self.eta, self.num_configs = eta, num_configs
        self.epochs = [r * eta**k for k in range(20) if r * eta**k <= R]
        self.losses = [{} for _ in self.epochs]
        self.rung_of, self.promoted, self.n = {}, [set() for _ in self.epochs], 0

    def job(self):
        for k in reversed(range(len(self.epochs) - 1)):
            ranked = sorted(self.losses[k], key=lambda key: (self.losses[k][key], key))
            for key in ranked[: math.floor(len(ranked) / self.eta)]:
                if key not in self.promoted[k] and self.losses[k][key] < math.inf:
                    self.promoted[k].add(key)
                    self.rung_of[key] = k + 1
                    return f"extend {key} to {self.epochs[k + 1]}"
        if self.n < self.num_configs:
            self.n += 1
            self.rung_of[self.n] = 0
            return f"add {self.n} to {self.epochs[0]}"
        return None

    def jobs(self, n_free):
        """Start a job in each free slot, and return the slots that stay free."""
        given = []
        while n_free and (job := self.job()):
            given.append(job)
            n_free -= 1
        return given, n_free


@settings(max_examples=150, deadline=None)
@given(
    eta=st.integers(2, 4),
    r=st.integers(1, 3),
    R=st.integers(3, 30),
    num_configs=st.integers(1, 25),
    n_slots=st.integers(1, 6),
    seed=st.integers(0, 10_000),
)
def test_it_is_the_algorithm_of_the_paper(eta, r, R, num_configs, n_slots, seed):
    """For any order of results, with equal losses and failures, promotions equal those of the reference."""
    rng = random.Random(seed)
    lab = Laboratory(search_of("asha", f"R={R}, eta={eta}, r={r}, num_configs={num_configs}"))
    reference = Reference(r, R, eta, num_configs)
    expected, n_free = reference.jobs(n_slots)
    assert brief(lab.call("start", n_slots)) == expected
    while not lab.search.done:
        key = rng.choice(sorted(lab.awaited))
        loss = rng.choice([math.nan, math.inf, rng.randrange(5) / 4, rng.random()])
        failed = rng.random() < 0.1
        said = lab.failed(key) if failed else lab.result(key, loss)
        counted = math.inf if failed or math.isnan(loss) else loss
        reference.losses[reference.rung_of[key]][key] = counted
        expected, n_free = reference.jobs(n_free + 1)
        assert brief(action for action in said if not isinstance(action, Stop)) == expected
    assert len(lab.params_of) == num_configs
    top = {key for key, epoch in lab.reached.items() if epoch == lab.search.max_epochs}
    assert lab.stopped == set(lab.params_of) - lab.dead - top


def test_configurations_are_those_of_random_search_whatever_the_order():
    """The n-th model's configuration depends on n and random_state alone."""
    (one, other) = (Laboratory(search_of("asha", "R=9, num_configs=12", 3)).run(n, random.Random(n)) for n in (1, 4))
    assert one.params_of == other.params_of
    points = space().draw(3)
    assert [one.params_of[key] for key in sorted(one.params_of)] == [next(points).texts[0] for _ in range(12)]


def test_no_model_trains_past_the_last_rung():
    """With R between two rungs the lower one is the last."""
    lab = Laboratory(search_of("asha", "R=20, eta=3, r=2, num_configs=30")).run(4, random.Random(1))
    assert set(lab.reached.values()) == {2, 6, 18} and lab.search.max_epochs == 18


GIVEN = [GivenPoint(7, ("loss='mse', optimizer='SGD(learning_rate=0.5)'", "batch_size=3")),
         GivenPoint(1, ("loss='mse', optimizer='SGD(learning_rate=0.25)'", "batch_size=3"))]  # fmt: skip


def given_search(params: str = "R=4, eta=2, num_configs=4, try_first=configs"):
    return make_search("asha", params, space(), 1, given=GIVEN)


def test_given_configurations_are_the_first_and_trained_to_the_end_beside_the_rungs():
    """Their losses, however low, promote nobody and stop nobody."""
    search = given_search()
    assert brief(search.start(2)) == ["add 1 to 4", "add 2 to 4"]
    assert search.is_given(2) and not search.is_given(3)
    (added,) = search.result(1, 4, 0.0)
    assert brief([added]) == ["add 3 to 1"], "the first one of the space"
    assert brief(search.failed(2)) == ["add 4 to 1"]
    assert brief(search.result(3, 1, 0.5)) == [], "half of one is none, and four configurations were begun"
    assert brief(search.result(4, 1, 0.4)) == ["extend 4 to 2"]
    assert brief(search.result(4, 2, 0.4)) == ["stop 3", "stop 4"]
    assert search.done and search.best() == 1


def test_the_draws_after_given_configurations_are_those_of_a_search_without():
    begun = [action.proposal for action in given_search().start(4)]
    assert [(one.model_id, (one.compile_params, one.fit_params)) for one in begun[:2]] == [
        (one.model_id, one.texts) for one in GIVEN
    ]
    others = [action.proposal for action in search_of("asha", "R=4, eta=2, num_configs=4").start(2)]
    drawn = [(one.model_id, one.compile_params, one.fit_params, one.last_epoch) for one in begun[2:]]
    assert drawn == [(one.model_id, one.compile_params, one.fit_params, one.last_epoch) for one in others]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("configs", ("configs", ())),
        (" shop.configs ", ("shop.configs", ())),
        ("2 of configs", ("configs", (2,))),
        ("1, 4 OF \"My configs\"", ('"My configs"', (1, 4))),
        ("of configs", ("of configs", ())),
    ],
)
def test_try_first_names_a_table_and_maybe_keys(text, given):
    params = parse_params("asha", f"num_configs=4, try_first={text!r}")
    assert params.given == given
    assert parse_params("asha", params.text) == params, "what the plan records"


@pytest.mark.parametrize("value", ["5", "''", "'  '", "true", "[1]"])
def test_try_first_is_a_text(value):
    with pytest.raises(InvalidParameter, match="try_first must be the name of a model selection table"):
        parse_params("asha", f"try_first={value}")
