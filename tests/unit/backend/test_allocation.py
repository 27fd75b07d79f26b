"""A session keeps freed memory from its first large value on, and light calls load nothing for it."""

import subprocess
import sys

import pytest

from tests.helpers.unit.trainer import REPOSITORY

CODE = """
import sys
sys.path.insert(0, {path!r})
from mop_backend import allocation
allocation.return_freed_memory()
allocation.expect_more_like({blobs})
allocation.return_freed_memory()
print('ctypes' in sys.modules)
"""


@pytest.mark.parametrize(
    ("blobs", "keeps"),
    [("[]", False), ("[b'x' * 1000]", False), ("[b'x' * (1 << 20)]", True), ("[memoryview(b'x' * 600_000)] * 2", True)],
)
def test_only_large_values_are_prepared_for(blobs, keeps):
    code = CODE.format(path=str(REPOSITORY / "plpython"), blobs=blobs)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{keeps}\n", "")
