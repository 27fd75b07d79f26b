"""Checks names and calls of Keras' classes against the tables of `keras_names`; used by the parser of parameters."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.keras_names import ARGUMENT_KINDS, METRICS, REQUIRED
from madlib_mop.models.parameters.limits import check_name, within_limits
from madlib_mop.models.parameters.literals import CallSpec, read_value, shorten

_KIND_WORDS = {
    "bool": "True or False",
    "int": "a whole number",
    "number": "a number",
    "numbers": "a number or a list of numbers",
    "text": "a string",
}


def unknown_parameter(what: str, name: object, allowed: Iterable[str]) -> InvalidParameter:
    """Return the error for a name that is no parameter of ``what``."""
    return InvalidParameter(
        f"{what}: there is no parameter of that name. Received: {shorten(name)}",
        hint=suggestion(str(name), allowed),
    )


def unknown_argument(where: str, function: str, name: str, allowed: Iterable[str]) -> InvalidParameter:
    """Return the error for a name that is no argument of a function or class of Keras."""
    return InvalidParameter(
        f"{where}: {function} has no argument of that name. Received: {name!r}", hint=suggestion(name, allowed)
    )


def suggestion(name: Any, allowed: Iterable[str]) -> str:
    """Return the hint for an unknown name: a close match if there is one, and all allowed names."""
    names = sorted(set(allowed), key=lambda known: (known.lower(), known))
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    start = f"Did you mean {by_lower[close[0]]}? " if close else ""
    return f"{start}Allowed: {', '.join(names)}."


def as_spec(value: Any, what: str) -> Any:
    """Return the call or the name for a value.

    Strings such as ``'Adam(lr=0.1)'`` are read; ``{"class_name": ..., "config": {...}}``, Keras' own form in JSON,
    becomes a call. Other values are returned unchanged.
    """
    if isinstance(value, str) and ("(" in value or "." in value):
        return read_value(value, what)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict) and "class_name" in value:
        name, config = value["class_name"], value.get("config") or {}
        if not isinstance(name, str) or not isinstance(config, dict):
            raise InvalidParameter(
                f"{what}: class_name must be a string and config an object. Received: {shorten(value)}"
            )
        return CallSpec(name, (), config)
    return value


def find_name(name: str, table: Mapping[str, object], what: str) -> str:
    """Return a class's name in Keras' spelling, from any case."""
    by_lower = {known.lower(): known for known in table}
    try:
        return by_lower[name.lower()]
    except KeyError:
        raise InvalidParameter(f"{what} is unknown. Received: {name!r}", hint=suggestion(name, table)) from None


def check_call(spec: CallSpec, table: Mapping[str, tuple[str, ...]], what: str) -> CallSpec:
    """Check a call's arguments and assign names to positional ones.

    Parameters
    ----------
    spec : CallSpec
        A call of a class in ``table``.
    table : mapping
        Class name -> names of its arguments, in order.
    what : str
        The beginning of messages.

    Returns
    -------
    CallSpec
        The same call with ``args`` empty.

    Raises
    ------
    InvalidParameter
        If an argument is unknown, given twice, missing, of a wrong kind, or outside Keras' limits.
    """
    name, allowed = spec.name, table[spec.name]
    if len(spec.args) > len(allowed):
        raise InvalidParameter(f"{what}: {name} takes {len(allowed)} arguments. Received: {len(spec.args)}")
    kwargs = dict(zip(allowed, spec.args, strict=False))
    for argument, value in spec.kwargs.items():
        if argument not in allowed:
            raise unknown_argument(what, name, argument, allowed)
        if argument in kwargs:
            raise InvalidParameter(f"{what}: {name} has argument {argument} twice")
        kwargs[argument] = value
    if missing := [argument for argument in REQUIRED.get(name, ()) if argument not in kwargs]:
        raise InvalidParameter(f"{what}: {name} needs {' and '.join(missing)}. Received: {shorten(list(kwargs))}")
    for argument, value in kwargs.items():
        check_kind(value, ARGUMENT_KINDS.get(argument), f"{what}: {argument} of {name}")
    if table is not METRICS:  # Keras opens no scope of a metric's name
        check_name(kwargs.get("name"), f"{what}: name of {name}")
    return CallSpec(name, (), within_limits(name, kwargs, what))


def check_kind(value: Any, kind: str | None, what: str) -> None:
    """Raise InvalidParameter unless a value is a bool, int, number, numbers or text; ``?`` lets None pass."""
    if kind is None or (kind.endswith("?") and value is None):
        return
    base = kind.removesuffix("?")
    fits = {
        "bool": isinstance(value, bool),
        "int": is_int(value),
        "number": is_number(value),
        "numbers": is_number(value) or (isinstance(value, list) and all(map(is_number, value))),
        "text": isinstance(value, str),
    }
    if not fits[base]:
        or_none = " or None" if kind.endswith("?") else ""
        raise InvalidParameter(f"{what} must be {_KIND_WORDS[base]}{or_none}. Received: {shorten(value)}")


def is_int(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number (True and False are not)."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is an int or a float (True and False are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)
