"""GPUs: their assignment, and one clear error if there is none; tests that need a GPU are marked ``gpu``."""

import os
import stat
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
from mop_backend.keras_backends import BackendName

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.commands import installation
from madlib_mop.driver.data import gpus
from madlib_mop.errors import NotReady, Unsupported

TENSORFLOW = BackendName.TENSORFLOW
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
    monkeypatch.setattr(gpus, "version", installed())
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0-caps"):
        (tmp_path / name).touch()
    return tmp_path


def installed(**packages):
    """Return a function like `importlib.metadata.version` for some packages."""
    versions = {name.replace("_", "-"): version for name, version in packages.items()}

    def version(package):
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    return version


def write_tool(folder, text):
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_without_a_gpu_the_error_says_what_was_looked_for(host):
    with pytest.raises(Unsupported) as caught:
        gpus.require_gpus("use_gpus => true", TENSORFLOW)
    assert caught.value.message == (
        f"use_gpus => true: this host has no GPU: there are no NVIDIA devices at {host}/nvidia[0-9]*"
    )
    assert "use_gpus => false" in caught.value.hint


def test_each_trainer_gets_one_gpu_and_they_take_turns(host):
    # a container has some of the host's device nodes; CUDA numbers those that it finds
    for name in ("nvidia0", "nvidia3"):
        (host / name).touch()
    assert gpus.count_gpus() == 2
    assert gpus.require_gpus("use_gpus => true", TENSORFLOW) == 2
    assert gpus.assign_gpus(2, [7, 0, 2]) == {0: 0, 2: 1, 7: 0}


@pytest.mark.parametrize(
    "backend, packages, built",
    [
        (TENSORFLOW, {"tensorflow_cpu": "2.21.0"}, "TensorFlow is tensorflow-cpu"),
        (TENSORFLOW, {"tensorflow": "2.21.0"}, None),
        (BackendName.TORCH, {"torch": "2.13.0+cpu"}, "PyTorch is torch 2.13.0+cpu"),
        (BackendName.TORCH, {"torch": "2.13.0", "tensorflow_cpu": "2.21.0"}, None),
    ],
)
def test_a_package_for_cpus_is_named(host, monkeypatch, backend, packages, built):
    """Only the package of the backend counts."""
    (host / "nvidia0").touch()
    monkeypatch.setattr(gpus, "version", installed(**packages))
    if built is None:
        assert gpus.require_gpus("use_gpus => true", backend) == 1
        return
    with pytest.raises(Unsupported) as caught:
        gpus.require_gpus("use_gpus => true", backend)
    expected = f"use_gpus => true: the host has 1 GPU(s), but the library's {built}, which cannot use GPUs"
    assert caught.value.message == expected and "Install" in caught.value.hint


def test_jax_uses_no_gpus_and_the_error_says_why(host):
    (host / "nvidia0").touch()
    with pytest.raises(Unsupported, match="JAX uses no GPUs here.*ptxas") as caught:
        gpus.require_gpus("use_gpus => true", BackendName.JAX)
    assert "'torch'" in caught.value.hint


class Session:
    """A caller's session that keeps what it is told."""

    def __init__(self):
        self.notices, self.statements = [], []

    def output(self, name, suffixes, what):
        return Relation("public", name)

    def notice(self, text):
        self.notices.append(text)

    def execute(self, statement, params=()):
        self.statements.append((statement, *params))


class Trainer:
    """A trainer that sees these GPUs."""

    seen: tuple[str, ...] = ()

    def __init__(self, session, gpus, need_gpus, backend):
        self.n_gpus = len(gpus)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return

    def ask(self, header):
        return {"gpus": list(self.seen)[: self.n_gpus]}, ()


@pytest.fixture
def configure(host, monkeypatch):
    """Return a function that calls gpu_configuration with a backend of the session; it returns the session."""
    monkeypatch.setattr(installation, "LocalTrainer", Trainer)
    monkeypatch.setattr(installation, "FixedSettings", lambda session: None)
    monkeypatch.setattr(installation, "table_form", lambda session: "")

    def call(backend, source="tensorflow"):
        monkeypatch.setattr(installation, "read_backend", lambda fixed, session: BackendName(backend))
        session = Session()
        arguments = {"output_table": "gpus", "source": source}
        installation.gpu_configuration(
            SimpleNamespace(function="gpu_configuration", arguments=arguments, session=session)
        )
        return session

    return call


@pytest.mark.parametrize(
    "backend, n_gpus, packages, reason",
    [
        ("tensorflow", 0, {"tensorflow": "2.21.0"}, "this host has no GPU: there are no NVIDIA devices at "),
        ("torch", 0, {"torch": "2.13.0+cpu"}, "this host has no GPU: there are no NVIDIA devices at "),
        ("tensorflow", 2, {"tensorflow_cpu": "2.21.0"}, "the host has 2 GPU(s), but the library's TensorFlow is tenso"),
        ("torch", 1, {"torch": "2.13.0+cpu"}, "the host has 1 GPU(s), but the library's PyTorch is torch 2.13.0+cpu,"),
        ("torch", 1, {"torch": "2.13.0"}, "the host has 1 GPU(s), but the CUDA libraries of torch are missing or"),
        ("jax", 0, {}, "JAX uses no GPUs here: it compiles"),
        ("jax", 1, {}, "JAX uses no GPUs here: it compiles"),
    ],
)
def test_a_table_without_gpus_says_why_with_the_sessions_backend(
    host, configure, monkeypatch, backend, n_gpus, packages, reason
):
    for number in range(n_gpus):
        (host / f"nvidia{number}").touch()
    monkeypatch.setattr(gpus, "version", installed(**packages))
    session = configure(backend)
    (notice,) = session.notices
    begin = f"gpu_configuration: trainers with the backend {backend} can use no GPU: {reason}"
    assert notice.startswith(begin) and notice.endswith("; public.gpus has no rows")
    assert [statement[0].split()[0] for statement in session.statements] == ["CREATE"]


def test_gpus_that_trainers_can_use_are_rows_without_a_notice(host, configure, monkeypatch):
    (host / "nvidia0").touch()
    monkeypatch.setattr(gpus, "version", installed(torch="2.13.0"))
    monkeypatch.setattr(Trainer, "seen", ("a card",))
    session = configure("torch")
    assert session.notices == [] and [row[-1] for row in session.statements[1:]] == ["a card"]


def test_a_driver_that_lists_no_gpu_is_named(host, configure):
    write_tool(host, "true")
    (notice,) = configure("jax", source="nvidia").notices
    assert notice == "gpu_configuration: nvidia-smi lists no GPU on this host; public.gpus has no rows"


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
