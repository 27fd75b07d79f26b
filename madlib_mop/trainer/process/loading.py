"""Loads Keras and TensorFlow; called by a trainer at its start, and by the process that trainers are forked from."""

import contextlib
import importlib
import sys


def load_dill() -> None:
    """Load dill if it is installed: it opens /dev/null for writing, which the sandbox later forbids.

    TensorFlow imports it where it is installed.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("dill")


def load_keras() -> None:
    """Load Keras and TensorFlow without scikit-learn, which Keras would take along for wrappers that are not used here.

    That would be half a second, and a process of its own (joblib's).
    """
    known = sys.modules.get("sklearn")
    if known is None:
        # None marks a module that does not exist: see the manual of sys.modules
        sys.modules["sklearn"] = None  # type: ignore[assignment] # typeshed knows modules only
    try:
        importlib.import_module("keras")
        importlib.import_module("tensorflow")
    finally:
        if known is None:
            del sys.modules["sklearn"]
