"""Positions of values along one axis, from 0 to 1; used by the figures of hyper-parameters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from madlib_mop.catalog.facts.models import Value
from madlib_mop.reports.figures.drawing import value_text
from madlib_mop.reports.importance import is_logarithmic, is_numeric

#: Values that all get a tick; more numbers get ticks at the ends and between.
_MAX_TICKS = 6
_MAX_CATEGORIES = 12
_ABSENT = "—"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One axis.

    Attributes
    ----------
    name : str
    places : tuple of float
        Of each model.
    texts : tuple of str
        The values of the models; a dash where a model has none.
    ticks : tuple of (float, str)
        Places with their texts, in order.
    is_discrete : bool
        Whether there are so few values that each has a tick.
    """

    name: str
    places: tuple[float, ...]
    texts: tuple[str, ...]
    ticks: tuple[tuple[float, str], ...]
    is_discrete: bool


def dimension(name: str, values: Sequence[Value | None]) -> Dimension:
    """Return the axis of a parameter: numbers at their places, on a logarithmic scale if they span a power of ten."""
    texts = tuple(_ABSENT if value is None else value_text(value) for value in values)
    distinct = {value for value in values if value is not None}
    if is_numeric(values) and len(distinct) > _MAX_TICKS:
        return _numbers(name, [float(v) for v in values if isinstance(v, int | float)], texts)
    order = sorted(dict.fromkeys(zip(values, texts, strict=True)), key=lambda pair: in_order(pair[0]))
    names = list(dict.fromkeys(text for _, text in order))
    steps = max(1, len(names) - 1)
    place = {text: i / steps if len(names) > 1 else 0.5 for i, text in enumerate(names)}
    shown = names if len(names) <= _MAX_CATEGORIES else names[:: -(-len(names) // _MAX_CATEGORIES)]
    ticks = tuple((place[text], text) for text in shown)
    return Dimension(name, tuple(place[text] for text in texts), texts, ticks, len(shown) == len(names))


def _numbers(name: str, values: Sequence[float], texts: tuple[str, ...]) -> Dimension:
    scale = math.log if is_logarithmic(values) else float
    low, high = scale(min(values)), scale(max(values))
    width = high - low or 1.0
    places = tuple((scale(value) - low) / width for value in values)
    back = math.exp if scale is math.log else float
    ticks = tuple((p, value_text(float(f"{back(low + p * width):.3g}"))) for p in (0.0, 0.25, 0.5, 0.75, 1.0))
    return Dimension(name, places, texts, ticks, False)


def in_order(value: Value | None) -> tuple[int, float, str]:
    """Return what sorts values: numbers, then texts, then no value."""
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(value)
