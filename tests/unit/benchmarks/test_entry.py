"""The command of `make bench` starts: each module that it imports exists."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def test_the_command_lists_its_sections():
    done = subprocess.run([sys.executable, BENCHMARKS / "run.py", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(section in done.stdout for section in ("conv", "predict", "quality", "columns"))
