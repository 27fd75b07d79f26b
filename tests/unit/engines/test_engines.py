"""No module above ``engines/`` depends on a certain engine: checks imports, names and comparisons in the files.

`driver/data/engine.py` chooses the engine of a call. The doctor and the installation on a cluster's hosts inspect
servers before an engine can be chosen.
"""

import ast
from pathlib import Path

import pytest

from tests.helpers.unit.findings import assert_none
from tests.helpers.unit.sources import nodes_of, walk

ROOT = Path(__file__).resolve().parents[3] / "madlib_mop"
#: Modules of ``engines/`` for one engine, and expressions with which a query would distinguish engines.
ONE_ENGINE = {
    "greenplum", "cloudberry", "citus", "citus_nodes", "postgres", "postgres_store", "keyed_store",
}  # fmt: skip
NAMES = {"greenplum", "cloudberry", "citus", "postgres"}
CATALOGS = ("gp_segment_configuration", "gp_distribution_policy", "pg_dist_", "gp_segment_id", "DISTRIBUTED BY")
#: `catalog/names.py` has the names of the system columns of all engines, which no other column can have.
MAY_ASK = {"driver/data/engine.py", "cli/install.py", "catalog/names.py"}
FILES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if path.relative_to(ROOT).parts[0] != "engines"
    and path.relative_to(ROOT).parts[:2] not in (("cli", "doctor"), ("cli", "cluster"))
    and str(path.relative_to(ROOT)) not in MAY_ASK
]


def questions(nodes: list[ast.AST]) -> list[str]:
    """Return the parts of a module's code, without docstrings, that distinguish engines, each with its line."""
    found = []
    docstrings = {
        node.body[0].value
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("madlib_mop.engines"):
            modules = {node.module.rpartition(".")[2], *(alias.name for alias in node.names)}
            found += [f"{node.lineno}: import of {name}" for name in modules & ONE_ENGINE]
        elif _is_text(node) and node not in docstrings:
            if any(word in node.value for word in CATALOGS):
                found.append(f"{node.lineno}: {node.value!r}")
        elif isinstance(node, ast.Compare):
            sides = [n.value for side in (node.left, *node.comparators) for n in ast.walk(side) if _is_text(n)]
            found += [f"{node.lineno}: {name!r}" for name in NAMES.intersection(sides)]
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            found += [f"{node.lineno}: {name}" for engine in NAMES if name.lower() in (engine, f"is_{engine}")]
    return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_module_above_asks_which_engine_it_is():
    assert_none(
        f"madlib_mop/{path.relative_to(ROOT)}:{found}"
        for path in FILES
        for found in questions(nodes_of(path))
    )


@pytest.mark.parametrize(
    "code",
    [
        "from madlib_mop.engines.greenplum import find_product",
        "from madlib_mop.engines.greenplum import PRODUCT",
        "from madlib_mop.engines import citus",
        "if packed.engine != 'postgres': pass",
        "query = 'SELECT * FROM pg_dist_node'",
        "clause = f' DISTRIBUTED BY ({key})'",
        "if session.is_greenplum: pass",
        "if server in ('citus', None): pass",
    ],
)
def test_each_way_to_ask_is_seen(code):
    assert questions(list(walk(ast.parse(code))))
