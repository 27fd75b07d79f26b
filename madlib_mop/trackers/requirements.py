"""Imports the packages of trackers that the library does not install by itself; called by the trackers."""

import importlib
import sys
from typing import Any

from madlib_mop.errors import NotReady

#: What pip is asked for, by the name of the package to import. pyproject.toml has the same in its extras.
REQUIREMENTS = {"tensorboard": "tensorboard>=2.18,<3", "mlflow": "mlflow-skinny>=2.20,<4"}


def package(name: str, *modules: str) -> tuple[Any, ...]:
    """Return modules of a package.

    Parameters
    ----------
    name : str
        The package, a key of `REQUIREMENTS`.
    *modules : str
        Dotted names below it.

    Raises
    ------
    NotReady
        If it is not installed, or cannot be imported.
    """
    try:
        importlib.import_module(name)  # first, so that its absence is not taken for that of a module below it
        return tuple(importlib.import_module(f"{name}.{module}") for module in modules)
    except ImportError as error:
        reason = "is not installed" if error.name == name else f"cannot be imported: {error}"
        raise NotReady(
            f"the package {name} {reason}",
            hint=f"Install it: {sys.executable} -m pip install '{REQUIREMENTS[name]}'",
        ) from None
