"""Ends a process with the backend that started it; called by the trainer and the relay at their start."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def take_pipes() -> tuple[int, int]:
    """Take the frames' descriptors away from stdin and stdout, so that nothing printed gets between two frames.

    Returns
    -------
    tuple of int
        Descriptors to read frames from and to write frames to. Afterwards fd 0 is /dev/null and fd 1 is stderr.
    """
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read_fd, write_fd


def end_with_peer(read_fd: int) -> None:
    """Start a thread that ends the process immediately when the peer closes its end."""
    threading.Thread(target=_watch, args=(read_fd,), name="watch-peer", daemon=True).start()


def _watch(read_fd: int) -> None:
    poller = select.poll()
    poller.register(read_fd, select.POLLRDHUP)  # poll always reports POLLHUP and POLLERR
    while not poller.poll():
        pass
    os._exit(0)
