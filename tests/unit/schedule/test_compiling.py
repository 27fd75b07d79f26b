"""Graphs that one trainer compiles for all (`ModelWork.graph`): meanwhile, models with other graphs start first."""

import random
from collections.abc import Sequence

import pytest

from madlib_mop.schedule import ModelWork, make_scheduler

SCHEDULES = ("longest_first", "auto")


def scheduler_of(graphs: Sequence[str], n_segments: int, schedule: str = "longest_first"):
    works = [ModelWork(number, number, 1, graph=graph) for number, graph in enumerate(graphs)]
    return make_scheduler(schedule, works, dict.fromkeys(range(n_segments), 10))


def started(scheduler) -> dict:
    """Return the new visits by model."""
    return {visit.model: visit for visit in scheduler.next_tasks()}


def test_two_segments_begin_with_two_graphs():
    assert list(started(scheduler_of("AAB", 2))) == [0, 2]


def test_a_segment_starts_no_model_whose_graph_is_being_compiled():
    scheduler = scheduler_of("ABBA", 2)
    first = started(scheduler)
    assert list(first) == [0, 1]
    scheduler.finished(first[0], 1.0)
    assert list(started(scheduler)) == [3], "2 would compile B, too"
    scheduler.finished(first[1], 1.0)
    assert list(started(scheduler)) == [2], "B is known now"


def test_a_segment_starts_rather_a_model_of_another_family():
    """The function for the last batch can be the same for two batch sizes."""
    scheduler = scheduler_of(["A 32", "A 256", "B 32", "B 256"], 2)
    first = started(scheduler)
    assert list(first) == [0, 2]
    scheduler.finished(first[0], 1.0)
    assert list(started(scheduler)) == [1], "3 would compile a part of what 2 compiles"


def test_a_part_of_a_graph_that_is_being_compiled_is_better_than_all_of_it():
    scheduler = scheduler_of(["A 32", "A 32", "A 256"], 2)
    assert list(started(scheduler)) == [0, 2]


def test_a_segment_does_not_wait_for_a_graph():
    assert list(started(scheduler_of("AA", 2))) == [0, 1]


@pytest.mark.parametrize("how", ["requeue", "failed"])
def test_a_visit_without_a_result_has_compiled_nothing(how):
    scheduler = scheduler_of("AAAB", 2)
    first = started(scheduler)
    getattr(scheduler, how)(first[0])
    assert list(first) == [0, 3]
    again = started(scheduler)  # compiles A
    assert len(again) == 1 and 3 not in again
    scheduler.finished(first[3], 1.0)
    assert len(started(scheduler)) == 1, "only models with A are left, and the segment does not wait"


def test_models_without_a_graph_start_in_the_usual_order():
    works = [ModelWork(number, number, 1) for number in range(3)]
    scheduler = make_scheduler("longest_first", works, dict.fromkeys(range(2), 10))
    assert list(started(scheduler)) == [0, 1]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(20))
def test_all_visits_are_made(schedule, seed):
    """Some visits have no result at first."""
    rng = random.Random(seed)
    n_segments, n_models = rng.randint(1, 4), rng.randint(1, 12)
    scheduler = scheduler_of("".join(rng.choice("ABC") for _ in range(n_models)), n_segments, schedule)
    running, made = [], set()
    while not scheduler.done:
        running += scheduler.next_tasks()
        visit = running.pop(rng.randrange(len(running)))
        if rng.random() < 0.2:
            scheduler.requeue(visit)
            continue
        scheduler.finished(visit, rng.uniform(1, 5))
        made.add((visit.model, visit.segment))
    assert len(made) == n_models * n_segments
