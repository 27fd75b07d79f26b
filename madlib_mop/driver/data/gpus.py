"""The GPUs of this host, and their assignment to trainers; called by every command with ``use_gpus``.

They are found without a backend of Keras, so an impossible call fails at once; a trainer checks at its start that its
backend can use them.
"""

import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mop_backend.keras_backends import FACTS, USE_GPUS_WITH, BackendName

from madlib_mop.errors import NotReady, Unsupported

#: Device nodes of NVIDIA's driver.
DEVICE_NODES = "/dev/nvidia[0-9]*"
#: Possible paths of nvidia-smi. PATH is never searched, because it could select another program.
NVIDIA_SMI = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
_WITHIN_S = 30.0


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this host."""
    folder, _, pattern = DEVICE_NODES.rpartition("/")
    return sum(path.name.removeprefix("nvidia").isdecimal() for path in Path(folder).glob(pattern))


def assign_gpus(n_gpus: int, segments: Sequence[int]) -> dict[int, int]:
    """Assign one GPU to each segment's trainer, by number from 0; with more segments than GPUs, GPUs are shared."""
    return {segment: number % n_gpus for number, segment in enumerate(sorted(segments))}


def require_gpus(what: str, backend: BackendName) -> int:
    """Return the number of GPUs that can be used, at least 1.

    Parameters
    ----------
    what : str
        Begins the messages.
    backend : BackendName
        The backend of Keras that is to use them.

    Raises
    ------
    Unsupported
        If the backend cannot use GPUs, the host has none, or the installed package is for CPUs only.
    """
    n_gpus = count_gpus()
    obstacle = obstacle_to_gpus(backend, n_gpus)
    if obstacle is not None:
        raise Unsupported(f"{what}: {obstacle.message}", hint=obstacle.hint)
    return n_gpus


def obstacle_to_gpus(backend: BackendName, n_gpus: int) -> Unsupported | None:
    """Return why trainers with this backend can use none of the host's GPUs, as far as is known without a trainer."""
    facts = FACTS[backend]
    if facts.no_gpus:
        return Unsupported(facts.no_gpus, hint=USE_GPUS_WITH)
    if not n_gpus:
        return Unsupported(
            f"this host has no GPU: there are no NVIDIA devices at {DEVICE_NODES}",
            hint="Use CPUs (use_gpus => false, 'all_segments'), or install NVIDIA's driver on the server's host.",
        )
    built = _cpu_build(backend)
    if built is not None:
        return Unsupported(
            f"the host has {n_gpus} GPU(s), but the library's {built}, which cannot use GPUs",
            hint=f"Install {facts.with_cuda} into the library's virtual environment.",
        )
    return None


def list_by_driver() -> list[str]:
    """Return the lines in which ``nvidia-smi -L`` describes the GPUs.

    Raises
    ------
    NotReady
        If the tool is not installed, or does not work.
    """
    tool = next((path for path in NVIDIA_SMI if Path(path).is_file()), None)
    if tool is None:
        raise NotReady(
            f"source => 'nvidia': nvidia-smi is not installed on this host; searched: {', '.join(NVIDIA_SMI)}",
            hint="Install NVIDIA's driver on the server's host, or list what trainers can use: source => 'tensorflow'.",
        )
    try:
        done = subprocess.run([tool, "-L"], env={"LC_ALL": "C"}, capture_output=True, text=True, timeout=_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotReady(
            f"{tool} -L cannot be run: {error}", hint="Ask the server's administrator to run this command."
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotReady(
            f"{tool} -L ended with status {done.returncode}: {said[0] if said else 'no output'}",
            hint="NVIDIA's driver does not work correctly; ask the server's administrator to run this command.",
        )
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("GPU ")]


def _cpu_build(backend: BackendName) -> str | None:
    """Return what the installed package is, if it is for CPUs only."""
    facts, found = FACTS[backend], _version_of(backend) or ""
    if facts.of_cpus and _version_of(facts.of_cpus):
        return f"{facts.title} is {facts.of_cpus}"
    return f"{facts.title} is {backend} {found}" if found.endswith("+cpu") else None


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
