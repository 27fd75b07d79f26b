"""Checks the losses and metrics of compile parameters; called by `parser`."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.calls import as_spec, check_call, suggestion
from madlib_mop.models.parameters.keras_names import (
    LOSS_STRINGS,
    LOSSES,
    METRIC_NAMES,
    METRIC_STRINGS,
    METRICS,
    OLD_LOSSES,
    OLD_METRICS,
    REQUIRED,
    snake_case,
)
from madlib_mop.models.parameters.literals import CallSpec, shorten

_NEEDED = {name.lower(): needed for name, needed in REQUIRED.items() if name in METRICS}


class FunctionReader:
    """Checks losses and metrics, and collects the custom functions that they use."""

    def __init__(self, custom_names: frozenset[str]):
        self.custom_names = custom_names
        self.used: set[str] = set()

    def losses(self, value: Any) -> Any:
        """Check a loss, a list of them or a dict by output; return it with calls as CallSpec."""
        if isinstance(value, list):
            return [self.losses(item) for item in value]
        if isinstance(value, dict) and "class_name" not in value:
            return {str(name): self.losses(item) for name, item in value.items()}
        return self._function(value, "loss", LOSSES, LOSS_STRINGS, OLD_LOSSES)

    def metrics(self, value: Any, key: str) -> Any:
        """Check metrics, in any of the forms that compile() takes; ``key`` is metrics or weighted_metrics."""
        if value is None:
            return None
        is_many = isinstance(value, list) or (isinstance(value, dict) and "class_name" not in value)
        return self._metrics(value if is_many else [value], key, set())

    def _metrics(self, value: Any, key: str, taken: set[str]) -> Any:
        if isinstance(value, list):
            names: set[str] = set()
            return [self._metrics(item, key, names) for item in value]
        if isinstance(value, dict) and "class_name" not in value:
            return {str(name): self._metrics(item, key, set()) for name, item in value.items()}
        return _named(self._function(value, key, METRICS, METRIC_STRINGS, OLD_METRICS), taken)

    def _function(
        self,
        value: Any,
        key: str,
        classes: Mapping[str, tuple[str, ...]],
        strings: Collection[str],
        old: Mapping[str, str],
    ) -> str | CallSpec | None:
        what = f"compile_params: {key}"
        if value is None:
            return None
        if isinstance(value, str) and value in self.custom_names:
            self.used.add(value)
            return value
        spec: object = as_spec(value, what)
        if not isinstance(spec, str | CallSpec):
            raise InvalidParameter(
                f"{what} must be a name or a call of one of Keras' classes. Received: {shorten(value)}"
            )
        name = spec if isinstance(spec, str) else spec.name
        if isinstance(spec, str):
            name = old.get(name, name)
            if needed := _NEEDED.get(name.replace("_", "").lower()):
                raise InvalidParameter(
                    f"{what}: {name} needs {' and '.join(needed)}; write it as a call. Received: {name!r}"
                )
            if name in strings:
                return name
            spec = CallSpec(name, (), {"name": name} if classes is METRICS else {})
        if spec.name not in classes:
            registered = ", ".join(sorted(self.custom_names)) or "none"
            allowed = suggestion(name, {*classes, *strings, *self.custom_names})
            raise InvalidParameter(
                f"{what}: neither Keras nor the custom functions have a function of this name. Received: {name!r}",
                hint=f"Custom functions of the object table: {registered}. {allowed}",
            )
        return check_call(spec, classes, what)


def several_values(metric: str | CallSpec) -> str | None:
    """Return how to write a metric that has an array of values as one with a single number; None if it has one.

    Metrics of classes have one number nevertheless, if the output has a single unit.
    """
    name, given = (metric.name, metric.kwargs) if isinstance(metric, CallSpec) else (metric, {})
    plain = name.replace("_", "").lower()
    if plain in ("f1score", "fbetascore") and given.get("average") is None:
        cls = "F1Score" if plain == "f1score" else "FBetaScore"
        return f"Write {cls}(average='macro'), or another average: 'micro' or 'weighted'."
    if name == "R2Score" and given.get("class_aggregation", "") is None:
        return "Write R2Score(class_aggregation='uniform_average')."
    thresholds = given.get("thresholds")
    if name != "AUC" and isinstance(thresholds, list) and len(thresholds) > 1:
        each = ", ".join(f"{name}(thresholds={one}, name='{snake_case(name)}_at_{one}')" for one in thresholds[:2])
        return f"Write a metric for each threshold: {each}{', ...' if len(thresholds) > 2 else ''}."
    return None


def flat_names(metrics: Any) -> tuple[str, ...]:
    """Return the names of checked metrics, in order, whatever lists and dicts they are in."""
    if metrics is None:
        return ()
    if isinstance(metrics, list | dict):
        items = metrics.values() if isinstance(metrics, dict) else metrics
        return tuple(name for item in items for name in flat_names(item))
    return (metrics.kwargs["name"] if isinstance(metrics, CallSpec) else metrics,)


def _named(metric: str | CallSpec | None, taken: set[str]) -> str | CallSpec | None:
    """Set a distinct name on a metric call: Keras numbers calls without one, and merges calls of one name."""
    if not isinstance(metric, CallSpec):
        taken.add(str(metric))
        return metric
    own = metric.kwargs.get("name") or METRIC_NAMES.get(metric.name) or snake_case(metric.name)
    name, n = own, 0
    while name in taken:
        n += 1
        name = f"{own}_{n}"
    taken.add(name)
    return replace(metric, kwargs={**metric.kwargs, "name": name})
