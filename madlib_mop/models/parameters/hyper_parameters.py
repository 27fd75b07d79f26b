"""A configuration in parts: one flat dict of its hyper-parameters, by Keras' names, for the record of runs.

Called by the driver wherever a model is planned, added or changed.
"""

import math
from collections.abc import Iterator
from typing import Any

from madlib_mop.models.parameters.functions import flat_names
from madlib_mop.models.parameters.keras_names import DEFAULT_LEARNING_RATES
from madlib_mop.models.parameters.literals import CallSpec, canonical
from madlib_mop.models.parameters.parser import CompileParams, FitParams

_ALWAYS = ("batch_size", "epochs")
_IF_GIVEN = ("initial_epoch", "shuffle", "class_weight", "steps_per_epoch", "early_stopping")


def hyper_parameters(model_id: int, compile_params: CompileParams, fit_params: FitParams, arch: Any) -> dict[str, Any]:
    """Return what distinguishes a configuration from others, as one JSON object without nested ones.

    Parameters
    ----------
    model_id : int
        The architecture's number, ``architecture`` in the result.
    compile_params : CompileParams
        ``optimizer`` and each of its arguments; ``learning_rate`` also if it is Keras' default. Of a schedule, this is
        the first rate; ``learning_rate_schedule`` is its name, and its other arguments begin with ``schedule_``.
        ``loss`` has the names of all losses.
    fit_params : FitParams
        ``batch_size`` and ``epochs``, and others that are not Keras' defaults.
    arch : dict
        The architecture, JSON. ``l1``, ``l2`` and ``dropout`` are its regularization, where all layers that have one
        have the same.

    Returns
    -------
    dict of str to (int, float, bool or str)
        Lists and the like are texts.
    """
    optimizer = compile_params.optimizer
    found = {
        "architecture": model_id,
        "optimizer": optimizer.name,
        **_rate(optimizer),
        **{name: value for name, value in optimizer.kwargs.items() if name not in ("learning_rate", "name")},
        "loss": ", ".join(flat_names(compile_params.loss)),
        "loss_weights": compile_params.loss_weights,
    }
    found |= {name: getattr(fit_params, name) for name in _ALWAYS}
    default = FitParams()
    found |= {n: getattr(fit_params, n) for n in _IF_GIVEN if getattr(fit_params, n) != getattr(default, n)}
    found["callbacks"] = ", ".join(map(canonical, fit_params.callbacks)) or None
    found |= _regularization(arch)
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _rate(optimizer: CallSpec) -> dict[str, Any]:
    """Return the learning rate; of a schedule, its parts."""
    rate = optimizer.kwargs.get("learning_rate", DEFAULT_LEARNING_RATES.get(optimizer.name))
    if not isinstance(rate, CallSpec):
        return {"learning_rate": rate}
    values = rate.kwargs.get("values") or [None]  # those of PiecewiseConstantDecay
    parts = {"learning_rate": rate.kwargs.get("initial_learning_rate", values[0]), "learning_rate_schedule": rate.name}
    others = {name: value for name, value in rate.kwargs.items() if name not in ("initial_learning_rate", "name")}
    return parts | {f"schedule_{name}": value for name, value in others.items()}


def _regularization(arch: Any) -> dict[str, float]:
    values: dict[str, set[float]] = {}
    for name, value in _strengths(arch):
        values.setdefault(name, set()).add(value)
    return {name: min(of) for name, of in values.items() if len(of) == 1}


def _strengths(node: Any) -> Iterator[tuple[str, float]]:
    """Yield the strengths of the regularizers of kernels and the rates of dropout in a part of an architecture."""
    if isinstance(node, list):
        for item in node:
            yield from _strengths(item)
    if not isinstance(node, dict):
        return
    config = node.get("config")
    if node.get("class_name") == "Dropout" and isinstance(config, dict):
        yield "dropout", config.get("rate", 0.0)
    for key, value in node.items():
        if key == "kernel_regularizer" and isinstance(value, dict):
            of = value.get("config") or {}
            yield from ((name, of[name]) for name in ("l1", "l2") if isinstance(of.get(name), int | float) and of[name])
        else:
            yield from _strengths(value)


def _plain(value: Any) -> int | float | bool | str:
    """Return a value that a column of type jsonb takes: others than finite numbers and printable texts are written."""
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str) and value.isprintable():
        return value
    return canonical(value)
