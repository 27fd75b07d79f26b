"""Comments and docstrings of the library name things that exist."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.unit.sources import nodes_of, walk

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for folder in ("madlib_mop", "plpython/mop_backend") for path in sorted((ROOT / folder).rglob("*.py"))]
SQL = "\n".join(path.read_text() for path in (ROOT / "sql").rglob("*.sql"))
#: Names of PostgreSQL, of other libraries and of measured data that only comments mention.
OTHERS = {"EventFileWriter", "get_job", "get_params", "hot_standby_feedback", "movies"}
#: Names of our packages and classes that another library, or a schema of SQL, has too.
SHARED_NAMES = {"Model", "jax", "madlib_mop", "tensorflow", "torch"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part not in ("plpython", "__init__"))


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments and docstrings of a file, with the numbers of their lines."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        comment = re.search(r"(?:^\s*|  )(#:? .*)", line)
        if comment is not None:
            yield number, comment[1]
    for node in nodes_of(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def words_of_code(nodes: list[ast.AST]) -> set[str]:
    """Return the words of a file's names and texts, without its comments and docstrings."""
    words, docstrings = set(), set()
    for node in nodes:
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                words.update(re.findall(r"\w+", node.value))
        elif isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, (ast.arg, ast.keyword)):
            words.update(filter(None, [node.arg]))
        else:
            words.update(defined(node))
    return words


class Library:
    """The modules, names and classes of the library."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {}
        self.attributes: dict[str, tuple[set[str], list[str]]] = {}
        self.words = set(re.findall(r"\w+", SQL)) | OTHERS
        for path in FILES:
            nodes = nodes_of(path)
            self.words |= words_of_code(nodes)
            self.names[module_of(path)] = names_of_module(nodes[0])
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
                    inside = {name for part in walk(node) for name in defined(part)}
                    self.attributes[node.name] = inside, bases
        self.packages = {part for name in self.names for part in name.split(".")[:-1]} - SHARED_NAMES
        self.words |= {part for name in self.names for part in name.split(".")}

    def has(self, reference: str) -> bool:
        """Return whether ``package.module.name.attribute``, with any first packages left out, exists."""
        parts = reference.split(".")
        for n in range(len(parts), 0, -1):
            path, rest = ".".join(parts[:n]), parts[n:]
            modules = [name for name in self.names if f".{name}".endswith(f".{path}")]
            if any(not rest or self._has_name(name, rest) for name in modules):
                return True
        return False

    def has_attribute(self, cls: str, name: str) -> bool:
        """Return whether a class of the library has an attribute; a base of another library might have any."""
        if cls not in self.attributes:
            return True
        own, bases = self.attributes[cls]
        return name in own or any(self.has_attribute(base, name) for base in bases)

    def _has_name(self, module: str, rest: list[str]) -> bool:
        return rest[0] in self.names[module] and (len(rest) == 1 or self.has_attribute(rest[0], rest[1]))


def defined(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node defines, without those of the nodes in it."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        yield from (node.module or "").split(".")
    elif isinstance(node, ast.alias):
        yield from (node.asname or node.name).split(".")
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def names_of_module(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or imports, also in its conditions; not those in its functions."""
    names, nodes = set(), list(tree.body)
    while nodes:
        node = nodes.pop()
        names.update(defined(node))
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += ast.iter_child_nodes(node)
    return names


def stale_references(prose: str, library: Library) -> Iterator[tuple[int, str]]:
    """Yield the references of a comment or docstring to nothing, each with its position.

    References are names in single backticks, and dotted names that begin with a package or a class of the library.
    """
    for match in re.finditer(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)", prose):
        if not library.words.issuperset(match[1].split(".")):
            yield match.start(), match[1]
    for match in re.finditer(r"(?<![\w./-])([A-Za-z_]\w*)\.[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?![\w/(])", prose):
        first, second = match[0].split(".")[:2]
        is_file = re.search(r"\.(py|sql|html|json|h5)$", match[0]) is not None
        if (first in library.packages and not is_file and not library.has(match[0])) or (
            first not in SHARED_NAMES and not library.has_attribute(first, second)
        ):
            yield match.start(), match[0]


@pytest.fixture(scope="module")
def library():
    return Library()


def test_comments_and_docstrings_name_things_that_exist(library):
    stale = [
        f"{path.relative_to(ROOT)}:{line + prose[:position].count(chr(10))}: {reference}"
        for path in FILES
        for line, prose in prose_of(path)
        for position, reference in stale_references(prose, library)
    ]
    assert stale == []


def test_comments_and_docstrings_name_files_that_exist():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    tails = {"/".join(file.split("/")[n:]) for file in listed for n in range(file.count("/") + 1)}
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {file}"
        for path in FILES
        for line, prose in prose_of(path)
        for file in re.findall(r"[\w./-]*\w\.(?:py|sql|sh)\b(?![.\w])", prose)
        if file not in tails
    ]
    assert missing == []


def test_stale_references_are_found(library):
    comment = (
        "See `catalog.names.quote`, mop_backend.frames and `MopError.hint`, or (mop_backend.no_module),"
        " `catalog.names.no_name`, `MopError.no_attribute` and `no_function`; madlib_mop.setting is a table."
    )
    found = {reference for _, reference in stale_references(comment, library)}
    assert found == {"mop_backend.no_module", "catalog.names.no_name", "MopError.no_attribute", "no_function"}
