"""When a repeated job is due next: an interval of SQL, or a cron expression in a time zone.

Intervals are computed by the server (`madlib_mop.catalog.jobs`), cron expressions here, by library cronsim.
"""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_HINT = "Examples: '1 day', '15 minutes', '0 3 * * *' (each day at 3:00), '*/10 8-18 * * MON-FRI'."
_NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
#: The names that the fourth and the fifth field can have, in any case.
_NAMES = {
    3: "jan feb mar apr may jun jul aug sep oct nov dec".split(),
    4: "sun mon tue wed thu fri sat".split(),
}


class NoNextTime(ValueError):
    """A text is no cron expression, or there is no next time."""


def hint() -> str:
    """Return examples, for messages."""
    return _HINT


def is_cron(every: str) -> bool:
    """Return whether a text is to be read as a cron expression: it begins with @, or has five fields.

    ``'1 day 02:00:00'`` and the like are intervals.
    """
    words = every.split()
    if every.strip().startswith("@"):
        return True
    return len(words) == 5 and ":" not in every and all(map(_can_be_field, range(5), words))


def _can_be_field(number: int, word: str) -> bool:
    """Return whether a word can be a field of a cron expression; a unit of an interval, such as days or mon, cannot."""
    return not word.isalpha() or word.isupper() or word.lower() in _NAMES.get(number, ())


def next_time(every: str, after: datetime, zone: str | None) -> datetime:
    """Return the first time after another one that a cron expression has.

    Parameters
    ----------
    every : str
    after : datetime
        With a time zone.
    zone : str or None
        Name of the time zone of the expression; UTC if it is None or unknown to Python.

    Raises
    ------
    NoNextTime
        If it is no cron expression, or has no time within 50 years.
    """
    place = _zone_named(zone) if zone else None
    expression = _NICKNAMES.get(every.strip().lower(), every)
    now = after.astimezone(UTC)
    try:
        # in the hour that clocks repeat, its first times are of the first of the two, and may have passed
        return next(t for t in CronSim(expression, after.astimezone(place or UTC)) if t.astimezone(UTC) > now)
    except (CronSimError, StopIteration) as error:
        reason = str(error) or "it has no next time"
        raise NoNextTime(f"{every!r} is no cron expression of five fields: {reason}") from None


def knows_zone(zone: str) -> bool:
    """Return whether Python knows a time zone of PostgreSQL's; it does not know one such as ``<+02>-02``."""
    return _zone_named(zone) is not None


def _zone_named(zone: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return None
