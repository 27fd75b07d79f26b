"""Checks of one argument that need only its value; checks that relate two arguments are in the code that uses them."""

import math
import re
import struct
from dataclasses import dataclass
from typing import Any

from mop_backend.registered_names import folded

from madlib_mop.errors import InvalidParameter, array_of, is_missing, not_whole, shown


@dataclass(frozen=True)
class Whole:
    """A whole number within limits.

    Attributes
    ----------
    least : int
    most : int or None
    hint : str or None
    must : str or None
        The requirement in the message; by default the limit that the value exceeds.
    is_needed : bool
        Whether NULL is rejected.
    says_whole : bool
        Whether the message says that the value must be a whole number, as for a value within a text.
    """

    least: int
    most: int | None = None
    hint: str | None = None
    must: str | None = None
    is_needed: bool = False
    says_whole: bool = False

    def __call__(self, name: str, value: int | None) -> int | None:
        """Return the value. Raises InvalidParameter."""
        if value is None and not self.is_needed:
            return None
        if value is None or value < self.least:
            raise self._error(name, value, f"must be at least {self.least}")
        if self.most is not None and value > self.most:
            raise self._error(name, value, f"must be at most {self.most:,}")
        return value

    def _error(self, name: str, value: int | None, passed: str) -> InvalidParameter:
        if self.says_whole:
            return not_whole(name, self.least, shown(value), self.hint)
        return InvalidParameter(f"{name} {self.must or passed}. Received: {shown(value)}", hint=self.hint)


@dataclass(frozen=True)
class OneOf:
    """A word of a list, in any case; NULL and '' stand for ``default``, which may be NULL."""

    words: tuple[str, ...]
    default: str | None
    hint: str

    def __call__(self, name: str, value: str | None) -> str | None:
        """Return the word in lower case. Raises InvalidParameter."""
        word = (value or self.default or "").strip().lower() or None
        if word is None and self.default is None:
            return None
        if word not in self.words:
            raise InvalidParameter(
                f"{name} must be one of {', '.join(self.words)}. Received: {value!r}", hint=self.hint
            )
        return word


@dataclass(frozen=True)
class WithoutNull:
    """An array no element of which is NULL; the array can be NULL."""

    hint: str

    def __call__(self, name: str, value: list[Any] | None) -> list[Any] | None:
        """Return the array. Raises InvalidParameter."""
        if value is not None and None in value:
            raise InvalidParameter(f"{name} has a NULL element. Received: {array_of(value)}", hint=self.hint)
        return value


@dataclass(frozen=True)
class Every:
    """A word of a list, in any case, or a whole number of 1 or more, as text; NULL and '' stand for the first word."""

    words: tuple[str, ...]
    hint: str

    def __call__(self, name: str, value: str | None) -> str:
        """Return the word in lower case, or the number without zeros in front. Raises InvalidParameter."""
        text = (value or self.words[0]).strip().lower()
        if text in self.words:
            return text
        if text.isdecimal() and text.isascii() and int(text) >= 1:
            return str(int(text))
        raise InvalidParameter(
            f"{name} must be {', '.join(map(repr, self.words))} or a whole number of 1 or more. Received: {value!r}",
            hint=self.hint,
        )


@dataclass(frozen=True)
class Label:
    """A text of 1 to ``most`` characters without spaces around it; NULL is refused if ``is_needed``."""

    most: int
    hint: str | None = None
    is_needed: bool = False

    def __call__(self, name: str, value: str | None) -> str | None:
        """Return the text. Raises InvalidParameter."""
        if value is None and not self.is_needed:
            return None
        if not value or value != value.strip() or len(value) > self.most:
            raise InvalidParameter(
                f"{name} must be a text of 1 to {self.most} characters, without spaces around it."
                f" Received: {shown(value)}",
                hint=self.hint,
            )
        return value


@dataclass(frozen=True)
class AboveZero:
    """A finite number above 0; NULL is 1, unless ``is_needed``. ``is_single``: it is used in single precision."""

    hint: str
    is_single: bool = False
    is_needed: bool = False

    def __call__(self, name: str, value: Any) -> float:
        """Return the number. Raises InvalidParameter."""
        missing = math.nan if self.is_needed else 1.0
        number = _float(missing if value is None else value, self.is_single)
        if not (number > 0 and math.isfinite(number)):
            received = "NULL" if value is None else value
            raise InvalidParameter(f"{name} must be a number above 0. Received: {received}", hint=self.hint)
        return number


@dataclass(frozen=True)
class AboveZeroOrNull:
    """A finite number above 0, or NULL."""

    hint: str

    def __call__(self, name: str, value: Any) -> float | None:
        """Return the number. Raises InvalidParameter."""
        return None if value is None else AboveZero(self.hint)(name, value)


@dataclass(frozen=True)
class Given:
    """Anything but NULL and ''."""

    hint: str | None = None

    def __call__(self, name: str, value: Any) -> Any:
        """Return the value. Raises InvalidParameter."""
        if value is None or value == "":
            raise is_missing(name, value, self.hint)
        return value


@dataclass(frozen=True)
class RegistryName:
    """The name of a registered model, or an alias; letters are folded to lower case."""

    pattern: str
    begins: str
    hint: str

    def __call__(self, name: str, value: str | None) -> str:
        """Return the name in lower case. Raises InvalidParameter."""
        text = folded(value or "")
        if re.fullmatch(self.pattern, text) is None:
            raise InvalidParameter(
                f"{name} must have 1 to 63 letters (a to z), digits, _, . or -, and begin with {self.begins}."
                f" Received: {shown(value)}",
                hint=self.hint,
            )
        return text


def _float(value: Any, is_single: bool) -> float:
    """Return a number as the server would store it; a number that is too large becomes infinite."""
    try:
        number = float(value)  # JSON has no NaN: the server writes it as text
        return struct.unpack("f", struct.pack("f", number))[0] if is_single else number
    except OverflowError:
        return math.inf
