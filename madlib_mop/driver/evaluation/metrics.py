"""Metrics of a model after an epoch: which are due, and their computation from the segments' sums."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from mop_backend.messages import EvaluatedShard, EvaluationFigures, MetricTotals, MetricValues, ShardName

from madlib_mop import schedule
from madlib_mop.catalog.rows.of_run import EvaluationRow, Metric
from madlib_mop.driver.evaluation.metric_sums import MetricSums, add

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
