"""Models that commands stop, let go on and clone while a run trains."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.schedule import SCHEDULES, ModelWork, make_scheduler


def finish_one(scheduler, rng):
    """Start what can start, end one task in flight, and return it."""
    scheduler.next_tasks()
    flying = [task for s in scheduler.segments if (task := scheduler.in_flight(s)) is not None]
    task = rng.choice(flying)
    scheduler.finished(task, rng.uniform(0.5, 2.0))
    return task


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000))
def test_a_model_that_is_stopped_and_goes_on_makes_each_visit_once(schedule, n, p, seed):
    rng = random.Random(seed)
    scheduler = make_scheduler(schedule, [ModelWork((c,), c, 3) for c in range(n)], {s: 10 for s in range(p)})
    units, visits, stopped = [(c,) for c in range(n)], [], set()
    while not scheduler.done or stopped:
        if scheduler.done or rng.random() < 0.2:
            unit = rng.choice(sorted(stopped) if stopped and rng.random() < 0.6 else units)
            if unit in stopped:
                stopped.remove(unit)
                scheduler.revive(unit)
            elif not scheduler.done:
                stopped.add(unit)
                scheduler.drop(unit)
        elif any(scheduler.next_tasks()) or any(scheduler.in_flight(s) for s in scheduler.segments):
            visits.append(finish_one(scheduler, rng))
        elif stopped:
            scheduler.revive(stopped.pop())
    for unit in units:
        own = [(v.epoch, v.position, v.segment) for v in visits if v.unit == unit]
        assert [place[:2] for place in own] == [(e, k) for e in (1, 2, 3) for k in range(1, p + 1)]
        assert {place[::2] for place in own} == {(e, s) for e in (1, 2, 3) for s in range(p)}


def test_a_stopped_model_starts_nothing_and_ends_the_run_with_the_others():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1), ModelWork((1,), 1, 1)], {0: 10, 1: 10})
    first = scheduler.next_tasks()
    scheduler.drop((0,))
    for task in first:
        scheduler.finished(task, 1.0)
    (rest,) = scheduler.next_tasks()
    assert rest.unit == (1,)
    scheduler.finished(rest, 1.0)
    assert scheduler.done
    scheduler.revive((0,))
    assert not scheduler.done
    (last,) = scheduler.next_tasks()
    assert (last.unit, last.segment, last.position) == ((0,), 1, 2)


def test_a_visit_that_completes_the_epoch_of_a_stopped_model():
    """The model goes on with its next epoch; the caller is not told of the complete one."""
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 2)], {0: 10, 1: 10})
    (first,) = scheduler.next_tasks()
    scheduler.finished(first, 1.0)
    (second,) = scheduler.next_tasks()
    scheduler.drop((0,))
    assert scheduler.finished(second, 1.0) is None
    scheduler.revive((0,))
    (third,) = scheduler.next_tasks()
    assert (third.epoch, third.position, third.segment) == (2, 1, 0)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_clone_follows_the_rotation_of_its_original(position):
    """Added within an epoch, with the segments that its original has visited."""
    rows = {s: 10 for s in range(3)}
    original = make_scheduler("rotation", [ModelWork((7,), 1, 2)], rows)
    visits = []
    while not original.done:
        for task in original.next_tasks():
            visits.append((task.segment, task.epoch, task.position))
            original.finished(task, 1.0)
    visited = tuple(segment for segment, epoch, k in visits if epoch == 1 and k <= position)
    scheduler = make_scheduler("rotation", [ModelWork((1,), 0, 0)], rows)
    scheduler.add_model(ModelWork((8,), 5, 2, 1, visited, turn=1))
    own = []
    while not scheduler.done:
        for task in scheduler.next_tasks():
            own.append((task.segment, task.epoch, task.position))
            scheduler.finished(task, 1.0)
    assert own == visits[position:]
