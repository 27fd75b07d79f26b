"""Imports go one way: the house of ARCHITECTURE.md, held against what the files import."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.unit.findings import assert_none
from tests.helpers.unit.sources import nodes_of

ROOT = Path(__file__).resolve().parents[2]
EVERYBODY = {"errors", ""}
#: Subfolders of a folder, from the bottom: each imports from those before it, and the folder's own files from all.
FLOORS = {
    "client": ("calling", "frames", "exported"),
    "driver": (
        "session", "data", "evaluation", "packing", "columns", "inference", "ensembles", "drift", "outputs", "networks",
        "experience", "planning", "changes", "estimates", "running", "jobs", "help", "commands", "registry", "learning",
        "exports", "imports",
    ),
    "engines": ("sessions", "base", "hosts"),
    "imports": ("weights",),
    "models": ("parameters",),
    "trainer": ("process", "data", "backends", "graphs"),
}  # fmt: skip
MAY_IMPORT = {
    "errors": set(),
    "exports": {"columns"},
    "imports": {"columns", "exports", "models"},
    "calls": {"schedule"},
    "schedule": set(),
    "packing": {"columns"},
    "columns": set(),
    "explaining": {"columns"},
    "certainty": {"columns"},
    "models": set(),
    "search": {"models"},
    "catalog": {"calls", "columns", "models", "schedule"},
    "trainer": {"columns", "explaining", "exports", "imports", "models"},
    "engines": {"calls", "catalog"},
    "jobs": {"calls", "catalog", "engines"},
    "reports": {"calls", "catalog", "columns", "exports", "models", "search"},
    "dash": {"calls", "catalog", "reports"},
    "trackers": {"catalog", "columns", "exports", "imports", "reports", "trainer"},
    "client": {"calls", "catalog", "columns", "exports", "imports", "models"},
    "driver": {
        "calls", "schedule", "packing", "columns", "explaining", "certainty", "exports", "imports", "models", "search",
        "trainer", "catalog", "engines", "jobs", "reports",
    },  # fmt: skip
    "cli": {
        "calls", "schedule", "packing", "columns", "models", "search", "trainer", "catalog", "engines", "jobs",
        "driver", "dash", "trackers", "exports", "imports",
    },
}
HEAVY = {"tensorflow", "keras"}
HEAVY_ROOMS = {"imports", "models", "trainer"}
#: What only the package of a backend of Keras imports: its library, and what works with that library alone.
LIBRARIES = {
    "tensorflow": {"tensorflow", "tf2onnx"},
    "jax": {"jax", "jaxlib"},
    "torch": {"torch"},
}
BACKENDS = "madlib_mop/trainer/backends"
#: The exceptions: exported `.keras` files run with TensorFlow in the client; the doctor tries all imports by name.
ALSO_WITH_A_BACKEND = {"madlib_mop/models/exported.py": {"tensorflow"}}
STANDARD_ONLY = ROOT / "plpython"


@functools.cache
def imports_of(path: Path) -> tuple[tuple[int, str], ...]:
    """Return every module that a file imports, anywhere in the file, with the line."""
    found: list[tuple[int, str]] = []
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return tuple(found)


def room_of(module: str) -> str | None:
    """Return the room of a module of ours; None for others'."""
    parts = module.split(".")
    if parts[0] != "madlib_mop":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


FILES = sorted((ROOT / "madlib_mop").rglob("*.py"))


def imports_upwards(path: Path) -> Iterator[str]:
    """Yield the imports of a file that its room may not have."""
    room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) or ""
    allowed = EVERYBODY if room == "" else EVERYBODY | {room} | MAY_IMPORT[room]
    for line, module in imports_of(path):
        target = room_of(module)
        is_up = target is not None and target not in allowed
        if is_up or (module.split(".")[0] in HEAVY and room not in HEAVY_ROOMS):
            yield f"{path.relative_to(ROOT)}:{line}: {room or 'the package itself'} imports {module}"


def imports_of_a_backend(path: Path) -> Iterator[str]:
    """Yield the imports of a file that only the package of a backend may have."""
    name = str(path.relative_to(ROOT))
    allowed = set(ALSO_WITH_A_BACKEND.get(name, ()))
    for backend, those in LIBRARIES.items():
        if name.startswith(f"{BACKENDS}/{backend}/"):
            allowed |= those
    libraries = set().union(*LIBRARIES.values())
    for line, module in imports_of(path):
        first = module.split(".")[0]
        other = re.match(r"madlib_mop\.trainer\.backends\.(\w+)\.", module)
        is_others = other and other[1] in LIBRARIES and not name.startswith(f"{BACKENDS}/{other[1]}/")
        if is_others or (first in libraries and first not in allowed):
            yield f"{name}:{line}: imports {module}"


def test_no_arrow_goes_up():
    assert_none(found for path in FILES for found in imports_upwards(path))


def test_a_backend_of_keras_is_imported_in_its_package_only():
    """All else of the trainer and of models knows Keras, and calls the interface in ``backends/base``."""
    assert_none(found for path in FILES for found in imports_of_a_backend(path))


def test_each_backend_is_a_package_with_its_two_modules():
    from mop_backend.keras_backends import BackendName

    packages = {p.name for p in (ROOT / BACKENDS).iterdir() if (p / "__init__.py").exists()} - {"base"}
    assert packages == set(BackendName) <= set(LIBRARIES)
    for name in packages:
        assert {"environment.py", "backend.py"} <= {p.name for p in (ROOT / BACKENDS / name).iterdir()}


@pytest.mark.parametrize(
    "module", ["trainer.backends.choice", "trainer.backends.tensorflow.environment", "trainer.__main__"]
)
def test_keras_is_not_loaded_before_its_backend_is_chosen(module):
    code = (
        f"import sys, madlib_mop.{module}; from madlib_mop.trainer.backends import choice; choice.environment_of();"
        "sys.exit(bool({'keras', 'tensorflow', 'numpy'} & set(sys.modules)))"
    )
    path = f"{ROOT}:{ROOT / 'plpython'}"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}).returncode == 0


@pytest.mark.parametrize("module", ["call", "predict_row"])
def test_the_first_call_of_a_session_loads_no_module_that_it_can_do_without(module):
    """PL/Python imports this library in each session anew."""
    code = (
        "import sys, types; plpy = types.ModuleType('plpy'); plpy.Error = plpy.SPIError = Exception;"
        "plpy.spiexceptions = types.SimpleNamespace(); plpy.Cursor = object; sys.modules['plpy'] = plpy;"
        f"import mop_backend.{module};"
        "print(*{'ctypes', 'dataclasses', 'decimal', 'glob', 'inspect', 'subprocess', 'tempfile', 'traceback'}"
        " & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT / "plpython")}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_backend_modules_use_the_standard_library_only():
    known = sys.stdlib_module_names | {"plpy", "mop_backend"}
    files = sorted(STANDARD_ONLY.rglob("*.py"))
    assert files
    assert_none(
        f"{path.relative_to(ROOT)}:{line}: imports {module}"
        for path in files
        for line, module in imports_of(path)
        if module.split(".")[0] not in known
    )


def test_every_room_is_known():
    rooms = {p.name for p in (ROOT / "madlib_mop").iterdir() if p.is_dir() and not p.name.startswith("__")}
    assert rooms <= set(MAY_IMPORT)


@functools.cache
def modules() -> dict[str, Path]:
    """Return the file of each module of the library by its dotted name; a package's is its ``__init__.py``."""
    found = {}
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def nearest(module: str, known: dict[str, Path]) -> str:
    """Return the module of the library that a name is of: itself, or the module before the last dot; '' for none."""
    while module and module not in known:
        module = module.rpartition(".")[0]
    return module


def arrows() -> dict[str, set[str]]:
    """Return which modules of the library each one imports; imports inside functions count as any other."""
    known = modules()
    found = {}
    for name, path in known.items():
        found[name] = set()
        for _, module in imports_of(path):
            target = nearest(module, known)
            if target and target != name and target != "madlib_mop":
                found[name].add(target)
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that reach each other."""
    reached = {name: {name} for name in graph}
    while True:
        grown = {name: those.union(*(reached[t] for n in those for t in graph[n])) for name, those in reached.items()}
        if grown == reached:
            break
        reached = grown
    found = {frozenset(other for other in those if name in reached[other]) for name, those in reached.items()}
    return [set(circle) for circle in found if len(circle) > 1]


def floor_of(module: str) -> tuple[str, int] | None:
    """Return the room of a module and the number of its floor; None for rooms that have none."""
    parts = module.split(".")
    if len(parts) < 2 or parts[1] not in FLOORS:
        return None
    floors = FLOORS[parts[1]]
    return parts[1], floors.index(parts[2]) if len(parts) > 2 and parts[2] in floors else len(floors)


def test_a_public_class_name_is_borne_once():
    homes: dict[str, list[str]] = {}
    for path in [*FILES, *sorted((ROOT / "plpython").rglob("*.py"))]:
        for node in nodes_of(path)[0].body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}: class {node.name}")
    assert_none(found for places in homes.values() if len(places) > 1 for found in places)


def test_no_modules_import_each_other_in_a_circle():
    assert circles(arrows()) == []


def test_a_circle_is_found_through_an_import_inside_a_function():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


def imports_of_a_higher_floor(name: str, path: Path) -> Iterator[str]:
    """Yield the imports of a module from a higher floor of its own room."""
    known, here = modules(), floor_of(name)
    for line, module in imports_of(path):
        target = nearest(module, known)
        there = floor_of(target)
        if here and there and here[0] == there[0] and known[target].name != "__init__.py" and here[1] < there[1]:
            yield f"{path.relative_to(ROOT)}:{line}: imports {target}"


def test_folders_of_a_room_import_downwards():
    assert_none(found for name, path in modules().items() for found in imports_of_a_higher_floor(name, path))


def test_every_folder_of_a_room_is_a_floor():
    for room, floors in FLOORS.items():
        folders = {p.parent.name for p in (ROOT / "madlib_mop" / room).glob("*/*.py")}
        assert folders == set(floors), room


@pytest.mark.parametrize("function", ["madlib_keras_evaluate", "madlib_keras_predict", "predict"])
def test_a_call_that_opens_no_record_does_not_load_sqlalchemy(function):
    """The import takes 0.1 s, which would delay the call."""
    code = (
        "import sys; from madlib_mop.driver.commands import find_command;"
        f"find_command({function!r}); sys.exit('sqlalchemy' in sys.modules)"
    )
    path = f"{ROOT}:{ROOT / 'plpython'}"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}).returncode == 0


def test_a_forked_driver_imports_no_module_for_its_record():
    """What the first engine of a process imports and computes, drivers have from the process that forks them."""
    code = (
        "import sys; from madlib_mop.driver import forkserver; forkserver._load(); before = set(sys.modules);"
        "from madlib_mop.catalog.sessions.connection import engine_over; engine_over(forkserver._no_session);"
        "print(*set(sys.modules) - before); print('psycopg2.extras' in before)"
    )
    path = f"{ROOT}:{ROOT / 'plpython'}"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout == "\nTrue\n", done.stderr


def test_facts_of_runs_do_not_load_sqlalchemy():
    """Commands of drivers and of the command line read them on sessions of their own."""
    names = sorted(name for name in modules() if name.startswith("madlib_mop.catalog.facts"))
    assert len(names) > 10
    code = f"import sys; import {', '.join(names)}; sys.exit('sqlalchemy' in sys.modules)"
    path = f"{ROOT}:{ROOT / 'plpython'}"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}).returncode == 0


def test_a_command_that_needs_no_numbers_does_not_load_numpy():
    """The import takes 0.1 s, with that of the preprocessors: a quarter of the time of a short command."""
    code = (
        "import sys, contextlib; from madlib_mop.cli import main; sys.argv = ['madlib-mop', 'runs', '--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "sys.exit('numpy' in sys.modules)"
    )
    path = f"{ROOT}:{ROOT / 'plpython'}"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "Usage: madlib-mop runs" in done.stdout
