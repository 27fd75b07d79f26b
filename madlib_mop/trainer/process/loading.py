"""Hides packages that large libraries load without need, in trainers, fork servers and the doctor; and loads dill."""

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator

#: Packages that Keras and TensorFlow take along if they are installed, for wrappers and plots that are not used here:
#: a third of the time of the import, memory in each trainer, and a process of its own (scikit-learn's joblib).
UNUSED = ("matplotlib", "pandas", "scipy", "sklearn")


def load_dill() -> None:
    """Load dill if it is installed: it opens /dev/null for writing, which the sandbox later forbids.

    TensorFlow imports it where it is installed.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("dill")


def hide(package: str) -> None:
    """Let the package count as not installed in this process from now on, unless it is imported already."""
    # None marks a module that does not exist: see the manual of sys.modules
    sys.modules.setdefault(package, None)  # type: ignore[arg-type] # typeshed knows modules only


@contextlib.contextmanager
def without(packages: Iterable[str]) -> Iterator[None]:
    """Import modules without packages that they take along if these are installed; they can be imported afterwards."""
    hidden = [name for name in packages if name not in sys.modules]
    for name in hidden:
        hide(name)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
