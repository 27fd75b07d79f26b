"""Classes that the server writes as texts, as Python's values."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

_INTEGERS = ("smallint", "integer", "bigint")
_FLOATS = ("real", "double precision")
#: Of a numeric, before the decimal point.
_MOST_DIGITS = 131_072


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
    if sql_type == "numeric":
        number = Decimal(text)
        if number.is_finite() and number.adjusted() > _MOST_DIGITS:  # defence: digits-of-a-class
            raise ValueError(f"no number of PostgreSQL: {text[:20]}")  # int() would write out all its digits
        return int(number) if number.is_finite() and number == number.to_integral_value() else float(text)
    if sql_type in _FLOATS:
        return float(text)
    if sql_type == "boolean":
        return text in ("t", "true")
    return text


def classes_of(texts: Sequence[str | None]) -> Sequence[str | None]:
    """Return the classes of an output, without the NULLs behind them, which are outputs of no class (``num_classes``).

    The class NULL is the first.

    Examples
    --------
    >>> classes_of([None, "a", "b", None, None])
    [None, 'a', 'b']
    """
    n_classes = len(texts)
    while n_classes > 1 and texts[n_classes - 1] is None:
        n_classes -= 1
    return texts[:n_classes]
