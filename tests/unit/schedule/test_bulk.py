"""The plan of model averaging: all segments at once, one average, then requested evaluations, and nothing twice."""

import random

import pytest

from madlib_mop.schedule import Average, BulkSynchronous, EpochDone, Evaluation, Visit


def plan(segments=(0, 2, 5), workers=(0, 1, 2, 5), epoch=1, last_epoch=2, visited=()):
    return BulkSynchronous((1,), segments, workers, epoch, last_epoch, visited)


def test_an_iteration_is_all_visits_then_one_average():
    bulk = plan()
    visits = bulk.next_tasks()
    assert visits == [Visit((1,), 0, 1, 1), Visit((1,), 2, 1, 2), Visit((1,), 5, 1, 3)]
    for visit in visits[:2]:
        assert bulk.finished(visit, 1.0) is None
        assert bulk.next_tasks() == []
    bulk.finished(visits[2], 1.0)
    (average,) = bulk.next_tasks()
    assert average == Average((1,), 0, 1) and bulk.next_tasks() == []
    assert bulk.finished(average, 1.0) == EpochDone((1,), 1, last=False)
    assert [task.epoch for task in bulk.next_tasks()] == [2, 2, 2]


def test_evaluations_come_before_the_next_iteration_and_keep_the_run_from_its_end():
    bulk = plan(epoch=2, visited=(0, 2, 5))
    (average,) = bulk.next_tasks()
    assert bulk.finished(average, 1.0) == EpochDone((1,), 2, last=True) and bulk.done
    added = [bulk.add_evaluation((1,), segment, "payload") for segment in (0, 0, 1)]
    assert added[0] == Evaluation((1,), 0, "payload") and not bulk.done
    assert bulk.next_tasks() == [added[0], added[2]]
    bulk.requeue(added[0])
    assert bulk.next_tasks() == [added[0]]
    bulk.finished(added[0], 1.0)
    bulk.finished(added[2], 1.0)
    assert bulk.next_tasks() == [added[1]]
    bulk.finished(added[1], 1.0)
    assert bulk.done and bulk.next_tasks() == []


def test_a_resumed_iteration_makes_what_is_left():
    bulk = plan(epoch=2, visited=(5,))
    assert bulk.next_tasks() == [Visit((1,), 0, 2, 1), Visit((1,), 2, 2, 2)]
    assert plan(epoch=3).done


def test_the_average_goes_where_a_session_is_up():
    bulk = plan(visited=(0, 2, 5))
    for segment in (0, 1):
        bulk.segment_down(segment)
    (average,) = bulk.next_tasks()
    assert average.segment == 2
    bulk.segment_down(2)
    bulk.requeue(average)
    assert bulk.next_tasks() == [Average((1,), 5, 1)]


def test_the_time_left_is_that_of_the_slowest_segment():
    bulk = plan(last_epoch=4)
    assert bulk.seconds_left() is None
    for visit, seconds in zip(bulk.next_tasks(), (1.0, 7.0, 2.0), strict=True):
        bulk.finished(visit, seconds)
    bulk.finished(bulk.next_tasks()[0], 3.0)
    assert bulk.seconds_left() == 3 * (7.0 + 3.0)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_fails_and_in_whatever_order_each_visit_is_kept_once(seed):
    chance = random.Random(seed)
    bulk, flying, kept, averages = plan(last_epoch=3), [], [], []
    while not bulk.done:
        flying += bulk.next_tasks()
        assert flying or any(segment in bulk._down for segment in (0, 1, 2, 5))
        if chance.random() < 0.3:
            segment = chance.choice((0, 1, 2, 5))
            chance.choice((bulk.segment_down, bulk.segment_up))(segment)
        if not flying:
            bulk.segment_up(chance.choice((0, 1, 2, 5)))
            continue
        task = flying.pop(chance.randrange(len(flying)))
        if chance.random() < 0.3:
            bulk.requeue(task)
            continue
        done = bulk.finished(task, 1.0)
        if isinstance(task, Visit):
            assert len(averages) == task.epoch - 1
            kept.append(task)
        elif isinstance(task, Average):
            assert sum(visit.epoch == task.epoch for visit in kept) == 3
            averages.append(done.epoch)
            bulk.add_evaluation((1,), chance.choice((0, 1, 2, 5)), done.epoch)
    assert averages == [1, 2, 3] and len(kept) == len(set(kept)) == 9
