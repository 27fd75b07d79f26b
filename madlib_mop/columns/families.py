"""What each family of column types is: how its values are held, proposed, encoded, shown and predicted.

`numbers`, `texts` and `vectors` read their values, and `records` knows which types they have.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from madlib_mop.columns.blobs import BLOB, Blobs
from madlib_mop.columns.numbers import DAY_US
from madlib_mop.columns.proposals import guesses
from madlib_mop.columns.proposals.kinds import ARRAY, CATEGORY, DATETIME, IMAGE, ColumnSpec
from madlib_mop.columns.proposals.kinds import BOOLEAN as OF_BOOLEANS
from madlib_mop.columns.proposals.kinds import NUMBER as OF_NUMBERS
from madlib_mop.columns.proposals.kinds import TEXT as OF_TEXTS
from madlib_mop.columns.proposals.kinds import VECTOR as OF_VECTORS
from madlib_mop.columns.proposals.statistics import Statistics
from madlib_mop.columns.raw import (
    BOOLEAN,
    INET,
    MOMENT,
    NUMBER,
    SPAN,
    TEXT,
    TIME,
    UUID,
    VECTOR,
    Levels,
    Moments,
    Numbers,
    RawColumn,
    Vectors,
    text_of_number,
)
from madlib_mop.columns.records import family_of, reader_of
from madlib_mop.columns.transforms.dates import HOUR, PARTS

#: Microseconds of a second.
SECOND_US = 1_000_000
_EPOCH = datetime(2000, 1, 1)


@dataclass(frozen=True)
class Family:
    """Types whose values are treated alike.

    Attributes
    ----------
    name : str
        The ``family`` of its readers and of the columns that they make.
    holds : type
        The class of these columns.
    kinds : tuple of str
        The kinds of which its columns can be. The first is that of a column whose values were not read.
    guess : callable
        Returns the proposal of a column with values, from its row and its statistics.
    words : str
        What a column of it is, for errors: ``an interval``. Where numbers of one family were encoded, those of another
        family are accepted only if it has the same words.
    key_reason : callable or None
        Returns why a column is a key, from its name and its statistics; None if it is not one. None: no column is.
    targets : str or None
        What targets of it are called: ``intervals``. None: they cannot be predicted.
    has_classes : bool
        Whether its targets are classes, whatever their values.
    unit : float
        What values are divided by before they are scaled, such as the microseconds of a second.
    parts : tuple of str
        Of the kind ``datetime``: the parts on a circle that its values can have.
    unit_name, measured_in : str
        Of the kind ``datetime``: the name of the scaled number, and what it counts.
    text : callable or None
        Returns a value as text. None: as SQL prints a number.
    of_python : callable or None
        Returns the value of an object of Python, such as a ``timedelta``; raises ValueError or OverflowError. None: the
        client has its own way for vectors, and none for images.
    """

    name: str
    holds: type[RawColumn]
    kinds: tuple[str, ...]
    guess: Callable[[ColumnSpec, Statistics], ColumnSpec]
    words: str
    key_reason: Callable[[str, Statistics], str | None] | None = None
    targets: str | None = None
    has_classes: bool = False
    unit: float = 1.0
    parts: tuple[str, ...] = ()
    unit_name: str = ""
    measured_in: str = ""
    text: Callable[[float], str] | None = None
    of_python: Callable[[Any], Any] | None = None


def families_of_kind(kind: str) -> frozenset[str]:
    """Return the names of the families whose columns can be of a kind."""
    return frozenset(family.name for family in FAMILIES.values() if kind in family.kinds)


def scaled_families(kind: str, unit: float, sql_type: str, recorded: str | None = None) -> list[Family]:
    """Return the families of which a number that was fitted may be: one, or several if nothing tells them apart.

    Parameters
    ----------
    kind : str
    unit : float
        What its values are divided by.
    sql_type : str
        The type of its column; that of a domain tells nothing.
    recorded : str or None
        The family, where it was recorded.
    """
    found = [family for family in FAMILIES.values() if kind in family.kinds and family.unit == unit]
    if recorded is None and len({family.words for family in found}) < 2:
        return found
    reader = reader_of(sql_type)
    own = recorded if recorded is not None else None if reader is None else family_of(reader)
    named = [family for family in found if family.name == own]
    return named if named or recorded is not None else found


def to_record(kind: str, family: str, sql_type: str) -> str | None:
    """Return the family of a number that is fitted if it must be recorded: if its unit and type do not tell it."""
    found = scaled_families(kind, FAMILIES[family].unit, sql_type)
    return None if {one.words for one in found} == {FAMILIES[family].words} else family


def alike(families: Iterable[Family]) -> frozenset[str]:
    """Return the names of the families whose numbers are accepted where those of any of these were encoded."""
    words = {family.words for family in families}
    return frozenset(family.name for family in FAMILIES.values() if family.words in words)


def words_of(names: Iterable[str]) -> str:
    """Return what a column of one of these families is: ``a time or an interval``."""
    wanted = set(names)
    return " or ".join(dict.fromkeys(family.words for family in FAMILIES.values() if family.name in wanted))


def text_of(value: float, family: str) -> str:
    """Return a value of a family of numbers, dates or times as text; numbers as `text_of_number` does."""
    own = FAMILIES[family].text
    return text_of_number(float(value), family) if own is None else own(value)


def _text_of_moment(value: float) -> str:
    """Return microseconds since 2000-01-01 as a date, or a date and a time; beyond the year 9999 as a number."""
    try:
        moment = _EPOCH + timedelta(microseconds=int(value))
    except OverflowError:
        return f"{int(value)} microseconds since 2000-01-01"
    return moment.isoformat(" ") if moment.time() != time.min else moment.date().isoformat()


def _text_of_time(value: float) -> str:
    """Return microseconds since midnight as a time of day, which may be 24:00:00."""
    seconds, fraction = divmod(abs(int(value)), SECOND_US)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    clock += f".{fraction:06d}" if fraction else ""
    return f"-{clock}" if value < 0 else clock


def _text_of_span(value: float) -> str:
    """Return microseconds as days and a time."""
    days, rest = divmod(abs(int(value)), DAY_US)
    clock = _text_of_time(rest)
    text = f"{days} days {clock}" if days else clock
    return f"-{text}" if value < 0 else text


def _moment(value: date | datetime) -> int:
    """Return microseconds since 2000-01-01 (of timestamps with time zone, in UTC) of a date or a timestamp."""
    if not isinstance(value, datetime):
        return _span(value - _EPOCH.date())
    length = value - (_EPOCH if value.tzinfo is None else _EPOCH.replace(tzinfo=UTC))
    nanoseconds: int = getattr(value, "nanosecond", 0)
    return _span(length) + round(nanoseconds / 1000)


def _time(value: time) -> int:
    """Return microseconds since midnight."""
    return ((value.hour * 60 + value.minute) * 60 + value.second) * SECOND_US + value.microsecond


def _span(value: timedelta) -> int:
    """Return the microseconds of an interval."""
    return int(value.days) * DAY_US + int(value.seconds) * SECOND_US + int(value.microseconds)


_EVERY = (
    Family(
        NUMBER, Numbers, (OF_NUMBERS, CATEGORY), guesses.guess_number, "a number or boolean",
        key_reason=guesses.key_of_numbers, targets="numbers", of_python=float,
    ),
    Family(
        BOOLEAN, Numbers, (OF_BOOLEANS, OF_NUMBERS, CATEGORY), guesses.guess_boolean, "a number or boolean",
        targets="booleans", has_classes=True, of_python=float,
    ),
    Family(
        MOMENT, Moments, (DATETIME,), guesses.guess_moment, "a date or timestamp",
        unit=float(DAY_US), parts=PARTS, unit_name="age", measured_in="days since 2000-01-01",
        text=_text_of_moment, of_python=_moment,
    ),
    Family(
        TIME, Moments, (DATETIME, OF_NUMBERS), guesses.guess_time, "a time",
        unit=float(SECOND_US), parts=(HOUR,), unit_name="seconds", measured_in="seconds since midnight",
        text=_text_of_time, of_python=_time,
    ),
    Family(
        SPAN, Moments, (OF_NUMBERS,), guesses.guess_span, "an interval",
        targets="intervals", unit=float(SECOND_US), text=_text_of_span, of_python=_span,
    ),
    Family(
        TEXT, Levels, (CATEGORY, OF_TEXTS), guesses.guess_text, "a text",
        key_reason=guesses.key_of_texts, targets="texts, enums", has_classes=True, of_python=str,
    ),
    Family(
        UUID, Levels, (CATEGORY, OF_TEXTS), guesses.guess_text, "a uuid",
        key_reason=guesses.key_of_uuids, targets="uuids", has_classes=True, of_python=str,
    ),
    Family(
        INET, Levels, (CATEGORY, OF_TEXTS), guesses.guess_text, "a network address",
        key_reason=guesses.key_of_texts, targets="network addresses", has_classes=True, of_python=str,
    ),
    Family(VECTOR, Vectors, (OF_VECTORS, ARRAY), guesses.guess_vector, "an array or vector of numbers"),
    Family(BLOB, Blobs, (IMAGE,), guesses.guess_blob, "bytea"),
)  # fmt: skip
#: All families by their names.
FAMILIES = {family.name: family for family in _EVERY}
