"""Checks the arguments of a call against the specification of its function, once, when a call arrives.

The SQL function ``madlib_mop_calls.call`` can be called with any JSON by every role that can call the functions
above it. So this check guarantees that a command gets every argument of its function, with the right type, and no
others.
"""

import math
from typing import Any

from madlib_mop.calls.argument import REQUIRED, Argument, Function
from madlib_mop.errors import InvalidParameter

_INT = {"integer": 2**31, "bigint": 2**63}
_TEXTS = ("text", "varchar", "name", "json", "timestamptz", "interval")
_NUMBERS = ("real", "double precision")
_MAX_DEPTH = 100  # of JSON
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # JSON has none of these: the server writes them as text


def read_arguments(function: Function, given: Any) -> dict[str, Any]:
    """Return the arguments of a call by name: the passed value, or the default, or None.

    Unknown names are omitted.

    Raises
    ------
    InvalidParameter
        If an argument is of another type than its SQL type, out of that type's range, or fails its check.
    """
    if not isinstance(given, dict):
        raise InvalidParameter(f"the arguments must be a JSON object. Received: {_shown(given)}")
    arguments = (*function.arguments, *function.added)
    values = {}
    for argument in arguments:
        value = given.get(argument.name, None if argument.default is REQUIRED else argument.default)
        _check_texts(argument.name, value)
        if value is not None and not _has_type(argument, value):
            types = " or ".join((argument.type, *argument.other_types))
            raise InvalidParameter(
                f"{argument.name} must be of type {types}. Received: {_shown(value)}",
                hint="Write an array of one dimension: ARRAY[a, b]." if _is_nested(argument, value) else None,
            )
        values[argument.name] = None if argument.is_blank(value) else value
    for argument in arguments:
        if argument.check is not None:
            values[argument.name] = argument.check(argument.name, values[argument.name])
    return values


def recorded_arguments(function: Function, values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call as ``madlib_mop.run.arguments`` keeps them: all but bytes."""
    return {a.name: values[a.name] for a in function.arguments if a.type != "bytea" and a.name in values}


def check_storable(name: str, value: Any) -> None:
    """Reject JSON that the server cannot store as jsonb: such texts, infinite numbers, and very deep nesting.

    Raises
    ------
    InvalidParameter
    """
    values = [(value, 0)]
    while values:
        one, depth = values.pop()
        if depth > _MAX_DEPTH:
            raise InvalidParameter(f"{name} is nested more than {_MAX_DEPTH} levels deep")
        if isinstance(one, dict):
            values += [(item, depth + 1) for pair in one.items() for item in pair]
        elif isinstance(one, list):
            values += [(item, depth + 1) for item in one]
        elif isinstance(one, float) and not math.isfinite(one):
            raise InvalidParameter(f"{name} has a number that the server cannot store. Received: {one}")
        else:
            _check_texts(name, one)


def _has_type(argument: Argument, value: Any) -> bool:
    if argument.any_dimensions and isinstance(value, list):
        element = argument.type.removesuffix("[]")
        return all(item is None or _has_type(argument, item) or _fits(element, item) for item in value)
    return type_of(argument, value) is not None


def _is_nested(argument: Argument, value: Any) -> bool:
    """Return whether a value has more dimensions than its argument."""
    is_array = argument.type.endswith("[]") and not argument.any_dimensions and isinstance(value, list)
    return is_array and any(isinstance(item, list) for item in value)


def type_of(argument: Argument, value: Any) -> str | None:
    """Return the first of the argument's types that a value of JSON has, or None."""
    return next((kind for kind in (argument.type, *argument.other_types) if _fits(kind, value)), None)


def _fits(kind: str, value: Any) -> bool:
    if kind == "any":
        return True
    if kind.endswith("[]"):
        return isinstance(value, list) and all(item is None or _fits(kind[:-2], item) for item in value)
    if kind in _INT:
        return isinstance(value, int) and not isinstance(value, bool) and -_INT[kind] <= value < _INT[kind]
    if kind in _NUMBERS:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number or (isinstance(value, str) and value in _NOT_FINITE)
    if kind in _TEXTS:
        return isinstance(value, str)
    return isinstance(value, {"boolean": bool, "bytea": bytes | bytearray}[kind])


def _check_texts(name: str, value: Any) -> None:
    """Reject a text that the server cannot store: JSON can contain a zero byte, or half of a surrogate pair."""
    if isinstance(value, list):
        for item in value:
            _check_texts(name, item)
    elif isinstance(value, str):
        try:
            whole = "\0" not in value and value.encode() is not None
        except UnicodeEncodeError:
            whole = False
        if not whole:
            raise InvalidParameter(
                f"{name} has a character that the server cannot store. Received: {ascii(value):.100}"
            )


def _shown(value: Any, limit: int = 100) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number with more digits than Python converts
        return "a number of thousands of digits"
    return text if len(text) <= limit else f"{text[:limit]} ..."
