"""Each defence of ``defences.py`` is taken out of a copy in turn; at least one of its tests must then fail.

``make test ARGS="-m mutation"`` takes some minutes, because the copy is set up again for each defence with a test that
needs a server. The copy has its own state directory next to ours, with a library of hard links to ours.
"""

import ast
import builtins
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.clones import ROOT, Clone
from tests.helpers.security.defences import DEFENCES, Defence
from tests.helpers.security.markers import BadMarker, Marker, Source, marked_files, read_source
from tests.helpers.unit.findings import assert_none, places_of


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
        path = self.root / file_of(defence)
        source = read_source(path)
        path.write_text(source.without(defence.name))
        try:
            return self.test(defence.tests)
        finally:
            path.write_text(source.text)


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


@cache
def marked() -> dict[str, Source]:
    """Return the files of this working tree that have markers of defences."""
    return dict(marked_files(ROOT))


def file_of(defence: Defence) -> str:
    """Return the file that has the marker of a defence."""
    (file,) = (file for file, source in marked().items() for marker in source.markers if marker.name == defence.name)
    return file


def unknown_names(laxer: str, text: str) -> set[str]:
    """Return the names of a laxer expression that its file does not have: with them, tests fail for another reason."""
    nodes = [*ast.walk(ast.parse(f"({laxer})"))]
    known = {word for word in re.findall(r"\w+", re.sub(r"#.*", "", text))} | set(dir(builtins))
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes if isinstance(node, ast.Name)} - own - known


def problems_of_marker(marker: Marker, source: Source, file: str) -> Iterator[str]:
    """Yield what is wrong with a marker: without the defence, the file would be the same, or no Python."""
    try:
        without = source.without(marker.name)
        if file.endswith(".py"):
            ast.parse(without)
    except (BadMarker, SyntaxError) as error:
        yield str(error)
        return
    if without == source.text:
        yield "its laxer value is what is there"
    if marker.is_code and marker.laxer is not None and (unknown := unknown_names(marker.laxer, source.text)):
        yield f"its file does not have the names {sorted(unknown)}"


def test_each_marker_takes_one_defence_out():
    """Otherwise its removal would change nothing, and its tests would pass; or they would fail for another reason."""
    rows = Counter(defence.name for defence in DEFENCES)
    markers = [(file, source, marker) for file, source in marked().items() for marker in source.markers]
    n_markers = Counter(marker.name for _, _, marker in markers)
    assert_none(
        [
            *(f"{name}: {n} rows in tests/helpers/security" for name, n in rows.items() if n != 1),
            *(f"{name}: {n_markers[name]} markers in the sources" for name in rows if n_markers[name] != 1),
            *(
                f"{file}:{marker.line + 1}: {marker.name}: {problem}"
                for file, source, marker in markers
                for problem in [
                    *problems_of_marker(marker, source, file),
                    *([] if marker.name in rows else ["it has no row in tests/helpers/security"]),
                ]
            ),
        ]
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a = b = 1  # defence: one = 1\n", "its laxer value is what is there"),
     ("a = b = 1  # defence: one = b + c\n", "its file does not have the names ['c']"),
     ("a = b = 1  # defence: one = (2\n", "'(' was never closed"), ("a = 1\n\n# defence: one\n1 + a\n", None),
     ("a = [1]  # defence: one = [b for b in a]\n", None)],
)  # fmt: skip
def test_a_marker_that_shows_nothing_is_found(text, problem):
    source = Source(text, is_python=True)
    (marker,) = source.markers
    found = list(problems_of_marker(marker, source, "madlib_mop/a.py"))
    assert [one.partition(" (")[0] for one in found] == ([] if problem is None else [problem])


def mistakes_in(defence: Defence) -> Iterator[str]:
    """Yield what is wrong in a row: with it, no test would run."""
    if not defence.tests:
        yield "it names no test"
    for test in defence.tests:
        file, _, name = test.partition("::")
        path = ROOT / file
        if not path.exists() or (name and f"def {name.partition('[')[0]}(" not in path.read_text()):
            yield f"there is no test {test}"


def test_each_row_names_tests():
    assert_none(
        f"{place}: {defence.name}: {mistake}"
        for defence in DEFENCES
        for mistake in mistakes_in(defence)
        for place in places_of(f'"{defence.name}"', "tests/helpers/security/*defences.py") or ["tests/helpers/security"]
    )


@pytest.mark.slow
def test_each_case_that_a_row_names_is_collected():
    cases = sorted({test for defence in DEFENCES for test in defence.tests if "[" in test})
    tests = sorted({case.partition("[")[0] for case in cases})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *tests]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert_none(f"there is no case {case}" for case in cases if case not in done.stdout.splitlines())


def test_each_guarantee_is_one_sentence_of_its_own():
    guarantees = [defence.guarantee for defence in DEFENCES]
    assert len(set(guarantees)) == len(guarantees) and not any("\n" in guarantee for guarantee in guarantees)


@pytest.mark.mutation
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("defence", DEFENCES, ids=[defence.name for defence in DEFENCES])
def test_without_the_defence_a_test_fails(mutant, intact, defence):
    if defence.as_root and os.geteuid() != 0:
        pytest.skip("only root can run its tests")
    before = intact(defence.tests)
    assert before.n_failed == 0 and before.n_ran > 0, f"its tests do not pass as it is: {before.words}"
    problem = f"no test notices that this is not guaranteed: {defence.guarantee}. Its tests: {defence.tests}"
    assert mutant.test_without(defence).n_failed > 0, problem
