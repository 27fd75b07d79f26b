"""``make PG_CONFIG=... PYTHON=...``: the server and the Python that the scripts in make/ choose and remember.

The Pythons and servers here are small scripts: a Python reports any version, and its environments install nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
# A Python of version 3.{minor}
case " $* " in
    *" -m venv "*) for last; do :; done; mkdir -p "$last/bin" && cp "$0" "$last/bin/python"; exit ;;
    *" -m pip "*) exit 0 ;;
    *" -V "*) echo "Python 3.{minor}.0"; exit ;;
esac
[ "$1" != -I ] || shift
[ "$1" = -c ] || exec '{real}' -I "$@"
exec '{real}' -I -c 'import sys; sys.version_info = (3, {minor}, 0); exec(sys.argv[1])' "$2"
"""

PG_CONFIG = """#!/bin/sh
prefix=$(cd "$(dirname "$0")/.." && pwd)
case $1 in
    --version) echo "PostgreSQL {major}.1" ;;
    --bindir) echo "$prefix/bin" ;;
    --sharedir) echo "$prefix/share" ;;
    --pkglibdir) echo "$prefix/lib" ;;
    --includedir-server) echo "$prefix/include" ;;
esac
"""

SCRIPT = """
import os, sys, tensorflow
print(os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ.get("PYTHONPATH"))
os.write(2, b"mine")
"""


class Machine:
    """A directory with Pythons, servers and the state of a clone, used by the scripts of this clone."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.library = directory / "state" / "library"
        self.system = [self.python(minor, "system") for minor in (14, 12)]

    def python(self, minor: int, name: str = "other") -> str:
        """Create a Python 3.<minor> and return its path."""
        return self._program(f"{name}/python3.{minor}", PYTHON.format(minor=minor, real=sys.executable))

    def server(self, major: int) -> str:
        """Create an installed PostgreSQL and return the path of its pg_config."""
        for file in ("bin/postgres", "lib/plpython3.so", "share/extension/plpython3u.control"):
            self._program(f"postgresql-{major}/{file}", "")
        return self._program(f"postgresql-{major}/bin/pg_config", PG_CONFIG.format(major=major))

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess:
        """Run a command in the clone."""
        ours = ("MOP_", "PG", "MAKE", "MFLAGS")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {"MOP_STATE": str(self.directory / "state"), "MOP_PYTHONS": " ".join(self.system), **variables}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)

    def function(self, *words: str, **variables: str) -> subprocess.CompletedProcess:
        """Call a function of make/common.sh."""
        return self.run("bash", "-c", '. make/common.sh && "$@"', "bash", *words, **variables)

    def choose(self, **variables: str) -> str:
        """Return the Python that would be chosen for the library."""
        return self.function("choose_python", str(self.library), **variables).stdout.strip()

    def make_library(self, **variables: str) -> str:
        """Run make/library.sh and return its output."""
        done = self.run("make/library.sh", str(self.library), **variables)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def setup(self, pg_config: str) -> Path:
        """Run make/setup.sh with a server and return the directory of a cluster's programs."""
        done = self.run("make/setup.sh", PG_CONFIG=pg_config)
        assert done.returncode == 0, done.stderr
        return Path(self.function("cat", str(self.directory / "state" / "bindir")).stdout.strip())

    def _program(self, name: str, text: str) -> str:
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
        return str(file)


@pytest.fixture
def machine():
    """A machine in a directory that all users may enter; removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="mop_choices_", dir="/tmp"))
    directory.chmod(0o755)
    yield Machine(directory)
    shutil.rmtree(directory)


def test_the_scripts_take_the_pythons_that_the_library_is_declared_for(machine):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    first, end = (int(bound.rpartition(".")[2]) for bound in declared.split(","))
    assert declared == f">=3.{first},<3.{end}"
    taken = [minor for minor in range(6, 20) if machine.function("suits", machine.python(minor)).returncode == 0]
    assert taken == list(range(first, end))


def test_the_first_python_of_the_system_that_suits_is_taken(machine):
    assert machine.choose() == machine.system[1]


def test_python_runs_without_messages_of_tensorflow_unless_they_are_asked_for(machine):
    machine._program("state/library/venv/bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"')
    machine._program("scripts/tensorflow.py", "import os; os.write(2, b'about the machine')")
    for given, level in (("", "3"), ("3", "3"), ("0", "0")):
        for asks_first in ("", "import importlib.util; importlib.util.find_spec('tensorflow')"):
            script = machine._program("scripts/script.py", asks_first + SCRIPT)
            done = machine.run("make/python.sh", script, TF_CPP_MIN_LOG_LEVEL=given, MADLIB_MOP_DSN="dbname=none")
            assert (done.returncode, done.stdout) == (0, f"{level} None\n")
            assert done.stderr == ("about the machine" if given == "0" else "") + "mine"
    machine._program("scripts/tensorflow.py", "import os; os.write(2, b'no library'); raise ImportError('no')")
    done = machine.run("make/python.sh", script, TF_CPP_MIN_LOG_LEVEL="", MADLIB_MOP_DSN="dbname=none")
    assert done.returncode == 1 and "no library" in done.stderr and "ImportError: no" in done.stderr


@pytest.mark.slow
def test_the_python_asked_for_is_taken_and_remembered(machine):
    other = machine.python(13)
    assert other in machine.make_library(MOP_PYTHON=other)
    assert machine.choose() == other
    before = (machine.library / "venv").stat()
    assert machine.make_library() == ""
    assert (machine.library / "venv").stat().st_ino == before.st_ino


@pytest.mark.slow
def test_another_python_makes_the_environment_anew(machine):
    first, second = machine.python(13), machine.python(13, "another")
    machine.make_library(MOP_PYTHON=first)
    (machine.library / "venv" / "old").touch()
    assert second in machine.make_library(MOP_PYTHON=second)
    assert not (machine.library / "venv" / "old").exists()
    Path(second).unlink()
    assert machine.system[1] in machine.make_library()


@pytest.mark.slow
def test_backends_stay_installed_until_they_are_removed(machine):
    machine.make_library(BACKENDS="tensorflow jax")
    jax = machine.library / "jax.stamp"
    for changed in (jax, machine.library / "python.stamp"):
        changed.write_text("of an older version\n")
        machine.make_library()
        assert jax.read_text().startswith("jax")
    assert not (machine.library / "torch.stamp").exists()


@pytest.mark.slow
def test_without_its_environment_the_library_is_made_anew(machine):
    machine.make_library()
    shutil.rmtree(machine.library / "venv")
    assert "making a virtual environment" in machine.make_library()
    assert machine.make_library() == ""


def test_a_python_is_found_by_its_name_on_the_path(machine):
    directory, name = os.path.split(machine.python(13))
    assert machine.choose(MOP_PYTHON=name, PATH=f"{directory}:/usr/bin:/bin") == f"{directory}/{name}"


def test_make_takes_python_from_its_command_line_and_not_from_the_environment(machine):
    def told(*words, **variables):
        return machine.run("make", "-s", "--eval", 'told: ; @echo "$$MOP_PYTHON"', "told", *words, **variables).stdout

    assert told("PYTHON=/a/python3") == "/a/python3\n"
    assert told(PYTHON="/a/python3") == "\n"
    assert told(MOP_PYTHON="/a/python3") == "/a/python3\n"


@pytest.mark.parametrize("minor", [10, 14])
def test_a_python_that_has_no_tensorflow_is_refused_in_one_line(machine, minor):
    python = machine.python(minor)
    done = machine.run("make/packages.sh", PG_CONFIG=machine.server(18), MOP_PYTHON=python)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith(f"madlib_mop: {python} is Python 3.{minor}.0")
    assert "3.11 to 3.13" in done.stderr and "PYTHON=/path/to/" in done.stderr


def test_a_program_that_is_no_python_is_refused_in_one_line(machine):
    done = machine.run("make/packages.sh", PG_CONFIG=machine.server(18), MOP_PYTHON="/bin/false")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("madlib_mop: PYTHON=/bin/false is not Python")


@pytest.mark.slow
def test_the_server_asked_for_is_taken_and_remembered(machine):
    newer, older = machine.server(18), machine.server(16)
    installed = f"{machine.directory}/postgresql-*/bin/pg_config"
    newest = machine.function("find_pg_config", MOP_PG_GLOB=installed)
    assert newest.stdout.strip() == newer
    machine.setup(older)
    remembered = machine.function("find_pg_config", MOP_PG_GLOB=installed)
    assert remembered.stdout.strip() == older


@pytest.mark.slow
def test_servers_of_two_versions_have_a_tree_each(machine):
    old, new = (machine.setup(machine.server(major)) for major in (16, 18))
    assert old != new
    for major, programs in {16: old, 18: new}.items():
        version = subprocess.run([programs / "pg_config", "--version"], capture_output=True, text=True).stdout
        assert version == f"PostgreSQL {major}.1\n"
        assert (programs.parent / "share" / "extension" / "madlib_mop.control").exists()


HEADERS = {
    "postgres": '#define PG_VERSION_STR "PostgreSQL 14.4 on x86_64"',
    "greenplum": '#define PG_VERSION_STR "PostgreSQL 12.12 (Greenplum Database 7.1.0 build dev) on x86_64"',
    "cloudberry": '#define PG_VERSION_STR "PostgreSQL 14.4 (Apache Cloudberry 2.0.0-incubating build 1) on x86_64"',
}


@pytest.mark.parametrize("server, major, suits", [
    ("postgres", 14, False), ("postgres", 15, True), ("greenplum", 12, True), ("cloudberry", 12, False),
    ("cloudberry", 14, True),
])  # fmt: skip
def test_a_server_is_recognized_and_must_be_new_enough(machine, server, major, suits):
    pg_config = machine.server(major)
    headers = Path(pg_config).parents[1] / "include"
    (headers / "catalog").mkdir(parents=True)
    (headers / "pg_config.h").write_text(HEADERS[server] + "\n")
    if server != "postgres":
        (headers / "catalog" / "gp_segment_configuration.h").touch()
    assert machine.function("server_of", pg_config).stdout == f"{server}\n"
    assert (machine.function("has_plpython", pg_config).returncode == 0) == suits


@pytest.mark.skipif(os.geteuid() != 0, reason="the server's user must be another one")
def test_a_python_that_the_servers_user_cannot_run_is_refused_before_anything_is_made(machine):
    closed = Path(machine.python(13, "closed"))
    closed.parent.chmod(0o700)
    done = machine.run("make/setup.sh", PG_CONFIG=machine.server(18), MOP_PYTHON=str(closed))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert f"cannot run {closed} ({closed})" in done.stderr and "PYTHON=/path/to/" in done.stderr
    assert not machine.library.exists()
