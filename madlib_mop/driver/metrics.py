"""Metrics of a model after an epoch: which are due, and how the segments' figures become one (by rows, in float64)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime


def is_due(epoch: int, first_epoch: int, last_epoch: int, frequency: int | None) -> bool:
    """Tell whether metrics are computed after an epoch: every ``frequency`` iterations, if given, and at the last."""
    return epoch == last_epoch or (frequency is not None and (epoch - first_epoch + 1) % frequency == 0)


@dataclass(frozen=True)
class EvaluationTask:
    """What an evaluation of the scheduler's carries: its models, one or several that are stacked; shard and epoch."""

    mst_keys: tuple[int, ...]
    data_set: str
    segment_id: int
    epoch: int


@dataclass
class _Sum:
    n_rows: int = 0
    sums: dict[str, float] = field(default_factory=dict)


class EpochMetrics:
    """Gathers the evaluations of one model after one epoch.

    Parameters
    ----------
    epoch : int
    shards : iterable of (str, int)
        Data sets and segments there, of which figures must come in.
    """

    def __init__(self, epoch: int, shards: Iterable[tuple[str, int]]):
        self.epoch = epoch
        self._left = set(shards)
        self._sums: dict[str, _Sum] = {}
        self._work_s = 0.0
        self._evaluations: list[dict] = []

    def add(self, task: EvaluationTask, segment: int, answer: dict, seconds: float) -> bool:
        """Add one evaluation's figures; True if it was the last.

        Parameters
        ----------
        task : EvaluationTask
        segment : int
            Where it was made.
        answer : dict
            ``n_rows``, ``loss`` and ``metrics`` (name -> value) of one shard; ``started_at`` and ``ended_at``, in
            seconds since 1970; ``timing``.
        seconds : float
            What it took.
        """
        self._left.discard((task.data_set, task.segment_id))
        self._work_s += seconds
        self._evaluations.append(
            {
                "data_set": task.data_set, "shard": task.segment_id, "segment_id": segment,
                **{name: datetime.fromtimestamp(answer[name], UTC) for name in ("started_at", "ended_at")},
                **{name: answer[name] for name in ("n_rows", "loss", "timing")},
            }
        )  # fmt: skip
        total = self._sums.setdefault(task.data_set, _Sum())
        total.n_rows += answer["n_rows"]
        for name, value in {"loss": answer["loss"], **answer["metrics"]}.items():
            total.sums[name] = total.sums.get(name, 0.0) + answer["n_rows"] * float(value)
        return not self._left

    def evaluations(self, run_id: int, mst_key: int) -> list[dict]:
        """Give the rows of `madlib_mop.evaluation`."""
        return [{"run_id": run_id, "mst_key": mst_key, "epoch": self.epoch, **row} for row in self._evaluations]

    def rows(self, run_id: int, mst_key: int, elapsed_s: float) -> list[dict]:
        """Give the rows of `madlib_mop.metric`: the mean over all rows of each data set."""
        return [
            {
                "run_id": run_id, "mst_key": mst_key, "epoch": self.epoch, "data_set": data_set, "ordinal": ordinal,
                "name": name, "value": value / total.n_rows, "elapsed_s": elapsed_s, "work_s": self._work_s,
            }
            for data_set, total in sorted(self._sums.items())
            for ordinal, (name, value) in enumerate(total.sums.items())
        ]  # fmt: skip
