"""Promise 7: our processes have a fixed interpreter and environment, independent of the parent's."""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mop_backend.forkserver import ENVIRONMENT, backend_words
from mop_backend.process import Child, ChildDied, backend_of

from madlib_mop.driver.running.loop import ran_out_of_memory
from tests.helpers.faults import wait_for

F_GETPIPE_SZ = 1032


def gives_huge_pages_to_those_who_ask() -> bool:
    """Return whether the kernel gives huge pages to memory that asks for them only, and malloc can ask."""
    with contextlib.suppress(OSError, ValueError):  # no such kernel, another libc
        name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        mode = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        return name == "glibc" and tuple(map(int, version.split("."))) >= (2, 35) and "[madvise]" in mode
    return False


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A child that waits for input, whose parent has a hostile environment."""
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LD_LIBRARY_PATH", "PGHOST", "TF_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "code.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    child = Child("code", python=sys.executable)
    yield child
    child.stop()


def read(child: Child, what: str) -> list[str]:
    """Read a property of a process, after its exec."""
    wait_for(lambda: b"-m" in Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0"), 5, "the interpreter")
    return Path(f"/proc/{child.pid}/{what}").read_text().rstrip("\0").split("\0")


def open_files(pid) -> set[str]:
    """Return the open files of a process; all memory files of children have the same name."""
    names = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return {name for name in names if not name.startswith("/memfd:")}


def test_pipes_hold_many_pages(child):
    for pipe in (child._stdin, child._stdout):
        assert fcntl.fcntl(pipe.fileno(), F_GETPIPE_SZ) >= 256 << 10


@pytest.mark.parametrize("backend", ["theano", "jax --more", "../jax", "", None, 1])
def test_only_known_backends_become_words_of_a_command_line(backend):
    with pytest.raises(ValueError):
        backend_of({"op": "start", "backend": backend})
    assert backend_of({"op": "start"}) == "tensorflow"
    assert backend_words(backend_of({"backend": "jax"})) == ["--backend=jax"]


def test_the_environment_is_fixed(child):
    assert dict(item.split("=", 1) for item in read(child, "environ")) == ENVIRONMENT
    assert set(ENVIRONMENT) == {"PATH", "LANG", "PYTHONUNBUFFERED", "GLIBC_TUNABLES"}


@pytest.mark.skipif(not gives_huge_pages_to_those_who_ask(), reason="huge pages for all, or for none")
def test_large_arrays_ask_for_huge_pages():
    code = "array = bytearray(8 << 20); print(open('/proc/self/smaps').read())"
    maps = subprocess.check_output([sys.executable, "-I", "-c", code], env=ENVIRONMENT, text=True)
    flags = [line.split()[1:] for line in maps.splitlines() if line.startswith("VmFlags:")]
    assert any("hg" in of_one_mapping for of_one_mapping in flags)


def test_the_interpreter_is_isolated_from_where_it_is_started(child):
    assert read(child, "cmdline") == [sys.executable, "-I", "-m", "code"]
    assert os.readlink(f"/proc/{child.pid}/cwd") == "/"
    assert child.alive


def test_it_has_a_session_of_its_own_and_none_of_our_files(child, tmp_path):
    read(child, "cmdline")
    with open(tmp_path / "ours", "w") as ours, socket.socket() as client:
        for inherited in (ours, client):
            os.set_inheritable(inherited.fileno(), True)
        before = open_files("self")
        other = Child("code", python=sys.executable)
        read(other, "cmdline")
        assert os.getsid(other.pid) == other.pid != os.getsid(0)
        shared = before & open_files(other.pid)
        other.stop()
    assert str(tmp_path / "ours") in before and any(file.startswith("socket") for file in before)
    assert shared == set()


def test_the_last_words_are_one_line():
    traceback = 'Traceback (most recent call last):\n  File "/x.py", line 1, in <module>\nValueError: no\n'
    assert ChildDied(1, traceback).last_words == "ValueError: no"
    assert ChildDied(-9, "  \n").last_words is None
    assert len(ChildDied(1, "x" * 5000).last_words) == 300


def test_what_it_said_before_it_aborted_is_kept_though_stacks_follow(tmp_path, monkeypatch):
    """``faulthandler`` writes a hundred lines for each thread after the line with the reason."""
    code = (
        "import faulthandler, os, sys; faulthandler.enable()\n"
        "def deep(n):\n"
        "    if n: return deep(n - 1)\n"
        "    os.write(2, b\"terminate called after throwing an instance of 'std::bad_alloc'\\n\"); os.abort()\n"
        "deep(200)\n"
    )
    (tmp_path / "python").write_text(f"#!/bin/sh\nexec {sys.executable} -I {tmp_path}/code.py\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "code.py").write_text(code)
    child = Child("code", python=str(tmp_path / "python"))
    try:
        with pytest.raises(ChildDied) as death:
            child.receive()
    finally:
        child.stop()
    assert death.value.returncode == -6 and ran_out_of_memory(-6, death.value.stderr)
