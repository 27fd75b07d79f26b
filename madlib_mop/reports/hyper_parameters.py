"""Hyper-parameters of a model by name, as the record has them; called by `reading`."""

from collections.abc import Mapping
from typing import Any

from madlib_mop.errors import MopError
from madlib_mop.models.configuration import Configuration
from madlib_mop.reports.facts import HyperParameters

_MAX_LENGTH = 60


def hyper_parameters(
    recorded: Mapping[str, Any], model_id: int, compile_params: str, fit_params: str | None
) -> HyperParameters:
    """Return the hyper-parameters of a model, ``network`` first.

    Parameters
    ----------
    recorded : mapping of str to (int, float, bool or str)
        The column ``hyper_parameters`` of the model. It is empty for models of version 1.0.0: their texts are parsed.
    model_id : int
        The number of the model's network.
    compile_params, fit_params : str
        A text that cannot be parsed, such as that of a custom function, is one parameter as it is.
    """
    found = recorded or _parsed(model_id, compile_params, fit_params)
    return {"network": str(model_id), **{name: _short(found[name]) for name in found if name != "architecture"}}


def _parsed(model_id: int, compile_params: str, fit_params: str | None) -> dict[str, Any]:
    try:
        return Configuration(model_id, compile_params, fit_params or "", {}).hyper_parameters
    except MopError:
        return {"compile_params": compile_params, **({"fit_params": fit_params} if fit_params else {})}


def _short(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= _MAX_LENGTH:
        return value
    return f"{value[: _MAX_LENGTH - 1]}…"
