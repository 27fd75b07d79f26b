"""The end of a trainer: with its parent, with its input, and never by a signal for others."""

import contextlib
import functools
import os
import pathlib
import resource
import select
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.unit import trainer as harness
from tests.helpers.unit.cases import CASES
from tests.helpers.unit.trainer import REPOSITORY, TrainerError, member

_DEADLINE_S = 20
Trainer = functools.partial(harness.Trainer, forked=False)  # test_forkserver.py tests forked ones


def ended(pid, within_s=_DEADLINE_S):
    """Wait until a process, which need not be a child, has ended; return the time that it took."""
    begin = time.monotonic()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0.0
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        assert poller.poll(within_s * 1000), f"process {pid} is still there after {within_s} s"
    finally:
        os.close(pidfd)
    return time.monotonic() - begin


def busy(trainer):
    """Make the trainer compute for minutes; return when it does."""
    case = CASES[1]
    trainer.send_shard("s", *case.data(400))
    trainer.train(case.request(), "s")  # traces the model
    model = {**case.request(), "fit_params": "batch_size=1, epochs=100000"}
    head = {"op": "train", "members": [member(model)], "shard": "s", "epoch": 1, "segment_id": 0}
    before = cpu_ticks(trainer.process.pid)
    trainer.channel.send(head)
    deadline = time.monotonic() + _DEADLINE_S
    # half a second of computing, far more than building the model takes
    while cpu_ticks(trainer.process.pid) < before + 50:
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)


def cpu_ticks(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[11])


def status(pid, key):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return line.split()[1]
    raise KeyError(key)


@pytest.mark.one_case
@pytest.mark.parametrize("started", [False, True])
def test_idle_it_ends_when_its_input_does(started):
    with Trainer(started=started) as trainer:
        trainer.process.stdin.close()
        assert trainer.process.wait(_DEADLINE_S) == 0


@pytest.mark.slow
def test_computing_it_ends_when_its_input_does():
    with Trainer() as trainer:
        busy(trainer)
        trainer.process.stdin.close()
        begin = time.monotonic()
        trainer.process.wait(_DEADLINE_S)
        assert time.monotonic() - begin < 1


@pytest.mark.slow
def test_stop_ends_it():
    with Trainer() as trainer:
        trainer.ask({"op": "stop"})
        assert trainer.process.wait(_DEADLINE_S) == 0


def test_a_killed_parent_takes_it_along():
    """The parent cannot close anything, and the pipes stay open in another process (this one)."""
    to_child, from_child = os.pipe(), os.pipe()
    code = (
        "import subprocess, sys; "
        f"p = subprocess.Popen([sys.executable, '-I', '-c', {trainer_code()!r}], "
        f"stdin={to_child[0]}, stdout={from_child[1]}, start_new_session=True); print(p.pid, flush=True); p.wait()"
    )
    fds = (to_child[0], from_child[1])
    with subprocess.Popen([sys.executable, "-c", code], pass_fds=fds, stdout=subprocess.PIPE, text=True) as parent:
        trainer = int(parent.stdout.readline())
        wait_until_settled(trainer)
        parent.send_signal(signal.SIGKILL)
        ended(trainer)
    for fd in (*to_child, *from_child):
        os.close(fd)


@pytest.mark.slow
def test_an_interrupt_is_not_for_it():
    with Trainer() as trainer:
        trainer.process.send_signal(signal.SIGINT)
        assert trainer.ask({"op": "stats"})[0]["ok"]


def test_it_is_first_in_line_and_holds_nothing_of_its_parent():
    secret, other_end = os.pipe()
    os.set_inheritable(secret, True)
    try:
        with Trainer(started=False) as trainer:
            with pytest.raises(TrainerError, match="before start"):  # now it waits for the next request
                trainer.ask({"op": "stats"})
            directory = pathlib.Path(f"/proc/{trainer.process.pid}")
            assert (directory / "oom_score_adj").read_text().strip() == "1000"
            fds = {int(entry.name): os.readlink(entry) for entry in (directory / "fd").iterdir()}
            assert os.readlink(f"/proc/self/fd/{secret}") not in fds.values()
            assert fds[0] == "/dev/null"
            assert fds[1] == fds[2]
            assert len(fds) == 5  # standard streams, and two for frames
    finally:
        os.close(secret)
        os.close(other_end)


def test_what_it_can_write_into_a_file_is_limited():
    """Its messages go to a file in memory that the backend holds open too."""
    with Trainer(started=False) as trainer:
        with pytest.raises(TrainerError, match="before start"):
            trainer.ask({"op": "stats"})
        most = resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE)
    assert most == (16 << 20, 16 << 20)


def test_what_libraries_print_does_not_get_between_frames():
    code = trainer_code().replace(
        "runpy.run",
        "import madlib_mop.trainer.server as server; old = server._handle; "
        "server._handle = lambda *a: (print('printed'), __import__('os').write(1, b'written'), old(*a))[2]; runpy.run",
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], input=frame(b'{"op": "stop"}'), capture_output=True, timeout=_DEADLINE_S
    )
    assert b"printed" in done.stderr and b"written" in done.stderr
    assert done.stdout.startswith(b"\0\0") and b"printed" not in done.stdout


def frame(header):
    return len(header).to_bytes(4, "big") + bytes(4) + header


def trainer_code():
    paths = [str(REPOSITORY), str(REPOSITORY / "plpython")]
    return f"import sys, runpy; sys.path[:0] = {paths!r}; runpy.run_module('madlib_mop.trainer', run_name='__main__')"


def wait_until_settled(pid):
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/0") == "/dev/null":
                return
        select.select([], [], [], 0.01)
    raise AssertionError("the trainer does not begin")
