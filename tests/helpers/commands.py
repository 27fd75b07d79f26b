"""Calls of the command line `madlib-mop` in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path


def command(db, *words: str, dsn: str | None = None) -> list[str]:
    """Return the command line, with the DSN last."""
    return [sys.executable, "-m", "madlib_mop.cli", *words, "--dsn", dsn or db.dsn]


def run(db, *words: str, dsn: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Run `madlib-mop`; stdin is closed, as in a job."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command(db, *words, dsn=dsn), stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=cwd
    )


def in_background(db, *words: str, dsn: str | None = None, cwd: Path | None = None) -> subprocess.Popen:
    """Start `madlib-mop`; stdin is closed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command(db, *words, dsn=dsn), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment, cwd=cwd,
    )  # fmt: skip
