"""Makes the SQL that updates an installed extension to the version of the sources; called by ``build_extension.py``.

An update runs the files ``sql/upgrade/<from>--<to>.sql`` on the way to the new version, one after the other. They hold
what changes the tables, types, policies and triggers, and they drop views that lose or rename columns. Then every
function, aggregate, view and comment of the sources is created or replaced, whatever had changed. Functions that are
in the sources no more are dropped (``sql/upgrade/drop.sql``), among them those whose arguments have changed. At
the end roles get the rights on new functions that go with the rights that they have (``sql/upgrade/after.sql``).
"""

import re
from collections.abc import Iterator
from pathlib import Path

STEP = re.compile(r"(\d+\.\d+\.\d+)--(\d+\.\d+\.\d+)\.sql")
_REPLACED = re.compile(r"CREATE (FUNCTION|AGGREGATE|VIEW)\b")
_REPEATED = re.compile(r"(SET LOCAL|COMMENT ON)\b")
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|(?P<tag>\$\w*\$).*?(?P=tag)|;", re.DOTALL)


def statements(sql: str) -> Iterator[str]:
    """Yield the statements of an SQL text, with their semicolons; those in bodies and strings are part of theirs."""
    start = 0
    for token in _TOKEN.finditer(sql):
        if token.group() == ";":
            yield sql[start : token.end()].strip()
            start = token.end()
    if re.sub(r"--[^\n]*", "", sql[start:]).strip():
        raise ValueError(f"the last statement has no semicolon: {sql[start:].strip()[:60]!r}")


def replacing(sql: str) -> str:
    """Return the statements that replace what can be replaced, and comments, in their order.

    In a block (DO) that creates functions, these are replaced too.
    """
    kept = []
    for one in map(code, statements(sql)):
        if _REPLACED.match(one):
            kept.append(_REPLACED.sub(r"CREATE OR REPLACE \1", one, count=1))
        elif one.startswith("DO "):
            kept.append(_REPLACED.sub(r"CREATE OR REPLACE \1", one))
        elif _REPEATED.match(one):
            kept.append(one)
    return "\n\n".join(kept) + "\n"


def revoking(sql: str) -> str:
    """Return the statements that take rights from PUBLIC, which has them on every new function."""
    return "\n".join(one for one in map(code, statements(sql)) if one.startswith("REVOKE ")) + "\n"


def path_of_steps(folder: Path, wanted: str) -> dict[str, list[Path]]:
    """Return for each released version the files that lead from it to the wanted one, in their order.

    Raises
    ------
    ValueError
        If a file leads nowhere: each version is left by one file only, and all ways end at the wanted version.
    """
    following: dict[str, tuple[str, Path]] = {}
    for file in sorted(folder.glob("*--*.sql")):
        match = STEP.fullmatch(file.name)
        if match is None or match[1] in following or _numbers(match[1]) >= _numbers(match[2]):
            raise ValueError(
                f"{file}: the name must be <from>--<to>.sql with <from> below <to>, and one file for each <from>"
            )
        following[match[1]] = match[2], file
    paths = {}
    for version in following:
        at, steps = version, []
        while at != wanted:
            if at not in following or len(steps) > len(following):
                raise ValueError(f"{folder}: no files lead from {version} to {wanted}; the last version is {at}")
            at, file = following[at]
            steps.append(file)
        paths[version] = steps
    return paths


def code(statement: str) -> str:
    """Return a statement without the comments before it."""
    return re.sub(r"\A(?:\s*--[^\n]*\n)*\s*", "", statement)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]
