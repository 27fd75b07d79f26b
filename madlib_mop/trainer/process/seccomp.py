"""The system calls that a trainer gives up, by seccomp: all but those of ``syscalls.py``.

Called by ``server.py`` when the backend's threads are there, for it holds for all threads at once, and by the decoders
of images. It does not rely on Landlock (``sandbox.py``), which a kernel may lack: no call left reaches another process.
"""

import ctypes
import errno
import os
import platform
import struct

from madlib_mop.trainer.process import syscalls
from madlib_mop.trainer.process.sandbox import no_new_privileges
from madlib_mop.trainer.process.syscalls import Checked, Numbers

#: An instruction of classic BPF: code, steps to jump if true, steps to jump if false, operand
#: (https://docs.kernel.org/userspace-api/seccomp_filter.html).
Instruction = tuple[int, int, int, int]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_SECCOMP_SET_MODE_FILTER, _TSYNC = 1, 1
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_BIT = 0x40000000
_ALLOW: Instruction = (_RETURN, 0, 0, 0x7FFF0000)
_REFUSE: Instruction = (_RETURN, 0, 0, 0x00050000 | errno.EPERM)
_MISSING: Instruction = (_RETURN, 0, 0, 0x00050000 | errno.ENOSYS)
_KILL_PROCESS: Instruction = (_RETURN, 0, 0, 0x80000000)
# NVIDIA's ioctl requests: those of type 'F', and those of unified memory, which have no type; two of these are above
# 2^28.
_NVIDIA_TYPE, _TYPE_MASK = 0x4600, 0xFF00
_UVM_END, _UVM_MORE = 0x100, (0x30000001, 0x30000002)


def restrict_calls(with_gpus: bool = False, with_file: bool = False, with_seats: bool = False) -> bool:
    """Drop, for all threads, the system calls that ``syscalls.py`` does not allow; return whether that succeeded.

    ``with_gpus`` leaves the requests to NVIDIA's devices, and shared memory; ``with_file`` the one that reserves space
    in the open file for rows, ``with_seats`` the one that takes sockets from the fork server.
    """
    architecture = syscalls.ARCHITECTURES.get(platform.machine())
    if architecture is None or not no_new_privileges():
        return False
    program = filter_for(architecture, os.getpid(), with_gpus, with_file, with_seats)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    filled = Program(len(program), ctypes.cast(code, ctypes.c_void_p))
    return bool(_libc.syscall(architecture.seccomp, _SECCOMP_SET_MODE_FILTER, _TSYNC, ctypes.byref(filled)) == 0)


def filter_for(
    architecture: syscalls.ProcessorArchitecture,
    own_pid: int,
    with_gpus: bool,
    with_file: bool = False,
    with_seats: bool = False,
) -> list[Instruction]:
    """Return the filter of a process of that number; calls of another architecture end it."""
    column = architecture.column
    program = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, architecture.audit), _KILL_PROCESS, (_LOAD, 0, 0, _NUMBER_AT)]
    if column == 0:
        program += [(_AT_LEAST, 0, 1, _X32_BIT), _MISSING]
    # defence: no-files-in-memory = (*syscalls.ALLOWED.values(), *syscalls.SHARED_MEMORY.values())
    for numbers in (*syscalls.ALLOWED.values(), *(syscalls.SHARED_MEMORY.values() if with_gpus else ())):
        program += _if_call(numbers, column, [_ALLOW])
    if with_file:  # defence: space-for-trainers-with-files = True
        for numbers in syscalls.SPACE_OF_FILES.values():
            program += _if_call(numbers, column, [_ALLOW])
    if with_seats:  # defence: seats-of-shared-trainers = True
        for numbers in syscalls.SEATS.values():
            program += _if_call(numbers, column, [_ALLOW])
    for name, checked in syscalls.CHECKED.items():
        body = _check(checked, own_pid)
        if name == "fcntl":
            body = _set_flags() + body
        elif name == "ioctl" and with_gpus:
            body = _nvidia() + body
        elif name == "mmap" and with_gpus:
            body = [_ALLOW]
        program += _if_call(checked.numbers, column, body)
    for numbers in syscalls.MISSING.values():
        program += _if_call(numbers, column, [_MISSING])
    # defence: unlisted-calls = [*program, (_AT_LEAST, 0, 1, syscalls.FIRST_UNKNOWN), _MISSING, _ALLOW]
    return [*program, (_AT_LEAST, 0, 1, syscalls.FIRST_UNKNOWN), _MISSING, _REFUSE]


def _if_call(numbers: Numbers, column: int, body: list[Instruction]) -> list[Instruction]:
    """Return a body, which returns, for one call; the call's number stays loaded for what follows."""
    number = numbers[column]
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _check(checked: Checked, own_pid: int) -> list[Instruction]:
    """Return the body that looks at an argument: its lower 32 bits, which are all that these calls look at."""
    program = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * checked.position)]
    if checked.values is None:
        if checked.only_with:
            program += [(_ANY_BIT, 1, 0, checked.only_with), _ALLOW]
        program += [(_ANY_BIT, 0, 1, checked.mask), _REFUSE]
        if checked.needed:
            program += [(_ANY_BIT, 1, 0, checked.needed), _REFUSE]
        return [*program, _ALLOW]
    for value in (*checked.values, *([own_pid] if checked.own_pid else [])):
        program += [(_EQUAL, 0, 1, value), _ALLOW]
    return [*program, _REFUSE]


def _set_flags() -> list[Instruction]:
    """Return what comes before the body of ``fcntl``: flags may be set but for that which requests signals."""
    body = _check(syscalls.SET_FLAGS, 0)
    command = (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * syscalls.CHECKED["fcntl"].position)
    return [command, (_EQUAL, 0, len(body), syscalls.SET_FLAGS_COMMAND), *body]


def _nvidia() -> list[Instruction]:
    """Return what comes before the body of ``ioctl`` for a trainer with GPUs."""
    request = (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * syscalls.CHECKED["ioctl"].position)
    program = [request, (_AT_LEAST, 1, 0, _UVM_END), _ALLOW]
    for value in _UVM_MORE:
        program += [(_EQUAL, 0, 1, value), _ALLOW]
    return [*program, (_AND, 0, 0, _TYPE_MASK), (_EQUAL, 0, 1, _NVIDIA_TYPE), _ALLOW]
