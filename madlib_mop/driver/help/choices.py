"""The schedules and the methods of search as lists of a help text and tables of the manual, from their classes.

Called by ``driver/commands/help.py``, and by ``make/docs_tables.py`` for the pages.
"""

from collections.abc import Callable

from madlib_mop.calls.tables import listing, markdown_table
from madlib_mop.schedule import SCHEDULES
from madlib_mop.search import METHODS, search_class
from madlib_mop.search.parameters import own_first


def schedules() -> str:
    """Return the schedules for a help text."""
    return listing({name: [rule.summary] for name, rule in SCHEDULES.items()})


def schedules_table() -> str:
    """Return the schedules as a table of the manual."""
    return markdown_table(
        ("schedule", "order of visits"), [(f"`{name}`", rule.summary) for name, rule in SCHEDULES.items()]
    )


def methods() -> str:
    """Return the methods of search for a help text, with their parameters."""
    found = {name: search_class(name) for name in METHODS}
    return listing({name: [kind.params_class().text, kind.summary] for name, kind in found.items()})


def methods_table() -> str:
    """Return the methods of search as a table of the manual."""
    titles = ("method", "how it searches", "same call, same result", "parameters and their defaults")
    found = {name: search_class(name) for name in METHODS}
    rows = [
        (f"`{name}`", kind.summary, "yes" if kind.repeatable else "no", f"`{kind.params_class().text}`")
        for name, kind in found.items()
    ]
    return markdown_table(titles, rows)


def search_parameters_table() -> str:
    """Return the parameters of the methods of search as a table of the manual, those of all methods last."""
    methods_of: dict[tuple[str, str], list[str]] = {}
    for method in METHODS:
        for parameter in own_first(search_class(method).params_class):
            methods_of.setdefault((parameter.name, parameter.metadata["meaning"]), []).append(method)
    rows = [
        (f"`{name}`", "all" if len(found) == len(METHODS) else ", ".join(f"`{method}`" for method in found), meaning)
        for (name, meaning), found in sorted(methods_of.items(), key=lambda item: len(item[1]) == len(METHODS))
    ]
    return markdown_table(("parameter", "methods", "meaning"), rows)


def repeatable_methods() -> str:
    """Return the names of the methods of search with which the same call has the same result."""
    *names, last = (name for name in METHODS if search_class(name).repeatable)
    return f"{', '.join(names)} and {last}"


#: Replacements of ``{name}`` in a help text.
LISTS: dict[str, Callable[[], str]] = {
    "schedules": schedules,
    "methods": methods,
    "repeatable_methods": repeatable_methods,
}
#: Replacements of the text between ``<!-- name -->`` and ``<!-- end -->`` in a page of the manual.
TABLES: dict[str, Callable[[], str]] = {
    "schedules": schedules_table,
    "methods": methods_table,
    "search_parameters": search_parameters_table,
}
