"""The text of an error is in one file, so that a search finds all of it and a change is made once."""

import ast
import io
import itertools
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from madlib_mop import errors
from tests.helpers.unit.findings import assert_none
from tests.helpers.unit.sources import nodes_of, walk

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("madlib_mop", "plpython/mop_backend")
CLASSES = {name for name in vars(errors) if isinstance(vars(errors)[name], type)} | {"CallError", "Failure"}
#: Functions that make errors of texts; those of one module are found in the statements that raise their errors.
MAKERS = CLASSES | {"bad_input"}
#: Texts that are in two files, with the reason.
IN_TWO_FILES = {
    "is nested more than {} levels deep": "JSON of a call, an architecture, an HDF5 file: three limits",
    "the inputs have {} rows": "a file's model in the client, and a trainer: the arrays of a user, and of a request",
    "is an image that crashed the decoder": "a backend of the server, and the driver",
}


def text_of(node: ast.expr) -> str:
    """Return a text of the source with ``{}`` for each value in it; '' for what is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def texts_of_errors(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of errors: what a statement raises, what an error class gets, and ``must`` of a check.

    Hints are no part of them, nor is a value at the beginning, such as the name of a function.
    """
    for node in nodes:
        raised = [call for call in walk(node) if isinstance(call, ast.Call)] if isinstance(node, ast.Raise) else []
        for call in {*raised, *([node] if isinstance(node, ast.Call) and name_of(node) in MAKERS else [])}:
            texts = (re.sub(r"^({}[: ]*)+", "", text_of(argument)) for argument in call.args)
            yield from ((call.lineno, text) for text in texts if says_something(text))
        if isinstance(node, ast.keyword) and node.arg == "must":
            yield from ((node.lineno, text) for text in [text_of(node.value)] if says_something(text))


def name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def says_something(text: str) -> bool:
    """Return whether a text has three or more words besides its values. One that ends with a period is a hint."""
    return len(re.findall(r"[A-Za-z]{2,}", text.replace("Received:", ""))) >= 3 and not text.endswith(".")


def places_of_texts() -> dict[str, dict[str, int]]:
    """Return the files of each text of an error, each with the first line there."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        for line, text in texts_of_errors(nodes_of(path)):
            found[text].setdefault(str(path.relative_to(ROOT)), line)
    return found


def test_the_text_of_an_error_is_in_one_file():
    in_two = {text: places for text, places in places_of_texts().items() if len(places) > 1}
    assert_none(
        f"{file}:{line}: {text}"
        for text, places in in_two.items()
        if text not in IN_TWO_FILES
        for file, line in places.items()
    )
    assert set(IN_TWO_FILES) <= set(in_two), "a text that is in one file is no exception"


def test_texts_are_found_in_their_parts():
    source = """
if not n:
    raise noted(NotReady(f"{what} has no {n} rows" " at all" + END, hint="Pack it. Then call again."))
error = InvalidParameter("the value is not known")
raise _wrong(f"{a}: {b}. Received: {c}", "is not a number")
check = Whole(0, 9, must=f"must be from 0 to {n}")
print("this is not an error")
"""
    assert {text for _, text in texts_of_errors(walk(ast.parse(source)))} == {
        "has no {} rows at all", "the value is not known", "is not a number", "must be from 0 to {}"
    }  # fmt: skip


#: Where a text may end without a sign that separates, and another one begins below: to tokenize all files takes long.
MAY_MEET = re.compile(r"""[A-Za-z,;:.)}]["']+[ \t]*(?:\\|#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*[A-Za-z]*["']""")


def joined_pieces(source: str) -> Iterator[str]:
    """Yield the places where two pieces of a text meet on two lines of the source, and neither has a sign there."""
    if MAY_MEET.search(source) is None:
        return
    skipped = (tokenize.NL, tokenize.COMMENT)
    lines = io.StringIO(source).readline
    tokens = [token for token in tokenize.generate_tokens(lines) if token.type not in skipped]
    for one, other in itertools.pairwise(tokens):
        if one.type == other.type == tokenize.STRING and one.end[0] < other.start[0]:
            end, start = one.string.rstrip("\"'"), re.sub(r"^[rbf]*[\"']+", "", other.string)
            if re.search(r"[A-Za-z,;:.)}]$", end) and re.match(r"[A-Za-z({]", start):
                yield f"{one.start[0]}: {end[-20:]}|{start[:20]}"


def test_the_pieces_of_a_text_are_separated():
    """A text of several lines of the source has a space, or another sign, where two of its pieces meet."""
    assert_none(
        f"{path.relative_to(ROOT)}:{joined}"
        for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
        for joined in joined_pieces(path.read_text())
    )


@pytest.mark.parametrize(
    "between", ["\n", "\n\n", "  # a comment\n    ", "\n    # a comment\n    ", " \\\n", "\n    r", "\n    b"]
)
def test_pieces_that_meet_are_found(between):
    for one, other, is_found in [
        ("'the table'", "'is empty'", True), ("\"of (a)\"", "'(b)'", True), ("\"\"\"of,\"\"\"", '"\'"\n', False),
        ("'the table '", "'is empty'", False), ("'the table'", "' is empty'", False), ("'the \"table\"'", "'is'", True),
    ]:  # fmt: skip
        assert bool(list(joined_pieces(f"x = (\n    {one}{between}{other})\n"))) == is_found, (one, other)
