"""The tests themselves: places of helpers, cases that are fast, and what the fixtures give."""

import ast
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import Cluster
from tests.helpers.dumps import owned_by
from tests.helpers.unit.findings import assert_none

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests").rglob("*.py"))


def test_helpers_are_in_one_folder():
    elsewhere = {
        str(path.relative_to(ROOT / "tests"))
        for path in FILES
        if not path.name.startswith("test_") and path.name != "conftest.py" and "helpers" not in path.parts
    }
    made = {"upgrade/make_record.py", "upgrade/record.py", "upgrade/hosts_record.py"}
    assert elsewhere == made  # expected: what a release creates, and its sources


@pytest.mark.slow
def test_each_helper_is_imported_under_one_name():
    names = {path.stem for path in FILES if path.parent == ROOT / "tests" / "helpers"}
    assert_none(
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in names
    )


@pytest.mark.parametrize("selection, n_cases", [("not slow", 1), ("slow", 6)])
def test_one_case_of_seven_is_fast(selection, n_cases):
    test = "tests/unit/columns/test_records.py::test_numbers_are_the_nearest_float64"
    done = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", selection, test], cwd=ROOT,
                          stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert done.stdout.count("::test_numbers_are_the_nearest_float64[") == n_cases


def test_a_dump_names_no_superuser_of_the_machine_that_it_was_made_on():
    """Releases and tests may both run as operating system users other than postgres."""
    made = b"ALTER TABLE t OWNER TO jane;\nCREATE USER MAPPING FOR jane SERVER alpha OPTIONS (\n"
    made += b"ALTER TABLE u OWNER TO mary;\n"
    kept = owned_by(made, "jane", "postgres")
    assert b"jane" not in kept and b"OWNER TO mary;" in kept
    assert owned_by(kept, "postgres", "ann-2").count(b' "ann-2"') == 2


def test_an_address_that_is_asked_for_during_a_start_is_the_new_one(monkeypatch):
    cluster, port = Cluster("a cluster"), ["1"]
    chosen, answered = threading.Event(), []

    def control(command):
        if command == "start":
            other.start()
            chosen.wait(0.2)  # a start takes longer than a question
            port[0] = "2"
        return port[0]

    monkeypatch.setattr(cluster, "control", control)
    other = threading.Thread(target=lambda: (answered.append(cluster.port), chosen.set()))
    assert cluster.port == 1
    cluster.start()
    other.join()
    assert (answered, cluster.port) == ([2], 2)
