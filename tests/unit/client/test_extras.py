"""What is installed where: the extras of pyproject.toml, and what the command line says without the server's."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from madlib_mop.cli import extras
from madlib_mop.client.exported.runners import NEEDS

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def name_of(requirement: str) -> str:
    return requirement.partition("=")[0].partition(">")[0].partition("[")[0].rstrip("<!~ ")


def test_the_command_line_knows_the_packages_of_the_server_and_their_modules():
    assert set(extras.SERVER) == set(map(name_of, EXTRAS["server"]))
    for module in extras.SERVER.values():
        assert importlib.util.find_spec(module), module


def test_keras_is_of_one_version_in_both_extras():
    assert set(EXTRAS["keras"]) <= set(EXTRAS["server"])


def test_a_server_gets_what_the_client_needs_and_the_extra_server():
    script = [sys.executable, "-I", ROOT / "make" / "requirements.py", ROOT / "pyproject.toml", "library"]
    printed = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert set(PROJECT["dependencies"]) | set(EXTRAS["server"]) <= set(printed)
    assert not any(name_of(line) in ("tensorflow-cpu", "keras") for line in PROJECT["dependencies"])


def test_a_hint_names_an_extra_that_there_is():
    files = (ROOT / "madlib_mop").rglob("*.py")
    named = {name for path in files for name in re.findall(r"hint_of_extra\([\"'](\w+)", path.read_text())}
    assert named | {extra for _, extra in NEEDS.values()} <= set(EXTRAS) and {"server", "sklearn", "keras"} <= named


def test_a_missing_package_of_the_server_is_one_sentence_and_others_are_bugs():
    missing = extras.missing_package(ModuleNotFoundError("No module named 'altair.x'", name="altair.x"))
    assert missing.hint.startswith("Run pip install '.[server]' in a clone of madlib_mop.")
    assert "altair is not installed here" in missing.message
    with pytest.raises(ModuleNotFoundError):
        extras.missing_package(ModuleNotFoundError("No module named 'madlib_mop.x'", name="madlib_mop.x"))


CLIENT = """
import sys
for name in {hidden}:
    sys.modules[name] = None
sys.path[:0] = {path!r}
{code}
"""


@pytest.mark.one_case
@pytest.mark.parametrize(
    "code",
    [
        "import madlib_mop.client",
        "sys.argv = ['madlib-mop', '--help']; from madlib_mop.cli import main; main()",
        "sys.argv = ['madlib-mop', 'fit', '--help']; from madlib_mop.cli import main; main()",
        "sys.argv = ['madlib-mop', 'version']; from madlib_mop.cli import main; main()",
        "import madlib_mop.cli.watching.session, madlib_mop.cli.watching.terminal, madlib_mop.cli.sessions",
    ],
)
def test_client_and_command_line_work_without_the_packages_of_the_server(code):
    hidden = sorted(set(extras.SERVER.values()) | {"polars", "pyarrow", "IPython"})
    script = CLIENT.format(hidden=hidden, path=[str(ROOT), str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.one_case
@pytest.mark.parametrize("command", ["dash", "work"])
def test_commands_without_their_packages_say_so(command):
    words = ["madlib-mop", *command.split()]
    code = f"sys.argv = {words!r}; from madlib_mop.cli import main; main()"
    hidden = sorted(extras.SERVER.values())
    script = CLIENT.format(hidden=hidden, path=[str(ROOT), str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 1 and "this command needs the packages of a server" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.one_case
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "sklearn", "keras"])
def test_importing_the_client_imports_no_library_of_frames_or_models(library):
    code = f"import madlib_mop.client; sys.exit({library!r} in sys.modules)"
    script = CLIENT.format(hidden=[], path=[str(ROOT), str(ROOT / "plpython")], code=code)
    assert subprocess.run([sys.executable, "-I", "-c", script]).returncode == 0


def test_the_process_that_drivers_are_forked_from_has_not_loaded_pandas():
    """Optuna would take it along: half a second at the first call of a server, and memory in each driver."""
    code = "from madlib_mop.driver.forkserver import _load; _load(); sys.exit('pandas' in sys.modules)"
    script = CLIENT.format(hidden=[], path=[str(ROOT), str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
