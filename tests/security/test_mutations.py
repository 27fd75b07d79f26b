"""Each defence of ``defences.py`` is removed from a copy in turn; at least one of its tests must then fail.

``make test ARGS="-m mutation"`` takes some minutes, because the copy is set up again for each defence with a test that
needs a server. The copy has its own state directory next to ours, with a library of hard links to ours.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.clones import ROOT, Clone
from tests.helpers.security.defences import DEFENCES, Defence
from tests.helpers.unit.findings import assert_none, places_of

_NAMES = [defence.name for defence in DEFENCES]


@dataclass(frozen=True)
class Outcome:
    """Pytest's result: the numbers of tests that failed or had errors, and of tests that were not skipped."""

    n_failed: int
    n_ran: int
    words: str


class Mutant(Clone):
    """A copy of the working tree from which defences are removed, one at a time."""

    def __init__(self, root: Path, state: Path, library: Path):
        super().__init__(root, state)
        state.mkdir(parents=True)
        subprocess.run(["cp", "--archive", "--link", library, state / "library"], check=True)
        self._python = state / "library" / "venv" / "bin" / "python"

    def test(self, tests: tuple[str, ...]) -> Outcome:
        """Run tests in the copy."""
        report = self.root / "report.xml"
        report.unlink(missing_ok=True)
        words = ["-q", "--maxfail=1", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
        done = self.run(str(self._python), "-m", "pytest", *words, check=False)
        assert done.returncode in (0, 1), f"pytest could not run {tests}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        (suite,) = xml.etree.ElementTree.parse(report).getroot().iter("testsuite")
        count = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
        n_failed = count["failures"] + count["errors"]
        return Outcome(n_failed, count["tests"] - count["skipped"], done.stdout[-3000:])

    def test_without(self, defence: Defence) -> Outcome:
        """Run a defence's tests without it."""
        path = self.root / defence.file
        text = path.read_text()
        path.write_text(text.replace(defence.text, defence.instead))
        try:
            return self.test(defence.tests)
        finally:
            path.write_text(text)


@pytest.fixture(scope="module")
def mutant(state):
    """The copy; leftovers of earlier sessions are removed first."""
    place = state / "mutants"
    for directory in place.glob("*"):
        if not Path("/proc", directory.name).exists():
            shutil.rmtree(directory)
    scratch = Path(tempfile.mkdtemp(prefix="mop_mutant_"))
    scratch.chmod(0o755)
    mutant = Mutant(scratch / "clone", place / str(os.getpid()), state / "library")
    yield mutant
    shutil.rmtree(scratch)
    shutil.rmtree(mutant.state)


@pytest.fixture(scope="module")
def intact(mutant):
    """Return whether tests pass in the unchanged copy; cached for each list of tests."""
    answers: dict[tuple[str, ...], Outcome] = {}

    def ask(tests: tuple[str, ...]) -> Outcome:
        if tests not in answers:
            answers[tests] = mutant.test(tests)
        return answers[tests]

    return ask


def mistakes_in(defence: Defence) -> Iterator[str]:
    """Yield what is wrong in a row: with it, the removal would change nothing, or no test would run."""
    path = ROOT / defence.file
    n_times = path.read_text().count(defence.text) if path.is_file() else 0
    if n_times != 1:
        yield f"{defence.file} has its text {n_times} times: {defence.text!r}"
    if defence.instead == defence.text:
        yield f"it is replaced by itself: {defence.text!r}"
    if not defence.tests:
        yield "it names no test"
    for test in defence.tests:
        file, _, name = test.partition("::")
        path = ROOT / file
        if not path.exists() or (name and f"def {name.partition('[')[0]}(" not in path.read_text()):
            yield f"there is no test {test}"


def test_each_defence_is_where_its_row_says():
    """Otherwise its removal would change nothing, and its tests would pass."""
    rows = {defence: list(mistakes_in(defence)) for defence in DEFENCES}
    assert_none(
        f"{place}: {defence.name}: {mistake}"
        for defence, mistakes in rows.items()
        for mistake in mistakes
        for place in places_of(f'"{defence.name}"', "tests/helpers/security/*defences.py") or ["tests/helpers/security"]
    )


@pytest.mark.slow
def test_each_case_that_a_row_names_is_collected():
    cases = sorted({test for defence in DEFENCES for test in defence.tests if "[" in test})
    tests = sorted({case.partition("[")[0] for case in cases})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *tests]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert_none(f"there is no case {case}" for case in cases if case not in done.stdout.splitlines())


def test_each_defence_is_one_sentence_of_its_own():
    assert len(set(_NAMES)) == len(_NAMES) and not any("\n" in name for name in _NAMES)


@pytest.mark.mutation
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("defence", DEFENCES, ids=_NAMES)
def test_without_the_defence_a_test_fails(mutant, intact, defence):
    if defence.as_root and os.geteuid() != 0:
        pytest.skip("only root can run its tests")
    before = intact(defence.tests)
    assert before.n_failed == 0 and before.n_ran > 0, f"its tests do not pass as it is: {before.words}"
    assert mutant.test_without(defence).n_failed > 0, f"no test fails without it: {defence.tests}"
