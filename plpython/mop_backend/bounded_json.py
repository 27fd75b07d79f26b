"""Reads JSON that somebody else wrote, with a limit on its lists and objects; called in all folders.

An empty list is two characters of text and 56 bytes of memory. A limit on the text alone is thus no limit on memory.
"""

import json
from typing import Any

#: More than an architecture of 20,000 layers has.
MAX_CONTAINERS = 1_000_000


def read_json(text: str, **options: Any) -> Any:
    """Parse JSON.

    Parameters
    ----------
    text : str
    **options
        Of ``json.loads``.

    Raises
    ------
    ValueError
        If it is not JSON, or has more than `MAX_CONTAINERS` lists and objects. Brackets inside its texts count too.
    RecursionError
        If it is nested too deeply.
    """
    n_containers = text.count("[") + text.count("{")
    if n_containers > MAX_CONTAINERS:  # defence: containers-of-json
        raise ValueError(f"it has {n_containers:,} lists and objects, and may have {MAX_CONTAINERS:,}")
    return json.loads(text, **options)
