"""The specification of one SQL function: the name, type, default, check and help of each of its arguments."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from madlib_mop.errors import InvalidParameter


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
        SQL type of the result: ``void``, a type or array, or ``TABLE (column type, ...)``.
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
