"""The commands that buttons and keys issue: statements and types of values, from the calls' specification.

Called by the live page for a form, and by `madlib-mop watch` for a key.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from madlib_mop.calls import Argument, find_function
from madlib_mop.errors import InvalidParameter

#: SQL functions that people may call from the live page and the terminal.
NAMES = ("stop_model", "resume_model", "clone_model", "extend", "pause", "unpause", "pin_model", "cancel")
_MAX_INTEGER = {"integer": 2**31 - 1, "bigint": 2**63 - 1}
_MAX_TEXT = 20_000
_WHOLE = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Command:
    """One call: a statement with parameters ``%s``, and their values."""

    name: str
    statement: str
    values: tuple[object, ...]


def command_of(name: str, given: Mapping[str, str]) -> Command:
    """Return the call of a function.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    given : mapping of str to str
        Texts of its arguments by name, as people typed them; empty ones are left out, so that their defaults apply.

    Raises
    ------
    InvalidParameter
        If an argument is missing, is none of the function's, or does not have its type.
    """
    function = find_function(name)
    known = {argument.name: argument for argument in function.arguments}
    function.check_known(given)
    values = {n: _value(known[n], text.strip()) for n, text in given.items() if text.strip()}
    function.check_complete(values)
    named = ", ".join(f"{n} => %s" for n in values)  # names of the specification, not of the form
    return Command(name, f"SELECT madlib_mop.{name}({named})", tuple(values.values()))


def _value(argument: Argument, text: str) -> object:
    if argument.type in _MAX_INTEGER:
        highest = _MAX_INTEGER[argument.type]
        # defence: number-in-a-form = not (text.lstrip("-").isdigit() and abs(int(text)) <= highest)
        if not (_WHOLE.fullmatch(text) and abs(int(text)) <= highest):
            raise InvalidParameter(f"{argument.name} must be a whole number. Received: {text[:80]!r}")
        return int(text)
    if argument.type == "boolean":
        if text not in ("true", "false"):
            raise InvalidParameter(f"{argument.name} must be true or false. Received: {text[:80]!r}")
        return text == "true"
    if len(text) > _MAX_TEXT or "\0" in text:
        raise InvalidParameter(f"{argument.name} must have at most {_MAX_TEXT} characters, and no zero byte")
    return text
