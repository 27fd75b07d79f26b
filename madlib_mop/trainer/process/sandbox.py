"""The file restrictions of a trainer, by Landlock: only its libraries' files, read-only.

Called by ``server.py`` before Keras is loaded, for Landlock holds for the calling thread and those that it makes.
``seccomp.py`` is the other half. Both are best effort, and report whether they are in force: old kernels and
some containers support neither. The restrictions are permanent.
"""

import ctypes
import glob
import os
import struct
import sys
import sysconfig

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# prctl, Landlock (https://docs.kernel.org/userspace-api/landlock.html)
_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # equal on all architectures
_ASK_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEVICE = 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_FIRST_WITH_TRUNCATE, _FIRST_WITH_IOCTL = 3, 5
# version -> number of file rights that it defines; later versions count as 5
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_ALL_NET = 0b11
_ALL_SCOPES = 0b11  # abstract sockets, and signals to processes outside the sandbox

#: Files and directories that Python, Keras and its backend read, besides those of their libraries.
_READABLE = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/group",
    "/etc/os-release",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self",  # not /proc: the environment of another process may contain a password
    "/proc/stat",
    "/proc/sys",
    "/sys",
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
)
#: Files that CUDA reads in addition, and the devices that it opens for reading, writing and control.
_READABLE_WITH_GPUS = (
    "/proc/devices",
    "/proc/driver/nvidia",
    "/usr/local/cuda",
    "/usr/local/nvidia",
    "/dev/nvidia-caps",
)
#: Where CUDA writes the names of its threads; if it cannot, it finds no GPU. A thread's directory is not there before
#: the thread, so all files of the process's threads are left writable.
_WRITABLE_WITH_GPUS = "/proc/self/task"
_GPU_DEVICES = "/dev/nvidia*"


def restrict_files(with_gpus: bool = False) -> bool:
    """Restrict file access, by Landlock, to reading the libraries' files; return whether it is in force.

    ``with_gpus`` leaves NVIDIA's devices too, and writing to the files of the process's own threads in /proc.
    """
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < 1:
        return False
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("=Q", rights)
    if version >= 4:
        attributes += struct.pack("=Q", _ALL_NET)
    if version >= 6:
        attributes += struct.pack("=Q", _ALL_SCOPES)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        for path in readable_paths():
            _allow(ruleset, path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
        if with_gpus:  # defence: no-names-of-threads = True
            for path in _READABLE_WITH_GPUS:
                _allow(ruleset, path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
            names_rights = _READ_FILE | _READ_DIR | _WRITE_FILE | (_TRUNCATE if version >= _FIRST_WITH_TRUNCATE else 0)
            _allow(ruleset, _WRITABLE_WITH_GPUS, names_rights)
            device_rights = _READ_FILE | _WRITE_FILE | (_IOCTL_DEVICE if version >= _FIRST_WITH_IOCTL else 0)
            for path in glob.glob(_GPU_DEVICES):
                if not os.path.isdir(path):
                    _allow(ruleset, path, device_rights)
        return no_new_privileges() and _libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0  # defence: landlock = True
    finally:
        os.close(ruleset)


def readable_paths() -> list[str]:
    """Return what stays readable; of Python's own prefix the libraries only, for it may hold a data directory too."""
    paths = [*_READABLE, *sys.path, *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))]
    paths += [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
    if sys.prefix != sys.base_prefix:
        paths.append(sys.prefix)
    real = {os.path.realpath(path) for path in paths if path and os.path.exists(path)}
    return sorted(real - {"/"})


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a path.

    Files of /proc stay open. A rule is for an inode, and when memory is short the kernel forgets the inodes of /proc
    that nobody has open, and makes others later, for which there would be no rule.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        if not path.startswith("/proc/"):
            os.close(fd)


def no_new_privileges() -> bool:
    """Drop rights gained by running programs, as the kernel wants for either guard; return whether it did."""
    return bool(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
