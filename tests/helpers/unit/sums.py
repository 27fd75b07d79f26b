"""A trainer's answers to evaluations, for tests of their use."""

import base64
from array import array

from mop_backend.messages import EvaluatedShard, EvaluationFigures, MetricTotals, ShardName


def sums_of(n_rows: int, means: dict[str, float], **others: list[float]) -> MetricTotals:
    """Return the sums of metrics that are means over rows, and of others that are not."""
    layout = [(name, 2, True) for name in means] + [(name, len(sums), False) for name, sums in others.items()]
    sums = array("d", [item for value in means.values() for item in (n_rows * value, n_rows)])
    for more in others.values():
        sums.extend(more)
    return MetricTotals(tuple(layout), base64.b64encode(sums).decode())


def values_of(sums: MetricTotals) -> list[float]:
    """Return the sums."""
    return array("d", base64.b64decode(sums.data)).tolist()


def figures_of(n_rows: int, loss: float, sums: MetricTotals | None = None, **timing: float) -> EvaluationFigures:
    """Return a model's figures on a shard; by default its loss is its only metric."""
    return EvaluationFigures(n_rows, loss, {}, {}, sums or sums_of(n_rows, {"loss": loss}), timing)


def evaluated(shard: tuple[str, int], *members) -> EvaluatedShard:
    """Return the evaluation of a shard, with its members."""
    return EvaluatedShard(ShardName(*shard), 5.0, 7.5, members)
