"""The metrics of a model in ``_info``: their history, and those of the written weights."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.of_run import Metric
from madlib_mop.catalog.rows.run import RunRow

_COLUMNS = {  # column -> data set and index of the metric
    "training_loss": ("training", 0), "training_metrics": ("training", 1),
    "validation_loss": ("validation", 0), "validation_metrics": ("validation", 1),
}  # fmt: skip


@dataclass(frozen=True)
class ModelFigures:
    """The metrics of one model.

    Attributes
    ----------
    iterations : list of int
        The iterations after which they were computed.
    elapsed_s : list of float
        Seconds of training until each computation.
    series : dict of str to list of float, or None
        Their values by the columns of ``_info``; None if there are none.
    final : dict of str to float, or None
        The metrics of the written weights: the newest, or those of the restored epoch.
    """

    iterations: list[int]
    elapsed_s: list[float]
    series: dict[str, list[float] | None]
    final: dict[str, float | None]

    @property
    def deciding_loss(self) -> float | None:
        """The final loss on validation data if there are any, else on training data."""
        loss = self.final["validation_loss"]
        return self.final["training_loss"] if loss is None else loss

    def columns(self) -> dict[str, Sequence[float] | float | None]:
        """Return the values by the columns of ``_info``, and ``metrics_iters``."""
        final = {f"{column}_final": value for column, value in self.final.items()}
        iterations: dict[str, Sequence[float] | None] = {
            "metrics_iters": self.iterations,
            "metrics_elapsed_time": self.elapsed_s or None,
        }
        return {**iterations, **self.series, **final}


def figures_of(
    models: Iterable[ModelRow], metrics: Iterable[Metric], only_last: bool = False
) -> dict[int, ModelFigures]:
    """Return the figures of each model, by mst_key; ``only_last``: their history has the last iteration alone."""
    by_model: dict[int, list[Metric]] = defaultdict(list)
    for metric in metrics:
        by_model[metric.mst_key].append(metric)
    return {model.mst_key: _figures(model, by_model[model.mst_key], only_last) for model in models}


def _figures(model: ModelRow, metrics: Sequence[Metric], only_last: bool) -> ModelFigures:
    by_epoch: dict[int, list[Metric]] = defaultdict(list)
    for metric in metrics:
        if metric.epoch >= model.first_epoch:
            by_epoch[metric.epoch].append(metric)
    epochs = sorted(by_epoch)
    shown = slice(-1 if only_last else 0, None)
    elapsed_s = [by_epoch[epoch][0].elapsed_s for epoch in epochs]
    series: dict[str, list[float] | None] = {}
    final: dict[str, float | None] = {}
    for column, place in _COLUMNS.items():
        values = [m.value for epoch in epochs for m in by_epoch[epoch] if (m.data_set, m.ordinal) == place]
        series[column] = values[shown] or None
        final[column] = _final(values, epochs, model.best_epoch)
    return ModelFigures([model.iteration(epoch) for epoch in epochs[shown]], elapsed_s[shown], series, final)


def shown_frequency(run: RunRow) -> int | None:
    """Return metrics_compute_frequency as output tables have it: as MADlib's, whose default is the last iteration."""
    if run.is_search:
        return run.plan.summary.metrics_compute_frequency
    given: int | None = run.arguments.get("metrics_compute_frequency")
    return run.num_iterations if given is None else given


def shows_only_last(run: RunRow) -> bool:
    """Return whether output tables have the metrics of the last iteration alone."""
    return not run.is_search and run.arguments.get("metrics_compute_frequency") is None


def _final(values: list[float], epochs: list[int], restored: int | None) -> float | None:
    if not values:
        return None
    return values[epochs.index(restored)] if restored in epochs else values[-1]
