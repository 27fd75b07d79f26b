"""Numbers, durations and sizes as a report writes them; called by figures and pages."""

import math
from datetime import UTC, datetime

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a number with at most so many significant digits; '' for None."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15 and abs(value) >= 10**digits):
        return f"{int(value):,}"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{digits}g}"


def fixed(value: float | None, places: int = 4) -> str:
    """Return a number for a column: always so many places, unless it is far from 1."""
    if value is None:
        return ""
    return f"{value:,.{places}f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else number(value)


def count(value: int | None) -> str:
    """Return a whole number with separators; 'unknown' for None."""
    return "unknown" if value is None else f"{value:,}"


def duration(seconds: float | None) -> str:
    """Return a duration such as ``0.21 s``, ``8.4 s``, ``3 min 20 s``, ``5 h 3 min`` or ``2 d 4 h``."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{number(seconds, 2 if seconds < 10 else 3)} s"
    whole = round(seconds)
    for large, small, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if large == "min" else 24) or large == "d":
            first, rest = divmod(whole, size)
            return f"{first} {large} {rest // part} {small}" if rest // part else f"{first} {large}"
    raise AssertionError("every duration has a form")


def size(n_bytes: int | None) -> str:
    """Return a number of bytes such as ``12.3 MB``; '' for None."""
    if n_bytes is None:
        return ""
    for unit, name in _UNITS:
        if n_bytes >= unit:
            return f"{number(n_bytes / unit, 3)} {name}"
    return f"{n_bytes} bytes"


def moment(value: float | None) -> str:
    """Return a time of day in UTC; the report says that all are."""
    return "" if value is None else datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")


def percent(share: float | None) -> str:
    """Return a share of 1 as a percentage."""
    return "" if share is None else f"{share * 100:.1f} %" if 0 < share < 0.1 else f"{share * 100:.0f} %"
