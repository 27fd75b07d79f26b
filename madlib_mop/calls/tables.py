"""The arguments of a function as text: the call in a help text, and the tables of the manual."""

import textwrap

from madlib_mop.calls.argument import Argument, Function

_WIDTH = 120


def usage(function: Function) -> str:
    """Return the call as a help text shows it: a line an argument, with its type, default and help."""
    name = ".".join(filter(None, (function.schema, function.name)))
    calls = []
    for arguments in function.form_arguments():
        width = max(len(argument.name) for argument in arguments) + 1
        lines = [line for i, a in enumerate(arguments) for line in _lines(a, width, i == len(arguments) - 1)]
        calls.append("\n".join([f"    SELECT {name}(", *lines, "    );"]))
    return "\n".join(calls)


def _lines(argument: Argument, width: int, is_last: bool) -> list[str]:
    name = argument.name if is_last else f"{argument.name},"
    first = f"        {name:<{width}}    -- "
    more = " " * (len(first) - 3) + "--   "
    return textwrap.wrap(
        f"{_kind(argument)}: {argument.help}", _WIDTH, initial_indent=first, subsequent_indent=more,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _kind(argument: Argument) -> str:
    kind = " or ".join((argument.type, *argument.other_types))
    return kind if argument.is_required else f"{kind}, default {argument.sql_default}"


def markdown(function: Function) -> str:
    """Return the arguments as a table of the manual."""
    lines = ["| argument | type | default | meaning |", "|---|---|---|---|"]
    for a in function.arguments:
        default = "" if a.is_required else f"`{a.sql_default}`"
        types = " or ".join(f"`{kind}`" for kind in (a.type, *a.other_types))
        lines.append(f"| `{a.name}` | {types} | {default} | {a.help} |")
    return "\n".join(lines)
