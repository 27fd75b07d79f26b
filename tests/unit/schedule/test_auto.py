"""The schedule that auto chooses, and when it changes."""

from madlib_mop.schedule import ModelWork, make_scheduler
from madlib_mop.schedule.forecast.simulator import simulate


def orders(schedule, costs, p, n_epochs=2, s_per_row=None):
    """Return each model's order of segments by epoch, for models with these seconds per visit."""
    models = [ModelWork((c,), c, n_epochs, s_per_row=s_per_row and s_per_row[c]) for c in range(len(costs))]
    scheduler = make_scheduler(schedule, models, dict.fromkeys(range(p), 10))
    visits = simulate(scheduler, lambda model, segment, epoch: costs[model]).visits
    return {
        model.unit: [[v.segment for v in visits if (v.unit, v.epoch) == (model.unit, epoch)] for epoch in (1, 2)]
        for model in models
    }


def test_rotation_while_costs_are_alike():
    costs = [1.0, 1.05, 1.1, 1.0, 1.02, 1.08, 1.0]
    assert orders("auto", costs, 3) == orders("rotation", costs, 3)


def test_rotation_where_models_are_no_more_than_segments():
    for n in (2, 4):
        costs = [1.0, 5.0, 2.0, 9.0][:n]
        assert orders("auto", costs, 4) == orders("rotation", costs, 4)


def test_longest_first_where_costs_are_known_to_differ():
    costs = [1.0, 8.0, 1.0, 1.0, 8.0, 1.0]
    known = [cost / 10 for cost in costs]
    assert orders("auto", costs, 2, s_per_row=known) == orders("longest_first", costs, 2, s_per_row=known)


def test_a_tenth_is_alike_and_a_fifth_is_not():
    nearly = [1.0, 1.09, 1.0, 1.09, 1.0, 1.09, 1.0]
    known = [0.1 * cost for cost in nearly]
    assert orders("auto", nearly, 3, s_per_row=known) == orders("rotation", nearly, 3)
    apart = [1.0 if cost == 1.0 else 1.2 for cost in nearly]
    known = [0.1 * cost for cost in apart]
    assert orders("auto", apart, 3, s_per_row=known) == orders("longest_first", apart, 3, s_per_row=known)
    assert orders("auto", apart, 3, s_per_row=known) != orders("rotation", apart, 3)


def test_known_costs_count_from_the_first_visit_whatever_the_order_of_the_models():
    models = [ModelWork((c,), c, 1, s_per_row=rate) for c, rate in ((0, 8.0), (2, 8.0), (1, 1.0))]
    scheduler = make_scheduler("auto", models, {0: 10, 1: 10})
    assert sorted(visit.unit for visit in scheduler.next_tasks()) == [(0,), (2,)], "both would be bound to segment 0"


def test_longest_first_as_soon_as_costs_are_seen_to_differ_for_models_that_wait_too():
    scheduler = make_scheduler("auto", [ModelWork((c,), c, 1) for c in range(6)], dict.fromkeys(range(3), 10))
    visits = {visit.unit: visit for visit in scheduler.next_tasks()}
    assert {unit: visit.segment for unit, visit in visits.items()} == {(0,): 0, (1,): 1, (2,): 2}
    scheduler.finished(visits[(0,)], 1.0)
    (third,) = scheduler.next_tasks()
    assert third.unit == (3,), "bound to segment 0 as 0 is to segment 1"
    scheduler.finished(visits[(1,)], 8.0)
    (first,) = scheduler.next_tasks()
    assert (first.unit, first.segment) == ((4,), 1), "not measured yet"
    scheduler.finished(third, 1.0)
    (second,) = scheduler.next_tasks()
    assert (second.unit, second.segment) == ((5,), 0), "bound to segment 2 before, now free to take segment 0"


def test_back_to_rotation_with_the_next_epoch_once_costs_are_alike():
    scheduler = make_scheduler("auto", [ModelWork((c,), c, 3) for c in range(3)], dict.fromkeys(range(2), 10))
    order = {(c,): [] for c in range(3)}
    while not scheduler.done:
        for visit in scheduler.next_tasks():
            order[visit.unit].append((visit.epoch, visit.segment))
            first = (visit.unit, visit.epoch, visit.position) == ((1,), 1, 1)
            scheduler.finished(visit, 1.3 if first else 1.0)  # a mean of 1.15, then 1.1, 1.075: alike from epoch 2 on
    for (model,), visits in order.items():
        assert [segment for epoch, segment in visits if epoch == 3] == [model % 2, (model + 1) % 2]
