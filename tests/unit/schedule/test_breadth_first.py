"""The schedule breadth_first: the models with the fewest visits go first."""

import random
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.schedule import ModelWork, make_scheduler

#: Two architectures with eight models each, as a grid lists them.
GRID = [ModelWork((c,), c, 1, graph="AB"[c // 8]) for c in range(16)]
OF_UNIT = {work.unit: work for work in GRID}


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 10_000))
def test_no_visit_starts_on_a_segment_that_a_model_with_fewer_visits_could_take(n, p, n_epochs, seed):
    rng = random.Random(seed)
    works = [ModelWork((c,), c, n_epochs) for c in range(n)]
    scheduler = make_scheduler("breadth_first", works, {s: 9 for s in range(p)})
    visited = {work.unit: [] for work in works}  # the segments of each model's visits, in order
    flying = []
    starts = []
    while not scheduler.done:
        begun = scheduler.next_tasks()
        idle = set(visited) - {task.unit for task in [*flying, *begun]}
        for task in begun:
            fewer = [
                model
                for model in idle
                if len(visited[model]) < len(visited[task.unit])
                and task.segment not in visited[model][len(visited[model]) // p * p :]
            ]
            assert not fewer, (task, fewer)
        flying += begun
        starts += [task.unit for task in begun]
        task = flying.pop(rng.randrange(len(flying)))
        visited[task.unit].append(task.segment)
        scheduler.finished(task, rng.uniform(0.1, 5))
    assert sorted(starts[:n]) == list(visited), "each model makes its first visit before any makes its second"


def play_first_visits(scheduler, flying) -> dict[int, set[str]]:
    """Make the first visits of all models; return the graphs that each segment's trainer has then traced."""
    graphs = {segment: set() for segment in scheduler.segments}
    n_ended = 0
    while n_ended < len(GRID):
        task = flying.pop(0)
        graphs[task.segment].add(OF_UNIT[task.unit].graph)
        n_ended += task.epoch == task.position == 1
        scheduler.finished(task, 0.5, once_s=2.0)
        flying += scheduler.next_tasks()
    return graphs


def test_the_first_visits_of_a_graph_are_at_few_segments():
    """A trainer traces each graph once, which takes longer than a small visit."""
    scheduler = make_scheduler("breadth_first", GRID, dict.fromkeys(range(4), 9))
    flying = []
    for segment in range(4):
        scheduler.segment_down(segment)
    for segment in (2, 0, 3, 1):  # trainers become ready one after the other
        scheduler.segment_up(segment)
        flying += scheduler.next_tasks()
    assert sorted(map(sorted, play_first_visits(scheduler, flying).values())) == [["A"], ["A"], ["B"], ["B"]]


@pytest.mark.parametrize("n_at_once, n_used", [(1, 1), (2, 2), (3, 3), (4, 4), (9, 4), (None, 4)])
def test_first_visits_are_at_no_more_segments_than_visits_can_compute_at_once(n_at_once, n_used):
    """A further trainer would only take processor time from the others, to trace what they have traced."""
    scheduler = make_scheduler("breadth_first", GRID, dict.fromkeys(range(4), 9), n_at_once=n_at_once)
    graphs = play_first_visits(scheduler, scheduler.next_tasks())
    assert sum(map(bool, graphs.values())) == n_used
    if n_used == 2:
        assert sorted(map(sorted, graphs.values())) == [[], [], ["A"], ["B"]]


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(0, 10_000))
def test_all_visits_are_made_with_fewer_processors_than_segments(n, p, n_epochs, n_at_once, seed):
    rng = random.Random(seed)
    works = [ModelWork((c,), c, n_epochs, graph=rng.choice("ABC")) for c in range(n)]
    scheduler = make_scheduler("breadth_first", works, dict.fromkeys(range(p), 9), n_at_once=n_at_once)
    flying, made = [], []
    while not scheduler.done:
        flying += scheduler.next_tasks()
        task = flying.pop(rng.randrange(len(flying)))
        made.append((task.unit, task.epoch, task.segment))
        scheduler.finished(task, rng.uniform(0.1, 5), rng.uniform(0, 5))
    assert sorted(made) == [((c,), e, s) for c in range(n) for e in range(1, n_epochs + 1) for s in range(p)]


def test_each_segment_begins_with_the_graph_that_is_known_least():
    scheduler = make_scheduler("breadth_first", GRID, dict.fromkeys(range(4), 9))
    begun = {task.segment: OF_UNIT[task.unit].graph for task in scheduler.next_tasks()}
    assert begun == {0: "A", 1: "B", 2: "A", 3: "B"}


@pytest.mark.parametrize("once_s, starts", [(0.1, {1: 3, 2: 1}), (9.0, {1: 2, 2: 1})], ids=["cheap", "dear"])
def test_a_graph_is_traced_once_more_only_if_that_is_sooner_than_to_wait(once_s, starts):
    """Segment 0 knows B and is busy. Segments 1 and 2 know A: does the waiting model of B start there?"""
    works = [ModelWork((key,), key, 1, graph=graph) for key, graph in enumerate("BAAB")]
    scheduler = make_scheduler("breadth_first", works, dict.fromkeys(range(3), 9))
    begun = {task.segment: task for task in scheduler.next_tasks()}
    assert {segment: task.unit for segment, task in begun.items()} == {0: (0,), 1: (1,), 2: (2,)}
    scheduler.finished(begun[1], 1.0, once_s)
    scheduler.finished(begun[2], 1.0, once_s)
    assert {task.segment: task.unit[0] for task in scheduler.next_tasks()} == starts


def play(scheduler, seconds: dict[str, float], once_s: float):
    """Play a run of GRID; yield each visit's start, whether it traces, and the number of visits then in flight."""
    traced, flying, now = set(), [], 0.0
    while not scheduler.done:
        for task in scheduler.next_tasks():
            graph = OF_UNIT[task.unit].graph
            is_tracing = (task.segment, graph) not in traced
            traced.add((task.segment, graph))
            heappush(flying, (now + seconds[graph] + once_s * is_tracing, task.segment, task, is_tracing))
            yield task, is_tracing, len(flying)
        now, _, task, is_tracing = heappop(flying)
        scheduler.finished(task, seconds[OF_UNIT[task.unit].graph], once_s * is_tracing)


def test_no_first_visit_waits_for_a_graph_to_be_traced_again():
    """One segment has made the first visits of its graph when three of the other graph are left."""
    scheduler = make_scheduler("breadth_first", GRID, dict.fromkeys(range(4), 9), n_at_once=2)
    visits = list(play(scheduler, {"A": 0.10, "B": 0.15}, once_s=0.5))
    first = [(task, is_tracing) for task, is_tracing, _ in visits if task.position == 1]
    assert {(task.segment, OF_UNIT[task.unit].graph) for task, _ in first} == {(0, "A"), (1, "B")}
    assert sum(is_tracing for _, is_tracing in first) == 2
    last = max(number for number, (task, *_) in enumerate(visits) if task.position == 1)
    assert max(n for _, is_tracing, n in visits[:last] if is_tracing) == 2


def test_a_first_visit_does_not_wait_for_a_segment_that_is_lost():
    works = [ModelWork((key,), key, 1, graph=graph) for key, graph in enumerate("AB")]
    scheduler = make_scheduler("breadth_first", works, dict.fromkeys(range(3), 9), n_at_once=2)
    a, b = scheduler.next_tasks()
    scheduler.finished(a, 0.1, once_s=9.0)
    assert [task.unit for task in scheduler.next_tasks()] == [a.unit]
    scheduler.segment_down(b.segment)
    scheduler.requeue(b)
    assert [(task.unit, task.segment) for task in scheduler.next_tasks()] == [(b.unit, a.segment)]
