"""Models that searches add later, extend or end early."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.errors import InvalidParameter
from madlib_mop.schedule import SCHEDULES, EpochDone, ModelWork, Unit, Visit, make_scheduler
from madlib_mop.schedule.forecast.simulator import simulate
from tests.helpers.unit.referee import Referee


def train(scheduler, n_visits=None):
    """Make visits one after the other; return (epochs done, visits)."""
    epochs, visits = [], []
    while not scheduler.done and (n_visits is None or len(visits) < n_visits):
        for task in scheduler.next_tasks():
            visits.append(task)
            if done := scheduler.finished(task, 1.0):
                epochs.append(done)
    return epochs, visits


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 8), st.integers(1, 5), st.integers(0, 1000))
def test_added_and_extended_before_the_start_is_as_given_at_once(schedule, n, p, seed):
    """The visits of a model and their order do not depend on how it was added to the scheduler."""
    rng = random.Random(seed)
    works = [ModelWork((c,), c, rng.randrange(4), s_per_row=rng.choice([None, 1.0, 3.0])) for c in range(n)]
    rows = {number: rng.randrange(1, 20) for number in range(p)}
    at_once = make_scheduler(schedule, works, rows)
    grown = make_scheduler(schedule, [], rows)
    for work in works:
        grown.add_model(ModelWork(work.unit, work.index, 0, s_per_row=work.s_per_row))
        grown.extend(work.unit, work.last_epoch)
    assert grown.seconds_left() == pytest.approx(at_once.seconds_left())
    cost = {(m, s): rng.uniform(1, 9) for m in range(n) for s in range(p)}
    one, other = (simulate(scheduler, lambda m, s, e: cost[m, s]) for scheduler in (at_once, grown))
    assert one.visits == other.visits


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_model_that_was_done_goes_on(schedule):
    """It continues with its next epoch; the scheduler was done and is active again."""
    scheduler = make_scheduler(schedule, [ModelWork((0,), 0, 1), ModelWork((1,), 1, 1)], {0: 10, 1: 10})
    train(scheduler)
    assert scheduler.done
    scheduler.extend((1,), 3)
    assert not scheduler.done
    epochs, visits = train(scheduler)
    assert epochs == [EpochDone((1,), 2, last=False), EpochDone((1,), 3, last=True)] and len(visits) == 4


def test_rotation_gives_a_model_its_order_whenever_it_comes():
    """Configuration c starts on segment c, even if it was added late and extended twice."""
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1)], {0: 10, 1: 10, 2: 10})
    train(scheduler, 2)
    scheduler.add_model(ModelWork((7,), 4, 1))
    _, visits = train(scheduler)
    scheduler.extend((7,), 2)
    visits += train(scheduler)[1]
    assert [visit for visit in visits if visit.unit == (7,)] == [
        Visit((7,), segment, epoch, position + 1) for epoch in (1, 2) for position, segment in enumerate((1, 2, 0))
    ]


def test_a_place_is_free_at_once():
    """The segment for which a stopped model waited gets the next model."""
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 3), ModelWork((1,), 1, 3)], {0: 10})
    (visit,) = scheduler.next_tasks()
    assert scheduler.finished(visit, 1.0) == EpochDone((0,), 1, last=False)
    assert scheduler.finish_early((0,)) == 1
    scheduler.add_model(ModelWork((2,), 2, 1))
    assert {task.unit for task in train(scheduler)[1]} == {(1,), (2,)}


def test_finishing_early_ends_with_a_whole_epoch():
    """An epoch in progress is completed, later ones are dropped; a second call changes nothing."""
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 5), ModelWork((1,), 1, 5)], {0: 10, 1: 10})
    first, second = scheduler.next_tasks()
    assert scheduler.finish_early(first.unit) == 1, "its first visit is in flight"
    scheduler.requeue(second)
    assert scheduler.finish_early(second.unit) == 0, "its first visit left nothing behind"
    assert scheduler.finish_early(second.unit) == 0
    scheduler.finished(first, 1.0)
    epochs, visits = train(scheduler)
    assert epochs == [EpochDone(first.unit, 1, last=True)] and len(visits) == 1


def test_a_model_finished_early_may_be_evaluated_and_extended():
    """It remains in the scheduler."""
    scheduler = make_scheduler("auto", [ModelWork((0,), 0, 5)], {0: 10})
    train(scheduler, 1)
    evaluation = scheduler.add_evaluation((0,), 0)
    assert scheduler.finish_early((0,)) == 1 and not scheduler.done
    assert scheduler.next_tasks() == [evaluation]
    scheduler.extend((0,), 2)
    scheduler.finished(evaluation, 0.1)
    assert train(scheduler)[0] == [EpochDone((0,), 2, last=True)]


def test_a_held_model_that_is_extended_stays_held():
    """A user holds a model; a search cannot release it."""
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1)], {0: 10})
    train(scheduler)
    scheduler.hold((0,))
    scheduler.extend((0,), 2)
    assert scheduler.next_tasks() == [] and not scheduler.done
    scheduler.release((0,))
    assert [task.epoch for task in scheduler.next_tasks()] == [2]


def test_auto_counts_the_models_that_came_later():
    """With more models than segments and different costs, models may choose; with fewer, they rotate."""
    scheduler = make_scheduler("auto", [ModelWork((c,), c, 9, s_per_row=c + 1.0) for c in range(2)], {0: 10, 1: 10})
    train(scheduler, 2)
    scheduler.add_model(ModelWork((2,), 2, 9, s_per_row=9.0))
    assert [task.unit for task in scheduler.next_tasks()][0] == (2,), "it has most work left"


def test_seconds_left_follows_what_is_asked_for():
    """Extended models have more work, finished ones none."""
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1), ModelWork((1,), 1, 1)], {0: 10})
    train(scheduler)
    assert scheduler.seconds_left() == 0
    scheduler.extend((0,), 4)
    assert scheduler.seconds_left() == pytest.approx(3.0)
    scheduler.finish_early((0,))
    assert scheduler.seconds_left() == 0


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 1000))
def test_a_record_is_repeated_while_the_models_grow(n, p, seed):
    """A replay of a search adds and extends models as the run did, and each model makes its recorded visits."""
    models = [ModelWork((c,), c, 1 + c % 3) for c in range(n)]
    segments = list(range(p))
    run = Referee(make_scheduler("longest_first", models, dict.fromkeys(segments, 10)), models, segments,
                  random.Random(seed)).run()  # fmt: skip
    replay = make_scheduler("recorded", [], dict.fromkeys(segments, 10), run.kept)
    again: dict[Unit, list[Visit]] = {work.unit: [] for work in models}
    for work in models:
        replay.add_model(ModelWork(work.unit, work.index, 1))
    while not replay.done:
        for task in replay.next_tasks():
            again[task.unit].append(task)
            done = replay.finished(task, 1.0)
            if done is not None:
                assert done.last
                replay.extend(task.unit, done.epoch + 1)  # more than the record has, at the end
    assert again == {unit: [visit for visit in run.kept if visit.unit == unit] for unit in again}


def test_what_cannot_be_is_refused():
    """A duplicate key or index, an unknown segment, fewer epochs than before, a model that failed."""
    scheduler = make_scheduler("rotation", [ModelWork((5,), 0, 2), ModelWork((6,), 1, 2)], {0: 10})
    for work, message in (
        (ModelWork((5,), 2, 1), "same mst_key, received model 5$"),
        (ModelWork((7,), 1, 1), r"same index, received \[1\]"),
        (ModelWork((7,), 2, 1, 1, (9,)), r"no longer has, received \[9\]"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            scheduler.add_model(work)
    with pytest.raises(ValueError, match="continues until epoch 2, received 1"):
        scheduler.extend((5,), 1)
    scheduler.drop((5,))
    with pytest.raises(ValueError, match="was dropped"):
        scheduler.extend((5,), 3)
    assert scheduler.finish_early((5,)) == 2, "nothing happens to a model that is dropped"
    assert {task.unit for task in train(scheduler)[1]} == {(6,)}
