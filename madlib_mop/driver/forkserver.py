"""The fork server of drivers: it has loaded the modules of all commands.

Started by ``mop_backend/forkserver.py``. Loading the modules takes longer than most calls; a driver forked here is
ready after milliseconds.
"""

import importlib
import os
import signal
from typing import NoReturn

from mop_backend.forking import ChildKind, serve_forks

from madlib_mop.driver import __main__ as driver
from madlib_mop.driver.commands import COMMANDS
from madlib_mop.driver.session.stopping import raise_on_sigterm
from madlib_mop.trainer.process.loading import without

#: What only some calls import, in the middle of their work.
_LATER = ("driver.changes.search", "driver.changes.search_progress", "driver.help.choices", "trainer.data.state")


def main() -> None:
    """Load the commands, then fork drivers."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's BLAS is not used, and a process with threads must not fork
    serve_forks("mop drivers", _load, ChildKind("driver", _run, signal.SIGTERM))


def _load() -> None:
    with without(["pandas"]):  # Optuna takes it along
        for module in {f"driver.{command.partition(':')[0]}" for command in COMMANDS.values()} | {*_LATER}:
            importlib.import_module(f"madlib_mop.{module}")
    importlib.import_module("numpy.ma")  # otherwise the first np.unique of each driver imports it
    _use_tables()


def _use_tables() -> None:
    """Compute what SQLAlchemy keeps from the first use of its engines and of our tables: each driver would do so."""
    from madlib_mop.catalog.sessions.connection import engine_over
    from madlib_mop.catalog.tables import metadata

    dialect = engine_over(_no_session).dialect
    for table in metadata.tables.values():
        for statement in (table.select(), table.insert(), table.update()):
            statement.compile(dialect=dialect)


def _no_session() -> NoReturn:
    raise AssertionError("nothing is executed in this process")


def _run() -> int:
    """Run one call; SIGTERM comes when the backend has died."""
    raise_on_sigterm()
    return driver.serve()


if __name__ == "__main__":
    main()
