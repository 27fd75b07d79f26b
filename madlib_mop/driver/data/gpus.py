"""The GPUs of this host, and their assignment to trainers; called by every command with ``use_gpus``.

They are found without TensorFlow, so an impossible call fails at once; a trainer checks at its start that
TensorFlow can use them.
"""

import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

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


def assign_gpus(use_gpus: bool | None, segments: Sequence[int]) -> dict[int, int]:
    """Assign one GPU to each segment's trainer, by number from 0; with more segments than GPUs, GPUs are shared.

    Parameters
    ----------
    use_gpus : bool or None
    segments : sequence of int
        Numbers of the segments.

    Returns
    -------
    dict of int to int
        Empty without ``use_gpus``.

    Raises
    ------
    Unsupported
        If the host has no GPU, or TensorFlow is the CPU version.
    """
    if not use_gpus:
        return {}
    n_gpus = require_gpus("use_gpus => true")
    return {segment: number % n_gpus for number, segment in enumerate(sorted(segments))}


def require_gpus(what: str) -> int:
    """Return the number of GPUs that can be used, at least 1.

    Raises
    ------
    Unsupported
        As `assign_gpus`; ``what`` begins the message.
    """
    n_gpus = count_gpus()
    if not n_gpus:
        raise Unsupported(
            f"{what}: this host has no GPU: there are no NVIDIA devices at {DEVICE_NODES}",
            hint="Use CPUs (use_gpus => false, 'all_segments'), or install NVIDIA's driver on the server's host.",
        )
    if _has_cpu_build_only():
        raise Unsupported(
            f"{what}: the host has {n_gpus} GPU(s), but the library's TensorFlow is tensorflow-cpu, which cannot use "
            f"GPUs",
            hint="Install tensorflow[and-cuda] instead of tensorflow-cpu into the library's virtual environment.",
        )
    return n_gpus


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
            hint="Install NVIDIA's driver on the server's host, or ask TensorFlow: source => 'tensorflow'.",
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


def _has_cpu_build_only() -> bool:
    try:
        distribution("tensorflow-cpu")
    except PackageNotFoundError:
        return False
    return True
