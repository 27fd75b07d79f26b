"""Files for other programs: PGXN's META.json, the public CI, the license."""

import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def version() -> str:
    """Return the version of the built extension."""
    spec = importlib.util.spec_from_file_location("build_extension", ROOT / "make" / "build_extension.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.read_version(ROOT)


def test_pgxn_gets_the_version_of_the_extension_and_files_that_exist():
    meta = json.loads((ROOT / "META.json").read_text())
    extension = meta["provides"]["madlib_mop"]
    assert meta["version"] == extension["version"] == version()
    assert (ROOT / extension["file"]).is_file() and (ROOT / extension["docfile"]).is_file()
    assert {"name", "abstract", "maintainer", "license", "provides", "meta-spec"} <= meta.keys()


def test_what_runs_leave_behind_is_not_in_the_repository():
    """MLflow, for example, writes to ``mlruns`` of the working directory."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {path.split("/")[0] for path in listed.splitlines() if "/" in path}
    assert folders == {
        ".ci", ".github", "benchmarks", "dashboards", "demo", "docker", "docs", "madlib_mop", "make", "plpython", "sql",
        "stubs", "tests",
    }  # fmt: skip


def test_the_license_is_named_alike_everywhere():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert json.loads((ROOT / "META.json").read_text())["license"] == "apache_2_0"
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]["text"] == "Apache-2.0"


def test_the_public_ci_runs_on_images_for_which_packages_are_known():
    """``make/packages.sh`` has a PostgreSQL version for each release; unknown releases get 15."""
    workflow = WORKFLOWS["tests.yml"]
    known = dict(re.findall(r"^\s+(\w+)\) postgresql=(\d+)", (ROOT / "make" / "packages.sh").read_text(), re.MULTILINE))
    for entry in workflow["jobs"]["tests"]["strategy"]["matrix"]["include"]:
        release = entry["image"].partition(":")[2]
        assert int(known.get(release, 15)) == entry["postgresql"], release
    assert {"run": ".ci/run"} in workflow["jobs"]["tests"]["steps"]


def commands(workflow: dict) -> str:
    """Return the commands of all steps of a workflow."""
    return "\n".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])


def test_the_public_ci_runs_commands_and_tests_that_exist():
    targets = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
    for name, workflow in WORKFLOWS.items():
        text = commands(workflow)
        paths = re.findall(r"(?<![\w./-])(?:tests|make|madlib_mop|\.ci)/[\w./-]+", text)
        assert paths or name != "slow.yml"
        assert [path for path in paths if not (ROOT / path).exists()] == [], name
        called = {*re.findall(r"(?:^|[ ;&])make ([a-z][a-z-]*)", text, re.MULTILINE)} - {"ca-certificates"}
        assert called <= targets, name


def test_the_nightly_workflow_has_each_backend_of_keras():
    """`make/library.sh` takes the names of these folders as BACKENDS."""
    folders = {file.parent.name for file in (ROOT / "madlib_mop" / "trainer" / "backends").glob("*/environment.py")}
    assert {*WORKFLOWS["slow.yml"]["jobs"]["backend"]["strategy"]["matrix"]["backend"]} == folders - {"tensorflow"}


def test_tests_of_pgvector_that_the_nightly_workflow_runs_exist():
    """`-k` without a test is an error; a skipped test is one in the workflow."""
    words, files = re.findall(r"-k (\w+) -rs (\S+)\"", commands(WORKFLOWS["slow.yml"]))[0]
    assert re.search(rf"def test_\w*{words}", (ROOT / files).read_text())
