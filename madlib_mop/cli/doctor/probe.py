"""Run by the server's own user in the library's interpreter: do Keras' backends import, does the catalog login work?

``python -I -m madlib_mop.cli.doctor.probe SOCKETS PORT DATABASE`` prints one JSON object. Called by probe.sql.
"""

import importlib
import importlib.util
import json
import os
import sys
from typing import Any

from mop_backend.keras_backends import BackendName

import madlib_mop
from madlib_mop.errors import MopError
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.process import loading


def main(sockets: str, port: str, database: str) -> None:
    """Print the findings."""
    facts = {"version": madlib_mop.__version__, "login": login(sockets, port, database)}
    print(json.dumps({**facts, "modules": modules()}))


def modules() -> dict[str, dict[str, str]]:
    """Import the library's dependencies, as trainers do; return the version of each, or the error."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    found = {}
    with loading.without(loading.UNUSED):
        others = [name for name in BackendName if name != choice.DEFAULT and importlib.util.find_spec(name)]
        for name in (choice.DEFAULT, *others, "keras", "numpy", "safetensors", "mop_backend"):
            try:
                found[name] = {"version": importlib.import_module(name).__version__}
            except Exception as error:  # report any exception of a broken installation
                found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found


def login(sockets: str, port: str, database: str) -> dict[str, Any]:
    """Open the catalog session as the driver does; return its role or the error."""
    from madlib_mop.catalog.sessions.connection import connect_catalog

    try:
        _, session = connect_catalog(sockets, port, database)
    except MopError as error:
        return {"error": error.detail or error.message}
    try:
        return {"role": session.info.user, "is_superuser": session.info.parameter_status("is_superuser") == "on"}
    finally:
        session.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
