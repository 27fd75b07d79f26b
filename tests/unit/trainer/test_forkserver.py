"""Trainers forked from a process with the backend: the same bits, and they end as reliably as child processes."""

import contextlib
import importlib.util
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time
import uuid

import keras
import numpy as np
import pytest
from mop_backend.forkserver import ForkServer
from mop_backend.machine import processors
from mop_backend.process import TRAINER, Child, ChildDied

from madlib_mop.trainer import forkserver as trainers
from madlib_mop.trainer.process.loading import UNUSED
from tests.helpers.unit.backends import WORDS
from tests.helpers.unit.cases import CASES, architecture_of
from tests.helpers.unit.trainer import BACKEND, REPOSITORY, Trainer, member
from tests.unit.trainer.test_lifetime import cpu_ticks, ended

RUN = (
    "import sys, runpy; sys.path[:0] = {paths!r}; from madlib_mop.trainer.process import seats;"
    "seats._LEFT_S = seats._STALLED_S = 0.4; {before}"  # a second for each is long
    "runpy.run_module('madlib_mop.trainer.forkserver', run_name='__main__', alter_sys=True)"
)
START = {
    "op": "start", "backend": BACKEND, "threads": 1, "memory_limit_bytes": None, "shard_cache_bytes": 1 << 28,
    "sandbox": True,
}  # fmt: skip


#: The package of the backend's compiled code.
LIBRARY = "jaxlib" if BACKEND == "jax" else BACKEND


@pytest.fixture(scope="module", autouse=True)
def sockets_lie_in(tmp_path_factory):
    """A directory of this user, with a path that is too long for a Unix socket."""
    global _DIRECTORY
    _DIRECTORY = tmp_path_factory.mktemp("a data directory with a long name " + 80 * "x")
    _DIRECTORY.chmod(0o700)


def forkserver(lives_with: int | None = None, before: str = "", idle: str = "") -> ForkServer:
    """Return a fork server of the tests' backend, of this test, which starts with the first request."""
    code = RUN.format(paths=[str(REPOSITORY), str(REPOSITORY / "plpython")], before=before)
    command = [sys.executable, "-I", "-c", code + (f" # {idle}" if idle else "")]
    server = ForkServer(f"{_DIRECTORY}/{uuid.uuid4().hex}", lives_with or os.getpid(), command)
    return server.with_backend(BACKEND)


def forkserver_of(child: Child) -> int:
    """Return the parent of a trainer."""
    return int(pathlib.Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def lives_with():
    """A process of this module."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def server(lives_with):
    """A fork server that ends with a process of this module."""
    return forkserver(lives_with.pid)


def started(child: Child, more: dict):
    """Yield a trainer after its start, and end it."""
    try:
        answer, _ = child.ask({**START, **more})
        assert answer["ok"] and answer["pid"] == child.pid, answer
        yield child
    finally:
        child.stop()


@contextlib.contextmanager
def trainer(server: ForkServer, **more):
    """A forked trainer; yields it and its answer to the start request."""
    yield from started(Child(TRAINER, forkserver=server), more)


def train(ask, case=CASES[0], n_rows: int = 64) -> dict:
    """Train a visit of a case with `ask`, which takes a header and returns an answer."""
    xs, ys = case.data(n_rows)
    ask({"op": "shard_begin", "shard": "s", "n_x": len(xs), "n_y": len(ys), "normalizing_const": 1.0}, [], False)
    ask({"op": "shard_rows", "shapes": [a.shape for a in (*xs, *ys)]}, [*xs, *ys], False)
    ask({"op": "shard_end", "shard": "s"}, [], True)
    head = {"op": "train", "shard": "s", "epoch": 1, "segment_id": 0}
    return ask({**head, "members": [member(case.request())]}, [], True)["members"][0]["figures"]


def asked(channel):
    """Return the `ask` function of `train` for a `Child` or a `Channel`."""

    def ask(header, blobs, answers):
        channel.send(header, blobs)
        if not answers:
            return None
        answer, _ = channel.receive()
        assert answer.get("ok"), answer
        return answer

    return ask


def test_it_trains_to_the_bits_of_a_process_of_its_own(server):
    with trainer(server) as child, Trainer(forked=False) as own:
        forked, started = train(asked(child)), train(asked(own.channel))
    assert forked["digest_out"] == started["digest_out"] and forked["digest_in"] == started["digest_in"]


@pytest.mark.slow
def test_it_gives_up_the_same_rights(server):
    """The sandbox is the same as in a separate trainer; and it has no file of the fork server."""
    child = Child(TRAINER, forkserver=server)
    forked, _ = child.ask(START)
    with Trainer(forked=False, sandbox=True) as own:
        rights = [(said["landlock"], said["seccomp"]) for said in (forked, own.versions)]
        assert rights[0] == rights[1]
        processes = [pathlib.Path(f"/proc/{pid}") for pid in (child.pid, own.process.pid)]
        assert len({(process / "oom_score_adj").read_text() for process in processes}) == 1
        limits = {
            line for process in processes for line in (process / "limits").read_text().splitlines() if "core" in line
        }
        assert len(limits) == 1
    files = sorted(os.readlink(fd).partition(":")[0] for fd in pathlib.Path(f"/proc/{child.pid}/fd").iterdir())
    of_proc = {file for file in files if file.startswith("/proc/")}
    # stdin at end of file, stdout the same as stderr, and the frames; and what rules of the sandbox are for
    assert [file for file in files if file not in of_proc] == ["/dev/null", "/memfd", "/memfd", "pipe", "pipe"]
    assert of_proc == {f"/proc/{child.pid}", *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "sys"))}
    assert os.getsid(child.pid) == child.pid and os.readlink(f"/proc/{child.pid}/cwd") == "/"
    assert pathlib.Path(f"/proc/{child.pid}/comm").read_text().strip() == f"trainer {os.getpid()}"
    child.stop()


def test_it_has_loaded_no_package_that_only_wrappers_and_plots_of_keras_use(server):
    """They are installed here; each takes time at the start of a server's first run."""
    for package in UNUSED:
        assert importlib.util.find_spec(package), package
    with trainer(server) as child:
        loaded = pathlib.Path(f"/proc/{child.pid}/maps").read_text()
    assert f"/{LIBRARY}/" in loaded
    needed = importlib.import_module(f"madlib_mop.trainer.backends.{BACKEND}.environment").NEEDED
    assert {package for package in UNUSED if f"/{package}/" in loaded} == needed


def test_the_process_that_forks_has_one_thread(server):
    """A lock that another thread holds at a fork stays locked in the trainer."""
    with trainer(server) as child:
        assert os.listdir(f"/proc/{forkserver_of(child)}/task") == [str(forkserver_of(child))]


def test_all_come_from_one_process_and_end_each_by_itself(server):
    with trainer(server) as first, trainer(server) as second:
        assert forkserver_of(first) == forkserver_of(second) != os.getpid()
        first.stop()
        assert not first.alive and second.alive
        assert second.ask({"op": "stats"})[0]["ok"]


def test_when_it_is_killed_that_is_told(server):
    with trainer(server) as child:
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ChildDied) as death:
            child.ask({"op": "stats"})
        assert death.value.returncode == -signal.SIGKILL
    with trainer(server) as child:
        assert child.ask({"op": "stop"})[0]["ok"]
        with pytest.raises(ChildDied) as death:
            child.ask({"op": "stats"})
        assert death.value.returncode == 0


_OWNER = """
import os, sys
sys.path[:0] = {paths!r}
from mop_backend.forkserver import ForkServer
from mop_backend.process import TRAINER, Child
child = Child(TRAINER, forkserver=ForkServer(*{server!r}))
child.ask({start!r})
print(child.pid, flush=True)
child.send({{"op": "stats"}})  # nobody takes the answer
os.dup2(child._process.stdin.fileno(), 250, True)
os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "5")  # has the pipe's end too, so that the pipe tells nothing
sys.stdin.read()
"""


def test_a_killed_owner_takes_it_along(server):
    """Even if another process has the trainer's pipe open."""
    words = (server.address, server._lives_with, server._command)
    code = _OWNER.format(paths=[str(REPOSITORY / "plpython")], server=words, start=START)
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as owner:
        pid = int(owner.stdout.readline())
        owner.kill()
        assert ended(pid) < 3


@pytest.mark.slow
def test_it_outlives_the_fork_server_and_its_end_is_seen_then():
    with subprocess.Popen(["sleep", "600"]) as lives_with:
        with trainer(forkserver(lives_with.pid)) as child:
            victim = forkserver_of(child)
            os.kill(victim, signal.SIGKILL)
            ended(victim)
            assert child.alive and child.ask({"op": "stats"})[0]["ok"]
            pid = child.pid
        assert ended(pid) < 3 and not child.alive
        lives_with.kill()


@pytest.mark.slow
def test_all_end_with_the_server():
    with subprocess.Popen(["sleep", "600"]) as lives_with:
        child = Child(TRAINER, forkserver=forkserver(lives_with.pid))
        child.ask(START)
        pids = [child.pid, forkserver_of(child)]
        lives_with.kill()
        assert all(ended(pid) < 3 for pid in pids)
        child.stop()


@pytest.mark.slow
def test_it_ends_when_nobody_has_needed_it_for_a_while():
    server = forkserver(before="sys.argv.append('0.2'); ")
    with trainer(server) as child:
        parent = forkserver_of(child)
        time.sleep(0.5)  # longer than the idle time, but the server is in use
        assert child.ask({"op": "stats"})[0]["ok"]
    ended(parent)
    with trainer(server) as child:  # a new server replaces it
        assert forkserver_of(child) != parent


def test_why_there_is_no_trainer_is_told():
    """For example a broken TensorFlow: the reason is the last line of the trainer's output."""
    part = WORDS[BACKEND].module
    child = Child(TRAINER, forkserver=forkserver(before=f"sys.modules[{part!r}] = None; "))
    with pytest.raises(ChildDied) as death:
        child.ask(START)
    assert death.value.returncode == 1 and LIBRARY in death.value.last_words
    child.stop()


def test_one_that_is_not_waited_for_does_not_come_to_be(server):
    """Stopped before it was forked: when the next one starts, the first one does not exist."""
    gone = Child(TRAINER, forkserver=server)
    gone.stop()
    with trainer(server) as child:
        me, mine = f"trainer {os.getpid()}", []
        deadline = time.monotonic() + 5
        while mine != [child.pid] and time.monotonic() < deadline:
            mine = []
            for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
                with contextlib.suppress(OSError):
                    if (
                        comm.read_text().strip() == me
                        and "Z" not in (comm.parent / "stat").read_text().split(")")[1][:3]
                    ):
                        mine.append(int(comm.parent.name))
        assert mine == [child.pid]


def test_what_is_told_of_it_finds_it(server):
    again = ForkServer.told(server.words, sys.executable)
    with trainer(server) as child, trainer(again) as other:
        assert forkserver_of(child) == forkserver_of(other)
    assert ForkServer.told(None, sys.executable) is None


def is_reusable(child: Child) -> bool:
    """Return whether a trainer says that it can serve another client."""
    return child.ask({"op": "reset"})[0]["reusable"]


@contextlib.contextmanager
def released(server: ForkServer, seconds: float = 60.0, use: str = "u"):
    """A trainer that was released; yields its process ID."""
    child = Child(TRAINER, forkserver=server, use=use)
    pid = child.pid
    try:
        child.ask(START)
        assert is_reusable(child) and child.release(seconds)
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_trainer_that_was_released_serves_the_next_client_with_its_compiled_models_and_the_same_bits(server):
    child = Child(TRAINER, forkserver=server, use="u")
    pid = child.pid
    child.ask(START)
    figures = train(asked(child))
    assert is_reusable(child) and child.release(60.0)
    child = Child(TRAINER, forkserver=server, use="u")
    assert child.pid == pid
    answer, _ = child.ask({**START, "client": 4711})
    assert answer["ok"] and answer["pid"] == pid
    assert pathlib.Path(f"/proc/{pid}/comm").read_text() == "trainer 4711\n"
    held, _ = child.ask({"op": "stats"})
    assert held["compiled_models"] == 1 and held["cached_shards"] == [] and held["features"] == 0
    again = train(asked(child))
    assert (again["digest_in"], again["digest_out"]) == (figures["digest_in"], figures["digest_out"])
    child.stop()
    ended(pid)


def test_a_trainer_that_was_released_ends_with_its_next_client(server):
    """Its own thread sees the end of its input, if nobody else has the pipe."""
    with released(server) as pid:
        child = Child(TRAINER, forkserver=server, use="u")
        child._stdin.close()
        ended(pid)
        assert not child.alive


def test_it_is_not_given_to_another_use_nor_twice(server):
    with released(server) as pid:
        assert server.acquire("v") is None
        first = server.acquire("u")
        assert first is not None and first.pid == pid
        assert server.acquire("u") is None
        first.kill()


def test_it_ends_when_nobody_wants_it(server):
    with released(server, seconds=0.2) as pid:
        ended(pid)
        assert server.acquire("u") is None


def test_one_that_has_ended_is_not_given(server):
    with released(server) as pid:
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        assert server.acquire("u") is None


def test_one_that_says_something_unasked_is_not_given(server):
    child = Child(TRAINER, forkserver=server, use="u")
    child.ask(START)
    child.send({"op": "stats"})
    child.await_answer(20)
    assert not child.release(60.0)
    child._process.release(server.address_of("u"), 60.0)  # as if it had looked too early
    assert server.acquire("u") is None
    ended(child.pid)


def test_the_oldest_ends_when_too_many_wait(server):
    with contextlib.ExitStack() as stack:
        most = 2 * processors()
        pids = [stack.enter_context(released(server, use=f"u{number}")) for number in range(most + 1)]
        ended(pids[0])
        assert server.acquire("u0") is None
        for number in range(1, most + 1):
            taken = server.acquire(f"u{number}")
            assert taken is not None and taken.pid == pids[number]
            taken.kill()


def test_one_that_was_started_in_another_way_refuses_to_serve(server):
    with released(server):
        child = Child(TRAINER, forkserver=server, use="u")
        answer, _ = child.ask({**START, "threads": 2})
        assert answer["error"]["message"].endswith("the trainer is idle, and was started in another way")
        child.stop()


@pytest.mark.parametrize("request_", [{"op": "describe_model", "arch": {}}, {"op": "predict"}, {"op": "no such"}])
def test_one_that_is_not_as_good_as_new_is_not_reusable(server, request_):
    """Keras keeps something of models that were described; and after an error that is not a model's, nobody knows."""
    with trainer(server) as child:
        child.ask(request_)
        assert not is_reusable(child)


def test_one_that_is_idle_keeps_no_large_models(server):
    case = CASES[0]
    layers = [{"class_name": "InputLayer", "config": {"batch_shape": [None, 8]}}]
    zeros = {"kernel_initializer": "zeros"}  # random ones take a second
    layers += [{"class_name": "Dense", "config": {"units": units, **zeros}} for units in (6000, 12000, 1)]
    large = {"class_name": "Sequential", "config": {"layers": layers}}
    with trainer(server) as child:
        train(asked(child))
        model = {**case.request(), "arch": large, "compile_params": "loss='mse', optimizer='sgd'"}
        begin = {"op": "shard_begin", "shard": "large", "n_x": 1, "n_y": 1, "normalizing_const": 1.0}
        ask, x, y = asked(child), np.zeros((4, 8), np.float32), np.zeros((4, 1), np.float32)
        ask(begin, [], False)
        ask({"op": "shard_rows", "shapes": [x.shape, y.shape]}, [x, y], False)
        ask({"op": "shard_end", "shard": "large"}, [], True)
        ask({"op": "evaluate", "shard": "large", "members": [member(model)]}, [], True)
        before, _ = child.ask({"op": "stats"})
        assert before["compiled_models"] == 2 and before["compiled_model_bytes"] > 256 << 20
        assert is_reusable(child)
        after, _ = child.ask({"op": "stats"})
        assert after["compiled_model_bytes"] < 256 << 20


def test_the_fork_server_goes_on_if_the_directory_of_its_sockets_is_gone(server):
    with trainer(server) as first:
        parent = forkserver_of(first)
    child = Child(TRAINER, forkserver=server)
    pid = child.pid
    child.ask(START)
    child._process.release("/no such directory/u", 60.0)
    ended(pid)
    with trainer(server) as second:
        assert forkserver_of(second) == parent


@contextlib.contextmanager
def sharing(server: ForkServer, use: str = "s", **more):
    """A trainer that others share; yields it after its start."""
    shared = server.share(10, use)
    assert shared is not None
    yield from started(Child(TRAINER, shared=shared), more)


def test_few_trainers_are_shared_by_many_clients_of_one_use(server):
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sharing(server)) for _ in range(8)]
        pids = {child.pid for child in children}
        assert len(pids) == 2
        assert stack.enter_context(sharing(server, "other")).pid not in pids
        for child in children:
            assert child.ask({"op": "stats"})[0]["ok"]


def test_a_shared_trainer_ends_with_the_last_of_its_clients(server):
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sharing(server)) for _ in range(5)]
        same = [child for child in children if child.pid == children[0].pid]
        assert len(same) > 1
        for child in same[1:]:
            child.stop()
        assert same[0].alive and same[0].ask({"op": "stats"})[0]["ok"]
        same[0].stop()
        ended(same[0].pid)


def test_all_clients_of_a_shared_trainer_see_its_end(server):
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sharing(server)) for _ in range(5)]
        same = [child for child in children if child.pid == children[0].pid]
        os.kill(same[0].pid, signal.SIGKILL)
        for child in same:
            with pytest.raises(ChildDied) as death:
                child.ask({"op": "stats"})
            assert death.value.returncode == -signal.SIGKILL
        assert stack.enter_context(sharing(server)).pid != same[0].pid


def test_any_number_of_clients_one_after_the_other_share_few_trainers(server):
    with contextlib.ExitStack() as stack:
        pids = {stack.enter_context(sharing(server)).pid for _ in range(2)}
        for _ in range(300):
            with sharing(server) as child:
                pids.add(child.pid)
        assert len(pids) == 2
        assert all(len(os.listdir(f"/proc/{pid}/fd")) < 100 for pid in pids)


def test_a_client_of_another_start_is_refused(server):
    with contextlib.ExitStack() as stack:
        pids = {stack.enter_context(sharing(server)).pid for _ in range(2)}
        shared = server.share(10, "s")
        child = Child(TRAINER, shared=shared)
        stack.callback(child.stop)
        assert child.pid in pids
        answer, _ = child.ask({**START, "threads": 2})
        assert answer["error"]["message"].endswith("the trainer has been started already")


def test_a_shared_trainer_has_the_same_sandbox_and_no_file_of_the_fork_server_but_its_seats(server):
    own = Child(TRAINER, forkserver=server)
    with sharing(server) as child:
        answers = [child.ask(START)[0], own.ask(START)[0]]
        assert len({(answer["landlock"], answer["seccomp"]) for answer in answers}) == 1
        files = {os.readlink(fd).partition(":")[0] for fd in pathlib.Path(f"/proc/{child.pid}/fd").iterdir()}
        assert {file for file in files if not file.startswith("/proc/")} <= {"/dev/null", "anon_inode", "socket"}
    own.stop()


def test_what_a_client_leaves_half_written_hurts_no_other(server):
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sharing(server)) for _ in range(5)]
        hasty, *others = [child for child in children if child.pid == children[0].pid]
        os.write(hasty._stdin.fileno(), b"\0\0\0")
        hasty.stop()
        assert others and all(child.ask({"op": "stats"})[0]["ok"] for child in others)


def test_a_shared_trainer_that_works_for_a_client_who_has_left_ends_without_an_error(server):
    """Whoever shares it asks again, as after its idle time."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sharing(server)) for _ in range(5)]
        left, other, *_ = [child for child in children if child.pid == children[0].pid]
        train(asked(left), CASES[1], 400)
        long = {**CASES[1].request(), "fit_params": "batch_size=1, epochs=100000"}
        before = cpu_ticks(left.pid)
        left.send({"op": "train", "members": [member(long)], "shard": "s", "epoch": 1, "segment_id": 0})
        while cpu_ticks(left.pid) < before + 30:  # it trains
            time.sleep(0.01)
        left.stop()
        with pytest.raises(ChildDied) as death:
            other.ask({"op": "stats"})
        assert death.value.returncode == 0


def test_clients_of_a_shared_trainer_see_no_error_of_others(server):
    """Errors can have values of rows; a trainer's last words would be shown to all its clients."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sharing(server)) for _ in range(5)]
        mistaken, other, *_ = [child for child in children if child.pid == children[0].pid]
        answer, _ = mistaken.ask({"op": "a secret"})
        assert "a secret" in answer["error"]["message"]
        assert other.stderr_tail() == ""
        assert os.readlink(f"/proc/{other.pid}/fd/1") == os.readlink(f"/proc/{other.pid}/fd/2") == "/dev/null"


MIB = 1 << 20


@pytest.fixture
def wide(server):
    """Two clients of one trainer with little memory, in which a model has thousands of outputs for each number."""
    more = {"memory_limit_bytes": 1536 * MIB, "idle_s": 60}
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sharing(server, "wide", **more)) for _ in range(5)]
        one, other, *_ = [child for child in children if child.pid == children[0].pid]
        assert load(one, "k", _wide).get("ok")
        yield one, other


WIDTH = 15_000


def _wide():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(WIDTH)])


def _wider():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(20 * WIDTH)])


def load(child: Child, key: str, build) -> dict:
    model = {**CASES[0].request(), "arch": architecture_of(build)}
    header = {"op": "predict_load", "model": model, "normalizing_const": 1.0, "has_weights": True, "key": key}
    return child.ask(header, [np.ones(2 * build().output_shape[1], np.float32).tobytes()])[0]


def predicting(n_rows: int, key: str = "k") -> tuple[dict, list[bytes]]:
    header = {"op": "predict_values", "key": key, "dtypes": ["f4"], "shapes": [[n_rows, 1]]}
    return header, [np.zeros(n_rows, np.float32).tobytes()]


def test_an_answer_that_a_client_does_not_read_delays_the_others_for_a_moment(wide):
    one, other = wide
    one.send(*predicting(400))  # 24 MB of answer
    one.await_answer(10)
    other.send(*predicting(1))
    assert other.await_answer(10) and other.receive()[0]["ok"]
    with pytest.raises(ChildDied) as death:
        one.receive()
    assert death.value.returncode == 0  # it asks again


def test_an_answer_that_is_too_large_for_a_shared_trainer_is_an_error_of_its_client_alone(wide):
    one, other = wide
    answer, blobs = one.ask(*predicting(4000))  # 240 MB; the limit is 192
    assert (answer["kind"], answer["error"]["sqlstate"], blobs) == ("not shared", "53000", [])
    assert one.ask(*predicting(1))[0]["ok"] and other.ask(*predicting(1))[0]["ok"]


def test_a_request_that_runs_out_of_memory_is_an_error_of_its_client_alone(wide):
    one, other = wide
    assert load(one, "wider", _wider).get("ok")
    answer, _ = one.ask(*predicting(4000, "wider"))  # 5 GB
    assert answer["kind"] == "memory"
    if not answer["ending"]:
        assert other.ask(*predicting(1))[0]["kind"] == "not loaded"
        assert load(other, "k", _wide).get("ok") and other.ask(*predicting(1))[0]["ok"]


def test_a_request_that_is_too_large_for_a_shared_trainer_is_not_read(wide):
    one, other = wide
    os.write(one._stdin.fileno(), struct.pack(">IIQ", 2, 1, 200 * MIB) + b"{}")
    with pytest.raises(ChildDied) as death:
        one.receive()
    assert death.value.returncode == 0 and one.pid == other.pid
    assert other.ask(*predicting(1))[0]["ok"]


@pytest.mark.parametrize("run", [trainers._run, trainers._serve_seats])
def test_each_trainer_draws_random_numbers_of_its_own(monkeypatch, run):
    """A fork has the generators of its parent, which has loaded NumPy's."""
    drawn = []
    draw = lambda _: drawn.append((random.random(), np.random.random()))  # noqa: E731 -- in place of a trainer's service
    monkeypatch.setattr("madlib_mop.trainer.__main__.serve", draw)
    monkeypatch.setattr("madlib_mop.trainer.server.serve_seats", draw)
    monkeypatch.setattr(trainers.lifetime, "set_up_forked", lambda: ())
    states = random.getstate(), np.random.get_state()
    try:
        for _ in range(2):
            random.setstate(states[0])
            np.random.set_state(states[1])
            assert run() == 0
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    first, second = drawn
    assert first[0] != second[0] and first[1] != second[1]


def test_those_that_wait_end_with_the_server(server, lives_with):
    """The last test of this module's server, for another one takes two seconds to start."""
    with released(server) as pid:
        lives_with.kill()
        ended(pid)
