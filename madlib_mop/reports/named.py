"""Hyper-parameters of a model as a report names and shows them; called by figures and pages."""

from madlib_mop.catalog.facts.models import HyperParameters, ModelFacts, Value

_MAX_LENGTH = 60


def named_parameters(model: ModelFacts) -> HyperParameters:
    """Return the hyper-parameters of a model, ``network`` first; long texts are cut."""
    given = model.hyper_parameters
    return {"network": str(model.model_id), **{name: _short(given[name]) for name in given if name != "architecture"}}


def _short(value: Value) -> Value:
    if not isinstance(value, str) or len(value) <= _MAX_LENGTH:
        return value
    return f"{value[: _MAX_LENGTH - 1]}…"
