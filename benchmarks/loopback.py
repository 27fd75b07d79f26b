"""Separate networks for the ways: each has only ``lo``, whose kernel counters have the bytes over sockets.

If a network namespace cannot be created (it needs root on Linux), a way runs on the machine's own loopback and its
bytes are not counted.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tests")]  # the namespaces are defined in tests/helpers

from ways.contract import loopback_bytes  # noqa: E402

from tests.helpers.network import COORDINATOR, Cables, NoNamespaces  # noqa: E402


class Loopback:
    """The network of a way.

    Parameters
    ----------
    cables : Cables or None
        None: the machine's own network.
    """

    def __init__(self, cables: Cables | None):
        self._cables = cables

    @property
    def within(self) -> list[str]:
        """Return the words before a command that run it in this network."""
        return self._cables.within(COORDINATOR) if self._cables else []

    def n_bytes(self) -> int | None:
        """Return the bytes sent until now, with headers and acknowledgements; None if they are not counted."""
        if self._cables is None:
            return None
        (keeper,) = self._cables.pids()
        return loopback_bytes(keeper)


@contextmanager
def loopback() -> Iterator[Loopback]:
    """Create a separate network; at its end, processes that still run in it are ended."""
    try:
        with Cables(()) as cables:
            yield Loopback(cables)
            return
    except NoNamespaces:
        pass
    yield Loopback(None)
