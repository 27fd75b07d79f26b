"""The system calls that a trainer keeps, on x86-64 and on aarch64; read by ``seccomp.py``.

What is in none of these tables is refused with EPERM: sockets, programs, processes, changes of files, other processes'
signals, priorities and memory, watches of files, IPC, namespaces, and what needs a privilege. Numbers are those of
Linux' ``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h``; None where an architecture
lacks a call.
"""

import dataclasses
from collections.abc import Mapping

#: Numbers of a system call on x86-64 and on aarch64.
Numbers = tuple[int | None, int | None]


@dataclasses.dataclass(frozen=True)
class ProcessorArchitecture:
    """An architecture: its name to seccomp, its column in the tables below, its number of the call ``seccomp``."""

    audit: int
    column: int
    seccomp: int


@dataclasses.dataclass(frozen=True)
class Checked:
    """A call whose argument decides: at a position, it must be one of ``values``, or have none of the bits of a mask.

    Attributes
    ----------
    values : tuple of int or None
        None where the mask decides.
    mask : int
    needed : int
        One of these bits must be there; 0 for none.
    only_with : int
        The mask counts only where one of these bits is there; 0 for always.
    own_pid : bool
        The number of the own process is one of the values too.
    """

    numbers: Numbers
    position: int
    values: tuple[int, ...] | None = None
    mask: int = 0
    needed: int = 0
    only_with: int = 0
    own_pid: bool = False


ARCHITECTURES = {
    "x86_64": ProcessorArchitecture(0xC000003E, 0, 317),
    "aarch64": ProcessorArchitecture(0xC00000B7, 1, 277),
}

# fmt: off
#: Allowed with any arguments.
ALLOWED: Mapping[str, Numbers] = {
    # Open files, and reading of files that Landlock allows.
    "read": (0, 63), "write": (1, 64), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "preadv": (295, 69), "pwritev": (296, 70), "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436),
    "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, None), "lstat": (6, None), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "statfs": (137, 43), "fstatfs": (138, 44),
    "fadvise64": (221, 223), "readahead": (187, 213), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "pipe": (22, None), "pipe2": (293, 59), "umask": (95, 166),
    # Waiting.
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "eventfd": (284, None), "eventfd2": (290, 19), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "restart_syscall": (219, 128),
    # The process's own memory; compilers at run time (oneDNN, XLA) make some of it executable.
    "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233),
    "brk": (12, 214), "mincore": (27, 232), "msync": (26, 227), "mlock": (149, 228), "mlock2": (325, 284),
    "munlock": (150, 229), "mbind": (237, 235), "get_mempolicy": (239, 236), "set_mempolicy": (238, 237),
    "membarrier": (324, 283), "pkey_mprotect": (329, 288), "pkey_alloc": (330, 289), "pkey_free": (331, 290),
    # The process's own threads and signals, and its exit.
    "futex": (202, 98), "futex_waitv": (449, 449), "futex_wake": (454, 454), "futex_wait": (455, 455),
    "futex_requeue": (456, 456), "set_robust_list": (273, 99),
    "set_tid_address": (218, 96), "rseq": (334, 293), "gettid": (186, 178), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_getattr": (315, 275), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "sched_rr_get_interval": (148, 127), "getcpu": (309, 168), "getpriority": (140, 141), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "exit": (60, 93), "exit_group": (231, 94),
    "arch_prctl": (158, None),
    # Information about the system.
    "getpid": (39, 172), "getppid": (110, 173), "getpgid": (121, 155), "getpgrp": (111, None), "getsid": (124, 156),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "capget": (125, 90), "uname": (63, 160), "sysinfo": (99, 179),
    "getrusage": (98, 165), "getrlimit": (97, 163), "setrlimit": (160, 164), "times": (100, 153), "time": (201, None),
    "gettimeofday": (96, 169), "clock_gettime": (228, 113), "clock_getres": (229, 114), "getrandom": (318, 278),
}
# fmt: on

#: Memory that other processes could share, which `trainer_memory_mb` does not count: allowed with GPUs only, whose
#: driver may need it.
SHARED_MEMORY: Mapping[str, Numbers] = {"memfd_create": (319, 279), "ftruncate": (77, 46)}

#: Reserves and frees space of the trainer's file for rows: allowed if it has one. In its memory file, the limit of the
#: size of files applies.
SPACE_OF_FILES: Mapping[str, Numbers] = {"fallocate": (285, 47)}

#: Takes the socket of another session: allowed for a trainer that sessions share. Only the fork server sends it any.
SEATS: Mapping[str, Numbers] = {"recvmsg": (47, 212)}

#: Answered with ENOSYS, as by a kernel without them: glibc then creates threads with ``clone``, whose flags a filter
#: can check.
MISSING: Mapping[str, Numbers] = {
    "clone3": (435, 435),
    "openat2": (437, 437),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
#: System calls of newer kernels, from this number on, are answered with ENOSYS too: libraries try them, then use older
#: ones.
FIRST_UNKNOWN = 463

_O_WRITING = 0o1 | 0o2 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_O_ASYNC = 0o20000
_F_SETFL = 4
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_QUERY, F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_GETPIPE_SZ, F_ADD_SEALS,
# F_GET_SEALS; not F_SETOWN, F_SETOWN_EX or F_SETSIG, which send signals to others, nor locks, leases or notifications
# defence: no-signals-by-fcntl = (0, 1, 2, 3, 8, 10, 15, 1027, 1030, 1031, 1032, 1033, 1034)
_FCNTL = (0, 1, 2, 3, 1027, 1030, 1031, 1032, 1033, 1034)
# TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX; not FIOSETOWN, SIOCSPGRP, FIOASYNC, TIOCSTI
_IOCTL = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_CAPBSET_READ, PR_SET_TIMERSLACK,
# PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS, PR_SET_THP_DISABLE, PR_GET_THP_DISABLE, PR_SVE_GET_VL,
# PR_GET_TAGGED_ADDR_CTRL, PR_SET_VMA
_PRCTL = (2, 3, 15, 16, 21, 23, 29, 38, 39, 41, 42, 51, 56, 0x53564D41)
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_CLONE_THREAD = 0x00010000
# CLONE_NEW*, CLONE_PTRACE, CLONE_UNTRACED, CLONE_VFORK
_CLONE_MORE = 0x7E020000 | 0x00002000 | 0x00800000 | 0x00004000

#: Allowed where the argument is harmless.
CHECKED: Mapping[str, Checked] = {
    # defence: no-shared-maps = Checked((9, 222), 3)
    "mmap": Checked((9, 222), 3, mask=_MAP_SHARED, only_with=_MAP_ANONYMOUS),
    "open": Checked((2, None), 1, mask=_O_WRITING),
    "openat": Checked((257, 56), 2, mask=_O_WRITING),  # defence: no-files-to-write = Checked((257, 56), 2)
    "fcntl": Checked((72, 25), 1, values=_FCNTL),
    "ioctl": Checked((16, 29), 1, values=_IOCTL),
    "prctl": Checked((157, 167), 0, values=_PRCTL),
    # defence: threads-only = Checked((56, 220), 0, mask=_CLONE_MORE)
    "clone": Checked((56, 220), 0, mask=_CLONE_MORE, needed=_CLONE_THREAD),
    "kill": Checked((62, 129), 0, values=(), own_pid=True),  # defence: no-kill = Checked((62, 129), 0)
    "tgkill": Checked((234, 131), 0, values=(), own_pid=True),  # defence: no-tgkill = Checked((234, 131), 0)
    "prlimit64": Checked((302, 261), 0, values=(0,), own_pid=True),
    "sched_setaffinity": Checked((203, 122), 0, values=(0,), own_pid=True),
}
#: F_SETFL of ``fcntl`` is allowed too, unless it requests signals.
SET_FLAGS = Checked(CHECKED["fcntl"].numbers, 2, mask=_O_ASYNC)
SET_FLAGS_COMMAND = _F_SETFL
