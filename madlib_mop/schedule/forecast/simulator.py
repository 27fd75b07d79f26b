"""Runs a scheduler over given costs instead of a database; for tests, reports and the choice of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from ..bounds import Efficiency, Span, SpanSums
from ..scheduler import Scheduler
from ..work import EpochDone, Evaluation, Task, Visit

Cost = Callable[[int, int, int], float]  # (model, segment, epoch) -> seconds
Listener = Callable[[int, int], None]  # (model, epoch)


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulated run; ``visits`` in the order of their starts, empty if they were not kept."""

    efficiency: Efficiency
    visits: tuple[Visit, ...]
    spans: tuple[Span, ...]


def simulate(
    scheduler: Scheduler,
    cost: Cost,
    *,
    hop_s: float = 0.0,
    evaluation: Cost | None = None,
    epoch_over: Listener | None = None,
    keep: bool = True,
) -> Simulation:
    """Run a scheduler, whose units have one model each, to its end in simulated time.

    Parameters
    ----------
    scheduler : Scheduler
        Fresh or resumed; it is used up.
    cost : callable
        (model, segment, epoch) -> seconds of the visit, noise included.
    hop_s : float
        Seconds that every visit takes in addition to fetch and store the state.
    evaluation : callable, optional
        (model, segment, epoch) -> seconds. Every model is evaluated after every epoch on every segment.
    epoch_over : callable, optional
        Called with (model, epoch) when an epoch has been trained and, if there are evaluations, evaluated. It may add
        models to the scheduler, extend them and finish them early, as a search does.
    keep : bool
        Keep visits and spans. Without them memory is O(n), and 10^7 visits can be simulated.

    Raises
    ------
    RuntimeError
        The scheduler starts nothing although something is left: a deadlock.
    """
    account = SpanSums()
    visits: list[Visit] = []
    spans: list[Span] = []
    ends: list[tuple[float, int, float, Task]] = []
    now, n_started = 0.0, 0
    while not scheduler.done:
        for task in scheduler.next_tasks():
            (model,) = task.unit
            if isinstance(task, Visit):
                seconds = cost(model, task.segment, task.epoch) + hop_s
            else:
                assert evaluation is not None, "evaluations are queued only where they have a cost"
                seconds = evaluation(model, task.segment, _epoch_of(task))
            n_started += 1
            heappush(ends, (now + seconds, n_started, now, task))
            if keep and isinstance(task, Visit):
                visits.append(task)
        if not ends:
            raise RuntimeError("the scheduler starts nothing although something is left")
        now, _, started, task = heappop(ends)
        (model,), epoch = task.unit, _epoch_of(task)
        span = Span(model, task.segment, epoch, started, now, isinstance(task, Evaluation))
        account.add(span)
        if keep:
            spans.append(span)
        done = scheduler.finished(task, now - started)
        over = isinstance(task, Evaluation) and not scheduler.evaluations_left(task.unit)
        if isinstance(done, EpochDone):
            over = evaluation is None
            for segment in scheduler.segments if evaluation is not None else ():
                scheduler.add_evaluation(done.unit, segment, done.epoch)
        if over and epoch_over is not None:
            epoch_over(model, epoch)
    return Simulation(account.efficiency(len(scheduler.segments)), tuple(visits), tuple(spans))


def _epoch_of(task: Task) -> int:
    if isinstance(task, Visit):
        return task.epoch
    assert isinstance(task.payload, int), "a simulated evaluation carries its epoch"
    return task.payload
