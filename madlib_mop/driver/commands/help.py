"""The help forms ``f()`` and ``f('usage')`` of the SQL functions: texts in files, one for each family.

Where a text has ``{usage}``, the call with all arguments is written, from its specification; ``{schedules}`` and the
other names of ``driver/help/choices.py`` stand for lists of what there is to choose.
"""

import re
from importlib.resources import files

from madlib_mop.calls import find_function
from madlib_mop.calls.tables import usage
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import InvalidParameter

_LIST = re.compile(r"\{(\w+)\}")
_USAGE_WORDS = ("", "help", "?", "usage", "example", "examples")


def show_help(call: Call) -> str:
    """Return the help text of a family of functions.

    ``f()`` returns the first paragraph of the file; with the words usage, help, ? or example, it returns all of it.
    """
    topic, option = call.arguments["topic"], call.arguments.get("option")
    # Look the topic up in a listing, never open it as a path: the topic comes from the caller, who may read only our
    # texts.
    texts = {file.name: file for file in files("madlib_mop.driver").joinpath("help").iterdir()}
    if f"{topic}.txt" not in texts:
        raise InvalidParameter(f"there is no help for this topic. Received: {topic!r}")
    text = texts[f"{topic}.txt"].read_text(encoding="utf-8")
    if option is None:
        return text.split("\n\n\n", 1)[0].rstrip() + f"\n\nFor the whole manual: SELECT madlib.{topic}('usage');"
    if option.strip().lower() not in _USAGE_WORDS:
        raise InvalidParameter(
            f"{topic}: there is no help of this kind. Received: {option!r}", hint=f"SELECT madlib.{topic}('usage');"
        )
    text = text.rstrip().replace("{usage}", usage(find_function(topic)))
    return _LIST.sub(lambda found: _list(found[1]), text)


def _list(name: str) -> str:
    from madlib_mop.driver.help.choices import LISTS  # imports Optuna, which most help texts do not need

    return LISTS[name]()
