"""Evaluations of a run: requests them from the scheduler when metrics are due, collects the sums of shards, and writes
the metrics.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from mop_backend.messages import (
    ComputeMetrics,
    Evaluate,
    Evaluated,
    EvaluatedShard,
    EvaluationFigures,
    MetricsComputed,
    MetricTotals,
    MetricValues,
    ShardName,
)

from madlib_mop import schedule
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import Plan
from madlib_mop.catalog.rows.run import EvaluationRow, Metric, RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.driver.evaluation.metric_sums import MetricSums, add
from madlib_mop.schedule import Evaluation, Unit

#: A data set and the number of its segment.
Shard = tuple[str, int]


def is_due(epoch: int, first_epoch: int, last_epoch: int, frequency: int | None) -> bool:
    """Return whether metrics are computed after an epoch: every ``frequency`` iterations, if set, and after the last
    one."""
    return epoch == last_epoch or (frequency is not None and (epoch - first_epoch + 1) % frequency == 0)


@dataclass(frozen=True)
class EvaluationTask:
    """The payload of an evaluation in the scheduler.

    Attributes
    ----------
    mst_keys : tuple of int
        Its models: all or some of its unit's.
    shards : tuple of (str, int)
        What one segment evaluates them on, in this order.
    epoch : int
    computes_results : bool
        No shard is evaluated; the metrics' values are computed from the sums of all shards. ``shards`` has one, whose
        rows have the model's shapes.
    """

    mst_keys: tuple[int, ...]
    shards: tuple[Shard, ...]
    epoch: int
    computes_results: bool = False

    def names(self) -> tuple[ShardName, ...]:
        """Return the shards as a writer names them."""
        return tuple(ShardName(data_set, number) for data_set, number in self.shards)


def evaluation_task(evaluation: schedule.Evaluation) -> EvaluationTask:
    """Return the payload of an evaluation in the scheduler."""
    assert isinstance(evaluation.payload, EvaluationTask), "only the driver requests evaluations"
    return evaluation.payload


class EpochMetrics:
    """Collects the evaluations of one model after one epoch.

    Parameters
    ----------
    epoch : int
    shards : iterable of (str, int)
        The expected data sets and their segments.
    """

    def __init__(self, epoch: int, shards: Iterable[Shard]):
        self.epoch = epoch
        self._left = set(shards)
        self._parts: dict[str, dict[int, MetricTotals]] = {}
        self._sums: dict[str, MetricSums] = {}
        self._values: dict[str, dict[str, float]] | None = None
        self._work_s = 0.0
        self._evaluations: list[tuple[int, EvaluatedShard, EvaluationFigures]] = []

    def add(self, segment: int, evaluated: EvaluatedShard, figures: EvaluationFigures, seconds: float) -> bool:
        """Add one evaluation's sums; return True if it was the last.

        A second evaluation of the same shard is ignored: a command can stop a model and resume it while it is
        evaluated.

        Parameters
        ----------
        segment : int
            The segment that evaluated.
        evaluated : EvaluatedShard
        figures : EvaluationFigures
            The model's.
        seconds : float
            Its duration.
        """
        data_set, number = evaluated.shard.data_set, evaluated.shard.segment_id
        if (data_set, number) not in self._left:
            return False
        self._left.remove((data_set, number))
        self._work_s += seconds
        self._evaluations.append((segment, evaluated, figures))
        self._parts.setdefault(data_set, {})[number] = figures.sums
        if self._left:
            return False
        # sorted by shard: the order of arrival must not affect the result
        for data_set, parts in sorted(self._parts.items()):
            self._sums[data_set] = add(parts[shard] for shard in sorted(parts))
        self._parts.clear()
        if all(sums.all_means for sums in self._sums.values()):
            self._values = {data_set: sums.means() for data_set, sums in self._sums.items()}
        return True

    @property
    def awaits_shards(self) -> bool:
        """Whether evaluations of shards are missing."""
        return bool(self._left)

    @property
    def has_values(self) -> bool:
        """Whether the metrics' values are known after all evaluations; else a trainer computes them."""
        return self._values is not None

    def sums(self) -> dict[str, MetricTotals]:
        """Return the sums over all rows, by data set, in the form of a trainer's request."""
        return {data_set: sums.as_request() for data_set, sums in self._sums.items()}

    def set_results(self, results: Mapping[str, MetricValues], seconds: float) -> None:
        """Store a trainer's results computed from `sums`: loss and metrics by data set."""
        self._work_s += seconds
        self._values = {
            data_set: {"loss": found.loss, **found.metrics} for data_set, found in sorted(results.items())
        }

    def evaluations(self, run_id: int, mst_key: int) -> list[EvaluationRow]:
        """Return the evaluations as rows."""
        return [
            EvaluationRow(
                run_id=run_id,
                mst_key=mst_key,
                epoch=self.epoch,
                data_set=evaluated.shard.data_set,
                shard=evaluated.shard.segment_id,
                segment_id=segment,
                started_at=datetime.fromtimestamp(evaluated.started_at, UTC),
                ended_at=datetime.fromtimestamp(evaluated.ended_at, UTC),
                n_rows=figures.n_rows,
                loss=figures.loss,
                timing=figures.timing,
            )
            for segment, evaluated, figures in self._evaluations
        ]

    def rows(self, run_id: int, mst_key: int, elapsed_s: float) -> list[Metric]:
        """Return the metrics as rows: the values over all rows of each data set."""
        return [
            Metric(
                run_id=run_id,
                mst_key=mst_key,
                epoch=self.epoch,
                data_set=data_set,
                ordinal=ordinal,
                name=name,
                value=value,
                elapsed_s=elapsed_s,
                work_s=self._work_s,
            )
            for data_set, values in (self._values or {}).items()
            for ordinal, (name, value) in enumerate(values.items())
        ]


class EvaluationQueue(Protocol):
    """The interface for queueing evaluations: `Scheduler` and `BulkSynchronous`."""

    def add_evaluation(self, unit: Unit, segment: int, payload: object = None) -> Evaluation:
        """Queue an evaluation."""


class Evaluations:
    """The evaluations of one run.

    Parameters
    ----------
    record : Record
    run : RunRow
    scheduler : EvaluationQueue
    models : RunModels
    unit_of : callable
        Returns the unit in which a model, given by its mst_key, trains.
    """

    def __init__(
        self,
        record: Record,
        run: RunRow,
        scheduler: EvaluationQueue,
        models: RunModels,
        unit_of: Callable[[int], Unit] = lambda mst_key: (mst_key,),
    ):
        self._record = record
        self._run = run
        self._scheduler = scheduler
        self._models = models
        self._unit_of = unit_of
        self._open: dict[int, EpochMetrics] = {}
        self._places = places_of(run.plan)

    def add_missing(self) -> None:
        """Request the evaluations that a resumed run still needs: of complete epochs without metrics."""
        self._end_epochs(self._models)

    def end_epoch(self, mst_key: int) -> None:
        """Request a model's metrics if its epoch is complete and they are due; mark it trained after its last epoch.

        So are the models that train with it.
        """
        self._end_epochs([*self._unit_of(mst_key)])

    def _end_epochs(self, mst_keys: Iterable[int]) -> None:
        complete = [key for key in mst_keys if self._is_complete(self._models[key]) and not self.under_way(key)]
        if not complete:
            return
        known = self._known()
        missing = defaultdict(list)  # a unit's models are evaluated together, as in an uninterrupted run
        for key in complete:
            if (key, self._models[key].epoch) not in known:
                missing[self._unit_of(key), self._models[key].epoch].append(key)
        for (_, epoch), keys in missing.items():
            self.begin(keys, epoch)
        for key in complete:
            model = self._models[key]
            if not self.under_way(key) and model.epoch == model.last_epoch:
                self._models.trained(key)

    def _is_complete(self, model: ModelRow) -> bool:
        """Return whether a training model has completed all visits of its current epoch."""
        complete = model.position == self._run.n_segments and model.epoch >= model.first_epoch
        return complete and model.state is ModelState.TRAINING

    def _known(self) -> set[tuple[int, int]]:
        return {(metric.mst_key, metric.epoch) for metric in self._record.metrics(self._run.run_id)}

    def begin(self, mst_keys: Sequence[int], epoch: int) -> bool:
        """Request the evaluations of models of one unit if metrics are due; return False if not."""
        frequency = self._run.metrics_compute_frequency
        models = [self._models[key] for key in mst_keys]  # in a replay, they can have different ends
        if not any(is_due(epoch, m.first_epoch, m.last_epoch, frequency) for m in models):
            return False
        for key in mst_keys:
            self._open[key] = EpochMetrics(epoch, (shard for shards in self._places.values() for shard in shards))
        for worker, shards in shards_of_tasks(self._run.plan, self._places, self._n_units_left).items():
            task = EvaluationTask(tuple(mst_keys), tuple(shards), epoch)
            self._scheduler.add_evaluation(self._unit_of(mst_keys[0]), worker, task)
        return True

    def _n_units_left(self) -> int:
        left = [key for key, m in self._models.items() if m.state in (ModelState.WAITING, ModelState.TRAINING)]
        return len({self._unit_of(key) for key in left})

    def split(self, task: Evaluation) -> None:
        """Request an evaluation of each model instead of one of several, which has ended in the scheduler."""
        of = evaluation_task(task)
        for key in of.mst_keys:
            if key in self._open:
                self._scheduler.add_evaluation(task.unit, task.segment, replace(of, mst_keys=(key,)))

    def finished(
        self, task: Evaluation, answer: Evaluated | MetricsComputed, seconds: float, elapsed_s: float
    ) -> dict[int, list[Metric]]:
        """Process one evaluation's figures; write and return the metrics of models whose evaluations are complete.

        Shards that do not fit into the trainer's memory together are evaluated in a task each. If not all metrics are
        means, a trainer first computes them from the sums of all shards in another task.
        """
        of = evaluation_task(task)
        if isinstance(answer, MetricsComputed):
            (key,) = of.mst_keys
            metrics = self._open.get(key)
            if metrics is None or metrics.awaits_shards:  # the model was stopped meanwhile, and perhaps resumed
                return {}
            metrics.set_results(answer.results, seconds)
            return self._write([(key, self._open.pop(key))], elapsed_s)
        left, complete = list(of.shards), []
        for evaluated in answer.shards:
            shard = evaluated.shard.data_set, evaluated.shard.segment_id
            left.remove(shard)
            work_s = seconds / len(answer.shards) / len(evaluated.members)
            for member in evaluated.members:
                key, metrics = member.mst_key, self._open.get(member.mst_key)  # None if the model has failed meanwhile
                if not metrics or not metrics.add(task.at, evaluated, member.figures, work_s):
                    continue
                if metrics.has_values:
                    complete.append((key, self._open.pop(key)))
                else:
                    compute = EvaluationTask((key,), (shard,), of.epoch, computes_results=True)
                    self._scheduler.add_evaluation(task.unit, task.segment, compute)
        if left and any(key in self._open for key in of.mst_keys):
            self._scheduler.add_evaluation(task.unit, task.segment, replace(of, shards=tuple(left)))
        return self._write(complete, elapsed_s)

    def order(self, task: Evaluation, places: Sequence[int | None]) -> Evaluate | ComputeMetrics:
        """Return the order for an evaluation; ``places`` are those of its unit's graph."""
        of = evaluation_task(task)
        if of.computes_results:
            (key,) = of.mst_keys
            sums = self._open[key].sums() if key in self._open else {}
            return ComputeMetrics(key, of.names()[0], sums)
        if len(of.mst_keys) == 1:
            return Evaluate(of.mst_keys, of.names())
        return Evaluate(tuple(key if key in of.mst_keys else None for key in places), of.names())

    def _write(self, complete: Sequence[tuple[int, EpochMetrics]], elapsed_s: float) -> dict[int, list[Metric]]:
        run_id = self._run.run_id
        rows = {key: metrics.rows(run_id, key, elapsed_s) for key, metrics in complete}
        if rows:
            evaluations = [row for key, metrics in complete for row in metrics.evaluations(run_id, key)]
            self._record.add_metrics([row for of_one in rows.values() for row in of_one], evaluations)
        return rows

    def under_way(self, mst_key: int) -> bool:
        """Return whether a model has evaluations that were requested and are not complete."""
        return mst_key in self._open

    def forget(self, mst_key: int) -> None:
        """Drop the collected evaluations of a failed model."""
        self._open.pop(mst_key, None)


def shards_of_tasks(
    plan: Plan, places: dict[int, list[Shard]], n_units: Callable[[], int]
) -> dict[int, list[Shard]]:
    """Return the shards of each task of an evaluation, by the segment of the task.

    Where the trainer of a model holds all rows, one task is all of it, if there are models for the other trainers.

    Parameters
    ----------
    plan : Plan
    places : dict
        The result of `places_of`.
    n_units : callable
        Returns the number of units that wait, train or are evaluated. To count them takes as long as there are models.
    """
    if not plan.any_trainer or n_units() <= len(plan.training.segments):
        return places
    return {min(places): [shard for shards in places.values() for shard in shards]}


def places_of(plan: Plan) -> dict[int, list[Shard]]:
    """Return the shards that have rows, by the segment whose worker evaluates them.

    A validation shard is evaluated by the worker of the segment of its number, if that segment's server has its rows,
    else by a segment of the server that has them; rows are sent to another server only as a last resort.
    """
    at = {shard.segment_id: shard.server for shard in plan.training.segments}
    places = {shard.segment_id: [("training", shard.segment_id)] for shard in plan.training.segments if shard.n_rows}
    validation = plan.validation.segments if plan.validation else ()
    for number, shard in enumerate(shard for shard in validation if shard.n_rows):
        near = [segment for segment, server in at.items() if server == shard.server] or list(at)
        worker = shard.segment_id if shard.segment_id in near else near[number % len(near)]
        places.setdefault(worker, []).append(("validation", shard.segment_id))
    return places
