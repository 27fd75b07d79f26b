"""Markers of defences in the sources, and the text of a file without one of its defences.

A marker is a comment with the name of the defence, at the end of the guarded line, or on a line of its own above:

- ``# defence: NAME``: without the defence, a condition is false, a loop goes over nothing, an exception is not caught,
  and anything else that begins on the line is left out: a statement, an argument, an element of a list, an entry of a
  dictionary, an operand of ``and`` and ``or``.
- ``# defence: NAME = LAXER``: without the defence, the value is this one instead: the condition, the iterable of the
  loop, the exception, what is assigned or returned, the value of the argument or of the entry. A long ``LAXER`` goes on
  in comments on the next lines, with four spaces or more after their ``#``.

In SQL, in a file or in a string of Python, a marker is ``-- defence: NAME`` or ``-- defence: NAME = LAXER``, in a
template of HTML ``{# defence: NAME #}``. Without the defence the whole line is left out, or is ``LAXER``. The build
leaves these comments out of the extension's SQL (``make/build_extension.py``).
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

_MARKER = re.compile(r"(?:--|\{#|#) defence: (?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)(?: = (?P<laxer>.+?))?(?: #\})?$")
_ALMOST = re.compile(r"(?:--|\{#|#) *[Dd]efence:")
_CONTINUED = re.compile(r"\s*#    +(.+)")
_COMMENT = re.compile(r"\s*(?:#|--|\{#|$)")
# What may be before a part on its line.
_OPERATOR = re.compile(rb"(?:(?:and|or) +)?(\(*)")
_COMMA = re.compile(rb"\s*,")
_FOLDERS = ("madlib_mop", "plpython", "sql")
_NOT_MARKED = ("sql/released", "sql/upgrade")
_SUFFIXES = (".py", ".sql", ".html")


class BadMarker(ValueError):
    """A marker that marks nothing, or nothing that can be taken out."""


@dataclass(frozen=True)
class Marker:
    """A marker.

    Attributes
    ----------
    name : str
        The defence.
    laxer : str or None
        What is there without the defence; None if nothing is.
    line : int
        The index of the guarded line.
    is_code : bool
        Whether this is code of Python, not SQL or HTML.
    """

    name: str
    laxer: str | None
    line: int
    is_code: bool


@dataclass(frozen=True)
class _Part:
    """A part of a Python file that a marker can be about; offsets are in bytes.

    Without the defence, ``left_out`` is replaced by ``instead``, or ``value`` by the laxer one.
    """

    start: int
    end: int
    value: tuple[int, int] | None
    left_out: tuple[int, int]
    instead: bytes


class Source:
    """A text with markers.

    Parameters
    ----------
    text : str
    is_python : bool

    Raises
    ------
    BadMarker
        If a comment looks like a marker and is none, or no line follows it.
    """

    def __init__(self, text: str, is_python: bool):
        self.text = text
        self._is_python = is_python
        self._lines = text.split("\n")
        self.markers = list(self._find()) if "efence:" in text else []

    def without(self, name: str) -> str:
        """Return the text without a defence.

        Raises
        ------
        BadMarker
            If the text does not have one marker of this name, or nothing that can be taken out begins on its line.
        """
        marked = [marker for marker in self.markers if marker.name == name]
        if len(marked) != 1:
            raise BadMarker(f"{name} has {len(marked)} markers here")
        return self._without_part(marked[0]) if marked[0].is_code else self._without_line(marked[0])

    def _find(self) -> Iterator[Marker]:
        comments = self._comments if self._is_python else {}
        for number, line in enumerate(self._lines):
            found = _MARKER.search(line)
            if found is None:
                if _ALMOST.search(line):
                    raise BadMarker(f"line {number + 1}: this is no marker: {line.strip()}")
                continue
            about, laxer = number, found["laxer"]
            if not line[: found.start()].strip():  # a line of its own
                following = range(number + 1, len(self._lines))
                about = next((n for n in following if not _COMMENT.match(self._lines[n])), -1)
                if about < 0:
                    raise BadMarker(f"line {number + 1}: no line follows this marker: {line.strip()}")
            for more in map(_CONTINUED.fullmatch, self._lines[number + 1 : about]):
                if laxer is None or more is None:
                    break
                laxer += " " + more[1]
            yield Marker(found["name"], laxer, about, comments.get(number) == found.start())

    @property
    def _comments(self) -> dict[int, int]:
        """The columns of the comments of a Python file by the index of their line."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return {token.start[0] - 1: token.start[1] for token in tokens if token.type == tokenize.COMMENT}

    def _without_line(self, marker: Marker) -> str:
        line = self._lines[marker.line]
        instead = "" if marker.laxer is None else line[: len(line) - len(line.lstrip())] + marker.laxer
        return "\n".join([*self._lines[: marker.line], instead, *self._lines[marker.line + 1 :]])

    def _without_part(self, marker: Marker) -> str:
        data, lines = self.text.encode(), self.text.encode().split(b"\n")
        first = self._starts[marker.line] + len(lines[marker.line]) - len(lines[marker.line].lstrip())
        operator = _OPERATOR.match(data, first)
        assert operator is not None  # it can match nothing
        begins = {first, operator.start(1), operator.end(1)}
        part = max((part for part in self._parts if part.start in begins), key=lambda part: part.end, default=None)
        if part is None:
            raise BadMarker(f"line {marker.line + 1}: nothing that can be taken out begins here ({marker.name})")
        if marker.laxer is None:
            (start, end), instead = part.left_out, part.instead
        elif part.value is not None:
            (start, end), instead = part.value, marker.laxer.encode()
        else:
            raise BadMarker(f"line {marker.line + 1}: what begins here has no value ({marker.name})")
        return (data[:start] + instead + data[end:]).decode()

    @cached_property
    def _starts(self) -> list[int]:
        """The offset of each line."""
        return list(accumulate((len(line.encode()) + 1 for line in self._lines), initial=0))

    @cached_property
    def _parts(self) -> list[_Part]:
        return list(self._find_parts())

    def _find_parts(self) -> Iterator[_Part]:
        data = self.text.encode()

        def span(node: ast.expr | ast.stmt | ast.keyword | ast.ExceptHandler) -> tuple[int, int]:
            assert node.end_lineno is not None and node.end_col_offset is not None
            ends = self._starts[node.end_lineno - 1] + node.end_col_offset
            return self._starts[node.lineno - 1] + node.col_offset, ends

        def element(start: int, end: int, value: tuple[int, int]) -> _Part:
            """An element of a list or the like: it is left out with the comma behind it."""
            comma = _COMMA.match(data, end)
            return _Part(start, end, value, (start, end if comma is None else comma.end()), b"")

        for node in ast.walk(ast.parse(self.text)):
            match node:
                case ast.If() | ast.While():
                    yield _Part(*span(node), span(node.test), span(node.test), b"False")
                case ast.For() | ast.AsyncFor():
                    yield _Part(*span(node), span(node.iter), span(node.iter), b"()")
                case ast.ExceptHandler(type=ast.expr()):
                    yield _Part(*span(node), span(node.type), span(node.type), b"()")
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return() | ast.Expr():
                    yield _Part(*span(node), None if node.value is None else span(node.value), span(node), b"pass")
                case ast.stmt():
                    yield _Part(*span(node), None, span(node), b"pass")
                case ast.Call():
                    yield from (element(*span(argument), span(argument)) for argument in node.args)
                    yield from (element(*span(keyword), span(keyword.value)) for keyword in node.keywords)
                case ast.List() | ast.Tuple() | ast.Set():
                    yield from (element(*span(one), span(one)) for one in node.elts)
                case ast.Dict():
                    for key, value in zip(node.keys, node.values, strict=True):
                        start, end = span(value)
                        yield element(data.rindex(b"**", 0, start) if key is None else span(key)[0], end, (start, end))
                case ast.BoolOp():
                    neutral = b"False" if isinstance(node.op, ast.Or) else b"True"
                    yield from (_Part(*span(one), span(one), span(one), neutral) for one in node.values)


def read_source(path: Path) -> Source:
    """Return a file as a `Source`."""
    return Source(path.read_text(), path.suffix == ".py")


def marked_files(root: Path) -> Iterator[tuple[str, Source]]:
    """Yield the files of a working tree that have markers, with their paths below the root."""
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in _SUFFIXES and not name.startswith(_NOT_MARKED) and (source := read_source(path)).markers:
                yield name, source
