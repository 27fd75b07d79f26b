"""The file of a trainer for the rows that do not stay in its memory; opened by the process that starts the trainer.

It has no name, so the operating system frees it when the trainer ends, in whatever way. Its size is the limit of what
the trainer can put there: nothing allocates the blocks of such a file before it is written to. The trainer gets its
descriptor (`process.Child`), and opens no file itself.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mop_backend.frames import Header

#: The server's directory of temporary files, in its data directory, where its backends work. The server removes files
#: with this prefix at its start.
_USUAL_DIRECTORY, _PREFIX = os.path.join("base", "pgsql_tmp"), "pgsql_tmp"


#: What stays free on the file system, which is often that of the server's data and its WAL.
LEAST_FREE_BYTES = 1 << 30


class HandedFile(NamedTuple):  # no dataclass, whose module the first call of each session would load
    """A file that is handed to a trainer.

    Attributes
    ----------
    fd : int or None
        None if it could not be made.
    limit_bytes : int
    directory : str
    problem : str or None
        Why it could not be made.
    """

    fd: int | None
    limit_bytes: int
    directory: str
    problem: str | None = None

    def header(self, fd: int | None) -> Header:
        """Return what the trainer is told; ``fd`` is the descriptor's number there."""
        about = {"limit_bytes": self.limit_bytes, "directory": self.directory, "problem": self.problem}
        return {"shard_file": {"fd": None if self.fd is None else fd, **about}}

    def close(self) -> None:
        """Close this process's descriptor."""
        if self.fd is not None:
            os.close(self.fd)


def open_shard_file(start: Header) -> HandedFile | None:
    """Make the file of a trainer with these start parameters; None if it is to have none.

    Parameters
    ----------
    start : dict
        Of request "start": ``shard_disk_bytes``, the most that the file may take, and ``shard_directory``, where it is;
        by default the server's directory of temporary files. A trainer with ``gpus`` has none: it copies its rows to
        the GPU's memory.
    """
    limit = int(start.get("shard_disk_bytes") or 0)
    if limit < mmap.PAGESIZE or start.get("gpus"):
        return None
    directory = start.get("shard_directory") or os.path.abspath(_USUAL_DIRECTORY)
    fd: int | None = None
    try:
        if not start.get("shard_directory"):
            with contextlib.suppress(FileExistsError):  # the server makes it for its first temporary file
                os.mkdir(directory, 0o700)
        fd = _without_name(directory)
        found = os.fstatvfs(fd)
        limit = min(limit, found.f_blocks * found.f_frsize) // mmap.PAGESIZE * mmap.PAGESIZE
        os.ftruncate(fd, limit)
    except OSError as error:
        if fd is not None:
            os.close(fd)
        return HandedFile(None, limit, directory, error.strerror)
    return HandedFile(fd, limit, directory)


def free_bytes(path: str | int) -> int | None:
    """Return the bytes that files may still take on a file system, of which some stay free; None if unknown."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize - LEAST_FREE_BYTES


def _without_name(directory: str) -> int:
    """Open a file without a name in a directory."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # this file system makes no such files; a real problem comes again
        import tempfile  # not at the top: most sessions do without it

        fd, path = tempfile.mkstemp(prefix=_PREFIX, dir=directory)
        os.unlink(path)
        return fd
