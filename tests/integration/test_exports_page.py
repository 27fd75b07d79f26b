"""The Python of docs/files.md that exports runs, and its local predictions are those of the database."""

import numpy as np
import pytest

from tests.helpers.pages import ROOT, examples

pytestmark = pytest.mark.slow

PAGE = "docs/files.md"
CONNECT = 'connect("dbname=mydb", '


@pytest.mark.timeout(600)
def test_the_python_of_the_page_runs(db, capsys, monkeypatch, tmp_path, keras):
    (code,) = (example.text for example in examples(PAGE, "python") if "load_exported" in example.text)
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
