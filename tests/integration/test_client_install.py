"""`pip install` without an extra: the client and the command line, and no TensorFlow (slow: makes an environment)."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers.pages import ROOT
from tests.helpers.pages_of_runs import Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def installed():
    """The programs of an environment with the library and its base dependencies."""
    scratch = Path(tempfile.mkdtemp(prefix="mop_client_", dir="/tmp"))
    try:
        clone = scratch / "clone"
        files = subprocess.run(
            ["git", "ls-files", "-z", "pyproject.toml", "madlib_mop", "plpython"], cwd=ROOT, stdout=subprocess.PIPE,
            text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        for file in filter(None, files):
            (clone / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, clone / file)
        subprocess.run([sys._base_executable, "-m", "venv", scratch / "venv"], check=True)
        pip = [scratch / "venv" / "bin" / "python", "-I", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", clone], check=True)
        yield scratch / "venv" / "bin"
    finally:
        shutil.rmtree(scratch)


def run(installed, *words, **environment):
    return subprocess.run([installed / words[0], *words[1:]], capture_output=True, text=True,
                          env={**os.environ, **environment})  # fmt: skip


def test_there_is_no_tensorflow(installed):
    listed = run(installed, "pip", "list", "--format", "freeze").stdout.lower()
    assert "madlib-mop" in listed.replace("_", "-") and "pandas" in listed
    assert not [name for name in ("tensorflow", "keras", "optuna", "altair", "starlette", "scikit") if name in listed]


def test_the_command_line_runs(installed):
    done = run(installed, "madlib-mop", "--help")
    assert done.returncode == 0 and "fit" in done.stdout
    done = run(installed, "madlib-mop", "fit", "a", "b", "c", "1", "--dsn", "host=/nowhere")
    assert done.returncode == 1 and done.stderr.startswith("madlib-mop: cannot log in: ")


def test_the_client_works_on_a_server(installed, db):
    code = """
import os, pandas as pd
from madlib_mop.client import connect
with connect(os.environ["MADLIB_MOP_DSN"], settings={"segments": 1}) as db:
    frame = pd.DataFrame({"x": [i % 7 for i in range(100)], "y": ["ab"[i % 7 > 3] for i in range(100)]})
    packed = db.pack(frame, "y", validation=None)
    run = db.fit(packed, db.networks(packed, 1, epochs=1), epochs=1, progress=False)
    print(len(run.best().predict(frame)), run.leaderboard()["state"].tolist())
"""
    done = run(installed, "python", "-c", code, MADLIB_MOP_DSN=db.dsn)
    assert done.stdout == "100 ['trained']\n", done.stderr


def test_a_report_is_written_as_by_the_client(installed, db, tmp_path):
    code = """
import os, sys, pandas as pd
from madlib_mop.client import connect
with connect(os.environ["MADLIB_MOP_DSN"], settings={"segments": 1}) as db:
    frame = pd.DataFrame({"x": [i % 7 for i in range(100)], "y": ["ab"[i % 7 > 3] for i in range(100)]})
    packed = db.pack(frame, "y", validation=None)
    run = db.fit(packed, db.networks(packed, 1, epochs=1), epochs=1, progress=False)
    run.report(sys.argv[1])
    print(run.run_id)
"""
    done = run(installed, "python", "-c", code, str(tmp_path / "client.html"), MADLIB_MOP_DSN=db.dsn)
    path = tmp_path / "command.html"
    written = run(installed, "madlib-mop", "report", done.stdout.strip(), "--output", str(path), MADLIB_MOP_DSN=db.dsn)
    assert (written.returncode, written.stdout, written.stderr) == (0, f"{path}\n", "")
    tables = [Page((tmp_path / name).read_text()).table("leaderboard") for name in ("client.html", "command.html")]
    assert tables[0] == tables[1] and tables[0]


def test_estimators_and_keras_models_say_what_they_need(installed):
    done = run(installed, "python", "-c", "from madlib_mop.client import HopperClassifier")
    assert "HopperClassifier needs scikit-learn. Run pip install '.[sklearn]' in a clone" in done.stderr
    assert done.returncode == 1
