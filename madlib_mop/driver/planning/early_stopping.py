"""The early stopping rules of a call and its configurations, checked before any work; called when a run is planned."""

from collections.abc import Mapping

from madlib_mop.catalog.rows.base import Json
from madlib_mop.driver.evaluation.evaluations import is_due
from madlib_mop.driver.planning.data_fit import by_output
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.early_stopping import EarlyStopping, read_early_stopping
from madlib_mop.models.parameters.parser import CompileParams, flat_names, higher_is_better
from madlib_mop.models.shapes import describe


def plan_early_stopping(
    text: str | None,
    configurations: Mapping[int, Configuration],
    num_iterations: int,
    frequency: int,
    has_validation: bool,
) -> dict[int, Json | None]:
    """Return each configuration's early stopping rule for its row of `madlib_mop.model`, by mst_key.

    ``text`` is the argument of the call; fit_params of a configuration override it.

    Raises
    ------
    MopError
        If a parameter is wrong, names a metric that is not computed, or could never stop a model.
    """
    of_call = read_early_stopping(text)
    planned: dict[int, Json | None] = {}
    for mst_key, c in configurations.items():
        own = c.fit.early_stopping
        rule = of_call if own is None else read_early_stopping(own)
        if rule is None:
            planned[mst_key] = None
            continue
        _check_due(rule, num_iterations, frequency)
        planned[mst_key] = _resolved(rule, mst_key, c, has_validation).as_json()
    return planned


def _check_due(rule: EarlyStopping, num_iterations: int, frequency: int) -> None:
    """Reject a rule without effect because its metric is computed too rarely."""
    n_due = sum(is_due(epoch, 1, num_iterations, frequency) for epoch in range(1, num_iterations + 1))
    if n_due < 2 or (n_due <= rule.patience + 1 and not rule.restore_best):
        more_often = ", or set metrics_compute_frequency => 1" if frequency > 1 else ""
        raise InvalidParameter(
            f"early_stopping: metrics are computed {n_due} times in {num_iterations} iterations, so patience"
            f" {rule.patience} would never stop a model early. Received: metrics_compute_frequency {frequency}",
            hint=f"Allow more iterations, or lower patience{more_often}.",
        )


def _resolved(rule: EarlyStopping, mst_key: int, c: Configuration, has_validation: bool) -> EarlyStopping:
    """Return a rule with its metric and mode resolved. Raises InvalidParameter for a metric that is not computed."""
    metric = rule.metric or ("val_loss" if has_validation else "loss")
    if metric.startswith("val_") and not has_validation:
        raise InvalidParameter(
            f"early_stopping: {metric} needs a validation_table. Received: metric={metric}",
            hint=f"Pass one, or use {metric.removeprefix('val_')}, which is computed on the training data.",
        )
    check_metric(metric, mst_key, c)
    mode = rule.mode
    if mode == "auto":
        mode = "max" if higher_is_better(metric.removeprefix("val_")) else "min"
    return EarlyStopping(**{**rule.as_json(), "metric": metric, "mode": mode})


def check_metric(metric: str, mst_key: int, c: Configuration) -> None:
    """Raise InvalidParameter if a configuration does not compute the metric of a rule, such as ``val_accuracy``."""
    names = reported_names(c.compiled, check_architecture(c.arch))
    if metric.removeprefix("val_") not in names:
        raise InvalidParameter(
            f"early_stopping: mst_key {mst_key} has no such metric. Received: metric={metric}",
            hint=f"Its metrics are {', '.join(names)}; the prefix val_ selects the validation data.",
        )


def reported_names(params: CompileParams, arch: Node) -> list[str]:
    """Return the names under which Keras reports the loss and the metrics of a model, as its ``CompileMetrics`` does.

    With several outputs, a metric's name begins with that of its output. The losses of single outputs are not recorded.
    """
    shape, outputs = describe(arch), arch["config"].get("output_layers")
    output_names = tuple(outputs) if isinstance(outputs, dict) else shape.output_names
    prefixes = [f"{name}_" for name in output_names] if shape.n_outputs > 1 else [""]
    found, counts = ["loss"], dict[str, int]()
    for value, again in ((params.metrics, ""), (params.weighted_metrics, "weighted_")):
        for prefix, metrics in zip(prefixes, by_output(value, shape, len(prefixes)), strict=True):
            for own in flat_names(metrics):
                name = f"{prefix}{own}"
                if name in counts:
                    name = f"{prefix}{again}{own}" if again else f"{name}_{counts[name]}"
                counts[f"{prefix}{own}"] = counts.get(f"{prefix}{own}", 0) + 1
                found.append(name)
    return list(dict.fromkeys(found))
