"""Compile and fit parameters as texts of the SQL functions, from Python dictionaries; called by `networks`."""

import math
from collections.abc import Mapping
from typing import Any

from madlib_mop.client.calling.errors import bad_input


def parameters_text(params: str | Mapping[str, Any], what: str) -> str:
    """Return parameters as the SQL functions read them: ``loss='mse', optimizer='Adam(learning_rate=0.01)'``.

    Parameters
    ----------
    params : str or mapping
        A text is returned as it is. In a mapping, ``optimizer`` may be a text such as ``'Adam(learning_rate=0.01)'``,
        a mapping such as ``{"name": "Adam", "learning_rate": 0.01}``, or an optimizer of Keras.
    what : str
        ``compile`` or ``fit``, for messages.

    Raises
    ------
    InvalidParameter
        If a name is no identifier, or a value is not made of texts, finite numbers, booleans, None, lists and dicts.
    """
    if isinstance(params, str):
        return params
    if not isinstance(params, Mapping):
        raise bad_input(f"{what} parameters are a dict or a text. Received: {type(params).__name__}")
    parts = []
    for name, value in params.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise bad_input(f"{what} parameters have names such as batch_size. Received: {name!r}")
        if name == "optimizer" and not isinstance(value, str):
            value = _optimizer(value)
        parts.append(f"{name}={_literal(value, f'{what} parameter {name}')}")
    return ", ".join(parts)


def _optimizer(value: Any) -> str:
    """Return an optimizer as the text of its call."""
    if isinstance(value, Mapping):
        settings = dict(value)
        name = settings.pop("name", None)
        if not isinstance(name, str) or not name.isidentifier():
            raise bad_input(
                f"an optimizer has a name. Received: {dict(value)!r}",
                'For example {"name": "Adam", "learning_rate": 0.01}.',
            )
        return _call(name, settings)
    if callable(getattr(value, "get_config", None)):  # an optimizer of Keras
        config = {key: item for key, item in value.get_config().items() if key != "name" and item is not None}
        if isinstance(config.get("learning_rate"), Mapping):
            schedule = config["learning_rate"]
            inner = {key: item for key, item in schedule["config"].items() if key != "name" and item is not None}
            return _call(type(value).__name__, {**_rate(config), "learning_rate": _Call(schedule["class_name"], inner)})
        return _call(type(value).__name__, _rate(config))
    raise bad_input(
        f"an optimizer is a text, a dict or an optimizer of Keras. Received: {type(value).__name__}",
        "For example 'Adam(learning_rate=0.01)'.",
    )


def _rate(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the settings that are off and that optimizers of Keras name all the same."""
    off = {"use_ema": False, "amsgrad": False, "nesterov": False, "centered": False}
    only_with_ema = ("ema_momentum", "ema_overwrite_frequency") if not config.get("use_ema") else ()
    return {
        key: item for key, item in config.items() if not (key in off and item == off[key]) and key not in only_with_ema
    }


class _Call:
    """A call within a call, such as a schedule of learning rates."""

    def __init__(self, name: str, settings: Mapping[str, Any]):
        self.text = _call(name, settings)


def _call(name: str, settings: Mapping[str, Any]) -> str:
    words = [
        f"{key}={value.text if isinstance(value, _Call) else _literal(value, f'{name}: {key}')}"
        for key, value in settings.items()
    ]
    return f"{name}({', '.join(words)})"


def _literal(value: Any, what: str) -> str:
    """Return a value as a Python literal."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()  # a scalar of NumPy
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item, what) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(k, what)}: {_literal(v, what)}" for k, v in value.items()) + "}"
    raise bad_input(
        f"{what} must be a text, a finite number, a boolean, None, a list or a dict. Received: {value!r:.100}",
        "Losses and metrics are named by texts, such as 'mse'.",
    )
