"""Dates and times to units on a circle: month, day of the week, time of day."""

import math
from collections.abc import Callable
from datetime import date
from functools import cache

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Units = npt.NDArray[np.float32]

MONTH, WEEKDAY, HOUR = "month", "weekday", "hour"
PARTS = (MONTH, WEEKDAY, HOUR)
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
_DAYS_BEFORE_2000 = 10_957  # from the Unix epoch
_FIRST_WEEKDAY = 5  # 2000-01-01 was a Saturday; Monday is 0
_MINUTES = 1_440
_FEW = 4
_ORDINAL_OF_2000 = date(2000, 1, 1).toordinal()
_DAYS_OF_400_YEARS = 146_097


def _circle(n_steps: int) -> Units:
    """Return sine and cosine of n equal steps of a circle: float32 (2, n); a quarter turn is exact.

    Angles are reduced to an eighth of a turn with whole numbers, so that all processors and C libraries agree.
    """
    table = np.empty((2, n_steps), np.float32)
    for step in range(n_steps):
        quarter, rest = divmod(4 * step, n_steps)  # the rest is rest / n_steps of a quarter turn
        if 2 * rest <= n_steps:
            sine, cosine = math.sin(math.pi * rest / (2 * n_steps)), math.cos(math.pi * rest / (2 * n_steps))
        else:
            left = n_steps - rest
            sine, cosine = math.cos(math.pi * left / (2 * n_steps)), math.sin(math.pi * left / (2 * n_steps))
        turned = ((sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine))[quarter]
        table[:, step] = turned
    table += np.float32(0.0)  # turns -0.0 into 0.0
    return table


_TABLES = {MONTH: _circle(12), WEEKDAY: _circle(7), HOUR: _circle(_MINUTES)}


@cache
def _months() -> Integers:
    """Return the month of each day from 2000-01-01 on, for 400 years; then the calendar repeats."""
    days = np.arange(_DAYS_OF_400_YEARS) + _DAYS_BEFORE_2000
    return np.mod(days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64), 12)


def month_of(values: Integers) -> Integers:
    """Return months, 0 to 11, of microseconds since 2000-01-01."""
    return _months().take(np.mod(values // DAY_US, _DAYS_OF_400_YEARS))


def weekday_of(values: Integers) -> Integers:
    """Return days of the week, 0 (Monday) to 6, of microseconds since 2000-01-01."""
    return np.mod(values // DAY_US + _FIRST_WEEKDAY, 7)


def minute_of(values: Integers) -> Integers:
    """Return minutes of the day, 0 to 1439, of microseconds since a midnight."""
    return np.mod(values, DAY_US) // MINUTE_US


def _month_alone(value: int) -> int:
    """Return the month of one moment; the calendar repeats every 400 years."""
    return date.fromordinal(_ORDINAL_OF_2000 + value // DAY_US % _DAYS_OF_400_YEARS).month - 1


_STEP_ALONE: dict[str, Callable[[int], int]] = {
    MONTH: _month_alone,
    WEEKDAY: lambda value: (value // DAY_US + _FIRST_WEEKDAY) % 7,
    HOUR: lambda value: value % DAY_US // MINUTE_US,
}
_STEPS = {MONTH: month_of, WEEKDAY: weekday_of, HOUR: minute_of}


def steps(values: Integers, part: str) -> Integers:
    """Return which step of a part each moment is at; see `cyclic`."""
    if len(values) <= _FEW:
        return np.array([_STEP_ALONE[part](value) for value in values.tolist()], np.int64)
    return _STEPS[part](values)


def cyclic(values: Integers, part: str) -> Units:
    """Return sine and cosine of a part of moments.

    Parameters
    ----------
    values : numpy.ndarray
        int64 (n,), microseconds since 2000-01-01 or since midnight.
    part : str
        ``month`` (12 steps from January), ``weekday`` (7 steps from Monday) or ``hour`` (1,440 steps, one a minute).

    Returns
    -------
    numpy.ndarray
        float32 (2, n).
    """
    return _TABLES[part].take(steps(values, part), axis=1)
