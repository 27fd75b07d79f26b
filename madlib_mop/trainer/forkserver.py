"""The fork server of trainers: it has loaded Keras and its backend, but computed nothing.

Started by ``mop_backend/forkserver.py``. Loading TensorFlow takes seconds and hundreds of megabytes; a trainer forked
here shares the megabytes and is ready after milliseconds. A backend makes its threads at its first use, which is after
the fork.
"""

import importlib
import os
import random
import signal
import sys

from mop_backend.forking import ChildKind, serve_forks
from mop_backend.forkserver import FIRST_FD

from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.process import lifetime, loading

_MODULES = (
    "data.averaging", "fused_visits", "incoming", "process.sandbox", "process.seccomp", "sampled", "server", "visits",
)  # fmt: skip


def main() -> None:
    """Load Keras and its backend, then fork trainers."""
    lifetime.prepare(choice.environment_of(choice.taken_from(sys.argv)))
    lifetime.write_oom_score(500)
    serve_forks("mop forkserver", _load, ChildKind("trainer", _run, signal.SIGKILL, may_idle=True, serve=_serve_seats))


def _load() -> None:
    loading.load_dill()
    if not choice.is_installed():
        return  # each trainer says so in its first answer
    choice.load()
    importlib.import_module("numpy.random")  # `_draw_anew` would load it in each trainer
    for name in _MODULES:
        importlib.import_module(f"madlib_mop.trainer.{name}")


def _run() -> int:
    """Run as a trainer until its end."""
    _draw_anew()
    from madlib_mop.trainer.__main__ import serve

    serve(lifetime.set_up_forked())
    return 0


def _serve_seats() -> int:
    """Run as a trainer that several sessions share until its end."""
    _draw_anew()
    from madlib_mop.trainer import server

    for unused in lifetime.set_up_forked():
        os.close(unused)
    server.serve_seats(FIRST_FD)
    return 0


def _draw_anew() -> None:
    """Reseed this process's random generators, because a fork inherits its parent's state."""
    import numpy

    random.seed()
    numpy.random.seed()


if __name__ == "__main__":
    main()
