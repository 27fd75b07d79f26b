"""Parses Python-like texts of literal values and calls by name, without executing them; and writes them.

The parser of compile parameters, fit parameters and grids. A text is parsed by ``ast.parse``; only the few
kinds of nodes for values are accepted, all others are rejected.
"""

import ast
import json
import warnings
from dataclasses import dataclass, field
from typing import Any, NoReturn

from madlib_mop.errors import UnreadableText

MAX_TEXT_LENGTH = 100_000
MAX_INT = 2**63 - 1
MAX_FLOAT = (2 - 2**-23) * 2.0**127  # the greatest float32: Keras computes in float32
_MAX_DEPTH = 50
_WORDS = {"true": True, "false": False, "null": None}
_PACKAGES = frozenset(
    "tf tensorflow keras losses metrics optimizers schedules callbacks learning_rate_schedule api v2".split()
)


@dataclass(frozen=True)
class CallSpec:
    """A class of Keras and its literal arguments, e.g. ``Adam(learning_rate=0.01)``.

    Attributes
    ----------
    name : str
        The class's name in Keras' spelling.
    args : tuple
        Positional arguments; empty after the check, which assigns their names.
    kwargs : dict
        Arguments by name: numbers, strings, booleans, None, lists and dicts of these, and CallSpec.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(canonical(self))


def shorten(text: Any, limit: int = 160) -> str:
    """Return a value for an error message: ``repr``, shortened in the middle."""
    shown = repr(text)
    return shown if len(shown) <= limit else f"{shown[: limit * 2 // 3]} ... {shown[-limit // 4 :]}"


def read_keywords(text: str, what: str, hint: str | None = None) -> dict[str, Any]:
    """Read ``name=value, name=value`` or a JSON object (or Python dict) of the same.

    Parameters
    ----------
    text : str
        Values are literals, bare names (taken as strings) and calls by name with literal arguments.
    what : str
        What the text is, the beginning of messages.

    Returns
    -------
    dict
        Name -> value; calls are CallSpec, bare names str.

    Raises
    ------
    UnreadableText
        If the text cannot be parsed, or contains anything except values.
    """
    if text.lstrip().startswith("{"):
        values = read_dict(text, what, hint)
        if wrong := [name for name in values if not isinstance(name, str)]:
            raise UnreadableText(f"{what}: names must be strings. Received: {wrong[0]!r}", hint=hint)
        return values
    call = _parse(f"f({text}\n)", text, what, hint)
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "f"):
        raise _unreadable(what, text, hint)
    if call.args:
        raise UnreadableText(
            f"{what}: every value needs a name, as in name=value. Received: {shorten(ast.unparse(call.args[0]))}",
            hint=hint,
        )
    return _keywords(call, what, hint, 0)


def read_dict(text: str, what: str, hint: str | None = None) -> dict[Any, Any]:
    """Read a dict: a JSON object or a Python literal, whose values may be calls by name.

    Raises
    ------
    UnreadableText
        If the text is not a dict.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_int=json_int, parse_float=json_float)
    except (ValueError, RecursionError):
        value = read_value(text, what, hint)
    if not isinstance(value, dict):
        raise UnreadableText(f"{what} is not a dict. Received: {shorten(text)}", hint=hint)
    return value


def read_value(text: str, what: str, hint: str | None = None) -> Any:
    """Read one value: a literal, a bare name (as str), or a call by name (as CallSpec)."""
    return _value(_parse(f"({text}\n)", text, what, hint), what, hint, 0)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def json_int(text: str) -> int:
    """Return a whole number of JSON. Raises ValueError if it does not fit into 64 bits."""
    value = int(text)
    if abs(value) > MAX_INT:
        raise ValueError(f"a number is too large: {shorten(text)}")
    return value


def json_float(text: str) -> float:
    """Return a number of JSON. Raises ValueError if it does not fit into float32."""
    value = float(text)
    if not abs(value) <= MAX_FLOAT:
        raise ValueError(f"a number is too large: {shorten(text)}")
    return value


def write_value(value: Any) -> str:
    """Write a value so that `read_value` reads an equal one."""
    if isinstance(value, CallSpec):
        parts = [write_value(item) for item in value.args]
        parts += [f"{name}={write_value(item)}" for name, item in value.kwargs.items()]
        return f"{value.name}({','.join(parts)})"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(write_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {write_value(item)}" for key, item in value.items()) + "}"
    return repr(value)


def canonical(value: Any) -> str:
    """Write a value in a canonical form: equal for equal values, with any order of names."""
    if isinstance(value, CallSpec):
        return f"{value.name}({canonical(list(value.args))}, {canonical(value.kwargs)})"
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{key!r}: {canonical(item)}" for key, item in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(canonical(item) for item in value) + "]"
    return repr(value)


def _parse(source: str, text: str, what: str, hint: str | None) -> ast.expr:
    if len(text) > MAX_TEXT_LENGTH:
        raise UnreadableText(
            f"{what} is longer than {MAX_TEXT_LENGTH:,} characters. Received: {len(text):,} characters"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) and "limit" not in error.msg else None
        raise _unreadable(what, text, hint, reason) from None
    # before anything is written: Python has no text of a whole number of more than 4,300 digits
    if any(isinstance(node.value, int) and abs(node.value) > MAX_INT for node in ast.walk(parsed)
           if isinstance(node, ast.Constant)):
        raise UnreadableText(f"{what}: a number is too large. Received: {shorten(text)}", hint=hint)
    return parsed


def _unreadable(what: str, text: str, hint: str | None, reason: str | None = None) -> UnreadableText:
    because = f" ({reason})" if reason else ""
    return UnreadableText(f"{what} cannot be read{because}. Received: {shorten(text)}", hint=hint)


def _keywords(call: ast.Call, what: str, hint: str | None, depth: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise _refused(keyword.value, what, hint, "**")
        if keyword.arg in values:
            raise UnreadableText(f"{what}: {keyword.arg} occurs twice", hint=hint)
        values[keyword.arg] = _value(keyword.value, what, hint, depth + 1)
    return values


def _value(node: ast.expr, what: str, hint: str | None, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise UnreadableText(f"{what} is nested more than {_MAX_DEPTH} deep", hint=hint)
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, bool | str):
            return value
        case ast.Constant(value=int() | float() as value):
            if not abs(value) <= MAX_FLOAT:
                raise UnreadableText(f"{what}: a number is too large: {shorten(value)}", hint=hint)
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _value(operand, what, hint, depth + 1)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _refused(node, what, hint)
            return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, what, hint, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {
                _key(key, what, hint, depth + 1): _value(value, what, hint, depth + 1)
                for key, value in zip(keys, values, strict=True)
            }
        case ast.Name(id=name):
            return _WORDS.get(name, name)
        case ast.Attribute():
            return _name(node, what, hint)
        case ast.Call(func=function, args=args):
            positional = tuple(_value(item, what, hint, depth + 1) for item in args)
            return CallSpec(_name(function, what, hint), positional, _keywords(node, what, hint, depth))
    raise _refused(node, what, hint)


def _key(node: ast.expr | None, what: str, hint: str | None, depth: int) -> Any:
    key = _value(node, what, hint, depth) if node is not None else []
    if isinstance(key, list | dict | CallSpec):
        raise UnreadableText(f"{what}: a dict's keys must be strings or numbers", hint=hint)
    return key


def _name(node: ast.expr, what: str, hint: str | None) -> str:
    """Return ``Adam`` for ``Adam`` and for ``tf.keras.optimizers.Adam``; nothing else that has a dot is a name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=base, attr=name):
            while isinstance(base, ast.Attribute) and base.attr in _PACKAGES:
                base = base.value
            if isinstance(base, ast.Name) and base.id in _PACKAGES:
                return name
    raise _refused(node, what, hint)


def _refused(node: ast.expr, what: str, hint: str | None, prefix: str = "") -> UnreadableText:
    try:
        source = prefix + ast.unparse(node)
    except RecursionError:
        source = "a very deep expression"
    return UnreadableText(
        f"{what}: only literal values and Keras' classes by name can be used. Received: {shorten(source)}", hint=hint
    )
