"""System calls by which a process could affect another one, with harmless arguments; run in a sandboxed process.

``test_seccomp.py`` copies this file's text into that process, which has no directory of its own for modules. Numbers
are those of x86-64 and aarch64; None if an architecture lacks a call.
"""

import ctypes
import errno
import fcntl
import os
import platform
import signal
import threading

_COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_ROOM = (ctypes.c_char * 256)()
_F_SETSIG, _F_SETOWN_EX = 10, 15
_FIOSETOWN, _FIOASYNC = 0x8901, 0x5452


def raw(numbers, *arguments):
    """Make a system call; return the name of its error, or "done"."""
    number = numbers[_COLUMN]
    if number is None:
        return "no such call"
    filled = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    return "done" if _libc.syscall(ctypes.c_long(number), *filled) >= 0 else errno.errorcode[ctypes.get_errno()]


def forked(numbers, *arguments):
    """Make a system call that would create a process, which would exit at once."""
    parent = os.getpid()
    answer = raw(numbers, *arguments)
    if os.getpid() != parent:
        os._exit(0)
    return answer


def calls_that_signal(victim, pidfd):
    """Signal another process in every possible way, but with signal 0 if other processes would get the signal too."""
    event = (ctypes.c_int * 16)(0, 0, signal.SIGKILL, 4, victim)  # value, signo, SIGEV_THREAD_ID, thread
    info = (ctypes.c_int * 32)(signal.SIGKILL, 0, -1)
    mine, theirs = os.pipe()
    results = {
        "kill": raw((62, 129), victim, signal.SIGKILL),
        "kill its group": raw((62, 129), 0, 0),
        "kill all": raw((62, 129), -1, 0),
        "tkill": raw((200, 130), victim, signal.SIGKILL),
        "tgkill": raw((234, 131), victim, victim, signal.SIGKILL),
        "rt_sigqueueinfo": raw((129, 138), victim, signal.SIGKILL, info),
        "rt_tgsigqueueinfo": raw((297, 240), victim, victim, signal.SIGKILL, info),
        "pidfd_open": raw((434, 434), victim, 0),
        "pidfd_send_signal": raw((424, 424), pidfd, signal.SIGKILL, 0, 0),
        "timer_create": raw((222, 107), 1, event, _ROOM),
        "mq_open": raw((240, 180), b"no such queue", os.O_RDONLY, 0, 0),
        "mq_notify": raw((244, 184), mine, event),
        "fcntl F_SETSIG": raw((72, 25), mine, _F_SETSIG, signal.SIGKILL),
        "fcntl F_SETOWN_EX": raw((72, 25), mine, _F_SETOWN_EX, (ctypes.c_int * 2)(1, victim)),
        "fcntl F_SETOWN": raw((72, 25), mine, fcntl.F_SETOWN, victim),
        "fcntl O_ASYNC": raw((72, 25), mine, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK),
        "ioctl FIOSETOWN": raw((16, 29), mine, _FIOSETOWN, (ctypes.c_int * 1)(victim)),
        "ioctl FIOASYNC": raw((16, 29), mine, _FIOASYNC, (ctypes.c_int * 1)(1)),
    }
    os.write(theirs, b"x")  # signals the owner of the other end
    return results


def calls_that_reach(victim):
    """Inspect another process, change its scheduling, and make system calls that no trainer needs."""
    one = (ctypes.c_ulong * 2)(1)
    return {
        "sched_setscheduler": raw((144, 119), victim, 3, (ctypes.c_int * 1)(0)),
        "sched_setparam": raw((142, 118), victim, (ctypes.c_int * 1)(0)),
        "sched_setattr": raw((314, 274), victim, (ctypes.c_int * 12)(48, 3), 0),
        "sched_setaffinity": raw((203, 122), victim, 8, one),
        "setpriority": raw((141, 140), 0, victim, 19),
        "ioprio_set": raw((251, 30), 1, victim, 2 << 13),
        "prlimit64": raw((302, 261), victim, 4, 0, _ROOM),
        "ptrace": raw((101, 117), 0x4206, victim, 0, 0),
        "process_vm_readv": raw((310, 270), victim, 0, 0, 0, 0, 0),
        "process_vm_writev": raw((311, 271), victim, 0, 0, 0, 0, 0),
        "process_madvise": raw((440, 440), -1, 0, 0, 0, 0),
        "migrate_pages": raw((256, 238), victim, 0, 0, 0),
        "move_pages": raw((279, 239), victim, 0, 0, 0, 0, 0),
        "kcmp": raw((312, 272), victim, victim, 0, 0, 0),
        "pidfd_getfd": raw((438, 438), -1, 0, 0),
        "inotify_init": raw((253, None)),
        "inotify_init1": raw((294, 26), 0),
        "inotify_add_watch": raw((254, 27), -1, b"/tmp", 2),
        "fanotify_init": raw((300, 262), 0, 0),
        "socket": raw((41, 198), 1, 1, 0),
        "socketpair": raw((53, 199), 1, 1, 0, _ROOM),
        "connect": raw((42, 203), -1, 0, 0),
        "bind": raw((49, 200), -1, 0, 0),
        "sendmsg": raw((46, 211), -1, 0, 0),
        "execve": raw((59, 221), b"/bin/true", 0, 0),
        "execveat": raw((322, 281), -1, b"/bin/true", 0, 0, 0),
        "vfork": forked((58, None)),
        "fork": forked((57, None)),
        "clone": forked((56, 220), signal.SIGCHLD, 0, 0, 0, 0),
        "unshare": raw((272, 97), 0),
        "setns": raw((308, 268), -1, 0),
        "bpf": raw((321, 280), 0, 0, 0),
        "userfaultfd": raw((323, 282), 1),
        "keyctl": raw((250, 219), 0, -3, 0),
        "add_key": raw((248, 217), 0, 0, 0, 0, 0),
        "perf_event_open": raw((298, 241), 0, 0, -1, -1, 0),
        "seccomp": raw((317, 277), 2, 0, _ROOM),
        "personality": raw((135, 92), -1),
        "shmget": raw((29, 194), 0, 0, 0),
        "semget": raw((64, 190), 0, 0, 0),
        "msgget": raw((68, 186), 0, 0),
        "mount": raw((165, 40), 0, 0, 0, 0, 0),
        "chroot": raw((161, 51), 0),
        "setuid": raw((105, 146), -1),
        "unlinkat": raw((263, 35), -1, b"no file", 0),
        "utimensat": raw((280, 88), -1, b"no file", 0, 0),
        "open_by_handle_at": raw((304, 265), -1, 0, 0),
        "sync": raw((162, 81)),
        "setitimer": raw((38, 103), 9, 0, 0),
        "prctl PR_SET_PTRACER": raw((157, 167), 0x59616D61, victim, 0, 0, 0),
        "prctl PR_SET_DUMPABLE": raw((157, 167), 4, 1, 0, 0, 0),
        "ioctl TIOCSTI": raw((16, 29), 0, 0x5412, _ROOM),
        "open to write": raw((257, 56), -100, b"/dev/null", os.O_WRONLY),
    }


def calls_of_newer_kernels():
    """Try calls that libraries can replace by older ones."""
    return {
        "clone3": raw((435, 435), 0, 0),
        "openat2": raw((437, 437), -100, b"/dev/null", 0, 0),
        "io_uring_setup": raw((425, 425), 1, _ROOM),
        "one that no kernel has": raw((900, 900)),
    }


def calls_that_share_memory():
    """Make calls that get memory which the limit of private memory does not count."""
    return {
        "mmap of shared memory": raw((9, 222), 0, 4096, 3, 0x21, -1, 0),
        "mmap of shared memory, validated": raw((9, 222), 0, 4096, 3, 0x23, -1, 0),
        "memfd_create": raw((319, 279), b"shared", 0),
        "ftruncate": raw((77, 46), 2, 1 << 40),
    }


def calls_that_are_needed():
    """Make calls that libraries use all the time."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    mine, theirs = os.pipe()
    os.set_blocking(mine, False)
    os.set_inheritable(mine, True)
    return {
        "kill": raw((62, 129), os.getpid(), 0),
        "tgkill": raw((234, 131), os.getpid(), threading.get_native_id(), 0),
        "fcntl F_DUPFD_CLOEXEC": raw((72, 25), theirs, fcntl.F_DUPFD_CLOEXEC, 0),
        "fcntl F_GETPIPE_SZ": raw((72, 25), theirs, fcntl.F_GETPIPE_SZ, 0),
        "ioctl FIONREAD": raw((16, 29), mine, 0x541B, _ROOM),
        "mmap to execute": raw((9, 222), 0, 4096, 7, 0x22, -1, 0),
        "prctl PR_SET_NAME": raw((157, 167), 15, b"name", 0, 0, 0),
        "prlimit64": raw((302, 261), 0, 4, 0, _ROOM),
        "sched_getaffinity": raw((204, 123), 0, 128, _ROOM),
        "getrandom": raw((318, 278), _ROOM, 8, 0),
        "open to read": raw((257, 56), -100, b"/dev/null", os.O_RDONLY),
    }
