"""Models stay with the trainer that has their graph, where each trainer can hold the rows of all segments."""

from collections import defaultdict

import pytest

from madlib_mop.schedule import SCHEDULES, Evaluation, ModelWork, Visit, make_scheduler

SEGMENTS = {10: 100, 20: 100}


def run(scheduler, cost=lambda unit: 1.0, once_s=3.0, graph_of=lambda unit: unit):
    """Complete a run in simulated time; return the visits by their trainer, and the time that it took."""
    now, flights, visits, traced = 0.0, {}, defaultdict(list), set()
    while not scheduler.done:
        for task in scheduler.next_tasks():
            first = (task.at, graph_of(task.unit)) not in traced
            traced.add((task.at, graph_of(task.unit)))
            flights[task.at] = (now + cost(task.unit) + first * once_s, first, task)
        at = min(flights, key=lambda place: (flights[place][0], place))
        now, first, task = flights.pop(at)
        scheduler.finished(task, cost(task.unit), first * once_s)
        visits[at].append(task)
    return visits, now


def units(visits, at):
    return {task.unit for task in visits[at]}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_graph_is_traced_once_and_the_trainers_share_the_models(schedule):
    models = [ModelWork((c,), c, 3, graph=str(c)) for c in range(8)]
    visits, _ = run(make_scheduler(schedule, models, SEGMENTS, any_trainer=True))
    assert not units(visits, 10) & units(visits, 20)
    assert len(units(visits, 10)) == len(units(visits, 20)) == 4
    assert {task.segment for task in visits[10]} == {10, 20}, "a model makes its visits to all shards there"


def test_the_order_of_visits_is_that_of_the_rotation():
    models = [ModelWork((c,), c, 2, graph=str(c)) for c in range(4)]
    visits, _ = run(make_scheduler("rotation", models, SEGMENTS, any_trainer=True))
    for unit in [(0,), (1,), (2,), (3,)]:
        made = [task.segment for tasks in visits.values() for task in tasks if task.unit == unit]
        assert made == ([10, 20] if unit[0] % 2 == 0 else [20, 10]) * 2


def test_breadth_first_traces_for_first_visits_at_no_more_trainers_than_can_compute_at_once():
    models = [ModelWork((c,), c, 3, graph=str(c)) for c in range(4)]
    scheduler = make_scheduler("breadth_first", models, SEGMENTS, n_at_once=1, any_trainer=True)
    for unit in range(4):
        (task,) = scheduler.next_tasks()
        assert (task.at, task.unit) == (10, (unit,))
        scheduler.finished(task, 10.0, 1.0)
    assert [task.at for task in scheduler.next_tasks()] == [10, 20]


def test_breadth_first_lets_no_later_visits_overtake_a_first_visit_for_ever():
    """With one processor and two busy trainers, a graph that is added later is traced as soon as both have ended."""
    models = [ModelWork((c,), c, 100, graph="one") for c in range(4)]
    scheduler = make_scheduler("breadth_first", models, SEGMENTS, n_at_once=1, any_trainer=True)
    tasks = scheduler.next_tasks()
    while len(tasks) < 2:
        scheduler.finished(tasks.pop(), 10.0, 1.0)
        tasks += scheduler.next_tasks()
    scheduler.add_model(ModelWork((9,), 9, 100, graph="another"))
    for task in tuple(tasks):
        assert (9,) not in {task.unit for task in tasks}
        scheduler.finished(task, 10.0)
        tasks += scheduler.next_tasks()
    assert (9,) in {task.unit for task in tasks}


def test_models_of_one_graph_begin_at_all_trainers():
    models = [ModelWork((c,), c, 1, graph="one") for c in range(4)]
    tasks = make_scheduler("rotation", models, SEGMENTS, any_trainer=True).next_tasks()
    assert {task.at for task in tasks} == {10, 20}


@pytest.mark.parametrize("n_models", [6, 9])
def test_auto_lets_all_models_be_compared_early_and_the_run_ends_as_early(n_models):
    models = [ModelWork((c,), c, 10, graph=str(c % 3)) for c in range(n_models)]

    def cost(unit):
        return 1.0 + unit[0] / 2

    took = {}
    for schedule in ("auto", "longest_first"):
        scheduler = make_scheduler(schedule, models, SEGMENTS, any_trainer=True)
        most, visits = 0, dict.fromkeys([work.unit for work in models], 0)
        now, flights = 0.0, {}
        while not scheduler.done:
            for task in scheduler.next_tasks():
                flights[task.at] = (now + cost(task.unit), task)
            at = min(flights, key=lambda place: flights[place][0])
            now, task = flights.pop(at)
            scheduler.finished(task, cost(task.unit))
            visits[task.unit] += 1
            if min(visits.values()) < 2:
                most = max(*visits.values(), most)
        took[schedule] = now, most
    assert took["auto"][0] <= 1.02 * took["longest_first"][0]
    assert took["auto"][1] <= 4, "all models have ended their first iteration before one has made many visits"
    assert took["longest_first"][1] > 4


def test_auto_does_not_let_a_long_model_wait_for_the_others():
    models = [ModelWork((c,), c, 10, graph=str(c)) for c in range(5)]
    visits, took = run(make_scheduler("auto", models, SEGMENTS, any_trainer=True), lambda u: 10.0 if u == (0,) else 1.0)
    assert took <= 20 * 10.0 + 3.0 + 10.0, "the long one has 20 visits, one after the other"


def test_a_free_trainer_takes_a_model_if_it_ends_sooner_there():
    """One trainer has two of three slow models; the other one ends long before."""
    models = [ModelWork((c,), c, 10, graph=str(c)) for c in range(4)]
    cost = {(0,): 1.0, (1,): 10.0, (2,): 10.0, (3,): 10.0}
    visits, took = run(make_scheduler("longest_first", models, SEGMENTS, any_trainer=True), cost.__getitem__)
    assert len(units(visits, 10) & units(visits, 20)) == 1
    assert took < 350, "two slow models one after the other take 400 s"


def test_a_free_trainer_takes_no_model_if_its_graph_takes_longer_than_its_visits():
    models = [ModelWork((c,), c, 1, graph=str(c)) for c in range(3)]
    visits, _ = run(make_scheduler("longest_first", models, SEGMENTS, any_trainer=True), once_s=100.0)
    assert not units(visits, 10) & units(visits, 20)


def test_the_models_of_a_lost_trainer_may_go_to_any():
    models = [ModelWork((c,), c, 3, graph=str(c)) for c in range(2)]
    scheduler = make_scheduler("rotation", models, SEGMENTS, any_trainer=True)
    (first, _) = scheduler.next_tasks()
    scheduler.segment_down(first.at)
    scheduler.requeue(first)
    scheduler.finished(scheduler.in_flight(20), 1.0)
    (again,) = scheduler.next_tasks()
    assert (again.at, again.unit) == (20, first.unit), "the other trainer is down"


def test_the_models_of_a_trainer_that_died_may_go_to_any():
    models = [ModelWork((c,), c, 2, graph=str(c)) for c in range(2)]
    scheduler = make_scheduler("rotation", models, SEGMENTS, any_trainer=True)
    (first, second) = scheduler.next_tasks()
    scheduler.hold(first.unit)
    scheduler.finished(first, 1.0, 3.0)
    scheduler.trainer_died(second.at)
    scheduler.requeue(second)
    (again,) = scheduler.next_tasks()
    assert (again, again.at) == (second, first.at), "the first trainer that is free"


def test_a_trainer_with_the_graph_takes_a_model_that_waits_for_another_one():
    """Of 24 visits of a second, each trainer makes 12, although it has two of the models or one."""
    models = [ModelWork((c,), c, 4, graph="one") for c in range(3)]
    scheduler = make_scheduler("longest_first", models, SEGMENTS, any_trainer=True)
    visits, took = run(scheduler, once_s=100.0, graph_of=lambda unit: "one")
    assert took == 112 and len(visits[10]) == len(visits[20]) == 12


def test_evaluations_are_made_where_the_graph_is():
    scheduler = make_scheduler("rotation", [ModelWork((7,), 0, 1, graph="g")], SEGMENTS, any_trainer=True)
    (visit,) = scheduler.next_tasks()
    scheduler.finished(visit, 1.0, 3.0)
    (visit,) = scheduler.next_tasks()
    at = visit.at
    assert scheduler.finished(visit, 1.0) is not None
    for segment in SEGMENTS:
        scheduler.add_evaluation((7,), segment)
    first = scheduler.next_tasks()
    assert [task.at for task in first] == [at], "one after the other, in the trainer that has the graph"
    scheduler.finished(first[0], 1.0)
    second = scheduler.next_tasks()
    assert [task.at for task in second] == [at] and second[0].segment != first[0].segment
    assert not isinstance(second[0], Visit)


def test_evaluations_that_take_longer_than_a_graph_are_made_by_all_trainers_that_are_free():
    scheduler = make_scheduler("rotation", [ModelWork((7,), 0, 1, graph="g")], SEGMENTS, any_trainer=True)
    for seconds in (100.0, 100.0):
        (visit,) = scheduler.next_tasks()
        scheduler.finished(visit, seconds, 3.0)
    for segment in SEGMENTS:
        scheduler.add_evaluation((7,), segment)
    assert {task.at for task in scheduler.next_tasks()} == {10, 20}


def test_a_trainer_makes_its_last_visit_before_it_evaluates_a_model_of_another_one():
    """Otherwise the run would end later: the evaluations of the visit's model come after it."""
    models = [ModelWork((c,), c, 1, graph="one") for c in range(2)]
    scheduler = make_scheduler("rotation", models, SEGMENTS, any_trainer=True)
    for task in scheduler.next_tasks():
        scheduler.finished(task, 1.0)
    ended, last = scheduler.next_tasks()
    assert scheduler.finished(ended, 1.0) is not None
    for segment in SEGMENTS:
        scheduler.add_evaluation(ended.unit, segment)
    (own,) = scheduler.next_tasks()
    assert isinstance(own, Evaluation) and own.at == ended.at, "at its home"
    scheduler.requeue(last)
    (again,) = scheduler.next_tasks()
    assert (again.at, again.unit) == (last.at, last.unit) and isinstance(again, Visit)
    scheduler.finished(again, 1.0)
    (helped,) = scheduler.next_tasks()
    assert isinstance(helped, Evaluation) and helped.at == last.at and helped.unit == ended.unit
