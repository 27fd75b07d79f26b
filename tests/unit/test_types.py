"""The type checker's exceptions: few, each with a reason, and none that is obsolete. `make types` runs the checker."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    [*(ROOT / "madlib_mop").rglob("*.py"), *(ROOT / "plpython").rglob("*.py"), *(ROOT / "stubs").glob("*.pyi")]
)
MOST_IGNORED = 5
_IGNORE = re.compile(r"# type: ignore(?P<code>\[[a-z-]+\])?(?P<reason> # \w.*)?")


def overrides() -> list[dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]


def test_an_ignored_error_is_named_and_has_its_reason():
    found = [(path, match) for path in FILES for match in _IGNORE.finditer(path.read_text())]
    assert [str(path) for path, match in found if not (match["code"] and match["reason"])] == []
    assert len(found) <= MOST_IGNORED


def test_the_check_is_strict_everywhere():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert {"madlib_mop", "plpython/mop_backend"} <= set(settings["files"])
    weaker = {key for one in overrides() for key in one} - {"module"}
    assert weaker <= {"ignore_missing_imports", "follow_imports", "disallow_subclassing_any"}
