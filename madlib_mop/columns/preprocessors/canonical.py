"""Frozen dataclasses as JSON and back: one text for one value, whatever stored it meanwhile."""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from madlib_mop.errors import UnreadableText

T = TypeVar("T")
#: Metadata of a field that earlier documents do not have: it is left out while it has its default, and may be missing.
ADDED = {"added": True}


def canonical_json(value: object) -> str:
    """Return a value as JSON: keys sorted, no blanks, ASCII, floats in their shortest form; NaN is not allowed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain(value: object) -> Any:
    """Return a value of dataclasses, tuples, texts, numbers and None as dictionaries, lists and the same.

    Negative zero becomes zero, because jsonb has none.
    """
    if is_dataclass(value) and not isinstance(value, type):
        known = ((field, getattr(value, field.name)) for field in fields(value))
        return {f.name: plain(found) for f, found in known if not ("added" in f.metadata and found == f.default)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


def build(cls: type[T], value: object, where: str) -> T:
    """Return the dataclass that a dictionary stands for; the types of all fields are checked.

    Whole numbers are read where floats are expected: jsonb writes 1e20 with all its digits.

    Raises
    ------
    UnreadableText
        For a field that is missing, unknown, or of another type; ``where`` names the place.
    """
    if not isinstance(value, dict):
        raise _damaged(where, "an object", value)
    dataclass: Any = cls  # hashable
    types_of = _types_of(dataclass).items()
    hints = {name: hint for name, (hint, is_added) in types_of if name in value or not is_added}
    if set(value) != set(hints):
        odd = sorted(set(value) ^ set(hints))
        raise UnreadableText(f"the preprocessor is damaged: {where} has no or an unknown key {odd[0]!r}", hint=_HINT)
    return cls(**{name: _read(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})


@cache
def _types_of(cls: Any) -> Mapping[str, tuple[Any, bool]]:
    """Return for each field of a dataclass its type, and whether it may be missing."""
    hints = get_type_hints(cls)
    return {field.name: (hints[field.name], "added" in field.metadata) for field in fields(cls)}


def _read(hint: Any, value: object, where: str) -> Any:
    origin = get_origin(hint)
    if origin is types.UnionType:
        given = next(arg for arg in get_args(hint) if arg is not type(None))
        return None if value is None else _read(given, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _damaged(where, "a list", value)
        (item, _) = get_args(hint)
        return tuple(_read(item, element, where) for element in value)
    if is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type] # a dataclass, checked above
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _damaged(where, "a finite number", value)
        try:
            number = float(value)
        except OverflowError:  # a whole number of more than 308 digits
            number = math.inf
        if not math.isfinite(number):
            raise _damaged(where, "a finite number", value)
        return number
    if type(value) is not hint:
        raise _damaged(where, hint.__name__, value)
    return value


_HINT = "Pack the table again."


def _damaged(where: str, expected: str, value: object) -> UnreadableText:
    text = repr(value)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return UnreadableText(f"the preprocessor is damaged: {where} is not {expected}. Received: {shown}", hint=_HINT)
