"""Imports go one way: the house of ARCHITECTURE.md, held against what the files import."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EVERYBODY = {"errors", ""}
MAY_IMPORT = {
    "errors": set(),
    "schedule": set(),
    "packing": set(),
    "models": set(),
    "search": {"models"},
    "catalog": set(),
    "trainer": {"models"},
    "engines": {"catalog"},
    "driver": {"schedule", "packing", "models", "search", "trainer", "catalog", "engines"},
    "cli": {"schedule", "packing", "models", "search", "trainer", "catalog", "engines", "driver"},
}
HEAVY = {"tensorflow", "keras"}
HEAVY_ROOMS = {"models", "trainer"}
STANDARD_ONLY = ROOT / "plpython"


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Give every module that a file imports, wherever in it, with the line."""
    found = []
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def room_of(module: str) -> str | None:
    """Give the room of a module of ours; None for others'."""
    parts = module.split(".")
    if parts[0] != "madlib_mop":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


FILES = sorted((ROOT / "madlib_mop").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_arrow_goes_up(path):
    room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) or ""
    if room == "":
        allowed = EVERYBODY
    else:
        allowed = EVERYBODY | {room} | MAY_IMPORT[room]
    for line, module in imports_of(path):
        target = room_of(module)
        assert target is None or target in allowed, f"{path}:{line}: {room} imports {module}"
        if module.split(".")[0] in HEAVY:
            assert room in HEAVY_ROOMS, f"{path}:{line}: {room} imports {module}"


@pytest.mark.parametrize("path", sorted(STANDARD_ONLY.rglob("*.py")), ids=lambda p: p.name)
def test_backend_modules_use_the_standard_library_only(path):
    import sys

    for line, module in imports_of(path):
        first = module.split(".")[0]
        assert first in sys.stdlib_module_names | {"plpy", "mop_backend"}, f"{path}:{line} imports {module}"


def test_every_room_is_known():
    rooms = {p.name for p in (ROOT / "madlib_mop").iterdir() if p.is_dir() and not p.name.startswith("__")}
    assert rooms <= set(MAY_IMPORT)
