"""longest_first: the models that it prefers, the segments that it chooses, and its treatment of slow segments."""

import random
from statistics import fmean

import pytest

from madlib_mop.schedule import ModelWork, Visit, make_scheduler
from madlib_mop.schedule.forecast.simulator import simulate


def started(scheduler):
    return [(visit.unit, visit.segment) for visit in scheduler.next_tasks()]


def test_models_start_in_rotation_order_before_any_measure():
    scheduler = make_scheduler("longest_first", [ModelWork((c,), c, 1) for c in range(5)], dict.fromkeys(range(3), 10))
    assert sorted(started(scheduler)) == [((0,), 0), ((1,), 1), ((2,), 2)]


def test_a_model_not_measured_yet_comes_before_the_longest_measured():
    scheduler = make_scheduler("longest_first", [ModelWork((c,), c, 1) for c in range(4)], dict.fromkeys(range(3), 10))
    visits = {visit.unit: visit for visit in scheduler.next_tasks()}
    scheduler.finished(visits[(1,)], 1000.0)
    scheduler.segment_down(1)
    scheduler.finished(visits[(0,)], 1.0)
    assert started(scheduler) == [((3,), 0)], "1 waits for segment 0 too, with 2,000 s of work left"


def test_the_model_with_most_work_left_comes_first():
    models = [
        ModelWork((0,), 0, 1, s_per_row=5.0),
        ModelWork((1,), 1, 3, s_per_row=2.0),  # one visit fewer, but more work in total
        ModelWork((2,), 2, 1, s_per_row=1.0),
    ]
    scheduler = make_scheduler("longest_first", models, {0: 10})
    order = []
    while not scheduler.done:
        (visit,) = scheduler.next_tasks()
        (model,) = visit.unit
        scheduler.finished(visit, models[model].s_per_row * 10)
        order.append(model)
    assert order == [1, 0, 1, 1, 2]


def test_a_model_that_may_choose_goes_where_most_work_is_left():
    scheduler = make_scheduler("longest_first", [ModelWork((0,), 0, 1, s_per_row=1.0)], {0: 10, 1: 10, 2: 100, 3: 20})
    order = []
    while not scheduler.done:
        (visit,) = scheduler.next_tasks()
        scheduler.finished(visit, 1.0)
        order.append(visit.segment)
    assert order == [2, 3, 0, 1], "the largest first, then in rotation order"


def test_among_even_shards_most_work_is_left_where_least_was_done():
    models = [ModelWork((0,), 0, 1, visited=(0,), s_per_row=1.0), ModelWork((1,), 1, 1, visited=(2,), s_per_row=5.0)]
    scheduler = make_scheduler("longest_first", models, dict.fromkeys(range(4), 10))
    assert started(scheduler) == [((1,), 1), ((0,), 3)]


def test_a_model_that_begins_an_epoch_leaves_the_segment_it_comes_from_to_one_that_waits_for_it():
    models = [ModelWork((0,), 0, 2, visited=(1,), s_per_row=1.0), ModelWork((1,), 1, 1, visited=(1,), s_per_row=1.0)]
    scheduler = make_scheduler("longest_first", models, {0: 100, 1: 1})
    (visit,) = scheduler.next_tasks()
    assert visit == Visit((0,), 0, 1, 2)
    scheduler.finished(visit, 100.0)
    assert sorted(started(scheduler)) == [((0,), 1), ((1,), 0)]


def test_a_slow_segment_is_visited_first_once_its_slowness_is_known():
    """Half as many models as segments, one segment three times slower: a model must not visit it last."""

    def ratio(schedule, seed, mix):
        rng = random.Random(seed)
        rates = [rng.uniform(1, mix) for _ in range(4)]
        models = [ModelWork((c,), c, 3) for c in range(4)]
        scheduler = make_scheduler(schedule, models, dict.fromkeys(range(8), 100))
        noise = random.Random(seed)

        def cost(model, segment, epoch):
            return rates[model] * (3 if segment == 3 else 1) * noise.uniform(0.97, 1.03)

        return simulate(scheduler, cost).efficiency.ratio

    measured = [ratio("longest_first", seed, mix) for mix in (1, 3) for seed in range(8)]
    assert fmean(measured) <= 1.09 and max(measured) <= 1.16, measured
    assert fmean(measured) < fmean([ratio("rotation", seed, mix) for mix in (1, 3) for seed in range(8)]) - 0.02


@pytest.mark.parametrize("n", [12, 16])
def test_mixed_models_on_a_slow_segment_come_near_the_bound(n):
    rates = [8.0 if c % 4 == 3 else 1.0 for c in range(n)]
    for seed in range(6):
        noise = random.Random(seed)
        models = [ModelWork((c,), c, 2) for c in range(n)]
        scheduler = make_scheduler("longest_first", models, dict.fromkeys(range(8), 9))

        def cost(model, segment, epoch, noise=noise):
            return rates[model] * (3 if segment == 3 else 1) * noise.uniform(0.97, 1.03)

        assert simulate(scheduler, cost).efficiency.ratio <= 1.06
