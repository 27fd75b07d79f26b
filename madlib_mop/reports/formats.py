"""Numbers, sizes and times as only a report writes them; called by figures and pages."""

from datetime import UTC, datetime

from madlib_mop.catalog.live.words import number

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def fixed(value: float | None, places: int = 4) -> str:
    """Return a number for a column: always so many places, unless it is far from 1."""
    if value is None:
        return ""
    return f"{value:,.{places}f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else number(value)


def count(value: int | None) -> str:
    """Return a whole number with separators; 'unknown' for None."""
    return "unknown" if value is None else f"{value:,}"


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
