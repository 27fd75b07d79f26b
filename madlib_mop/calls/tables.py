"""The arguments of a function as text, and lists of choices: for help texts and for the tables of the manual."""

import textwrap
from collections.abc import Mapping, Sequence

from madlib_mop.calls.argument import Argument, Function

_WIDTH = 120
_LONG = 12  # words of a meaning that a page of the manual has once


def usage(function: Function) -> str:
    """Return the call for a help text: one line for each argument, with its type, default and help."""
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


def markdown(function: Function, earlier: dict[tuple[str, str], str] | None = None) -> str:
    """Return the arguments as a table of the manual.

    ``earlier`` has the names and meanings of the arguments in earlier tables of the page, each with the anchor of the
    first one. A long meaning that is there becomes a link. The arguments of this table are added.
    """
    earlier = {} if earlier is None else earlier
    anchor = f"{function.schema}{function.name}"
    rows = []
    for a in function.arguments:
        default = "" if a.is_required else f"`{a.sql_default}`"
        types = " or ".join(f"`{kind}`" for kind in (a.type, *a.other_types))
        first = earlier.setdefault((a.name, a.help), anchor)
        is_known = first != anchor and len(a.help.split()) >= _LONG
        rows.append((f"`{a.name}`", types, default, f"[as above](#{first})" if is_known else a.help))
    return markdown_table(("argument", "type", "default", "meaning"), rows)


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of the manual."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (titles, *rows))
    return "\n".join([head, "|" + "---|" * len(titles), *body])


def listing(choices: Mapping[str, Sequence[str]]) -> str:
    """Return names with the paragraphs about each beside it, as a help text shows them."""
    width = max(map(len, choices)) + 3
    lines = []
    for name, paragraphs in choices.items():
        first = f"    {name:<{width}}"
        for text in paragraphs:
            lines += textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
            first = " " * len(first)
    return "\n".join(lines)
