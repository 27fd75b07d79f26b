"""The sums of an evaluation: the variables of Keras' own metrics, as sums over rows that can be added over shards.

Every metric that compile parameters may name is a function of sums over batches (tests/unit/trainer/test_metrics.py
compares each one with plain Keras on all rows): a mean is a function of a total and a count, an AUC of counts for each
threshold, an R2 of sums of squares. So the added sums of shards result in Keras' values for all rows. Called by
``visits.py`` and by backends.
"""

import base64
import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from mop_backend.messages import MetricTotals

from madlib_mop.errors import MopError
from madlib_mop.trainer.process.failures import INTERNAL, RequestFailure


@dataclasses.dataclass(frozen=True)
class Results:
    """The metrics of an evaluation: ``metrics`` in compile's order, ``output_losses`` for models with several
    outputs."""

    loss: float
    metrics: dict[str, float]
    output_losses: dict[str, float]


class MetricAccumulator:
    """The sums of one model's metrics, in float64.

    Parameters
    ----------
    model : keras.Model
        Compiled, its metrics' variables made.

    Attributes
    ----------
    metrics : list of keras.metrics.Metric
        The metrics in the order of their sums; backends read their variables after each batch, and add in float64.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        compiled = model._compile_metrics
        self._compiled = list(compiled.metrics) if compiled is not None else []
        metrics = [model._loss_tracker, *self._compiled, *model._compile_loss.metrics]
        self.metrics = list({id(metric): metric for metric in metrics}.values())

    @property
    def n_values(self) -> int:
        """Number of sums."""
        return sum(_size_of(metric) for metric in self.metrics)

    def results(self, sums: np.ndarray) -> Results:
        """Return the values of Keras' metrics for these sums, float64 ``(n_values,)``."""
        sums = np.asarray(sums, np.float64)
        if sums.shape != (self.n_values,):
            raise RequestFailure(INTERNAL, MopError(f"{sums.size} sums for metrics that have {self.n_values}"))
        values, start = {}, 0
        for metric in self.metrics:
            own = sums[start : start + _size_of(metric)]
            start += len(own)
            if is_mean(metric):  # in float64; Keras would divide in float32
                values[id(metric)] = float(own[0] / own[1]) if own[1] else 0.0
            else:
                _assign(metric, own)
        named: dict[str, float] = {}
        if self._compiled:
            results = self._model._compile_metrics.result()
            for (name, result), metric in zip(results.items(), self._compiled, strict=True):
                named[name] = values.get(id(metric), scalar(result))
        losses = {m.name: values[id(m)] for m in self._model._compile_loss.metrics}
        return Results(values[id(self._model._loss_tracker)], named, losses)

    def totals(self, sums: np.ndarray, results: Results) -> MetricTotals:
        """Return the sums of the loss and the metrics in the format of requests and answers."""
        metrics = [self._model._loss_tracker, *self._compiled]
        names = ["loss", *results.metrics]
        layout = tuple((name, _size_of(m), is_mean(m)) for name, m in zip(names, metrics, strict=True))
        return _written(layout, sums[: sum(size for _, size, _ in layout)])

    def read(self, totals: MetricTotals) -> np.ndarray:
        """Return the sums that `totals` wrote; the sums of single outputs' losses are 0."""
        sums = np.zeros(self.n_values)
        given = np.frombuffer(base64.b64decode(totals.data), "<f8")
        expected = sum(_size_of(metric) for metric in [self._model._loss_tracker, *self._compiled])
        if len(given) != expected:
            raise RequestFailure(INTERNAL, MopError(f"{len(given)} sums for metrics that have {expected}"))
        sums[:expected] = given
        return sums


def totals_of_means(names: Sequence[str], totals: np.ndarray, n_rows: int) -> MetricTotals:
    """Return the result of `MetricAccumulator.totals` for metrics that are all means over rows, the loss first."""
    sums = np.array([[total, n_rows] for total in totals], np.float64)
    return _written(tuple((name, 2, True) for name in names), sums.ravel())


def is_mean(metric: keras.metrics.Metric) -> bool:
    """Return whether a metric is a total divided by a count: losses, accuracies and the like."""
    mean = keras.metrics.Mean
    return isinstance(metric, mean) and type(metric).result is mean.result


def scalar(value: object) -> float:
    """Return a metric's value; the mean, if it has several values (for example a precision for each class)."""
    return float(np.mean(np.asarray(keras.ops.convert_to_numpy(value), np.float64)))


def _written(layout: tuple[tuple[str, int, bool], ...], sums: np.ndarray) -> MetricTotals:
    return MetricTotals(layout, base64.b64encode(np.asarray(sums, "<f8").tobytes()).decode())


def _size_of(metric: keras.metrics.Metric) -> int:
    return sum(int(np.prod(variable.shape)) for variable in metric.variables)


def _assign(metric: keras.metrics.Metric, sums: np.ndarray) -> None:
    start = 0
    for variable in metric.variables:
        size = int(np.prod(variable.shape))
        dtype = keras.backend.standardize_dtype(variable.dtype)
        variable.assign(sums[start : start + size].reshape(variable.shape).astype(dtype))
        start += size
