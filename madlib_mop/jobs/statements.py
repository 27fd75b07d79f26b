"""The SQL statement of a job or of a command that trains: a function of the library with its arguments, or, for a job,
any statement of the user's."""

import re
from collections.abc import Callable
from typing import Any

from madlib_mop.calls import USER_FUNCTIONS, Argument, Function, read_arguments
from madlib_mop.calls.reading import type_of
from madlib_mop.errors import InvalidParameter

#: Functions that start a run: if they are interrupted, their run is resumed.
STARTS_RUN = frozenset({"madlib_keras_fit", "madlib_keras_fit_multiple_model", "madlib_keras_automl", "replay"})
_NAME = re.compile(r"\s*(?:(madlib|madlib_mop)\s*\.\s*)?([a-z_][a-z0-9_]*)\s*", re.IGNORECASE)


def find_function(text: str) -> Function | None:
    """Return the function of the library that a text names; None if it is a statement.

    Raises
    ------
    InvalidParameter
        If it is a name, but of no function of the library.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    schema, name = ((word or "").lower() for word in match.groups())
    for function in USER_FUNCTIONS:
        if function.name == name and schema in ("", function.schema):
            return function
    raise InvalidParameter(
        f"statement: there is no function {text.strip()!r} of madlib or madlib_mop",
        hint="Pass the name of a function and its arguments as JSON, or a whole SQL statement.",
    )


def compose(
    function: Function, arguments: Any, quote: Callable[[list[str]], list[str]], caller_path: str | None = None
) -> str:
    """Return the statement that calls a function of the library.

    Parameters
    ----------
    function : Function
    arguments : Any
        JSON: an object of the arguments by name.
    quote : callable
        Returns SQL literals of texts, in the same order.
    caller_path : str or None
        The search_path for names without a schema; None: that of the session.

    Raises
    ------
    InvalidParameter
        If it is no object, an argument is unknown or missing, or has a wrong value.
    """
    if not isinstance(arguments, dict):
        raise InvalidParameter(
            f"arguments must be a JSON object of the arguments of {function.name}. Received: {arguments!r:.100}",
            hint=f"For example {_example(function)}.",
        )
    known = {argument.name: argument for argument in function.arguments if argument.type != "bytea"}
    for name in arguments:
        if name not in known:
            raise InvalidParameter(
                f"arguments: {function.name} has no argument {name!r}", hint=f"It has {', '.join(known)}."
            )
    missing = [name for name, argument in known.items() if argument.is_required and arguments.get(name) is None]
    if missing and not function.forms:
        raise InvalidParameter(
            f"arguments: {function.name} needs {', '.join(missing)}", hint=f"For example {_example(function)}."
        )
    read_arguments(function, arguments)
    texts: list[str] = []
    named = [f"{_quoted(name)} => {_value(known[name], value, texts)}" for name, value in arguments.items()]
    if caller_path is not None:
        named.append(f"caller_path => {_literal(caller_path, texts)}::pg_catalog.text")
    call = f"SELECT {function.schema}.{function.name}({', '.join(named)})"
    literals = iter(quote(texts))
    return re.sub("\0", lambda _: next(literals), call)


def _value(argument: Argument, value: Any, texts: list[str]) -> str:
    """Return a value with a zero byte for each text, which is added to ``texts``."""
    types = [argument.type, *argument.other_types]
    is_list = isinstance(value, list)
    kind = type_of(argument, value) or next((t for t in types if t.endswith("[]") == is_list), types[0])
    return f"{_literal(value, texts)}::{kind}"


def _literal(value: Any, texts: list[str]) -> str:
    if isinstance(value, list):
        return f"ARRAY[{', '.join(_literal(item, texts) for item in value)}]"
    if value is None:
        return "NULL"
    texts.append(str(value).lower() if isinstance(value, bool) else str(value))
    return "\0"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _example(function: Function) -> str:
    needed = [argument.name for argument in function.arguments if argument.is_required]
    return "'{" + ", ".join(f'"{name}": ...' for name in needed or ["..."]) + "}'"
