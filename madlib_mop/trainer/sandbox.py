"""The rights that a trainer gives up: reading beyond its libraries, writing, sockets, new processes, other processes.

Called by ``server.py``: ``restrict_files`` before TensorFlow is loaded, for Landlock holds for the calling thread and
those that it makes, and ``restrict_calls`` (seccomp, for all threads at once) when TensorFlow's threads are there. Both
are best effort, and tell whether they are in force: old kernels and some containers have neither. What is given up
cannot be got back.
"""

import ctypes
import errno
import glob
import os
import platform
import struct
import sys
import sysconfig

from madlib_mop.trainer.syscalls import ARCHITECTURES, DENIED, ONLY_SELF, ONLY_THREADS, OPENING, UNKNOWN

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# prctl, Landlock (https://docs.kernel.org/userspace-api/landlock.html)
_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_ASK_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _IOCTL_DEVICE = 1 << 1, 1 << 2, 1 << 3, 1 << 15
_FIRST_WITH_IOCTL = 5
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # version -> number of rights that it knows; later ones as 5
_ALL_NET = 0b11
_ALL_SCOPES = 0b11  # abstract sockets, and signals to processes outside

# seccomp, classic BPF (https://docs.kernel.org/userspace-api/seccomp_filter.html)
_SECCOMP_SET_MODE_FILTER, _TSYNC = 1, 1
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_CLONE_THREAD = 0x00010000
_X32_BIT = 0x40000000

#: Single files and trees outside of the libraries that Python, Keras and TensorFlow look at.
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
    "/proc/self",  # and no other process, whose environment may hold a password
    "/proc/stat",
    "/proc/sys",
    "/sys",
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
)
#: What CUDA reads besides, and the devices that it opens to read, write and control.
_READABLE_WITH_GPUS = ("/proc/driver/nvidia", "/usr/local/cuda", "/usr/local/nvidia", "/dev/nvidia-caps")
_GPU_DEVICES = "/dev/nvidia*"


def restrict_files(with_gpus: bool = False) -> bool:
    """Give up, by Landlock, all files but those that the libraries need, to be read; tell whether it is in force.

    ``with_gpus`` leaves NVIDIA's devices too.
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
        if with_gpus:
            for path in _READABLE_WITH_GPUS:
                _allow(ruleset, path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
            device_rights = _READ_FILE | _WRITE_FILE | (_IOCTL_DEVICE if version >= _FIRST_WITH_IOCTL else 0)
            for path in glob.glob(_GPU_DEVICES):
                if not os.path.isdir(path):
                    _allow(ruleset, path, device_rights)
        return _no_new_privileges() and _libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def readable_paths() -> list[str]:
    """Give what stays readable; of Python's own prefix the libraries only, for it may hold a data directory too."""
    paths = [*_READABLE, *sys.path, *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))]
    paths += [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
    if sys.prefix != sys.base_prefix:
        paths.append(sys.prefix)
    real = {os.path.realpath(path) for path in paths if path and os.path.exists(path)}
    return sorted(real - {"/"})


def restrict_calls() -> bool:
    """Give up, by seccomp and for all threads, the system calls of ``syscalls.py``; tell whether it is in force."""
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None or not _no_new_privileges():
        return False
    program = _filter(architecture.audit, architecture.column)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    filled = Program(len(program), ctypes.cast(code, ctypes.c_void_p))
    return _libc.syscall(architecture.seccomp, _SECCOMP_SET_MODE_FILTER, _TSYNC, ctypes.byref(filled)) == 0


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _no_new_privileges() -> bool:
    return _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0


def _filter(audit: int, column: int) -> list[tuple[int, int, int, int]]:
    """Give the filter as instructions (code, steps to go if true, steps to go if false, operand)."""
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    missing = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
    program = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if column == 0:
        program += [(_AT_LEAST, 0, 1, _X32_BIT), missing]
    for numbers, answer in ((DENIED, refuse), (UNKNOWN, missing)):
        for number in _known(numbers, column):
            program += [(_EQUAL, 0, 1, number), answer]
    for number in _known(ONLY_SELF, column):  # a process id, which must be our own, or 0 where that means the same
        program += [
            (_EQUAL, 0, 5, number),
            (_LOAD, 0, 0, _ARGUMENTS_AT),
            (_EQUAL, 2, 0, os.getpid()),
            (_EQUAL, 1, 0, 0) if number == ONLY_SELF["prlimit64"][column] else (_EQUAL, 1, 0, os.getpid()),
            refuse,
            (_RETURN, 0, 0, _ALLOW),
        ]
    for number in _known(ONLY_THREADS, column):
        program += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _ARGUMENTS_AT),
            (_ANY_BIT, 1, 0, _CLONE_THREAD),
            refuse,
            (_RETURN, 0, 0, _ALLOW),
        ]
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    for name, argument in OPENING.items():
        for number in _known({name: argument.numbers}, column):
            program += [
                (_EQUAL, 0, 4, number),
                (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument.position),
                (_ANY_BIT, 0, 1, writing),
                refuse,
                (_RETURN, 0, 0, _ALLOW),
            ]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _known(numbers: dict[str, tuple[int | None, int | None]], column: int) -> list[int]:
    return [pair[column] for pair in numbers.values() if pair[column] is not None]
