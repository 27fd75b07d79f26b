"""The estimate of a run: the run in simulated time, by what its tasks cost, and the disk that its states take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any, cast

from mop_backend.machine import available_bytes, processors

from madlib_mop.catalog.live.words import duration
from madlib_mop.catalog.old_snapshots import SnapshotPoll
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.state_slots import StateKey, StateSlots, StoredState
from madlib_mop.driver.estimates.costs import CostModel, Guess, Work, read_recorded, work_of
from madlib_mop.driver.estimates.memory import Memory, memory_of
from madlib_mop.driver.estimates.probe import ProbedUnit
from madlib_mop.driver.estimates.searches import SimulatedSearch
from madlib_mop.driver.evaluation.evaluations import is_due, places_of, shards_of_tasks
from madlib_mop.driver.outputs.tables import SELECTION_SUFFIXES
from madlib_mop.driver.outputs.writers import outputs_of
from madlib_mop.driver.planning.fused_groups import FusedGroups
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.sharing import shared_params, signature_of
from madlib_mop.schedule import SCHEDULES, Average, BulkSynchronous, ModelWork, Scheduler, Unit, Visit, make_scheduler
from madlib_mop.schedule.bulk import AVERAGING, MST_KEY
from madlib_mop.schedule.forecast.one_server import (
    ForecastTask,
    ServerCosts,
    ServerForecast,
    Shards,
    UnitCosts,
    Watcher,
    forecast_on_server,
)

_PAGE_BYTES = 8192
#: A state is cut into chunks, of which a page has four.
_CHUNK_BYTES, _CHUNKS_OF_A_PAGE = 1996, 4
_INDEX_BYTES_OF_A_CHUNK = 20
#: A slot without states.
SLOT_BYTES = 3 * _PAGE_BYTES
#: A shorter value is in its row. A table of more than one page has a map of its free space.
_LONG_BYTES, _MAP_BYTES = 2000, 3 * _PAGE_BYTES
#: The bytes of a model's rows besides its weights, by the suffixes of the output tables that have one of each model.
_ROW_BYTES = {"": 680, "_info": 400}


def stored_bytes(n_bytes: int) -> int:
    """Return the bytes on disk of a value of so many bytes that cannot be compressed, in a table that is there."""
    n_chunks = -(-n_bytes // _CHUNK_BYTES)
    return n_chunks * _PAGE_BYTES // _CHUNKS_OF_A_PAGE + n_chunks * _INDEX_BYTES_OF_A_CHUNK


def slot_bytes(n_bytes: int) -> int:
    """Return the bytes on disk of a slot with states of so many bytes together."""
    stored = stored_bytes(n_bytes)
    return SLOT_BYTES + stored + (_MAP_BYTES if stored > _PAGE_BYTES else 0)


def output_bytes(weights: Sequence[int], keys: Mapping[str, str | None], n_more: int = 0) -> int:
    """Return the bytes of a run's output tables.

    Parameters
    ----------
    weights : sequence of int
        The bytes of each model's weights.
    keys : mapping of str to str or None
        The primary keys of the tables, by the suffixes of their names.
    n_more : int
        The number of further tables, which have a key and few rows.
    """
    long = sum(stored_bytes(n_bytes) for n_bytes in weights if n_bytes > _LONG_BYTES)
    rows = {suffix: n_bytes * len(weights) for suffix, n_bytes in _ROW_BYTES.items()}  # others have one row in all
    rows[""] += sum(n_bytes for n_bytes in weights if n_bytes <= _LONG_BYTES)
    tables = [_table_bytes(rows.get(suffix, 0), key is not None) for suffix, key in keys.items()]
    more = (_PAGE_BYTES if long else 0) + (_MAP_BYTES if long > _PAGE_BYTES else 0)
    return sum(tables) + n_more * _table_bytes(0, True) + long + more


def _table_bytes(rows_bytes: int, has_key: bool) -> int:
    """Return the bytes of a table without long values; an index has two pages, that of long values one."""
    n_pages = max(1, -(-rows_bytes // _PAGE_BYTES))
    return (n_pages + 1 + 2 * has_key) * _PAGE_BYTES + (_MAP_BYTES if n_pages > 1 else 0)


class SimulatedSlots(Watcher):
    """The slots of a run's states.

    Parameters
    ----------
    units : iterable of Unit
        Those that the run begins with.
    state_bytes : callable
        Returns the bytes of the states of a unit's models together.
    is_averaging : bool
        Whether visits stage states, which are averaged.

    Attributes
    ----------
    most_bytes : int
        The most on disk at once, so far.
    """

    def __init__(self, units: list[Unit], state_bytes: Callable[[Unit], int], is_averaging: bool = False):
        self.most_bytes = 0
        self._is_averaging = is_averaging
        self._state_bytes = state_bytes
        keys = [StoredState(key) for unit in units for key in unit]
        self._slots = StateSlots(cast(Record, _NoRecord()), 0, keys, lambda: SnapshotPoll(1))
        self._known = {key for unit in units for key in unit}
        self._in_progress: dict[StateKey, int] = {}
        self._busy: Counter[StateKey] = Counter()  # tasks in progress, evaluations included
        self._staged: list[StateKey] = []
        self._compacted_s = 0.0

    def begun(self, task: ForecastTask, now_s: float) -> None:
        self._busy.update(task.unit)
        for key in self._keys(task):
            if isinstance(task, Visit) and isinstance(key, int) and key not in self._known:
                self._known.add(key)
                self._slots.add_models(1)
            self._in_progress[key] = self._slots.begin_write(key)

    def ended(self, task: ForecastTask, now_s: float) -> None:
        self._busy.subtract(task.unit)
        keys = self._keys(task)
        for key in keys:
            n_bytes = self._state_bytes(task.unit) // len(task.unit)
            self._slots.end_write(self._in_progress.pop(key), key, n_bytes)
        if isinstance(task, Average):
            for key in self._staged:
                self._slots.release(key)
            self._staged.clear()
        self._staged += [key for key in keys if not isinstance(key, int)]
        self.most_bytes = max(self.most_bytes, self.n_bytes)
        self._slots.empty_dead()
        # model averaging moves no states
        if not self._is_averaging and now_s - self._compacted_s > self._slots.pause_s:
            self._compacted_s = now_s
            self._slots.compact({key for key in self._known if not self._busy[key]})

    @property
    def n_bytes(self) -> int:
        """The bytes on disk now."""
        return sum(slot_bytes(n_bytes) for n_bytes in self._slots.written_bytes)

    def end(self) -> int:
        """End the run; return the bytes that stay."""
        self._slots.finish()
        return self.n_bytes

    def _keys(self, task: ForecastTask) -> list[StateKey]:
        """Return the states that a task writes."""
        if isinstance(task, Average):
            return [MST_KEY]
        if not isinstance(task, Visit):
            return []
        return [(MST_KEY, task.segment)] if self._is_averaging else list(task.unit)


class _NoRecord:
    """What `StateSlots` takes for the record: it has no tables."""

    def execute(self, template: str, params: Any = (), **names: Any) -> list[Any]:
        """Do nothing; nothing is found."""
        return []

    @contextmanager
    def transaction(self) -> Iterator[Mapping[str, Any]]:
        """Do nothing."""
        yield {}


#: Until the first task, and after the last one, of any run; and for each model that is written.
_START_S, _END_S, _WRITE_S = 0.35, 0.12, 0.004
#: What a task costs besides the trainer's work: in all, and of it in the driver.
_TASK_S, _DRIVER_S = 0.014, 0.009
_LOAD_S, _LOAD_BYTES_PER_S, _WRITE_BYTES_PER_S = 0.03, 150e6, 60e6
#: Searches are simulated so many times, as their decisions depend on the losses.
_N_SEARCHES = 3
_MOST_VISITS, _FEWEST_ITERATIONS = 5000, 4
_SHARE_THAT_BINDS = 0.4


@dataclass(frozen=True)
class Bounds:
    """An estimate: a value, and the bounds within which it should lie."""

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, error: float) -> Bounds:
        """Return a value that may be off by a share of it."""
        return cls(value, value / (1 + error), value * (1 + error))

    def plus(self, seconds: float) -> Bounds:
        """Return it with something added that is known."""
        return Bounds(self.value + seconds, self.low + seconds, self.high + seconds)


@dataclass(frozen=True)
class Estimate:
    """What a run will cost.

    Attributes
    ----------
    visits, evaluations, traces : Bounds
        Visits of models to shards; evaluations of models on shards; graphs that trainers trace.
    seconds : Bounds
        From the call to its end.
    visit_s, evaluation_s, trace_s : float
        Seconds of the trainers' work for these, added up.
    memory : Memory
    states_bytes, output_bytes : Bounds, int
        Disk: the states that stay, and as the upper bound the most at once; the output tables.
    packed_bytes : int
        The rows that are there already.
    binds : list of str
        What limits the run, what limits it most first; one sentence each.
    """

    visits: Bounds
    evaluations: Bounds
    traces: Bounds
    seconds: Bounds
    visit_s: float
    evaluation_s: float
    trace_s: float
    memory: Memory
    states_bytes: Bounds
    output_bytes: int
    packed_bytes: int
    binds: list[str]


class Estimator:
    """Estimates one run.

    Parameters
    ----------
    run : RunRow
        As it is planned.
    models : sequence of ModelRow
        None of a search.
    functions : CustomFunctions
    row_shapes : sequence of sequences of int
        The shape of a row of each input.
    most_visits : int
        A run of more visits is simulated for some iterations only.
    """

    def __init__(
        self,
        run: RunRow,
        models: Sequence[ModelRow],
        functions: CustomFunctions | None = None,
        row_shapes: Sequence[Sequence[int]] = (),
        most_visits: int = _MOST_VISITS,
    ):
        self.most_visits = most_visits
        self.run, self._plan = run, run.plan
        self.models = {model.mst_key: model for model in models}
        self._functions = functions or CustomFunctions()
        self._row_shapes = row_shapes
        self.groups = FusedGroups(run.plan.fused_training)
        self._works: dict[Any, Work] = {}
        self._groups_graphs = run.plan.any_trainer or (
            run.schedule in SCHEDULES and SCHEDULES[run.schedule].groups_graphs
        )

    def units(self) -> list[ProbedUnit]:
        """Return one unit of each graph and batch size, those with most work first; for a probe."""
        found: dict[tuple[Any, ...], ProbedUnit] = {}
        counts: dict[tuple[Any, ...], float] = {}
        for unit, c in self.configurations().items():
            work = self.work(unit, c)
            key = work.graph, work.n_places, work.batch_size
            counts[key] = counts.get(key, 0.0) + 1.0
            if key not in found:
                places: Sequence[int | None] = self.groups.places(unit) if self.models else unit
                models = [None if k is None else self._request(self._configuration(k, c)) for k in places]
                found[key] = ProbedUnit(work, models)
        # the first two are the most different: then the others lie between
        order = sorted(found, key=lambda key: found[key].work.size.n_multiplications)
        chosen = order[-1:] + order[:1] + order[1:-1] if len(order) > 2 else order[::-1]
        return [found[key] for key in chosen]

    def estimate(self, costs: CostModel, task_s: float | None = None) -> Estimate:
        """Return the estimate.

        Parameters
        ----------
        costs : CostModel
        task_s : float, optional
            What a task costs besides the trainer's and the driver's work.
        """
        guesses: dict[Work, Guess] = {}

        def guess_of(work: Work) -> Guess:
            if work not in guesses:
                guesses[work] = costs.guess(work)
            return guesses[work]

        seeds = range(_N_SEARCHES if self.run.is_search else 1)
        forecasts = [_Simulated(self, guess_of, task_s, seed) for seed in seeds]
        forecasts.sort(key=lambda one: one.seconds)
        middle = forecasts[len(forecasts) // 2]
        error = max((guess.error for guess in guesses.values()), default=0.0)
        seconds = Bounds.within(middle.seconds, error)
        seconds = Bounds(
            seconds.value, seconds.low * forecasts[0].seconds / middle.seconds,
            seconds.high * forecasts[-1].seconds / middle.seconds,
        )  # fmt: skip
        limit_s = self._limit_s
        if limit_s is not None:
            seconds = Bounds(*(min(each, limit_s) for each in (seconds.value, seconds.low, seconds.high)))
        works = [self.work(unit, c) for unit, c in middle.configurations.items()]
        graphs = [middle.forecast.graphs.get(shard.segment_id, 0) for shard in self._plan.training.segments]
        memory = memory_of(self._plan, graphs, works)
        output = self._output_bytes(works)
        kept = [one.states_bytes for one in forecasts]
        most = max(kept + [one.most_states_bytes for one in forecasts])
        return Estimate(
            visits=_range_of([one.forecast.n_visits * one.factor for one in forecasts]),
            evaluations=_range_of([one.forecast.n_evaluations * one.factor for one in forecasts]),
            traces=_range_of([one.forecast.n_traces for one in forecasts]),
            seconds=seconds.plus(_START_S + _END_S + len(works) * _WRITE_S + output / _WRITE_BYTES_PER_S),
            visit_s=middle.forecast.visit_s * middle.factor,
            evaluation_s=middle.forecast.evaluation_s * middle.factor,
            trace_s=middle.forecast.trace_s,
            memory=memory,
            states_bytes=Bounds(median(kept), min(kept), most),
            output_bytes=output,
            packed_bytes=sum(s.n_bytes for packed in self._plan.data_sets.values() for s in packed.segments),
            binds=self._binds(middle, memory),
        )

    @property
    def n_at_once(self) -> int:
        """How many trainers here compute at once, at most."""
        n_trainers = sum(shard.server is None for shard in self._plan.training.segments)
        n_models = n_trainers if self.run.is_search or self.run.schedule == AVERAGING else len(self.configurations())
        return max(1, min(n_trainers, n_models, processors() // max(1, self.run.n_threads)))

    # Units

    def configurations(self) -> dict[Unit, Configuration]:
        """Return the first model of each unit that the run begins with; of a search, one of each architecture."""
        if self.run.is_search:
            search = self.simulated_search(0, lambda: 0.0)
            search.begin()
            return {(key,): c for key, c in search.configurations.items()}
        found: dict[Unit, Configuration] = {}
        for model in self.models.values():
            found.setdefault(self.groups.unit_of(model.mst_key), model.configuration)
        return found

    def _configuration(self, mst_key: int, otherwise: Configuration) -> Configuration:
        return self.models[mst_key].configuration if mst_key in self.models else otherwise

    def _request(self, c: Configuration) -> dict[str, Any]:
        """Return a model for a trainer."""
        return {
            "arch": c.arch, "compile_params": c.compile_params, "fit_params": c.fit_params, "seed": self.run.seed,
            "custom": self._functions.as_request(),
        }  # fmt: skip

    def work(self, unit: Unit, c: Configuration) -> Work:
        fit = c.fit
        key = (
            c.model_id, shared_params(c.compiled), fit.batch_size, fit.epochs - fit.initial_epoch, fit.steps_per_epoch,
            len(unit),
        )  # fmt: skip
        if key not in self._works:
            n_places = len(self.groups.places(unit)) if self.models else 1
            self._works[key] = work_of(c, n_places, self._row_shapes, self._functions)
        return self._works[key]

    def graph_of(self, c: Configuration) -> str | None:
        """Return the graph of a configuration for the scheduler."""
        return signature_of(c) if self._groups_graphs else None

    def simulated_search(self, seed: int, elapsed_s: Callable[[], float]) -> SimulatedSearch:
        """Return the search of the run."""
        return SimulatedSearch(self.run, seed, elapsed_s, self.graph_of)

    # Other figures

    @property
    def _limit_s(self) -> float | None:
        """The limit of the training time; None: it has none."""
        search = self._plan.search
        return self._plan.time_limit_s if search is None else search.budget_s

    def _output_bytes(self, works: Sequence[Work]) -> int:
        weights = [work.size.weight_bytes for work in works for _ in range(work.n_places)]
        n_more = len(SELECTION_SUFFIXES) if self.run.is_search else 0
        return output_bytes(weights, outputs_of(self.run.schedule).KEYS, n_more)

    def _binds(self, simulated: _Simulated, memory: Memory) -> list[str]:
        """Return what limits the run."""
        forecast, run = simulated.forecast, self.run
        n_trainers, n_units = len(self._plan.training.segments), len(simulated.configurations)
        n_at_once = max(1, processors() // max(1, run.n_threads))
        found: list[tuple[float, str]] = []
        limit = int(self._plan.trainer.get("memory_limit_bytes") or 0)
        if limit and memory.trainer_bytes > limit:
            found.append((3.0, f"memory: a trainer needs about {memory.trainer_bytes >> 20} MB, and its limit,"
                          f" trainer_memory_mb, is {limit >> 20} MB"))  # fmt: skip
        available = available_bytes()
        if available is not None and memory.n_bytes > available:
            found.append((2.0, f"memory: {memory.n_bytes >> 20} MB are needed, and {available >> 20} MB are available"))
        if self._limit_s is not None and simulated.seconds >= self._limit_s:
            found.append((1.5, f"time: the limit of {self._limit_s:g} s ends the run before its last iteration"))
        if run.schedule != AVERAGING and n_units < n_trainers:
            found.append((1.0, f"models: {n_units} can keep at most {n_units} of {n_trainers} trainers busy"))
        elif forecast.slowest_unit is not None and simulated.seconds * 0.8 < forecast.longest_unit_s * simulated.factor:
            name = ", ".join(map(str, forecast.slowest_unit))
            found.append((0.9, f"one model: mst_key {name} takes nearly all of the time by itself"))
        work_s = (forecast.visit_s + forecast.evaluation_s) * simulated.factor + forecast.trace_s
        shares = {
            f"graphs: to trace {forecast.n_traces} of them takes": forecast.trace_s,
            "evaluations: they take": forecast.evaluation_s * simulated.factor,
            "training: the visits take": forecast.visit_s * simulated.factor,
        }
        found += [
            (seconds / work_s, f"{what} {seconds / work_s:.0%} of the trainers' work")
            for what, seconds in shares.items()
            if work_s and seconds > _SHARE_THAT_BINDS * work_s
        ]
        if n_trainers > n_at_once and all(shard.server is None for shard in self._plan.training.segments):
            found.append((0.5, f"processors: {n_trainers} trainers share {n_at_once}"))
        return [text for _, text in sorted(found, key=lambda pair: -pair[0])]


class _Simulated:
    """One run in simulated time.

    Attributes
    ----------
    forecast : ServerForecast
    configurations : dict of Unit to Configuration
    factor : float
        The run has so many times the iterations that were simulated.
    seconds : float
    most_states_bytes, states_bytes : int
        The most on disk at once, and what stays.
    """

    def __init__(self, estimator: Estimator, guess_of: Callable[[Work], Guess], task_s: float | None, seed: int):
        self._of = estimator
        run = estimator.run
        plan = run.plan
        self._now = 0.0
        self.factor = 1.0
        self.configurations = {} if run.is_search else estimator.configurations()
        self._guess_of = guess_of
        rows = {shard.segment_id: shard.n_rows for shard in plan.training.segments}
        n_rows = {
            (data_set, shard.segment_id): shard.n_rows
            for data_set, packed in plan.data_sets.items()
            for shard in packed.segments
        }
        loads = {
            (data_set, shard.segment_id): _LOAD_S + shard.n_bytes / _LOAD_BYTES_PER_S
            for data_set, packed in plan.data_sets.items()
            for shard in packed.segments
        }
        is_here = all(shard.place is None for shard in plan.training.segments)
        n_at_once = max(1, processors() // max(1, run.n_threads)) if is_here else len(rows)
        server = ServerCosts(n_at_once, _TASK_S if task_s is None else task_s + _DRIVER_S, loads)
        places = places_of(plan)
        tasks = lambda n_units: shards_of_tasks(plan, places, lambda: n_units)  # noqa: E731
        shards = Shards(n_rows, places, tasks, self._sample_rows)
        search: SimulatedSearch | None = None
        scheduler: Scheduler | BulkSynchronous
        if run.is_search:
            search = estimator.simulated_search(seed, lambda: self._now)
            self._search = search
            works = search.begin()
            scheduler = search.scheduler = self._make_scheduler(works, rows, n_at_once if is_here else None)
            due = search.is_due
        elif run.schedule == AVERAGING:
            model = estimator.models[MST_KEY]
            with_rows = [segment for segment, n in rows.items() if n]
            scheduler = BulkSynchronous((MST_KEY,), with_rows, list(rows), model.first_epoch, model.last_epoch)
            due = self._is_due
        else:
            works = self._shortened(list(self._planned()), len(rows))
            scheduler = self._make_scheduler(works, rows, n_at_once if is_here else None)
            due = self._is_due
        units = [] if search is not None else list(self.configurations)
        slots = SimulatedSlots(units, self._state_bytes, run.schedule == AVERAGING)

        self._ends: dict[int, float] = {}

        def epoch_over(unit: Unit, epoch: int, now_s: float) -> None:
            self._now = self._ends[epoch] = now_s
            if search is not None:
                search.epoch_over(unit, epoch, now_s)

        self.forecast: ServerForecast = forecast_on_server(
            scheduler, self._costs_of, server, shards, due, epoch_over, slots
        )
        if search is not None:
            self.configurations = {(key,): c for key, c in search.configurations.items()}
        self.seconds = self._whole(self.forecast)
        self.most_states_bytes = slots.most_bytes
        self.states_bytes = slots.end()

    def _whole(self, forecast: ServerForecast) -> float:
        """Return the seconds of all iterations: those that were not simulated take as long as the last half of those
        that were, without traces."""
        ends = sorted(self._ends)
        if self.factor == 1.0 or len(ends) < _FEWEST_ITERATIONS:
            return forecast.seconds * self.factor
        last, half = ends[-1], ends[len(ends) // 2 - 1]
        each_s = (self._ends[last] - self._ends[half]) / (last - half)
        return forecast.seconds + (self.factor - 1) * len(ends) * each_s

    def _planned(self) -> list[ModelWork]:
        of = self._of
        indices = of.groups.indices(list(of.models.values()))
        works = []
        for unit, c in self.configurations.items():
            first = of.models[unit[0]]
            last = max(of.models[key].last_epoch for key in unit)
            works.append(ModelWork(unit, indices[unit], last, first.first_epoch, graph=of.graph_of(c)))
        return works

    def _shortened(self, works: list[ModelWork], n_segments: int) -> list[ModelWork]:
        """Return works of fewer iterations, if there are very many visits."""
        n_epochs = max((work.last_epoch - work.epoch + 1 for work in works), default=1)
        most = max(_FEWEST_ITERATIONS, self._of.most_visits // max(1, len(works) * n_segments))
        if n_epochs <= most:
            return works
        self.factor = n_epochs / most
        return [replace(work, last_epoch=work.epoch + most - 1) for work in works]

    def _make_scheduler(
        self, works: Sequence[ModelWork], rows: Mapping[int, int], n_at_once: int | None
    ) -> Scheduler:
        run = self._of.run
        schedule = run.schedule if run.schedule in SCHEDULES else "auto"
        return make_scheduler(schedule, works, rows, None, n_at_once, run.plan.any_trainer)

    def _is_due(self, unit: Unit, epoch: int) -> bool:
        frequency = self._of.run.metrics_compute_frequency
        models = [self._of.models[key] for key in unit]
        return any(is_due(epoch, m.first_epoch, m.last_epoch, frequency) for m in models)

    def _sample_rows(self, visit: Visit) -> int:
        sample, models = self._of.run.plan.sample, self._of.models
        if sample is None:
            return 0
        first = min((models[key].first_epoch for key in visit.unit if key in models), default=1)
        n_visits = (visit.epoch - first) * self._of.run.n_segments + visit.position
        return sample.n_rows if sample.is_due(n_visits) else 0

    def _guess(self, unit: Unit) -> Guess:
        c = self.configurations.get(unit) or self._search.configurations[unit[0]]
        return self._guess_of(self._of.work(unit, c))

    def _costs_of(self, unit: Unit) -> UnitCosts:
        return self._guess(unit).costs

    def _state_bytes(self, unit: Unit) -> int:
        guess = self._guess(unit)
        return guess.state_bytes * len(unit) // guess.n_places


def _range_of(values: Sequence[float]) -> Bounds:
    return Bounds(median(values), min(values), max(values))


#: A NOTICE is no reason to wait: of more visits, some iterations are simulated, and of more models, some.
_MOST_EXPECTED_VISITS, _MOST_MODELS = 2000, 200


def expected_time(record: Record, run: RunRow, models: list[ModelRow]) -> str | None:
    """Return the time that a run will take; None if it continues, or repeats another one."""
    begun = run.training_s > 0 or any(model.has_own_visits for model in models)
    if begun or run.kind == "replay":
        return None
    recorded = read_recorded(record, run, (model.configuration for model in models))
    costs = CostModel(recorded.measured)
    functions = CustomFunctions(record.custom_functions(run.run_id))
    every = 1 if run.plan.fused_training else max(1, -(-len(models) // _MOST_MODELS))
    some = list(islice(models, 0, None, every))
    found = Estimator(run, some, functions, most_visits=_MOST_EXPECTED_VISITS).estimate(costs, recorded.task_s).seconds
    share = len(models) / len(some) if some else 1.0
    low, middle, high = (duration(seconds * share) for seconds in (found.low, found.value, found.high))
    if not costs.run_ids:
        return f"{low} to {high}, roughly: nothing like it was recorded"
    return f"about {middle} ({low} to {high})"
