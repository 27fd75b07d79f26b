"""Actions that a trainer of the tests' backend cannot do after its start, tested in a process that starts like one."""

import ctypes
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from madlib_mop.trainer.data import state
from tests.helpers.unit.trainer import BACKEND, REPOSITORY, Trainer

_PROBE = """
import sys
sys.path[:0] = {paths!r}
from madlib_mop.trainer import server
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.process import lifetime
read_fd, write_fd = lifetime.set_up(choice.environment_of(choice.BackendName({backend!r})))
request = server.Request(op={op!r}, threads=1, shard_cache_bytes=0, sandbox={sandbox!r}, backend={backend!r})
if {op!r} == "boosting":
    from madlib_mop.trainer import boosting
    request |= dict(op="start", memory_limit_bytes=4 << 30)
    answer, _ = boosting.BoostingService(read_fd).answer(server.Request(request), [])
else:
    answer, _ = getattr(server.TrainerService(lambda: server.end_with_peer(read_fd)), {op!r})(request, [])
import ctypes, json, os, resource, signal, socket, subprocess, threading
results = {{"landlock": answer["landlock"], "seccomp": answer["seccomp"]}}
def attempt(name, call):
    try:
        call()
        results[name] = "done"
    except Exception as error:
        results[name] = type(error).__name__
def in_thread(call):
    failures = []
    def run():
        try:
            call()
        except Exception as error:
            failures.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
def without_fork():
    pid = ctypes.CDLL(None, use_errno=True).syscall(56, 0, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
attempts = dict(
    write_file=lambda: open({scratch!r} + "/written", "w"),
    write_in_thread=lambda: in_thread(lambda: open({scratch!r} + "/written", "w")),
    read_file=lambda: open({scratch!r} + "/secret").read(),
    read_passwords=lambda: open("/etc/shadow").read(),
    read_environment_of_parent=lambda: open(f"/proc/{{os.getppid()}}/environ", "rb").read(),
    list_files=lambda: os.listdir({scratch!r}),
    remove_file=lambda: os.unlink({scratch!r} + "/secret"),
    rename_file=lambda: os.rename({scratch!r} + "/secret", {scratch!r} + "/other"),
    make_directory=lambda: os.mkdir({scratch!r} + "/made"),
    change_mode=lambda: os.chmod({scratch!r} + "/secret", 0o777),
    open_shared_memory=lambda: os.listdir("/dev/shm"),
    open_socket=lambda: socket.socket(),
    open_unix_socket=lambda: socket.socket(socket.AF_UNIX),
    run_program=lambda: subprocess.run(["/bin/true"]),
    exec_program=lambda: os.execv("/bin/true", ["true"]),
    fork=os.fork,
    clone=without_fork,
    signal_parent=lambda: os.kill(os.getppid(), 0),
    limits_of_parent=lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE),
    signal_itself=lambda: os.kill(os.getpid(), 0),
    make_thread=lambda: in_thread(lambda: None),
    read_library=lambda: open(json.__file__).read(),
)
if not {sandbox!r}:
    attempts = {{name: attempts[name] for name in ("read_file", "open_socket", "write_file")}}
for name, call in attempts.items():
    attempt(name, call)
os.write(write_fd, json.dumps(results).encode())
"""


def probe(scratch, sandbox, op="start"):
    (scratch / "secret").write_text("secret")
    paths = [str(REPOSITORY), str(REPOSITORY / "plpython")]
    code = _PROBE.format(paths=paths, scratch=str(scratch), sandbox=sandbox, op=op, backend=BACKEND)
    command = [sys.executable, "-I", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # ends when stdin ends
        return json.loads(process.stdout.read())


@pytest.fixture(scope="module", params=["start", "confine", "boosting"])
def inside(request, tmp_path_factory):
    """A trainer, the process that sums states for the aggregate in a session without one, and that of boosting."""
    return probe(tmp_path_factory.mktemp("sandbox"), True, request.param)


def test_both_are_in_force_where_the_kernel_has_them(inside):
    """The test asks the kernel without the sandbox's own code; otherwise skipped tests below would go unnoticed."""
    ask_version = ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1)  # landlock_create_ruleset(2)
    assert inside["landlock"] == (ask_version >= 1)
    assert inside["seccomp"] == os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


@pytest.mark.parametrize(
    "name",
    "open_socket open_unix_socket run_program exec_program fork clone signal_parent limits_of_parent write_file "
    "write_in_thread remove_file rename_file make_directory change_mode".split(),
)
def test_calls_are_refused(inside, name):
    if not inside["seccomp"]:
        pytest.skip("no seccomp here")
    assert inside[name] == "PermissionError"


@pytest.mark.parametrize(
    "name", "read_file read_passwords read_environment_of_parent list_files open_shared_memory".split()
)
def test_files_cannot_be_read(inside, name):
    if not inside["landlock"]:
        pytest.skip("no Landlock here")
    assert inside[name] == "PermissionError"


@pytest.mark.parametrize("name", ["signal_itself", "make_thread", "read_library"])
def test_what_is_needed_is_allowed(inside, name):
    assert inside[name] == "done"


def test_the_probe_would_notice(tmp_path):
    """Without the sandbox the same probe reads, writes and opens a socket."""
    outside = probe(tmp_path, False)
    assert outside == dict.fromkeys(("read_file", "open_socket", "write_file"), "done") | {
        "landlock": False,
        "seccomp": False,
    }


_NAMES = """
import sys, threading
sys.path[:0] = {paths!r}
from madlib_mop.trainer.process import sandbox
print(sandbox.restrict_files(with_gpus={with_gpus}))
def write(path):
    try:
        open(path, "w").write("name")
        print("done")
    except OSError as error:
        print(type(error).__name__)
def run():
    write(f"/proc/self/task/{{threading.get_native_id()}}/comm")
    write({scratch!r} + "/written")
    write(f"/proc/{{sys.argv[1]}}/task/{{sys.argv[1]}}/comm")
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("with_gpus, expected", [(True, "done"), (False, "PermissionError")])
def test_only_a_trainer_with_gpus_names_its_threads(tmp_path, with_gpus, expected):
    """CUDA finds no GPU if it cannot; other files, and other processes' threads, stay as they are."""
    paths = [str(REPOSITORY), str(REPOSITORY / "plpython")]
    code = _NAMES.format(paths=paths, with_gpus=with_gpus, scratch=str(tmp_path))
    made = subprocess.run([sys.executable, "-c", code, str(os.getpid())], capture_output=True, text=True, check=True)
    in_force, *written = made.stdout.split()
    if in_force != "True":
        pytest.skip("this kernel has no Landlock")
    assert written == [expected, "PermissionError", "PermissionError"]


_KEPT = """
import json, os, sys
sys.path[:0] = {paths!r}
from madlib_mop.trainer.process import sandbox
print(json.dumps(sandbox.restrict_files()))
open_files = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd") if int(fd) != 3]
print(json.dumps([path for path in sandbox.readable_paths() if path.startswith("/proc") and path not in open_files]))
"""


def test_files_of_proc_stay_readable_when_memory_is_short():
    """The kernel forgets inodes of /proc that nobody has open, and a rule of Landlock with them.

    The kernel cannot be asked for that here without slowing down the whole machine.
    """
    code = _KEPT.format(paths=[str(REPOSITORY), str(REPOSITORY / "plpython")])
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    in_force, not_open = map(json.loads, made.stdout.splitlines())
    if not in_force:
        pytest.skip("this kernel has no Landlock")
    assert not_open == []


@pytest.mark.slow
def test_a_sandboxed_trainer_trains_the_same_bits():
    from tests.helpers.unit.cases import CASES

    case, digests = CASES[1], []
    for sandbox in (False, True):
        with Trainer(sandbox=sandbox) as trainer:
            trainer.send_shard("s", *case.data(53))
            answer, parts = trainer.train(case.request(), "s")
            digests.append(answer["digest_out"])
            trainer.evaluate(case.request(), "s", state=parts)
            trainer.load_predictor(case.request(), state=parts)
            assert np.isfinite(trainer.predict(*case.data(53)[0])[0]).all()
    assert digests[0] == digests[1] == state.digest_of(parts)
