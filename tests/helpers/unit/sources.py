"""The parsed files of the library, which several modules of tests look through: each is parsed once in a process."""

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file as `walk` yields them; the first one is its module."""
    was_enabled = gc.isenabled()
    gc.disable()  # nothing of a million nodes is garbage, and looking for it takes most of the time
    try:
        return list(walk(ast.parse(path.read_text())))
    finally:
        gc.freeze()  # nor are they looked at in later tests
        if was_enabled:
            gc.enable()


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all in it, but not whether names are loaded or stored; in half the time of ``ast.walk``."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                left += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                left.append(value)
