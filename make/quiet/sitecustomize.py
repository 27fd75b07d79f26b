"""Lets the import of TensorFlow print nothing: `make/python.sh` puts this folder on the path of Python.

TensorFlow prints about the processor before it reads TF_CPP_MIN_LOG_LEVEL. An import that fails prints everything.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class QuietTensorFlow(MetaPathFinder):
    """Finds TensorFlow as the other finders do."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the module as it is found without this finder, with an import that prints nothing."""
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)  # who asks may only want to know whether it is there
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _quietly(execute, module)  # type: ignore[method-assign]
        return spec


def _quietly(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Import a module while the file of the standard error output is another one."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        try:
            execute(module)
        except BaseException:
            printed.seek(0)
            os.write(kept, printed.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


os.environ.pop("PYTHONPATH", None)  # it is not for the programs that this one starts
sys.meta_path.insert(0, QuietTensorFlow())
