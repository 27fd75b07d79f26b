"""Forecasts a run on one server: its scheduler in simulated time, with trainers that share the processors.

A trainer's first visit and first evaluation of a graph also trace it, and a trainer loads the rows of a shard once. A
search, or what else changes models, follows by the listener. Called by the driver; nothing here runs a database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from ..bulk import Average, BulkSynchronous
from ..scheduler import Scheduler
from ..work import EpochDone, Evaluation, Unit, Visit

#: A data set and the number of its segment.
Shard = tuple[str, int]
ForecastTask = Visit | Evaluation | Average
#: (unit, epoch, seconds since the beginning), called when an epoch is trained and evaluated.
Listener = Callable[[Unit, int, float], None]


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """What the tasks of a unit cost at one processor, in seconds.

    Attributes
    ----------
    graph : Hashable
        Equal for units that share a graph.
    trace_s, evaluation_trace_s : float
        What a trainer's first visit, and its first evaluation, of the graph takes more than later ones.
    begin_s : float
        What the first visit of the unit takes more, to draw its weights.
    visit_s, row_s : float
        A visit without its rows, state in and out included; and each of its rows.
    evaluation_s, evaluation_row_s : float
        The same of the evaluation of one shard.
    most_rows : int or None
        The rows that a visit trains on at most.
    features_row_s : float
        Of each row, what a trainer computes once for a shard: the output of frozen first layers.
    """

    graph: Hashable
    trace_s: float
    begin_s: float
    visit_s: float
    row_s: float
    evaluation_trace_s: float
    evaluation_s: float
    evaluation_row_s: float
    most_rows: int | None = None
    features_row_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerCosts:
    """What tasks of any unit cost besides, and what the server has.

    Attributes
    ----------
    n_processors : float
        How many trainers compute at full speed at once.
    task_s : float
        Of a task, whatever it does: the driver's and the session's work.
    load_s : mapping of Shard to float
        A trainer's first load of a shard.
    """

    n_processors: float
    task_s: float = 0.0
    load_s: Mapping[Shard, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a run.

    Attributes
    ----------
    n_rows : mapping of Shard to int
    places : mapping of int to sequence of Shard
        What the session of each segment evaluates.
    tasks : callable, optional
        Returns what each task of an evaluation evaluates, by its segment, for a number of units that are not done;
        None: ``places``.
    sample_rows : callable, optional
        Returns the rows on which a unit is evaluated in a visit, after it has trained.
    """

    n_rows: Mapping[Shard, int]
    places: Mapping[int, Sequence[Shard]]
    tasks: Callable[[int], Mapping[int, Sequence[Shard]]] | None = None
    sample_rows: Callable[[Visit], int] | None = None


@dataclass(frozen=True, slots=True)
class ServerForecast:
    """The forecast of a run.

    Attributes
    ----------
    seconds : float
        From the first task to the end of the last.
    n_visits, n_evaluations, n_traces : int
        Visits, evaluations of shards, and graphs that trainers trace.
    busy_share : float
        The share of the time of all trainers in which they have a task.
    visit_s, evaluation_s, trace_s : float
        What these take in all, at one processor: visits and evaluations without traces.
    longest_unit_s, slowest_unit : float, Unit or None
        The unit with most work, and its work.
    graphs : mapping of int to int
        How many graphs the trainer of each segment has traced.
    """

    seconds: float
    n_visits: int
    n_evaluations: int
    n_traces: int
    busy_share: float
    visit_s: float
    evaluation_s: float
    trace_s: float
    longest_unit_s: float
    slowest_unit: Unit | None
    graphs: Mapping[int, int]


class Watcher:
    """Told of each task in simulated time."""

    def begun(self, task: ForecastTask, now_s: float) -> None:
        """A task begins."""

    def ended(self, task: ForecastTask, now_s: float) -> None:
        """A task has ended."""


class IsDue(Protocol):
    """Whether metrics are computed after an epoch of a unit."""

    def __call__(self, unit: Unit, epoch: int, /) -> bool:
        """Return whether they are."""


def forecast_on_server(
    scheduler: Scheduler | BulkSynchronous,
    costs_of: Callable[[Unit], UnitCosts],
    server: ServerCosts,
    shards: Shards,
    is_due: IsDue,
    epoch_over: Listener | None = None,
    watcher: Watcher | None = None,
) -> ServerForecast:
    """Run a scheduler to its end in simulated time.

    Parameters
    ----------
    scheduler : Scheduler or BulkSynchronous
        Fresh; it is used up.
    costs_of : callable
        The costs of a unit. Members of a group make one visit together, so they are those of the group.
    server : ServerCosts
    shards : Shards
    is_due : callable
    epoch_over : callable, optional
        May add units to the scheduler, extend them and finish them early, as a search does.
    watcher : Watcher, optional
    """
    world = _World(scheduler, costs_of, server, shards)
    watcher = watcher or Watcher()
    while not scheduler.done:
        for task in scheduler.next_tasks():
            world.begin(task)
            watcher.begun(task, world.now)
        task, seconds, once_s = world.next_end()
        if isinstance(scheduler, Scheduler):
            assert not isinstance(task, Average), "only model averaging has averages"
            done = scheduler.finished(task, seconds, once_s)
        else:
            done = scheduler.finished(task, seconds)
        watcher.ended(task, world.now)
        if isinstance(done, EpochDone) and is_due(done.unit, done.epoch):
            world.evaluate(done)
        elif isinstance(done, EpochDone) and epoch_over is not None:
            epoch_over(done.unit, done.epoch, world.now)
        elif isinstance(task, Evaluation) and world.is_evaluated(task) and epoch_over is not None:
            assert isinstance(task.payload, _Due), "it was asked for here"
            epoch_over(task.unit, task.payload.epoch, world.now)
    return world.forecast()


@dataclass(frozen=True, slots=True)
class _Due:
    """The payload of an evaluation: its epoch, and the shards that are evaluated in one task."""

    epoch: int
    shards: tuple[Shard, ...]


class _World:
    """The simulated time, the tasks in progress and what the trainers hold.

    Tasks in progress advance alike, by ``_done`` seconds of work so far, so the next end is that of the smallest mark.
    """

    def __init__(
        self,
        scheduler: Scheduler | BulkSynchronous,
        costs_of: Callable[[Unit], UnitCosts],
        server: ServerCosts,
        shards: Shards,
    ):
        self.now = 0.0
        self._scheduler, self._costs_of, self._server, self._shards = scheduler, costs_of, server, shards
        self._done = 0.0
        self._marks: list[tuple[float, int, float, float, ForecastTask]] = []
        self._n_begun = 0
        self._traced: set[tuple[int, Hashable, bool]] = set()
        self._loaded: set[tuple[int, str, int]] = set()
        self._with_features: set[tuple[int, Hashable, Shard]] = set()
        self._left: Counter[Unit] = Counter()  # evaluations in progress or queued
        self._last: set[Unit] = set()  # units whose last epoch is evaluated
        self._by_unit: dict[Unit, float] = {}
        self._sums = {"visit": 0.0, "evaluation": 0.0, "trace": 0.0}
        self._n_visits = self._n_evaluations = self._n_traces = 0
        self._busy_s = 0.0

    def begin(self, task: ForecastTask) -> None:
        """Let a task that the scheduler has started make progress."""
        unit, at = task.unit, task.at
        costs = self._costs_of(unit)
        once_s = 0.0
        if isinstance(task, Visit):
            shard = ("training", task.segment)
            n_rows = self._shards.n_rows[shard]
            seconds = costs.visit_s + min(n_rows, costs.most_rows or n_rows) * costs.row_s
            once_s = self._trace(at, costs.graph, False, costs.trace_s)
            if unit not in self._by_unit:
                once_s += costs.begin_s
            n_sampled = 0 if self._shards.sample_rows is None else self._shards.sample_rows(task)
            if n_sampled:
                seconds += costs.evaluation_s + n_sampled * costs.evaluation_row_s
                once_s += self._trace(at, costs.graph, True, costs.evaluation_trace_s)
            loads: Sequence[Shard] = [shard]
            self._n_visits += 1
            self._sums["visit"] += seconds
        elif isinstance(task, Evaluation):
            assert isinstance(task.payload, _Due), "it was asked for here"
            loads = task.payload.shards
            n_rows = sum(self._shards.n_rows[shard] for shard in loads)
            seconds = len(loads) * costs.evaluation_s + n_rows * costs.evaluation_row_s
            once_s = self._trace(at, costs.graph, True, costs.evaluation_trace_s)
            self._n_evaluations += len(loads)
            self._sums["evaluation"] += seconds
        else:  # an average reads and writes a state a segment
            seconds, loads = costs.visit_s * len(self._shards.places) / 2, []
        once_s += sum(self._load(at, *shard) + self._compute_features(at, costs, shard) for shard in loads)
        work_s = seconds + once_s + self._server.task_s
        self._by_unit[unit] = self._by_unit.get(unit, 0.0) + work_s
        self._n_begun += 1
        heappush(self._marks, (self._done + work_s, self._n_begun, seconds, once_s, task))

    def next_end(self) -> tuple[ForecastTask, float, float]:
        """Advance to the end of the next task; return it, its seconds, and what it paid once."""
        if not self._marks:
            raise RuntimeError("nothing is in progress in the simulated run, and it is not done")
        n = len(self._marks)
        mark, _, seconds, once_s, task = heappop(self._marks)
        passed = (mark - self._done) / min(1.0, self._server.n_processors / n)
        self.now, self._done = self.now + passed, mark
        self._busy_s += n * passed
        return task, seconds, once_s

    def evaluate(self, done: EpochDone) -> None:
        """Ask for the evaluations of a unit."""
        if done.last:
            self._last.add(done.unit)
        n_units = self._scheduler.n_unfinished + len(self._last)
        tasks = self._shards.places if self._shards.tasks is None else self._shards.tasks(n_units)
        for segment, shards in tasks.items():
            self._left[done.unit] += 1
            self._scheduler.add_evaluation(done.unit, segment, _Due(done.epoch, tuple(shards)))

    def is_evaluated(self, task: Evaluation) -> bool:
        """Note the end of an evaluation; return whether it was the unit's last one."""
        self._left[task.unit] -= 1
        if not self._left[task.unit]:
            self._last.discard(task.unit)
        return not self._left[task.unit]

    def forecast(self) -> ServerForecast:
        """Return the forecast, at the end."""
        n_trainers = len(self._shards.places)
        slowest = max(self._by_unit, key=lambda unit: self._by_unit[unit], default=None)
        graphs = Counter(at for at, _, is_evaluation in self._traced if not is_evaluation)
        return ServerForecast(
            seconds=self.now,
            n_visits=self._n_visits,
            n_evaluations=self._n_evaluations,
            n_traces=self._n_traces,
            busy_share=self._busy_s / (n_trainers * self.now) if self.now else 1.0,
            visit_s=self._sums["visit"],
            evaluation_s=self._sums["evaluation"],
            trace_s=self._sums["trace"],
            longest_unit_s=self._by_unit[slowest] if slowest is not None else 0.0,
            slowest_unit=slowest,
            graphs=graphs,
        )

    def _trace(self, at: int, graph: Hashable, is_evaluation: bool, seconds: float) -> float:
        if (at, graph, is_evaluation) in self._traced:
            return 0.0
        self._traced.add((at, graph, is_evaluation))
        self._n_traces += 1
        self._sums["trace"] += seconds
        return seconds

    def _load(self, at: int, data_set: str, segment: int) -> float:
        if (at, data_set, segment) in self._loaded:
            return 0.0
        self._loaded.add((at, data_set, segment))
        return self._server.load_s.get((data_set, segment), 0.0)

    def _compute_features(self, at: int, costs: UnitCosts, shard: Shard) -> float:
        if not costs.features_row_s or (at, costs.graph, shard) in self._with_features:
            return 0.0
        self._with_features.add((at, costs.graph, shard))
        return self._shards.n_rows[shard] * costs.features_row_s
