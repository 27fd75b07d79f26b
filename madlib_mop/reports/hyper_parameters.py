"""Hyper-parameters of a configuration by name, parsed from its texts; called by `reading`."""

from functools import lru_cache
from typing import Any

from madlib_mop.errors import MopError
from madlib_mop.models.parameters.calls import as_spec
from madlib_mop.models.parameters.literals import CallSpec, read_keywords, write_value
from madlib_mop.models.parameters.optimizers import check_optimizer
from madlib_mop.reports.facts import HyperParameters, Value

#: They change neither the weights nor the loss.
_WITHOUT_EFFECT = ("metrics", "weighted_metrics", "verbose", "callbacks")
_MAX_LENGTH = 60


@lru_cache(maxsize=4096)
def hyper_parameters(compile_params: str, fit_params: str | None) -> HyperParameters:
    """Return the hyper-parameters of a configuration.

    The arguments of the optimizer are parameters of their own: ``optimizer``, ``learning_rate`` and so on. A text that
    cannot be read, such as that of a custom function of another version, is one parameter as it is.
    """
    found: dict[str, Value] = {}
    for what, text in (("compile_params", compile_params), ("fit_params", fit_params or "")):
        if not text.strip():
            continue
        try:
            values = read_keywords(text, what)
        except MopError:
            found[what] = _short(text)
            continue
        for name, value in values.items():
            if name == "optimizer":
                found |= _optimizer(value)
            elif name not in _WITHOUT_EFFECT and value is not None:
                found[name] = _plain(value)
    return found


def _optimizer(value: Any) -> dict[str, Value]:
    try:
        spec = check_optimizer(value, "optimizer")
    except MopError:
        spec = as_spec(value, "optimizer") if isinstance(value, CallSpec) else value
    if not isinstance(spec, CallSpec):
        return {"optimizer": _plain(spec)}
    return {"optimizer": spec.name, **{name: _plain(item) for name, item in spec.kwargs.items() if item is not None}}


def _plain(value: Any) -> Value:
    if isinstance(value, int | float | bool):
        return value
    return _short(value if isinstance(value, str) else write_value(value))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
