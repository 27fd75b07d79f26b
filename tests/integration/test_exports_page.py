"""The Python of docs/exports.md runs, and its local predictions are those of the database."""

import numpy as np
import pytest

from tests.helpers.pages import ROOT, examples

pytestmark = pytest.mark.slow

PAGE = "docs/exports.md"
CONNECT = 'connect("dbname=mydb", '


@pytest.mark.timeout(600)
def test_the_python_of_the_page_runs(db, capsys, monkeypatch, tmp_path, keras):
    code = "\n".join(example.text for example in examples(PAGE, "python"))
    assert code.count(CONNECT) == 1
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code.replace(CONNECT, f"connect({db.dsn!r}, "), str(ROOT / PAGE), "exec"), names)
    try:
        houses = names["houses"]
        assert np.allclose(names["local"].predict(houses), names["model"].predict(houses), rtol=1e-4)
        assert "model.onnx" in capsys.readouterr().out
        assert (tmp_path / "houses" / "model.keras").exists()
    finally:
        names["db"].close()
