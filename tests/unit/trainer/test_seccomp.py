"""Actions that a trainer cannot do if the kernel has no Landlock: seccomp alone protects other processes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from madlib_mop.trainer.process import seccomp, syscalls
from tests.helpers.unit import calls as system_calls
from tests.helpers.unit.trainer import REPOSITORY

_PROBE = """
import json, os, sys
sys.path[:0] = {paths!r}
from madlib_mop.trainer import server
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.process import lifetime, sandbox, seccomp
sandbox.restrict_files = lambda with_gpus=False: False  # as a kernel without Landlock
if not {guarded!r}:
    seccomp.restrict_calls = lambda with_gpus=False: False
victim = int(sys.argv[1])
read_fd, write_fd = lifetime.set_up(choice.environment_of())
pidfd = os.pidfd_open(victim)  # as if it had been left open
in_force = server.TrainerService(lambda: server.end_with_peer(read_fd)).confine(server.Request(op="confine"), [])[0]
exec(compile({calls!r}, "calls", "exec"))
results = {{name: eval(call) for name, call in {wanted!r}.items()}}
os.write(write_fd, json.dumps({{**results, "in_force": in_force}}).encode())
"""
_WANTED = {
    "signal": "calls_that_signal(victim, pidfd)",
    "reach": "calls_that_reach(victim)",
    "share": "calls_that_share_memory()",
    "newer": "calls_of_newer_kernels()",
    "needed": "calls_that_are_needed()",
}
pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/sys/kernel/seccomp/actions_avail"), reason="this kernel has no seccomp"
)


def probe(wanted: dict, guarded: bool = True) -> tuple[dict, int | None]:
    """Make the calls in a process with a victim process; return their results, and the victim's exit status, if any."""
    paths = [str(REPOSITORY), str(REPOSITORY / "plpython")]
    calls = pathlib.Path(system_calls.__file__).read_text()
    code = _PROBE.format(paths=paths, guarded=guarded, calls=calls, wanted=wanted)
    with subprocess.Popen(["sleep", "600"]) as victim:
        command = [sys.executable, "-I", "-c", code, str(victim.pid)]
        with subprocess.Popen(command, stdin=-1, stdout=-1) as process:  # ends when its input ends
            results = json.loads(process.stdout.read())
        ended = victim.poll()
        victim.kill()
    return results, ended


@pytest.fixture(scope="module")
def inside():
    """The results of all calls in a process without rights."""
    results, results["victim"] = probe(_WANTED)
    assert results["in_force"] == {"landlock": False, "seccomp": True}
    return results


def test_no_other_process_can_be_signalled(inside):
    assert set(inside["signal"].values()) - {"no such call"} == {"EPERM"}, inside["signal"]
    assert inside["victim"] is None


def test_no_other_process_can_be_looked_at_or_changed_and_nothing_is_got_that_is_not_needed(inside):
    assert set(inside["reach"].values()) - {"no such call"} == {"EPERM"}, inside["reach"]


def test_no_memory_is_got_that_the_limit_does_not_count(inside):
    assert set(inside["share"].values()) == {"EPERM"}, inside["share"]


def test_newer_calls_are_answered_as_by_a_kernel_without_them(inside):
    assert set(inside["newer"].values()) == {"ENOSYS"}, inside["newer"]


def test_what_libraries_need_is_allowed(inside):
    assert set(inside["needed"].values()) == {"done"}, inside["needed"]


def test_the_probe_would_notice():
    """Without the filter the victim is killed, by the first call and, of two omitted here, by fcntl."""
    only = "fcntl F_SETSIG", "fcntl F_SETOWN", "fcntl O_ASYNC"
    by_fcntl = (
        "[raw((72, 25), pidfd_pipe[0], 10, 9), raw((72, 25), pidfd_pipe[0], 8, victim),"
        " raw((72, 25), pidfd_pipe[0], 4, os.O_ASYNC), os.write(pidfd_pipe[1], b'x')]"
    )
    results, ended = probe({"pipe": "globals().update(pidfd_pipe=os.pipe())", "fcntl": by_fcntl}, guarded=False)
    assert results["fcntl"] == ["done"] * len(only) + [1] and ended == -9
    results, ended = probe({"signal": _WANTED["signal"]}, guarded=False)
    assert results["signal"]["kill"] == "done" and ended == -9


class Filter:
    """The filter of process 77 as the kernel runs it, on any architecture."""

    def __init__(self, machine: str, with_gpus: bool = False, with_file: bool = False, with_seats: bool = False):
        self.architecture = syscalls.ARCHITECTURES[machine]
        self.program = seccomp.filter_for(self.architecture, 77, with_gpus, with_file, with_seats)

    def answer(self, number: int, *arguments: int, audit: int | None = None) -> int:
        """Return what the filter returns for a call."""
        words = {0: number, 4: self.architecture.audit if audit is None else audit}
        words |= {16 + 8 * i: argument & 0xFFFFFFFF for i, argument in enumerate(arguments)}
        at = value = 0
        while True:
            code, if_true, if_false, operand = self.program[at]
            if code == 0x06:
                return operand
            if code == 0x20:
                value, holds = words.get(operand, 0), None
            elif code == 0x54:
                value, holds = value & operand, None
            else:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += 1 + (0 if holds is None else if_true if holds else if_false)


ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
MACHINES = {"x86_64": 0, "aarch64": 1}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_of_each_architecture(machine):
    ran, column = Filter(machine), MACHINES[machine]
    n = {name: checked.numbers[column] for name, checked in syscalls.CHECKED.items()}
    assert len(ran.program) < 4096 and all(max(if_true, if_false) < 256 for _, if_true, if_false, _ in ran.program)
    assert ran.answer(n["kill"], 77) == ran.answer(n["tgkill"], 77, 78) == ALLOW
    assert {ran.answer(n["kill"], pid) for pid in (0, 1, -1, -77, 78)} == {EPERM}
    assert ran.answer(n["prlimit64"], 0) == ran.answer(n["prlimit64"], 77) == ALLOW != ran.answer(n["prlimit64"], 1)
    assert {ran.answer(n["fcntl"], 3, command) for command in (0, 1, 2, 3, 1030)} == {ALLOW}
    assert {ran.answer(n["fcntl"], 3, command) for command in (8, 10, 15, 5, 6, 1024, 1026)} == {EPERM}
    assert ran.answer(n["fcntl"], 3, 4, 0o4000) == ALLOW and ran.answer(n["fcntl"], 3, 4, 0o24000) == EPERM
    assert ran.answer(n["clone"], 0x3D0F00) == ALLOW  # glibc's flags for a thread
    assert {ran.answer(n["clone"], flags) for flags in (17, 0x4111, 0x3D0F00 | 0x10000000)} == {EPERM}
    assert ran.answer(n["openat"], 0, 0, 0o2000000) == ALLOW and ran.answer(n["openat"], 0, 0, 0o101) == EPERM
    assert ran.answer(n["ioctl"], 1, 0x5401) == ALLOW and ran.answer(n["ioctl"], 1, 0xC020462A) == EPERM
    assert ran.answer(n["mmap"], 0, 4096, 3, 0x22) == ran.answer(n["mmap"], 0, 4096, 3, 0x01, 3) == ALLOW
    assert ran.answer(n["mmap"], 0, 4096, 3, 0x21) == ran.answer(n["mmap"], 0, 4096, 3, 0x23) == EPERM
    shared = [numbers[column] for numbers in syscalls.SHARED_MEMORY.values()]
    assert {ran.answer(number) for number in shared} == {EPERM}
    with_gpus = Filter(machine, with_gpus=True)  # whose driver may need it
    assert {with_gpus.answer(number) for number in (*shared, n["mmap"])} == {ALLOW}
    assert ran.answer(435) == ran.answer(463) == ran.answer(2000) == ENOSYS
    assert ran.answer(n["kill"], 77, audit=0x40000003) == KILL  # a 32-bit call
    known = {numbers[column] for numbers in (*syscalls.ALLOWED.values(), *syscalls.MISSING.values())} | set(n.values())
    assert {ran.answer(number) for number in range(463) if number not in known} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_space_is_reserved_by_trainers_with_a_file(machine):
    number = syscalls.SPACE_OF_FILES["fallocate"][MACHINES[machine]]
    assert Filter(machine, with_file=True).answer(number, 3) == ALLOW
    assert Filter(machine).answer(number, 3) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_taken_by_trainers_that_sessions_share(machine):
    number = syscalls.SEATS["recvmsg"][MACHINES[machine]]
    assert Filter(machine, with_seats=True).answer(number, 3) == ALLOW
    assert Filter(machine).answer(number, 3) == EPERM


def test_calls_of_32_bit_pointers_are_missing():
    assert Filter("x86_64").answer(0x40000000 + 62, 77) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_nvidias_devices_are_for_trainers_with_gpus(machine):
    ran, number = Filter(machine, with_gpus=True), syscalls.CHECKED["ioctl"].numbers[MACHINES[machine]]
    requests = (0xC020462A, 0xC00446C9, 0x30000001, 27, 0x5401)
    assert {ran.answer(number, 3, request) for request in requests} == {ALLOW}
    assert {ran.answer(number, 3, request) for request in (0x8901, 0x5412, 0x5452, 0x4C00)} == {EPERM}
    assert {Filter(machine).answer(number, 3, request) for request in requests[:-1]} == {EPERM}
