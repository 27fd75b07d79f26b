"""Hides packages that large libraries load without need, in trainers, fork servers and the doctor; and loads dill."""

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Packages that Keras and TensorFlow take along if they are installed, for wrappers and plots that are not used here:
#: a third of the time of the import, memory in each trainer, and a process of its own (scikit-learn's joblib).
UNUSED = ("matplotlib", "pandas", "scipy", "sklearn")


def load_dill() -> None:
    """Load dill if it is installed: it opens /dev/null for writing, which the sandbox later forbids.

    TensorFlow imports it where it is installed.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("dill")


class _Hidden:
    """Refuses imports of packages; asked before all other finders."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


_HIDDEN = _Hidden()


def hide(package: str) -> None:
    """Refuse imports of a package in this process from now on, unless it is imported already.

    An entry None in `sys.modules` would do so too, but Keras takes each entry for an import that was made: its
    preprocessing layers then ask TensorFlow whether they run in one of its graphs.
    """
    if package in sys.modules:
        return
    _HIDDEN.packages.add(package)
    if _HIDDEN not in sys.meta_path:
        sys.meta_path.insert(0, _HIDDEN)


@contextlib.contextmanager
def without(packages: Iterable[str]) -> Iterator[None]:
    """Import modules without packages that they take along if these are installed; they can be imported afterwards."""
    hidden = [name for name in packages if name not in sys.modules]
    for name in hidden:
        # None marks a module that does not exist, see the manual of sys.modules: PyTorch asks for specifications too
        sys.modules[name] = None  # type: ignore[assignment] # typeshed knows modules only
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
