"""Calls of the command line `madlib-mop` in processes of their own."""

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from madlib_mop.cli import main


def command(db, *words: str, dsn: str | None = None) -> list[str]:
    """Return the command line, with the DSN last."""
    return [sys.executable, "-m", "madlib_mop.cli", *words, "--dsn", dsn or db.dsn]


def run(db, *words: str, dsn: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Run `madlib-mop`; stdin is closed, as in a job."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command(db, *words, dsn=dsn), stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=cwd
    )


def run_here(db, *words: str, dsn: str | None = None) -> subprocess.CompletedProcess:
    """Run `madlib-mop` in this process, for tests of what it prints: a process of its own takes a second more."""
    out, err, status = StringIO(), StringIO(), 0
    arguments = ["madlib-mop", *words, "--dsn", dsn or db.dsn]
    with patch.object(sys, "argv", arguments), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def in_background(db, *words: str, dsn: str | None = None, cwd: Path | None = None) -> subprocess.Popen:
    """Start `madlib-mop`; stdin is closed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command(db, *words, dsn=dsn), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment, cwd=cwd,
    )  # fmt: skip
