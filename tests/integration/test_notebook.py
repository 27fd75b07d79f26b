"""docs/churn.ipynb: its cells run one after the other, are short, and end with the drift of two columns."""

import ast
import json

import pytest

from tests.helpers.pages import ROOT

NOTEBOOK = json.loads((ROOT / "docs" / "churn.ipynb").read_text())
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
CONNECT = 'connect("dbname=mydb", '

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def shown(cell: str, names: dict) -> object:
    """Run a cell; return the value of its last line, which a notebook shows."""
    body = ast.parse(cell).body
    if not isinstance(body[-1], ast.Expr):
        exec(compile(cell, "cell", "exec"), names)
        return None
    exec(compile(ast.Module(body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(body[-1].value), "cell", "eval"), names)


def test_it_has_fewer_than_thirty_lines_and_no_outputs():
    assert sum(bool(line.strip()) for cell in CELLS for line in cell.splitlines()) < 30
    assert all(cell["outputs"] == [] for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code")
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


def test_it_goes_from_a_frame_to_a_deployed_and_monitored_model(db):
    assert sum(cell.count(CONNECT) for cell in CELLS) == 1
    names: dict = {}
    try:
        values = [shown(cell.replace(CONNECT, f"connect({db.dsn!r}, "), names) for cell in CELLS]
        _, leaderboard, deployed, riskiest, drift, history = values
        assert len(leaderboard) == 4 and leaderboard["validation_metric"].max() > 0.8
        assert deployed is True and riskiest["risk"].between(0.5, 1).all()
        found = drift.set_index("feature")
        assert list(found.index) == ["age", "city", "churned"]
        assert list(found["kind"]) == ["input", "input", "prediction"]
        assert (found.loc[["age", "city"], "verdict"] == "large").all() and found.loc["age", "psi"] > 0.25
        assert "10 % of the rows have a level that no training row has." in found.loc["city", "reason"]
        assert found.loc["churned", "psi"] > 0
        assert list(history["change"]) == ["deploy"] and list(history["to_version"]) == [1]
        assert names["champion"].version == 1
    finally:
        names["db"].close()


def test_a_second_run_of_all_cells_registers_a_second_version(db):
    """People run a notebook again in the same database; the test before this one has run it."""
    names: dict = {}
    try:
        values = [shown(cell.replace(CONNECT, f"connect({db.dsn!r}, "), names) for cell in CELLS]
        _, _, deployed, _, drift, history = values
        assert deployed is True and names["champion"].version == 2
        assert list(history["to_version"]) == [2, 1]
        assert set(drift.loc[drift["kind"] == "input", "verdict"]) == {"large"}
    finally:
        names["db"].close()
