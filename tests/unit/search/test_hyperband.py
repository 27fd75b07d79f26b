"""Hyperband's schedule, number by number, and its rounds."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.errors import InvalidParameter
from madlib_mop.search import Add, Extend, HyperbandParams, Round, Stop, hyperband_rounds, make_search
from tests.helpers.unit.searches import Laboratory, search_of, space

SCHEDULES = {  # (R, eta, skip_last): brackets from s_max down, "n_i/r_i" for each round
    (81, 3, 0): "81/1 27/3 9/9 3/27 1/81 | 27/3 9/9 3/27 1/81 | 9/9 3/27 1/81 | 6/27 2/81 | 5/81",
    (81, 3, 1): "81/1 27/3 9/9 3/27 | 27/3 9/9 3/27 | 9/9 3/27 | 6/27",
    (81, 3, 4): "81/1",
    (27, 3, 0): "27/1 9/3 3/9 1/27 | 9/3 3/9 1/27 | 6/9 2/27 | 4/27",
    (9, 3, 0): "9/1 3/3 1/9 | 3/3 1/9 | 3/9",
    (9, 3, 2): "9/1",
    (6, 3, 0): "3/2 1/6 | 2/6",
    (5, 5, 0): "5/1 1/5 | 2/5",
    (5, 5, 1): "5/1",
    (3, 2, 1): "2/2",
    (16, 4, 0): "16/1 4/4 1/16 | 4/4 1/16 | 3/16",
    (20, 4, 0): "16/1 4/5 1/20 | 4/5 1/20 | 3/20",
    (10, 2, 0): "8/1 4/2 2/5 1/10 | 4/2 2/5 1/10 | 4/5 2/10 | 4/10",
    (49, 7, 0): "49/1 7/7 1/49 | 7/7 1/49 | 3/49",
}  # fmt: skip


@pytest.mark.parametrize("arguments", SCHEDULES, ids=str)
def test_the_schedule_is_the_published_one(arguments):
    """Every bracket and round has the configurations and iterations that the formulas give."""
    rounds = hyperband_rounds(HyperbandParams(R=arguments[0], eta=arguments[1], skip_last=arguments[2]))
    brackets = [list(group) for _, group in itertools.groupby(rounds, key=lambda one: one.s)]
    assert " | ".join(" ".join(f"{one.n_i}/{one.r_i}" for one in b) for b in brackets) == SCHEDULES[arguments]
    assert all([one.i for one in bracket] == list(range(len(bracket))) for bracket in brackets)
    s_max = rounds[0].s
    assert [bracket[0].s for bracket in brackets] == list(range(s_max, s_max - len(brackets), -1))


@pytest.mark.parametrize(("R", "eta", "s_max"), [(243, 3, 5), (125, 5, 3), (1000, 10, 3), (1024, 2, 10), (8, 9, None)])
def test_powers_are_not_missed_by_rounding(R, eta, s_max):
    """A power of eta has its bracket, which floating-point logarithms would miss."""
    if s_max is None:
        with pytest.raises(InvalidParameter, match="R must not be less than eta"):
            HyperbandParams(R=R, eta=eta)
        return
    rounds = hyperband_rounds(HyperbandParams(R=R, eta=eta))
    assert rounds[0] == Round(s_max, 0, eta**s_max, 1) and rounds[-1].r_i == R
    assert min(one.n_i for one in rounds) >= 1


def test_a_schedule_too_large_is_refused():
    """A million models cause an error and do not exhaust the memory."""
    with pytest.raises(InvalidParameter, match="100,000 configurations"):
        hyperband_rounds(HyperbandParams(R=1_000_000, eta=2))


def test_a_round_goes_on_with_the_best_for_so_many_iterations_more():
    """The best third of a bracket continues, the others are stopped; in ties the smaller key continues."""
    lab = Laboratory(search_of("hyperband", "R=9"), loss=lambda params, key, epoch: float(key % 3))
    first = lab.call("start", 2)
    assert all(isinstance(action, Add) for action in first)
    described = [(a.proposal.mst_key, a.proposal.s, a.proposal.i, a.proposal.last_epoch) for a in first]
    assert described == [(key, 2, 0, 1) for key in range(1, 10)] + [(key, 1, 0, 3) for key in range(10, 13)] + [
        (key, 0, 0, 9) for key in range(13, 16)
    ]
    for key in (9, 2, 4, 1, 3, 8, 7, 5):
        assert lab.result(key) == []
    stopped = "not among the best 3 of 9 in bracket 2"
    assert lab.result(6) == [Extend(key, 4, 1) if key in (3, 6, 9) else Stop(key, stopped) for key in range(1, 10)]
    assert lab.result(9) == lab.result(3) == []
    assert lab.result(6)[0] == Extend(3, 13, 2), "1 + 3 + 9 epochs"


def test_brackets_do_not_wait_for_each_other():
    """Bracket 2 ends although the others have no results."""
    lab = Laboratory(search_of("hyperband", "R=9"))
    lab.call("start", 2)
    for _ in range(9 + 3 + 1):
        lab.result(min(lab.awaited))
    assert min(lab.awaited) == 10 and not lab.search.done


def test_models_that_failed_never_go_on():
    """Of a round with two valid models for three places, two continue; a bracket without valid models ends."""
    lab = Laboratory(search_of("hyperband", "R=9, skip_last=1"))
    lab.call("start", 2)
    for key in (1, 2, 3):
        lab.failed(key)
    for key in (4, 5, 6, 7):
        lab.result(key, float("nan"))
    lab.result(8)
    said = lab.result(9)
    assert [action.mst_key for action in said if isinstance(action, Extend)] == [8, 9]
    assert [action.mst_key for action in said if isinstance(action, Stop)] == [4, 5, 6, 7]
    for key in (10, 11):
        assert lab.failed(key) == []
    assert lab.failed(12) == []
    lab.result(8)
    lab.result(9)
    assert lab.search.done


def test_configurations_of_all_brackets_are_distinct():
    """No configuration is trained twice while there are untrained ones."""
    lab = Laboratory(search_of("hyperband", "R=27")).run(3, random.Random(0))
    proposals = [action.proposal for action in lab.actions if isinstance(action, Add)]
    assert len(proposals) == 27 + 9 + 6 + 4
    assert len({(p.model_id, p.compile_params, p.fit_params) for p in proposals}) == len(proposals)
    assert lab.search.max_epochs == max(lab.reached.values()) == 1 + 3 + 9 + 27


def begun(lab):
    """Return how many configurations began in each bracket."""
    return Counter(action.proposal.s for action in lab.actions if isinstance(action, Add))


def test_with_a_budget_the_first_round_leaves_time_for_the_next_one():
    """Two segments: after the first result, the time is enough for five iterations of a model."""
    lab = Laboratory(search_of("hyperband", "R=9, budget_s=90"), loss=lambda params, key, epoch: float(key))
    assert [action.proposal.mst_key for action in lab.call("start", 2)] == [1, 2]
    assert lab.search.enough_iterations == 27 + 18 + 27
    lab.call("time_left", 5)
    assert [action.proposal.mst_key for action in lab.result(1)] == [3], "2, 3 and the promotion fit"
    lab.call("time_left", 4)
    assert [action.proposal.mst_key for action in lab.result(2)] == [4]
    lab.call("time_left", 3)
    assert lab.result(3) == [], "another one would take the time of the promotion"
    assert lab.search.notices == []
    stopped = "not among the best 1 of 4 in bracket 2"
    assert lab.result(4) == [Extend(1, 4, 1), *(Stop(key, stopped) for key in (2, 3, 4))]
    assert lab.search.notices[0].endswith("bracket 2 begins 4 of 9, and the best of them go on in the rest of the time")
    assert lab.search.notices[1].startswith("the rest of the time budget is too short for all rounds of bracket 1")
    lab.call("time_left", 0)
    assert lab.result(1) == [Extend(1, 13, 2)], "as far as the budget goes"


def test_a_bracket_that_waits_for_time_begins_when_an_iteration_turns_out_to_be_cheap():
    """The first iterations also pay for the start of the trainers."""
    lab = Laboratory(search_of("hyperband", "R=3, budget_s=90"))
    lab.call("start", 1)
    for left in (6, 5):
        lab.call("time_left", left)
        lab.result(min(lab.awaited))
    lab.call("time_left", 4)
    assert begun(lab) == {1: 3}
    lab.result(min(lab.awaited))
    lab.call("time_left", 2)
    assert begun(lab) == {1: 3}
    lab.call("time_left", 3)
    lab.result(min(lab.awaited))
    assert begun(lab) == {1: 3, 0: 1}


def test_with_time_enough_all_brackets_begin_all_configurations():
    """They are those of a search without a budget, as long as the brackets draw apart."""
    lab = Laboratory(search_of("hyperband", "R=9, budget_s=90")).run(4, random.Random(1))
    other = Laboratory(search_of("hyperband", "R=9")).run(4, random.Random(1))
    assert begun(lab) == begun(other) == {2: 9, 1: 3, 0: 3}
    assert sorted(lab.reached.values()) == sorted(other.reached.values())
    assert lab.search.notices == []


def test_a_search_that_an_earlier_version_began_begins_all_configurations_at_once():
    search = make_search("hyperband", "R=9, budget_s=90", space(), 1, can_pace=False)
    assert search.start(2) == search_of("hyperband", "R=9").start(2) and search.enough_iterations == 0


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["R=9", "R=8, eta=2", "R=27", "R=9, skip_last=1"]), st.integers(1, 6), st.integers(0, 10**6))
def test_whatever_time_is_left_it_ends_and_the_same_calls_give_the_same_actions(params, n_slots, seed):
    """Some models fail or have no loss: the laboratory checks that a driver can execute each action."""
    lab = Laboratory(search_of("hyperband", f"{params}, budget_s=9"))
    lab.run(n_slots, random.Random(seed), fail=0.1, nan=0.1, hurry=0.4)
    again = search_of("hyperband", f"{params}, budget_s=9")
    assert [getattr(again, name)(*arguments) for name, arguments in lab.calls] == lab.said
    assert again.done and again.best() == lab.search.best()
