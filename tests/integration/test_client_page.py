"""The Python of docs/python_client.md runs, block after block, and prints what a reader expects."""

import pandas as pd
import pytest

from tests.helpers.pages import ROOT, examples

PAGE = "docs/python_client.md"
CONNECT = 'connect('

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_first_example_is_short():
    code = examples(PAGE, "python")[0].text
    assert len([line for line in code.splitlines() if line.strip()]) < 30


def test_the_python_of_the_page_runs(db, capsys, keras):
    code = "\n".join(example.text for example in examples(PAGE, "python"))
    assert code.count(f"= {CONNECT}") == 1
    names = {}
    exec(compile(code.replace(f"= {CONNECT}", f"= {CONNECT}{db.dsn!r}, "), str(ROOT / PAGE), "exec"), names)
    try:
        customers = names["scored"]
        assert (customers["predicted"] == customers["churned"]).mean() > 0.8
        assert isinstance(customers["risk"], pd.Series) and customers["risk"].between(0, 1).all()
        assert names["run"].progress.state == "finished"
        assert "yes" in capsys.readouterr().out
    finally:
        names["db"].close()
