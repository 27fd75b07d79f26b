"""Classes that the server writes as texts, as Python's values."""

from typing import Any

_INTEGERS = ("smallint", "integer", "bigint")
_FLOATS = ("real", "double precision", "numeric")


def class_of(text: str | None, sql_type: str) -> Any:
    """Return a class as Python's value of its column's type.

    Examples
    --------
    >>> class_of("3", "smallint"), class_of("t", "boolean"), class_of("gold", "text")
    (3, True, 'gold')
    """
    if text is None:
        return None
    if sql_type in _INTEGERS:
        return int(text)
    if sql_type in _FLOATS:
        number = float(text)
        return int(number) if number.is_integer() and sql_type == "numeric" else number
    if sql_type == "boolean":
        return text in ("t", "true")
    return text
