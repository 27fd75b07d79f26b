"""Whom longest_first prefers, and where it sends a model that may choose."""

from madlib_mop.schedule import ModelWork, Visit, make_scheduler


def started(scheduler):
    return [(visit.model, visit.segment) for visit in scheduler.next_tasks()]


def test_models_start_in_rotation_order_before_any_measure():
    scheduler = make_scheduler("longest_first", [ModelWork(c, c, 1) for c in range(5)], dict.fromkeys(range(3), 10))
    assert sorted(started(scheduler)) == [(0, 0), (1, 1), (2, 2)]


def test_a_model_not_measured_yet_comes_before_the_longest_measured():
    scheduler = make_scheduler("longest_first", [ModelWork(c, c, 1) for c in range(4)], dict.fromkeys(range(3), 10))
    visits = {visit.model: visit for visit in scheduler.next_tasks()}
    scheduler.finished(visits[1], 1000.0)
    scheduler.segment_down(1)
    scheduler.finished(visits[0], 1.0)
    assert started(scheduler) == [(3, 0)], "1 waits for segment 0 too, with 2,000 s of work left"


def test_the_model_with_most_work_left_comes_first():
    models = [
        ModelWork(0, 0, 1, s_per_row=5.0),
        ModelWork(1, 1, 3, s_per_row=2.0),  # less a visit, more in all
        ModelWork(2, 2, 1, s_per_row=1.0),
    ]
    scheduler = make_scheduler("longest_first", models, {0: 10})
    order = []
    while not scheduler.done:
        (visit,) = scheduler.next_tasks()
        scheduler.finished(visit, models[visit.model].s_per_row * 10)
        order.append(visit.model)
    assert order == [1, 0, 1, 1, 2]


def test_a_model_that_may_choose_goes_where_most_work_is_left():
    scheduler = make_scheduler("longest_first", [ModelWork(0, 0, 1, s_per_row=1.0)], {0: 10, 1: 10, 2: 100, 3: 20})
    order = []
    while not scheduler.done:
        (visit,) = scheduler.next_tasks()
        scheduler.finished(visit, 1.0)
        order.append(visit.segment)
    assert order == [2, 3, 0, 1], "the largest first, then in rotation order"


def test_among_even_shards_most_work_is_left_where_least_was_done():
    models = [ModelWork(0, 0, 1, visited=(0,), s_per_row=1.0), ModelWork(1, 1, 1, visited=(2,), s_per_row=5.0)]
    scheduler = make_scheduler("longest_first", models, dict.fromkeys(range(4), 10))
    assert started(scheduler) == [(1, 1), (0, 3)]


def test_a_model_that_begins_an_epoch_leaves_the_segment_it_comes_from_to_one_that_waits_for_it():
    models = [ModelWork(0, 0, 2, visited=(1,), s_per_row=1.0), ModelWork(1, 1, 1, visited=(1,), s_per_row=1.0)]
    scheduler = make_scheduler("longest_first", models, {0: 100, 1: 1})
    (visit,) = scheduler.next_tasks()
    assert visit == Visit(0, 0, 1, 2)
    scheduler.finished(visit, 100.0)
    assert sorted(started(scheduler)) == [(0, 1), (1, 0)]
