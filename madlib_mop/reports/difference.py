"""What differs between two configurations; called by `page`, whose script does the same for the pair that is chosen."""

from dataclasses import dataclass

from madlib_mop.catalog.facts.models import Architecture, ModelFacts
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import duration, number
from madlib_mop.reports.formats import size
from madlib_mop.reports.named import named_parameters


@dataclass(frozen=True, slots=True)
class ModelDifference:
    """One property of two models; the texts are '' where a model has none."""

    name: str
    first: str
    second: str


def properties(facts: RunFacts, model: ModelFacts) -> dict[str, str]:
    """Return the properties of a model as texts by name, in the order in which they are shown."""
    network = next((a for a in facts.architectures if a.model_id == model.model_id), None)
    found = {
        "rank": "" if model.rank is None else str(model.rank),
        "state": model.state + (f": {model.detail}" if model.detail else ""),
        "network": _network(model, network),
        **{name: str(value) for name, value in named_parameters(model).items() if name != "network"},
        **{name: number(value, 5) for name, value in model.figures if value is not None},
        "iterations": str(model.epoch),
        "time in visits": duration(model.seconds),
        "size of its state": size(model.state_bytes),
        "compile_params": model.compile_params,
        "fit_params": model.fit_params,
        "SHA-256 of its weights": model.weights_digest or "",
    }
    return {name: text for name, text in found.items() if text}


def differences(facts: RunFacts, first: ModelFacts, second: ModelFacts) -> tuple[ModelDifference, ...]:
    """Return the properties in which two models differ."""
    ours, theirs = properties(facts, first), properties(facts, second)
    names = [*ours, *(name for name in theirs if name not in ours)]
    both = (ModelDifference(name, ours.get(name, ""), theirs.get(name, "")) for name in names)
    return tuple(one for one in both if one.first != one.second)


def _network(model: ModelFacts, network: Architecture | None) -> str:
    return str(model.model_id) if network is None else f"{model.model_id}: {network.layers}"
