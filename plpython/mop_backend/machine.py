"""The processors and the memory that this process may use: the machine's, or less where a control group (cgroup) limits
them; called by all code that sizes threads, processes or memory.

Containers and systemd's slices are control groups. Every call reads the kernel's files again, because a limit can
change while a server runs. A file that is missing, or has unexpected content, counts as no limit.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

_ROOT = "/"  # tests have other files
_OWN_GROUPS, _MOUNTS, _MEMORY = "/proc/self/cgroup", "/proc/self/mountinfo", "/proc/meminfo"
_OCTAL = re.compile(r"\\([0-7]{3})")


class Machine(NamedTuple):
    """What this process may use, for the doctor.

    Attributes
    ----------
    processors : int
        See `processors`.
    memory_bytes : int
        See `memory_bytes`.
    available_bytes : int or None
        See `available_bytes`.
    processor_limit : float or None
        The tightest limit of a control group, as a number of processors; None without one.
    memory_limit_bytes : int or None
        The same for memory.
    """

    processors: int
    memory_bytes: int
    available_bytes: int | None
    processor_limit: float | None
    memory_limit_bytes: int | None


def processors() -> int:
    """Return the number of processors that this process may use, 1 at least; a part of a processor counts as one."""
    limit = _processor_limit()
    allowed = len(os.sched_getaffinity(0))
    return allowed if limit is None else min(allowed, math.ceil(limit))


def memory_bytes() -> int:
    """Return the bytes of memory that this process and the others of its control groups may use in total."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_memory_limits()])


def available_bytes() -> int | None:
    """Return the bytes of memory that can be taken without swapping, as far as the kernel knows; None if unknown.

    Of a control group with a limit, this is what is left of the limit. Pages of files count as free, because the kernel
    can drop them.
    """
    found = [] if (of_machine := _field(_MEMORY, "MemAvailable:")) is None else [of_machine << 10]
    for group in _groups("memory"):
        if (limit := group.memory_limit) is not None:
            found.append(max(0, limit - group.used_bytes))
    return min(found, default=None)


def examine() -> Machine:
    """Return what this process may use, with the limits that reduce it."""
    return Machine(
        processors(), memory_bytes(), available_bytes(), _processor_limit(), min(_memory_limits(), default=None)
    )


class _Group(NamedTuple):
    """The files of a control group in the hierarchy of one controller.

    Attributes
    ----------
    folder : str
        As this process sees it.
    is_unified : bool
        Whether they are of version 2 of control groups.
    """

    folder: str
    is_unified: bool

    @property
    def processor_limit(self) -> float | None:
        if self.is_unified:
            quota, _, period = _read(f"{self.folder}/cpu.max").partition(" ")
        else:
            quota, period = (_read(f"{self.folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
        spent, of = _positive(quota), _positive(period)
        return None if spent is None or of is None else spent / of

    @property
    def memory_limit(self) -> int | None:
        names = ("memory.max", "memory.high") if self.is_unified else ("memory.limit_in_bytes",)
        limits = (_positive(_read(f"{self.folder}/{name}")) for name in names)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def used_bytes(self) -> int:
        """Memory in use, without pages of files, which the kernel's MemAvailable counts as available too."""
        usage = "current" if self.is_unified else "usage_in_bytes"
        prefix = "" if self.is_unified else "total_"  # version 2 counts groups below in any case
        used = _positive(_read(f"{self.folder}/memory.{usage}")) or 0
        droppable = [_field(f"{self.folder}/memory.stat", f"{prefix}{age}_file") for age in ("inactive", "active")]
        return max(0, used - sum(n_bytes or 0 for n_bytes in droppable))


def _processor_limit() -> float | None:
    limits = (group.processor_limit for group in _groups("cpu"))
    return min((limit for limit in limits if limit is not None), default=None)


def _memory_limits() -> list[int]:
    limits = (group.memory_limit for group in _groups("memory"))
    return [limit for limit in limits if limit is not None]


def _groups(controller: str) -> Iterator[_Group]:
    """Yield this process's control groups of one controller, from its own up to the highest that it can see.

    A machine can have both versions of control groups. Then a controller is in one of them, and the files of the other
    are missing.
    """
    mounts = [line for line in _read(_MOUNTS).splitlines() if " - cgroup" in line]
    for line in _read(_OWN_GROUPS).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_unified = number == "0" and not controllers
        if is_unified or controller in controllers.split(","):
            for folder in _folders(path, [*_places(mounts, None if is_unified else controller)]):
                yield _Group(folder, is_unified)


def _places(mounts: list[str], controller: str | None) -> Iterator[tuple[str, str]]:
    """Yield the root and the mount point of each mount of a hierarchy, from lines of mountinfo (proc_pid_mountinfo(5)).

    Parameters
    ----------
    mounts : list of str
    controller : str or None
        None stands for version 2 of control groups, which has one hierarchy for all controllers.
    """
    for line in mounts:
        before, _, after = line.partition(" - ")
        words, kind = before.split(" "), after.split(" ")
        if len(words) < 5 or len(kind) < 3:
            continue
        wanted = kind[0] == "cgroup" and controller in kind[2].split(",") if controller else kind[0] == "cgroup2"
        root, point = (_OCTAL.sub(lambda found: chr(int(found[1], 8)), word) for word in words[3:5])
        if wanted and root.startswith("/"):
            yield root, point


def _folders(path: str, places: list[tuple[str, str]]) -> list[str]:
    """Return the folders of a control group and of those above it, each mount point last.

    If no mount shows the group's path, the process is in a container, where its group is the mount point.
    """
    found = []
    if path.startswith("/") and ".." not in path.split("/"):
        for root, point in places:
            parts = [part for part in posixpath.relpath(path, root).split("/") if part != "."]
            if ".." not in parts:
                found += [posixpath.join(point, *parts[:n]) for n in range(len(parts), -1, -1)]
    return found or [point for _, point in places]


def _read(name: str) -> str:
    """Return the text of a file below `_ROOT`, without the newline at its end; empty if it cannot be read."""
    try:
        with open(_ROOT + name.lstrip("/"), encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _positive(word: str) -> int | None:
    """Return a number of 1 or more; None for anything else, and for what stands for no limit: "max", -1, about 2^63."""
    try:
        number = int(word)
    except ValueError:
        return None
    return number if 0 < number < 1 << 62 else None


def _field(name: str, field: str) -> int | None:
    """Return the number of one line of a file with names and numbers."""
    for line in _read(name).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == field:
            return _positive(words[1])
    return None
