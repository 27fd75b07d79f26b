"""GPUs: their assignment, and one clear error if there is none; tests that need a GPU are marked ``gpu``."""

import os
import stat
from importlib.metadata import PackageNotFoundError

import pytest

from madlib_mop.driver.data import gpus
from madlib_mop.errors import NotReady, Unsupported

LISTED = """\
GPU 0: A card (UUID: GPU-1)
GPU 1: Another card (UUID: GPU-2)
Fan: off
"""


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A host without GPUs, whose device nodes are files in a directory of the test."""
    monkeypatch.setattr(gpus, "DEVICE_NODES", f"{tmp_path}/nvidia[0-9]*")
    monkeypatch.setattr(gpus, "NVIDIA_SMI", (str(tmp_path / "none"), str(tmp_path / "nvidia-smi")))
    monkeypatch.setattr(gpus, "distribution", lambda name: (_ for _ in ()).throw(PackageNotFoundError(name)))
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0-caps"):
        (tmp_path / name).touch()
    return tmp_path


def write_tool(folder, text):
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_without_a_gpu_the_error_says_what_was_looked_for(host):
    with pytest.raises(Unsupported) as caught:
        gpus.assign_gpus(True, [0, 1])
    assert caught.value.message == (
        f"use_gpus => true: this host has no GPU: there are no NVIDIA devices at {host}/nvidia[0-9]*"
    )
    assert "use_gpus => false" in caught.value.hint


@pytest.mark.parametrize("use_gpus", [False, None])
def test_who_asks_for_none_gets_none(host, use_gpus):
    assert gpus.assign_gpus(use_gpus, [0, 1]) == {}


def test_each_trainer_gets_one_gpu_and_they_take_turns(host):
    # a container has some of the host's device nodes; CUDA numbers those that it finds
    for name in ("nvidia0", "nvidia3"):
        (host / name).touch()
    assert gpus.count_gpus() == 2
    assert gpus.assign_gpus(True, [7, 0, 2]) == {0: 0, 2: 1, 7: 0}


def test_a_tensorflow_for_cpus_is_named(host, monkeypatch):
    (host / "nvidia0").touch()
    monkeypatch.setattr(gpus, "distribution", lambda name: name)
    with pytest.raises(Unsupported, match="the host has 1 GPU.s., but the library's TensorFlow is tensorflow-cpu"):
        gpus.assign_gpus(True, [0])


def test_the_drivers_tool_is_asked_by_its_path_alone(host, monkeypatch):
    """A tool of the same name in PATH is not run, because PATH could select a program that runs as the server."""
    (host / "bin").mkdir()
    write_tool(host / "bin", "echo GPU 9: a trap")
    monkeypatch.setenv("PATH", f"{host}/bin:{os.environ['PATH']}")
    with pytest.raises(NotReady, match=f"nvidia-smi is not installed on this host; searched: {host}/none"):
        gpus.list_by_driver()
    write_tool(host, f'test "$1" = -L && printf "{LISTED}"')
    assert gpus.list_by_driver() == ["GPU 0: A card (UUID: GPU-1)", "GPU 1: Another card (UUID: GPU-2)"]


def test_a_tool_that_fails_is_an_error_with_its_words(host):
    write_tool(host, "echo has failed >&2; exit 9")
    with pytest.raises(NotReady, match="nvidia-smi -L ended with status 9: has failed"):
        gpus.list_by_driver()
    write_tool(host, "")
    (host / "nvidia-smi").chmod(0o600)
    with pytest.raises(NotReady, match="cannot be run"):
        gpus.list_by_driver()


def test_the_paths_are_fixed():
    assert all(os.path.isabs(path) for path in gpus.NVIDIA_SMI) and gpus.DEVICE_NODES.startswith("/dev/")
