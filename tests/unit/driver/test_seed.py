"""Promise 2: a run without a given seed draws a valid seed, a different one each time."""

from madlib_mop.calls.limits import MAX_SEED
from madlib_mop.driver.planning.plan import choose_seed


def test_seeds_are_drawn_from_those_that_may_be_given():
    drawn = {choose_seed(None) for _ in range(20)}
    assert len(drawn) > 15
    assert all(choose_seed(seed) == seed for seed in drawn | {0, MAX_SEED})
