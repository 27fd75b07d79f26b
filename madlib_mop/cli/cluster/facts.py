"""The facts of a host, and the reasons why it cannot run the library; pure."""

from dataclasses import dataclass

from mop_backend.frames import Header

from madlib_mop.cli.cluster.layout import Layout
from madlib_mop.driver.data.host_checks import MOST_CLOCK_OFFSET_S
from madlib_mop.errors import NotReady

_SPARE = 1.1  # required free disk space, as a multiple of the library's size


@dataclass(frozen=True)
class HostFacts:
    """The output of look.sh at a host; texts are empty if not found.

    Attributes
    ----------
    user, machine, server, python : str
        The operating system user; processor and C library; the cluster's PostgreSQL; version of the system's Python.
    pkglibdir, sharedir : str
        Where the product is there.
    has_plpython, closed : bool, str
        Whether PL/Python is installed; the first directory without write access.
    size_kb, free_kb : int
        Size of the installed library, and free space on its disk.
    clock_offset_s : float
        Minimum difference of the clock there from the local clock.
    library, extension : str
        Digests of the library's files, and of the extension's.
    """

    user: str
    machine: str
    server: str
    python: str
    pkglibdir: str
    sharedir: str
    has_plpython: bool
    closed: str
    size_kb: int
    free_kb: int
    clock_offset_s: float
    library: str
    extension: str

    def same_library(self, other: "HostFacts") -> bool:
        """Return whether two hosts have the same files."""
        return self.library != "" and (self.library, self.extension) == (other.library, other.extension)


def read_facts(text: str, before_s: float, after_s: float) -> HostFacts:
    """Parse the output of look.sh, with the local times before and after it."""
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    clock = float(found.get("clock") or before_s)
    return HostFacts(
        user=found.get("user", ""),
        machine=found.get("machine", ""),
        server=found.get("server", ""),
        python=found.get("python", ""),
        pkglibdir=found.get("pkglibdir", ""),
        sharedir=found.get("sharedir", ""),
        has_plpython="plpython" in found,
        closed=found.get("closed", ""),
        size_kb=int(found.get("size_kb") or 0),
        free_kb=int(found.get("free_kb") or 0),
        clock_offset_s=min(clock - before_s, 0.0) + max(clock - after_s, 0.0),
        library=found.get("library", ""),
        extension=found.get("extension", ""),
    )


def problem(facts: HostFacts, ours: HostFacts, layout: Layout) -> NotReady | None:
    """Return the first reason why a host cannot run this library, or None."""
    title = layout.product.title
    minor, our_minor = (version.rpartition(".")[0] for version in (facts.python, ours.python))
    if facts.user != ours.user:
        return NotReady(
            f"the user there is {facts.user}, here {ours.user}",
            hint="The cluster must have the same owner on all hosts.",
        )
    if not facts.server:
        return NotReady(f"there is no {title} in {layout.bin}", hint="Its path must be the same on all hosts.")
    if (facts.server, facts.pkglibdir, facts.sharedir) != (ours.server, ours.pkglibdir, ours.sharedir):
        return NotReady(
            f"its {title} is {facts.server} in {facts.pkglibdir},"
            f" the coordinator's is {ours.server} in {ours.pkglibdir}",
            hint=f"Install the same {title}, in the same place, on all hosts.",
        )
    if not facts.has_plpython:
        return NotReady(
            f"{title} has no PL/Python (plpython3u) there",
            hint=f"It comes with {title}: install all of it.",
        )
    if facts.machine != ours.machine:
        return NotReady(
            f"its machine type is {facts.machine} (here {ours.machine}): programs for one do not run on the other",
            hint="Use the same operating system on all hosts, or run make install PG_CONFIG=... on each of them.",
        )
    if not minor or minor != our_minor:
        received = f"Received: {facts.python}" if minor else "There is none"
        return NotReady(
            f"{layout.python} must be Python {our_minor} there, as on the coordinator's host. {received}.",
            hint="Install it from the operating system's packages, as on the coordinator's host.",
        )
    if facts.closed and not facts.same_library(ours):
        return NotReady(
            f"{facts.user} may not write to {facts.closed}", hint=f"There, as root: chown {facts.user} {facts.closed}"
        )
    if abs(facts.clock_offset_s) > MOST_CLOCK_OFFSET_S:
        off = f"{abs(facts.clock_offset_s):.1f} s {'ahead of' if facts.clock_offset_s > 0 else 'behind'}"
        return NotReady(
            f"its clock is {off} this one's; {MOST_CLOCK_OFFSET_S:g} s are allowed",
            hint="Synchronise both clocks with NTP.",
        )
    if not facts.same_library(ours) and facts.free_kb < ours.size_kb * _SPARE:
        return NotReady(
            f"{facts.free_kb >> 10} MB are free in {facts.pkglibdir}; {int(ours.size_kb * _SPARE) >> 10} MB are needed",
            hint="Free disk space there: the new library is copied next to the old one.",
        )
    return None


def broken(versions: Header, expected: Header) -> NotReady | None:
    """Return the problem of a host's library by its versions (versions.py), or None."""
    errors = [f"{name} ({module['error']})" for name, module in versions["modules"].items() if "error" in module]
    if errors:
        return NotReady(
            f"the library does not run there: {', '.join(errors)} cannot be imported",
            hint="Install the same operating system packages there as on the coordinator's host.",
        )
    if versions != expected:
        return NotReady("the library there has other versions than the coordinator's", hint="Run this again.")
    return None
