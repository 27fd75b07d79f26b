"""The fork server of gradient boosting: it has loaded scikit-learn, but has no rows.

Started by ``mop_backend/forkserver.py`` for the first baseline of a server. Loading scikit-learn takes most of the time
of a baseline of few rows; a process forked here is ready after milliseconds. It enters the sandbox after the fork,
before it gets rows, as forked trainers do.
"""

import importlib
import os
import signal

from mop_backend.forking import ChildKind, serve_forks

from madlib_mop.trainer.process import lifetime


def main() -> None:
    """Load scikit-learn, then fork processes that train with it."""
    lifetime.write_oom_score(500)
    serve_forks("mop boosting", _load, ChildKind("boosting", _run, signal.SIGKILL))


def _load() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded: a process with threads must not fork
    from madlib_mop.trainer import boosting

    lifetime.prepare(boosting.ENVIRONMENT)
    boosting.load()
    importlib.import_module("multiprocessing.dummy")  # otherwise the first fit of each process imports it


def _run() -> int:
    """Serve one driver until the end of its requests."""
    from madlib_mop.trainer import boosting

    boosting.serve(*lifetime.set_up_forked())
    return 0


if __name__ == "__main__":
    main()
