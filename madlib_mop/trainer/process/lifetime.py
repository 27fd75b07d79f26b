"""The lifetime of a trainer process: it ends with its parent, and is the first target of the OOM killer.

Called by ``__main__`` before any heavy import, so the standard library only.
"""

import ctypes
import faulthandler
import gc
import os
import resource
import select
import signal
import tempfile
from collections.abc import Mapping

from mop_backend.peer import end_with_parent, take_pipes
from mop_backend.spinning import Spinner

_libc = ctypes.CDLL(None, use_errno=True)
_ENVIRONMENT = {
    "KERAS_HOME": "/dev/null/keras",  # a path that cannot exist: a keras.json in a home directory would change results
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's BLAS is not used, and its threads would start before the sandbox
    "CUDA_VISIBLE_DEVICES": "-1",
}
#: What the process may write into one file, in bytes: the only one that it can write to is the memory file of messages.
_MOST_WRITTEN = 16 << 20
# Makes malloc act as a pool: one arena, which keeps freed blocks up to these sizes for the next mini-batch
# (mallopt(3)).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_PR_SET_NAME = 15
_MALLOC = {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 128 << 20, _M_TRIM_THRESHOLD: 512 << 20}


def set_up(environment: Mapping[str, str]) -> tuple[int, int]:
    """Tie the process to its parent and take the frames' descriptors away from stdin and stdout.

    Parameters
    ----------
    environment : mapping of str to str
        As for `prepare`.

    Returns
    -------
    tuple of int
        Descriptors to read frames from and to write frames to. Afterwards fd 0 is /dev/null and fd 1 is
        stderr, so nothing that a library prints can get between two frames.
    """
    end_with_parent()
    pipes = set_up_forked()
    prepare(environment)
    return pipes


def set_up_forked() -> tuple[int, int]:
    """Do what `set_up` does, for a trainer forked from a process that is prepared; its parent is not who needs it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write_oom_score(1000)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_WRITTEN, _MOST_WRITTEN))  # defence: size-of-messages-file
    pipes = take_pipes()
    faulthandler.enable()
    return pipes


def prepare(environment: Mapping[str, str]) -> None:
    """Set what must be set before Keras is loaded; ``environment`` are the variables of its backend."""
    for parameter, value in _MALLOC.items():
        _libc.mallopt(parameter, value)
    os.environ.update(_ENVIRONMENT)
    os.environ.update(environment)
    tempfile.tempdir = "/dev/null"  # a library that TensorFlow imports asks for the directory, and would test /tmp


def show_gpus(numbers: list[int], environment: Mapping[str, str]) -> None:
    """Let CUDA see these GPUs and no others; call it before Keras is loaded.

    ``environment`` are the variables with which the backend of Keras uses GPUs.
    """
    os.environ.update(environment)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, numbers))
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # numbers GPUs in the order of the device nodes
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # the cache would be written to a home directory


class RequestInput:
    """Where requests come from.

    Parameters
    ----------
    read_fd : int
    """

    def __init__(self, read_fd: int):
        self._poller = select.poll()
        self._poller.register(read_fd, select.POLLIN)
        self._spinner = Spinner()

    def has_more(self, idle_s: float | None) -> bool:
        """Wait until there is something to read, or the end of it; False if nothing came for ``idle_s`` seconds."""
        return bool(self._spinner.poll(self._poller, None if idle_s is None else idle_s * 1000))


def data_bytes() -> int:
    """Return how much private writable memory the process has mapped: what ``RLIMIT_DATA`` counts, in bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def limit_data(n_bytes: int) -> None:
    """Refuse memory beyond ``n_bytes``: private writable mappings, so heap and tensors, but not code."""
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes))


def set_client(pid: int) -> None:
    """Name this forked process, in ``ps -o comm``, after another process that uses it now."""
    _libc.prctl(_PR_SET_NAME, f"trainer {pid}".encode(), 0, 0, 0)


def release_memory() -> None:
    """Free the memory of a failed request: reference cycles of its graph, and free heap memory."""
    gc.collect()
    _libc.malloc_trim(0)


def write_oom_score(score: int) -> None:
    """Set how soon the kernel kills this process when memory is short; 1000 is first."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(score))
    except OSError:
        pass  # best effort: on failure, the process keeps its usual score of the OOM killer
