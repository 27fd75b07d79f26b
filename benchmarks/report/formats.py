"""Formats of numbers in tables, axis labels and sentences."""

import math

MISSING = "–"
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with about ``digits`` significant digits, and all digits before the point: 1234, 12.3, 0.123."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 3)}f}"


def seconds(value: float | None) -> str:
    """Return seconds, without the unit."""
    return number(value)


def times(value: float | None) -> str:
    """Return a ratio: 3.06×."""
    return MISSING if value is None else f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def percent(share: float | None) -> str:
    """Return a fraction as a percentage."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def points(value: float | None) -> str:
    """Return a difference of percentages with its sign, using the minus character."""
    if value is None:
        return MISSING
    return f"{value:+.1f}".replace("-", "−") if round(value, 1) else "0.0"


def size(n_bytes: float | None) -> str:
    """Return bytes with a decimal prefix: 1 MB is 1,000,000 bytes."""
    if n_bytes is None:
        return MISSING
    power = min(len(_BYTES) - 1, int(math.log10(n_bytes) / 3)) if n_bytes >= 1 else 0
    return f"{number(n_bytes / 1000**power)} {_BYTES[power]}"


def yes(value: bool | None) -> str:
    """Return the text for whether runs with one seed were equal."""
    return {True: "yes", False: "no", None: "not repeated"}[value]


def count(value: int, noun: str) -> str:
    """Return a count with its noun: 1 run, 2 runs."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"
