"""Values of data frames as SQL types and as COPY's text format; pure.

A writer takes a value that is not missing and returns its text. It raises ValueError with the problem.
"""

import math
import numbers
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

Writer = Callable[[Any], str]

#: NULL in COPY's text format.
NULL = "\\N"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_MAX_BIGINT = 2**63 - 1


def write_text(value: Any) -> str:
    """Return a text with escapes."""
    text = str(value)
    if "\0" in text:
        raise ValueError("has a zero byte, which PostgreSQL's texts cannot have")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has half of a surrogate pair, which PostgreSQL's texts cannot have") from None
    return text.translate(_ESCAPES)


def write_integer(value: Any) -> str:
    """Return a whole number."""
    return str(int(value))


def write_float(value: Any) -> str:
    """Return a number with all its bits: a float32 is exact in a float64."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"is {number}")
    return repr(number)


def write_decimal(value: Any) -> str:
    """Return a decimal number."""
    if isinstance(value, float):
        return write_float(value)
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"is {value}")
    return str(value)


def write_boolean(value: Any) -> str:
    """Return a boolean."""
    return "t" if value else "f"


def write_moment(value: Any) -> str:
    """Return a date, time or timestamp; microseconds are PostgreSQL's precision.

    Timestamps of pandas can be before the year 1: the year 0 is 1 BC.
    """
    text: str = value.isoformat()
    year = getattr(value, "year", None)
    if year is None or year > 999:
        return text
    clock = text[text.index("T") :] if "T" in text else ""
    return f"{year if year > 0 else 1 - year:04}-{value.month:02}-{value.day:02}{clock}" + (" BC" if year < 1 else "")


def write_interval(value: Any) -> str:
    """Return a timedelta. Both parts have a sign: in IntervalStyle sql_standard, one minus alone would be for both."""
    return f"{value.days:+d} days {value.seconds:+d}.{value.microseconds:06} seconds"


def write_bytes(value: Any) -> str:
    """Return bytes."""
    return "\\\\x" + bytes(value).hex()


def write_array(value: Any) -> str:
    """Return an array of numbers, of any dimensions."""
    items = value.tolist() if hasattr(value, "tolist") else value
    return "{" + ",".join(_element(item) for item in items) + "}"


def _element(item: Any) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list | tuple) or getattr(item, "ndim", None):
        return write_array(item)
    if isinstance(item, bool) or not isinstance(item, numbers.Real | Decimal):
        raise ValueError(f"is an array with a value that is no number: {item!r:.50}")
    return write_integer(item) if isinstance(item, numbers.Integral) else write_decimal(_number(item))


def _number(item: Any) -> Any:
    return item if isinstance(item, Decimal) else float(item)


#: SQL type and writer of each kind of value, for columns whose type is found by their values.
_KINDS: dict[str, tuple[str, Writer]] = {
    "boolean": ("boolean", write_boolean),
    "whole number": ("bigint", write_integer),
    "number": ("double precision", write_float),
    "decimal": ("numeric", write_decimal),
    "text": ("text", write_text),
    "timestamp": ("timestamp", write_moment),
    "timestamp with time zone": ("timestamptz", write_moment),
    "date": ("date", write_moment),
    "time": ("time", write_moment),
    "interval": ("interval", write_interval),
    "bytes": ("bytea", write_bytes),
    "uuid": ("uuid", write_text),
    "array": ("double precision[]", write_array),
}


def kind_of(value: Any) -> str | None:
    """Return the kind of a value that is not missing; None for one that no column can have."""
    if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", None) == "b" and value.ndim == 0:
        return "boolean"
    if isinstance(value, numbers.Integral):
        return "whole number"
    if isinstance(value, Decimal):
        return "decimal"
    if isinstance(value, numbers.Real):
        return "number"
    if isinstance(value, datetime):
        return "timestamp" if value.tzinfo is None else "timestamp with time zone"
    simple: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (str, "text"), (date, "date"), (time, "time"), (timedelta, "interval"),
        ((bytes, bytearray, memoryview), "bytes"), (UUID, "uuid"), ((list, tuple), "array"),
    )  # fmt: skip
    for types, kind in simple:
        if isinstance(value, types):
            return kind
    return "array" if getattr(value, "ndim", 0) else None


def infer(values: Iterable[Any]) -> tuple[str, Writer]:
    """Return the SQL type of values, without those that are missing, and the writer of one.

    Whole numbers among numbers are numbers. Without any value, the type is text.

    Raises
    ------
    ValueError
        If they are of kinds that no type of PostgreSQL has together.
    """
    kinds: dict[str, Any] = {}
    widest = 0
    for value in values:
        kind = kind_of(value)
        if kind is None:
            raise ValueError(f"has a value of type {type(value).__name__}")
        kinds.setdefault(kind, value)
        if kind == "whole number":
            widest = max(widest, abs(int(value)))
    found = frozenset(kinds)
    if not found:
        return _KINDS["text"]
    if len(found) == 1:
        (kind,) = found
        return _KINDS["decimal"] if kind == "whole number" and widest > _MAX_BIGINT else _KINDS[kind]
    if found <= {"whole number", "number"}:
        return _KINDS["number"]
    if found <= {"whole number", "decimal"}:
        return _KINDS["decimal"]
    one, other = sorted(found)[:2]
    raise ValueError(f"has values of several kinds: {one} ({kinds[one]!r:.50}) and {other} ({kinds[other]!r:.50})")
