"""Which backend of Keras a process has: chosen before Keras is imported, then the same for all models.

Called by all parts of the trainer that compute. Keras reads the environment variable ``KERAS_BACKEND`` once, when it is
imported; so a process has one backend. A backend is a package of this folder, named as Keras names it:
``environment.py`` has what must be known before its import, ``backend.py`` its `Backend`. Only that package imports it.
"""

import functools
import importlib
import importlib.util
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mop_backend.keras_backends import USUAL, BackendName, installing

from madlib_mop.errors import NotReady
from madlib_mop.trainer.process import loading
from madlib_mop.trainer.process.failures import INPUT, RequestFailure

if TYPE_CHECKING:  # imports Keras
    from madlib_mop.trainer.backends.base.interface import Backend

#: The backend of trainers.
DEFAULT = USUAL
_OPTION = "--backend="


def taken_from(words: list[str]) -> BackendName:
    """Return the backend that a word ``--backend=NAME`` of a command line names, and remove the word.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    named = [word for word in words if word.startswith(_OPTION)]
    for word in named:
        words.remove(word)
    return BackendName(named[-1].removeprefix(_OPTION)) if named else DEFAULT


def environment_of(name: BackendName = DEFAULT) -> Mapping[str, str]:
    """Return the environment variables to set before Keras is imported with a backend; imports neither."""
    found: Mapping[str, str] = importlib.import_module(f"{__package__}.{name}.environment").ENVIRONMENT
    return found


def environment_with_gpus() -> Mapping[str, str]:
    """Return the variables of `environment_of` that the chosen backend needs otherwise to use GPUs."""
    module = importlib.import_module(f"{__package__}.{os.environ['KERAS_BACKEND']}.environment")
    found: Mapping[str, str] = module.WITH_GPUS
    return found


def is_installed() -> bool:
    """Return whether the chosen backend's package is installed; imports nothing."""
    return importlib.util.find_spec(os.environ["KERAS_BACKEND"]) is not None


def load() -> "Backend":
    """Import Keras and its backend, which takes seconds; nothing is computed, so a process may fork afterwards.

    Raises
    ------
    RequestFailure
        input: the backend's package is not installed.
    """
    name = BackendName(os.environ["KERAS_BACKEND"])
    if not is_installed():
        raise RequestFailure(
            INPUT,
            NotReady(
                f"the trainers of server {socket.gethostname()} have no package {name}",
                hint=f"An administrator installs it there: {installing(name)}, or make install.",
            ),
        )
    # Keras would import them, which takes seconds, to ask whether an object is one of theirs.
    others = sorted(set(BackendName) - {name}) if name != DEFAULT else []
    needed = importlib.import_module(f"{__package__}.{name}.environment").NEEDED
    with loading.without([*others, *(package for package in loading.UNUSED if package not in needed)]):
        backend = current()
    for other in others:
        loading.hide(other)
    return backend


@functools.cache
def current() -> "Backend":
    """Return the backend that Keras has in this process."""
    import keras

    name = BackendName(keras.backend.backend())
    found: Backend = importlib.import_module(f"{__package__}.{name}.backend").BACKEND
    return found
