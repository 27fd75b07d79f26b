"""The schedule breadth_first: the models with the fewest visits go first."""

import random

from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.schedule import ModelWork, make_scheduler


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 10_000))
def test_no_visit_starts_on_a_segment_that_a_model_with_fewer_visits_could_take(n, p, n_epochs, seed):
    rng = random.Random(seed)
    scheduler = make_scheduler("breadth_first", [ModelWork(c, c, n_epochs) for c in range(n)], {s: 9 for s in range(p)})
    visited = {c: [] for c in range(n)}  # the segments of each model's visits, in order
    flying = []
    starts = []
    while not scheduler.done:
        begun = scheduler.next_tasks()
        idle = set(range(n)) - {task.model for task in [*flying, *begun]}
        for task in begun:
            fewer = [
                model
                for model in idle
                if len(visited[model]) < len(visited[task.model])
                and task.segment not in visited[model][len(visited[model]) // p * p :]
            ]
            assert not fewer, (task, fewer)
        flying += begun
        starts += [task.model for task in begun]
        task = flying.pop(rng.randrange(len(flying)))
        visited[task.model].append(task.segment)
        scheduler.finished(task, rng.uniform(0.1, 5))
    assert sorted(starts[:n]) == list(range(n)), "each model makes its first visit before any makes its second"
