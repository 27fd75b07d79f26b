"""Hyper-parameters of a model by name, as the record has them; called by `reading`."""

import json
from collections.abc import Mapping
from typing import Any

from madlib_mop.catalog.facts.models import HyperParameters, Value
from madlib_mop.errors import MopError
from madlib_mop.models.configuration import Configuration


def hyper_parameters(
    recorded: Mapping[str, Any], model_id: int, compile_params: str, fit_params: str | None
) -> HyperParameters:
    """Return the hyper-parameters of a model by Keras' names, with ``architecture``.

    Parameters
    ----------
    recorded : mapping of str to (int, float, bool or str)
        The column ``hyper_parameters`` of the model. It is empty for models of version 1.0.0: their texts are parsed.
    model_id : int
        The number of the model's network.
    compile_params, fit_params : str
        A text that cannot be parsed, such as that of a custom function, is one parameter as it is.
    """
    found = recorded or {"architecture": model_id, **_parsed(model_id, compile_params, fit_params)}
    return {str(name): _plain(value) for name, value in found.items()}


def _parsed(model_id: int, compile_params: str, fit_params: str | None) -> Mapping[str, Any]:
    try:
        return Configuration(model_id, compile_params, fit_params or "", {}).hyper_parameters
    except MopError:
        return {"compile_params": compile_params, **({"fit_params": fit_params} if fit_params else {})}


def _plain(value: Any) -> Value:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)
