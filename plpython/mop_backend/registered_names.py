"""Names of registered models, such as churn@champion and churn@3; for the backend and for the driver.

A text with an @ and without a double quote is such a name. A table whose name has an @ must be written in double
quotes, as in SQL, so no text can mean both. ASCII letters are folded to lower case, as in names of SQL. The functions
of sql/47-registry.sql check the parts of a name by the same patterns.
"""

from __future__ import annotations

import re
import string
from typing import NamedTuple

#: A registered model, an alias. An alias does not begin with a digit, so no alias looks like a version.
NAME = "[a-z0-9_][a-z0-9_.-]{0,62}"
ALIAS = "[a-z_][a-z0-9_.-]{0,62}"
_MODEL = re.compile(f"({NAME})@(?:({ALIAS})|([0-9]{{1,9}}))")
#: The alias of a name alone, without mst_key (sql/46-predict.sql, `with_newest`); learn sets it.
NEWEST = "newest"
#: What is said on a server without a registry, and what works there.
NO_REGISTRY = "there is no registry of models on Greenplum and Cloudberry, because it needs row-level security"
NO_REGISTRY_HINT = "Use the output table itself: its name with mst_key, or its name in double quotes."
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def key_beside_name(name: str, mst_key: int) -> str:
    """Return what is wrong with the key of a model beside the name of a registered one."""
    return f"mst_key is for tables; {name} names one model. Received: {mst_key}"


class UnreadableName(ValueError):
    """A text with an @ that is no name of a registered model; ``hint`` says how to write one."""

    hint = (
        "Write name@alias or name@version, such as 'churn@champion' or 'churn@3'. Names have 1 to 63 letters (a to z),"
        " digits, _, . and -. If you mean a table, write its name in double quotes."
    )


class ModelName(NamedTuple):
    """A registered model with an alias or a version; the other one is None."""

    name: str
    alias: str | None
    version: int | None

    def __str__(self) -> str:
        """The name as the registry has it."""
        return f"{self.name}@{self.alias if self.version is None else self.version}"


def is_registered(text: str | None) -> bool:
    """Return whether a text is meant as the name of a registered model, not of a table."""
    return text is not None and "@" in text and '"' not in text


def with_newest(text: str, mst_key: int | None) -> str:
    """Return the name of a model in a call of an explanation: a name alone gets the alias newest; NULL stays.

    A name with mst_key, or in double quotes, is that of a table; so no text can mean both.
    """
    if not text or mst_key is not None or "@" in text or '"' in text:
        return text
    return f"{text.strip()}@{NEWEST}"


def folded(text: str) -> str:
    """Return a name in lower case; letters outside of ASCII stay, and are refused later."""
    return text.translate(_FOLDED)


def read_name(text: str) -> ModelName:
    """Return the parts of a name. Raises UnreadableName."""
    found = _MODEL.fullmatch(folded(text.strip()))
    if found is None:
        raise UnreadableName(f"model_table is no name of a registered model. Received: {text!r}")
    name, alias, version = found.groups()
    return ModelName(name, alias, None if version is None else int(version))
