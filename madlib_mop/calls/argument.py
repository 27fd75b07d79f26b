"""The specification of one SQL function: the name, type, default, check and help of each of its arguments.

A check needs only the value of its argument; checks that relate two arguments are in the code that uses them.
"""

import math
import re
import struct
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import Enum
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


class _Required(Enum):
    """The type of `REQUIRED`."""

    REQUIRED = "required"


#: The default of a required argument.
REQUIRED = _Required.REQUIRED

#: Takes an argument's name and value, returns the value to use. Raises InvalidParameter.
Check = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Argument:
    """One argument of an SQL function.

    Attributes
    ----------
    name : str
    type : str
        SQL type. A function with an argument of type json also takes jsonb or text there.
    help : str
        One line for help texts, the command line and the manual.
    default : Any
        In JSON form: None for NULL, `REQUIRED` if there is none.
    check : Check or None
        Checks, and may normalize, a value that has the right type. NULL is checked too.
    other_types : tuple of str
        Further SQL types: the function has one more signature for each, in which this argument has no default.
    any_dimensions : bool
        Whether an array may have more than one dimension.
    """

    name: str
    type: str
    help: str
    default: Any = REQUIRED
    check: Check | None = None
    other_types: tuple[str, ...] = ()
    any_dimensions: bool = False

    @property
    def is_required(self) -> bool:
        """Whether every call must pass it."""
        return self.default is REQUIRED

    @property
    def sql_default(self) -> str | None:
        """The default in SQL; None if there is none."""
        if self.default is REQUIRED:
            return None
        if self.default is None:
            return "NULL"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return f"'{self.default}'" if isinstance(self.default, str) else str(self.default)

    def is_blank(self, value: Any) -> bool:
        """Return whether a value is an empty text, or one of blanks, that stands for NULL, which is the default.

        A check of the argument itself decides what a blank text is.
        """
        may_be = self.default is None and self.check is None and self.type in ("text", "varchar")
        return may_be and isinstance(value, str) and not value.strip()


@dataclass(frozen=True)
class Parameter:
    """One parameter of one signature: its name, SQL type, and default in SQL (None if there is none)."""

    name: str
    type: str
    default: str | None = None


@dataclass(frozen=True)
class Function:
    """One SQL function; `sql_functions` writes it.

    Attributes
    ----------
    name : str
    purpose : str
        What it does, in one line.
    arguments : tuple of Argument
        In the order of the signature. ``caller_path`` is not one of them.
    schema : str
    forms : tuple of tuple of str
        The names of the arguments of each signature, where no signature has all of them.
    added : tuple of Argument
        Arguments that the SQL function adds to the user's: the kind of the argument that has ``other_types``.
    comments : tuple of str
        COMMENT ON FUNCTION of each signature.
    returns : str
        SQL type of the result: ``void``, a type or array, ``TABLE (column type, ...)``, or ``SETOF bytea``.
    settings : tuple of str
        Settings of the server while it runs, besides search_path.
    takes_path : bool
        Whether ``caller_path``, the caller's search_path, is its last parameter, because it is given names of tables.
    starter : str
        What it calls in schema madlib_mop_calls: ``call``, or a function that can start no other command, so that
        roles that may only read have a right to it.
    """

    name: str
    purpose: str
    arguments: tuple[Argument, ...] = ()
    schema: str = "madlib"
    forms: tuple[tuple[str, ...], ...] = ()
    added: tuple[Argument, ...] = ()
    comments: tuple[str, ...] = ()
    returns: str = "void"
    settings: tuple[str, ...] = ()
    takes_path: bool = True
    starter: str = "call"

    def check_known(self, names: Iterable[str]) -> None:
        """Raise InvalidParameter if a name is none of its arguments."""
        known = [argument.name for argument in self.arguments]
        for name in names:
            if name not in known:
                raise InvalidParameter(
                    f"{self.name} has no argument {name!r}", hint=f"Its arguments are {', '.join(known)}."
                )

    def check_complete(self, names: Container[str]) -> None:
        """Raise InvalidParameter if a required argument is not among the names."""
        for argument in self.arguments:
            if argument.is_required and argument.name not in names:
                raise InvalidParameter(f"{self.name} needs {argument.name}: {argument.help}")

    def form_arguments(self) -> list[list[Argument]]:
        """Return the arguments of each form; most functions have one form with all arguments."""
        if not self.forms:
            return [list(self.arguments)]
        return [[argument for argument in self.arguments if argument.name in form] for form in self.forms]

    def signatures(self) -> list[tuple[Parameter, ...]]:
        """Return every signature that the function has in SQL, without ``caller_path``."""
        found = []
        for arguments in self.form_arguments():
            plain = tuple(Parameter(a.name, a.type, a.sql_default) for a in arguments)
            found.append(plain)
            for i, argument in enumerate(arguments):
                found += [(*plain[:i], Parameter(argument.name, other), *plain[i + 1 :])
                          for other in argument.other_types]  # fmt: skip
        return found
