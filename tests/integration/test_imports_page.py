"""The Python of docs/files.md that imports runs as it is printed."""

import pytest

from tests.helpers.pages import ROOT, examples

PAGE = "docs/files.md"
CONNECT = 'connect("dbname=mydb", '


@pytest.mark.timeout(600)
def test_the_python_of_the_page_runs(db, capsys, monkeypatch, tmp_path, keras):
    (code,) = (example.text for example in examples(PAGE, "python") if "import_model" in example.text)
    assert code.count(CONNECT) == 1
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code.replace(CONNECT, f"connect({db.dsn!r}, "), str(ROOT / PAGE), "exec"), names)
    try:
        assert names["model_id"] == 1 and names["version"].version == 1
        assert "sides@1" in capsys.readouterr().out
    finally:
        names["db"].close()
