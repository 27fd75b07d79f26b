"""Statements that call SQL functions, from the one specification of their arguments (`madlib_mop.calls`)."""

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from madlib_mop.calls import USER_FUNCTIONS, Argument, Function, read_arguments
from madlib_mop.catalog.names import quote
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.errors import MopError, not_whole

#: The person's search_path, on which names of tables are found: the session's is pinned (`sessions`).
_PATH = "caller_path => pg_catalog.current_setting('madlib_mop_client.search_path')"
_BY_NAME = {function.name: function for function in USER_FUNCTIONS}


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement with parameters ``%s``, and their values."""

    text: str
    values: tuple[object, ...]


def function_of(name: str) -> Function:
    """Return the specification of a function of the manual's page Arguments. Raises InvalidParameter."""
    if name not in _BY_NAME:
        raise bad_input(f"the library has no function {name!r}", f"It has {', '.join(sorted(_BY_NAME))}.")
    return _BY_NAME[name]


def call_of(name: str, given: Mapping[str, object]) -> Statement:
    """Return the call of an SQL function with arguments by name.

    Parameters
    ----------
    name : str
        Without its schema, such as ``pack_columns``.
    given : mapping of str to object
        Arguments that are left out get the function's defaults. Numbers of NumPy, datetimes, timedeltas, and for
        arguments of type json also dicts and lists, are converted.

    Raises
    ------
    InvalidParameter
        If an argument is unknown, missing, of another type, or fails its check.
    """
    function = function_of(name)
    known = {argument.name: argument for argument in function.arguments}
    try:
        function.check_known(given)
        values = {key: _plain(known[key], value) for key, value in given.items()}
        if not function.forms:
            function.check_complete(values)
        checked = read_arguments(function, values)
    except MopError as error:
        raise noted(error) from None
    slots = [f"{quote(key)} => CAST(%s AS {_type(known[key], checked[key])})" for key in values]
    if function.takes_path:
        slots.append(_PATH)
    text = f"SELECT * FROM {function.schema}.{function.name}({', '.join(slots)})"
    return Statement(text, tuple(checked[key] for key in values))


def arguments_of(name: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Return arguments in JSON form, for a job. Raises InvalidParameter as `call_of` does."""
    call_of(name, given)
    known = {argument.name: argument for argument in function_of(name).arguments}
    return {key: _plain(known[key], value) for key, value in given.items()}


def _plain(argument: Argument, value: object) -> Any:
    """Return a value in the form that the specification checks: that of JSON."""
    value = scalar(value)
    if argument.type == "json" and not isinstance(value, str | None):
        return json.dumps(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    if isinstance(value, tuple | list):
        return [scalar(item) for item in value]
    return value


def scalar(value: Any) -> Any:
    """Return a scalar of NumPy as Python's."""
    if type(value).__module__ != "numpy" or getattr(value, "ndim", 1) != 0:
        return value
    if value.dtype.kind in "mM":  # Python's have microseconds
        value = value.astype(f"{value.dtype.kind}8[us]")
    return value.item()


def whole_number(value: Any, what: str) -> int:
    """Return a whole number, also one of NumPy, as Python's. Raises InvalidParameter if it is none."""
    try:
        return int(operator.index(value))
    except TypeError:
        raise noted(not_whole(what, 1, f"{value!r:.100}")) from None


def _type(argument: Argument, value: object) -> str:
    """Return the SQL type of a value, where an argument has several."""
    if not argument.other_types:
        return argument.type
    kind = "text" if isinstance(value, str) else "integer" if isinstance(value, int) else "double precision"
    alike = {"varchar": "text", "text": "varchar"}
    types = (argument.type, *argument.other_types)
    return next((t for t in types if t == kind or alike.get(t) == kind), argument.type)
