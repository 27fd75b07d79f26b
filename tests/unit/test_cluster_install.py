"""`madlib-mop install --greenplum` without a cluster: hosts are directories, the remote shell is our script."""

import re
import shutil
import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from madlib_mop import __version__
from madlib_mop.cli.cluster import install
from madlib_mop.cli.cluster.facts import HostFacts, problem, read_facts
from madlib_mop.cli.cluster.layout import Cluster, Layout
from madlib_mop.cli.cluster.remote import Host, RemoteShell
from madlib_mop.cli.install import show
from madlib_mop.engines.greenplum import CLOUDBERRY, GREENPLUM

SQL, UPDATE = f"madlib_mop--{__version__}.sql", f"madlib_mop--0.0.1--{__version__}.sql"
# Replaces ssh: each host has its own directory in place of "coordinator".
RSH = """#!/bin/bash
case "$1 $2" in
    "gone "*) echo "no route to host" >&2; exit 255 ;;
    "cut "*" receive "*) head -c 1000 >/dev/null; exit 1 ;;
esac
here="@ROOT@/coordinator" there="@ROOT@/$1"
bash -c "${2//"$here"/"$there"}" || exit
case "$1 $2" in
    "changed "*" receive "*) echo >>"$there/lib/madlib_mop.new/madlib_mop/venv/bin/python" ;;
esac
"""
PG_CONFIG = """#!/bin/sh
case $1 in
    --version) echo "PostgreSQL 12" ;;
    --pkglibdir) echo "@HOME@/lib" ;;
    --sharedir) echo "@HOME@/share" ;;
esac
"""
# Replaces the library's Python: fails if the host has a file `broken`, otherwise prints the output of cluster.versions.
PYTHON = """#!/bin/sh
home=$(cd "$(dirname "$0")/../../../.." && pwd)
case $home in */lib) home=$(dirname "$home") ;; esac # beside the old library it is one directory deeper
if [ -e "$home/broken" ]; then error='{"error": "ImportError: libstdc++"}'; else error='{"version": "2.21.0"}'; fi
echo '{"version": "@VERSION@", "modules": {"tensorflow": '"$error"'}}'
"""


class Machines:
    """The coordinator's host and others, each a directory with a fake Greenplum."""

    def __init__(self, root):
        self.root = root
        self.home = root / "coordinator"
        self.said = []
        self._write("rsh", RSH)
        self.add("coordinator")
        self.new_library("first")

    def add(self, name: str) -> None:
        """Create a host."""
        self._write(f"{name}/bin/pg_config", PG_CONFIG)
        (self.root / name / "lib").mkdir()
        self._write(f"{name}/share/extension/plpython3u.control", "")

    def new_library(self, text: str) -> None:
        """Replace `make install` on the coordinator's host; ``text`` identifies the installation."""
        self._write("coordinator/lib/madlib_mop/venv/bin/python", PYTHON)
        self._write("coordinator/lib/madlib_mop/backend/mop_backend/module.py", text)
        for name in (SQL, UPDATE):
            self._write(f"coordinator/share/extension/{name}", text)
        self._write("coordinator/share/extension/madlib_mop.control", text)

    def install(self, *names: str, check_only: bool = False) -> dict:
        """Install; return the reports by host."""
        home = self.home
        layout = Layout(
            GREENPLUM, f"{home}/bin", f"{home}/lib/madlib_mop", f"{home}/share/extension", "/usr/bin/python3"
        )
        hosts = (Host("coordinator", (), True), *(Host(name, (i,), False) for i, name in enumerate(names)))
        shell = RemoteShell((str(self.root / "rsh"),))
        reports = install(Cluster(hosts, layout), shell, self.said.append, check_only)
        self.shown = show(reports)
        return {report.host.name: report for report in reports}

    def library(self, name: str) -> str | None:
        """Return a host's library, and check that the host has nothing else."""
        home = self.root / name
        assert [path.name for path in (home / "lib").iterdir()] in ([], ["madlib_mop"])
        names = {path.name for path in (home / "share/extension").iterdir()} - {"plpython3u.control"}
        if not (home / "lib/madlib_mop").exists():
            assert names == set()
            return None
        assert names == {SQL, UPDATE, "madlib_mop.control"}
        texts = {(home / "share/extension" / name).read_text() for name in names}
        (text,) = texts | {(home / "lib/madlib_mop/backend/mop_backend/module.py").read_text()}
        return text

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for mark, value in (("@ROOT@", self.root), ("@HOME@", self.root / "coordinator"), ("@VERSION@", __version__)):
            text = text.replace(mark, str(value))
        path.write_text(text)
        path.chmod(0o755)


@pytest.fixture
def machines(tmp_path):
    (tmp_path / "with a space").mkdir()
    machines = Machines(tmp_path / "with a space")
    machines.add("alpha")
    machines.add("beta")
    return machines


def test_all_hosts_get_the_coordinators_library_and_a_second_time_nothing_is_copied(machines, capsys):
    reports = machines.install("alpha", "beta")
    assert machines.shown and [machines.library(name) for name in ("alpha", "beta")] == ["first", "first"]
    assert [report.done for report in reports.values()] == ["", "installed", "installed"]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4 and __version__ in printed[1] and "2.21.0" in printed[3]
    machines.said.clear()
    assert not any(report.done or report.error for report in machines.install("alpha", "beta").values())
    assert not [text for text in machines.said if "copying" in text]


def test_a_new_version_replaces_the_old_one_and_its_files(machines):
    machines.install("alpha")
    old = machines.root / "alpha/share/extension/madlib_mop--0.0.1.sql"
    old.touch()
    machines.new_library("second")
    machines.install("alpha")
    assert machines.library("alpha") == "second" and not old.exists()


@pytest.mark.one_case
@pytest.mark.parametrize(
    "wrong, found",
    [
        ("broken", "the library does not run there: tensorflow (ImportError: libstdc++) cannot be imported"),
        ("no_plpython", "Greenplum has no PL/Python (plpython3u) there"),
        ("no_greenplum", "there is no Greenplum in"),
        ("gone", "it cannot be reached: no route to host"),
        ("cut", "a command failed there"),
        ("changed", "the files that arrived there differ from those that were sent"),
    ],
)
def test_where_one_host_fails_all_stay_as_they_were(machines, capsys, wrong, found):
    machines.install("alpha")
    machines.new_library("second")
    machines.add(wrong)
    if wrong == "broken":
        (machines.root / wrong / "broken").touch()
    elif wrong == "no_plpython":
        (machines.root / wrong / "share/extension/plpython3u.control").unlink()
    elif wrong == "no_greenplum":
        (machines.root / wrong / "bin/pg_config").unlink()
    capsys.readouterr()
    reports = machines.install("alpha", wrong)
    assert not machines.shown and found in reports[wrong].error.message
    assert [name for name, report in reports.items() if report.error] == [wrong]
    said = capsys.readouterr().err
    assert f"madlib-mop: {wrong}: {reports[wrong].error.message}\n" in said and "All hosts" not in said
    assert machines.library("alpha") == "first" and machines.library(wrong) is None


def test_what_a_broken_off_installation_left_is_swept(machines):
    machines.install("alpha")
    lib = machines.root / "alpha/lib"
    (lib / "madlib_mop").rename(lib / "madlib_mop.old")  # the state after a kill between the two renames
    (lib / "madlib_mop.new").mkdir()
    (machines.root / "alpha/share/extension/.madlib_mop.control.new").touch()
    machines.said.clear()
    assert machines.install("alpha")["alpha"].error is None
    assert machines.library("alpha") == "first"
    assert not [text for text in machines.said if "copying" in text]


def test_check_changes_nothing_and_names_the_hosts_that_lack_something(machines):
    machines.install("alpha")
    machines.new_library("second")
    reports = machines.install("alpha", "beta", check_only=True)
    assert reports["alpha"].error.message == f"it has another madlib_mop in {machines.home}/lib"
    assert reports["beta"].error.message == f"it has no madlib_mop in {machines.home}/lib"
    assert (machines.library("alpha"), machines.library("beta")) == ("first", None)


OURS = HostFacts(
    user="gpadmin", machine="x86_64 glibc 2.36", server="PostgreSQL 12", python="3.11.2", pkglibdir="/gp/lib",
    sharedir="/gp/share", has_plpython=True, closed="", size_kb=1 << 20, free_kb=1 << 22, clock_offset_s=0.0,
    library="a", extension="b",
)  # fmt: skip


LAYOUT = Layout(GREENPLUM, "/gp/bin", "/gp/lib/madlib_mop", "/gp/share/extension", "/usr/bin/python3")


@pytest.mark.parametrize(
    "change, found",
    [
        ({"user": "root"}, "the user there is root, here gpadmin"),
        ({"pkglibdir": "/other/lib"}, "its Greenplum is PostgreSQL 12 in /other/lib"),
        ({"machine": "aarch64 glibc 2.36"}, "its machine type is aarch64"),
        ({"python": "3.12.1"}, "must be Python 3.11 there.*Received: 3.12.1"),
        ({"python": ""}, "must be Python 3.11 there.*There is none"),
        ({"closed": "/gp/lib", "library": ""}, "gpadmin may not write to /gp/lib"),
        ({"clock_offset_s": -7.25}, r"its clock is 7\.2 s behind"),
        ({"free_kb": 1 << 10, "library": ""}, "1 MB are free in /gp/lib; 1126 MB are needed"),
    ],
)
def test_what_keeps_a_host_from_the_library_is_told(change, found):
    assert problem(OURS, OURS, LAYOUT) is None
    assert re.search(found, problem(replace(OURS, **change), OURS, LAYOUT).message)


def test_the_product_is_named():
    layout = replace(LAYOUT, product=CLOUDBERRY)
    assert problem(replace(OURS, server=""), OURS, layout).message == "there is no Cloudberry in /gp/bin"
    error = problem(replace(OURS, has_plpython=False), OURS, layout)
    assert (error.message, error.hint) == (
        "Cloudberry has no PL/Python (plpython3u) there",
        "It comes with Cloudberry: install all of it.",
    )


def test_a_clock_is_judged_by_what_the_way_there_leaves_open():
    assert [read_facts(f"clock={t}\n", 10.0, 12.0).clock_offset_s for t in (9.0, 11.0, 15.0)] == [-1.0, 0.0, 3.0]


def test_a_host_that_has_the_library_needs_no_room_and_no_right_to_write():
    assert problem(replace(OURS, closed="/gp/lib", free_kb=0), OURS, LAYOUT) is None


def test_the_scripts_are_posix_shells():
    scripts = [file for file in resources.files("madlib_mop.cli.cluster").iterdir() if file.name.endswith(".sh")]
    assert len(scripts) == 4
    shell = shutil.which("dash") or "sh"
    for script in scripts:
        assert subprocess.run([shell, "-n", script], capture_output=True).returncode == 0, script


def test_make_install_says_what_is_left_to_do():
    """On a cluster the other hosts come before CREATE EXTENSION; other servers have none."""
    root = Path(__file__).resolve().parents[2]
    said = {
        server: subprocess.run(
            ["bash", "-c", '. "$0" && say_installed "$1" /lib', root / "make" / "common.sh", server],
            capture_output=True, text=True, check=True,
        ).stderr
        for server in ("postgres", "greenplum", "cloudberry")
    }  # fmt: skip
    for server in ("greenplum", "cloudberry"):
        words = (f"/lib/venv/bin/madlib-mop install --{server} ", "CREATE EXT")
        steps = [said[server].find(each) for each in words]
        assert -1 < steps[0] < steps[1]
    assert "install --" not in said["postgres"] and "CREATE EXTENSION" in said["postgres"]
