"""Entry of the trainer process: ties it to its parent first, then serves frames until it gets a stop.

Forked trainers come here by ``forkserver.py``. The word ``--backend=NAME`` chooses Keras' backend.
"""

import sys

from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.process import lifetime


def main() -> None:
    """Serve requests on stdin and stdout; ends at end of file, at ``stop``, and with its parent."""
    serve(lifetime.set_up(choice.environment_of(choice.taken_from(sys.argv))))


def serve(pipes: tuple[int, int]) -> None:
    """Serve requests on two descriptors: to read from, and to write to."""
    from madlib_mop.trainer import server

    server.serve(*pipes)


if __name__ == "__main__":
    main()
