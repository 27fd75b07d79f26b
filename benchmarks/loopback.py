"""Networks of their own for the ways: only ``lo`` is there, and the kernel's counters of it are the bytes over sockets.

Where a network namespace cannot be created (it takes root on Linux) a way runs on the machine's own loopback,
uncounted.
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
    """Where a way runs.

    Parameters
    ----------
    cables : Cables or None
        None: the machine's own network.
    """

    def __init__(self, cables: Cables | None):
        self._cables = cables

    @property
    def within(self) -> list[str]:
        """The words before a command that make it run there."""
        return self._cables.within(COORDINATOR) if self._cables else []

    def n_bytes(self) -> int | None:
        """Return the bytes sent so far, headers and acknowledgements included; None where they are not counted."""
        if self._cables is None:
            return None
        (keeper,) = self._cables.pids()
        return loopback_bytes(keeper)


@contextmanager
def loopback() -> Iterator[Loopback]:
    """Make a network of its own; whatever still runs in it ends with it."""
    try:
        with Cables(()) as cables:
            yield Loopback(cables)
            return
    except NoNamespaces:
        pass
    yield Loopback(None)
