"""Checks of many files are one test each, which fails with every place that it found."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from madlib_mop.calls import Function

ROOT = Path(__file__).resolve().parents[3]


def assert_none(findings: Iterable[str]) -> None:
    """Fail with all findings, one a line, such as ``madlib_mop/a.py:3: imports keras``; pass if there is none."""
    found = list(findings)
    if found:
        pytest.fail("\n".join([f"{len(found)} found:", *found]), pytrace=False)


def places_of(text: str, *patterns: str) -> list[str]:
    """Return the places of a text in the files of glob patterns, such as ``madlib_mop/a.py:3``: file and line."""
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if text in line
    ]


def place_of(function: Function) -> str:
    """Return the place of a function's specification."""
    return (places_of(f'    "{function.name}",', "madlib_mop/calls/*.py") or ["madlib_mop/calls"])[0]
