"""The backends of Keras that trainers can have: one member and one row for each.

The rest of a backend is its folder in ``madlib_mop/trainer/backends/``. PL/Python imports this file too, perhaps with
an older Python, which has no `enum.StrEnum`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple


class BackendName(str, enum.Enum):  # noqa: UP042
    """A backend of Keras; the values are Keras' own names, and those of the packages and of the folders."""

    TENSORFLOW = "tensorflow"
    JAX = "jax"
    TORCH = "torch"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, specification: str) -> str:
        return format(self.value, specification)


class BackendFacts(NamedTuple):
    """What must be known of a backend where it is not imported.

    Attributes
    ----------
    title : str
    trains_together : bool
        Whether it can train several models in one graph.
    of_cpus : str or None
        The package's other name if it is built for CPUs only.
    with_cuda : str or None
        What is installed to use it with GPUs.
    no_gpus : str or None
        Why it uses no GPUs.
    """

    title: str
    trains_together: bool = True
    of_cpus: str | None = None
    with_cuda: str | None = None
    no_gpus: str | None = None


FACTS: Mapping[BackendName, BackendFacts] = {
    BackendName.TENSORFLOW: BackendFacts(
        "TensorFlow", of_cpus="tensorflow-cpu", with_cuda="tensorflow[and-cuda] instead of tensorflow-cpu"
    ),
    BackendName.JAX: BackendFacts(
        "JAX",
        # Its packages have no library that compiles for GPUs, and XLA's flag to let the driver compile has no effect,
        # since JAX compiles without a device (seen on an H200).
        no_gpus="JAX uses no GPUs here: it compiles for them with another program (ptxas), and a trainer's sandbox"
        " starts none",
    ),
    BackendName.TORCH: BackendFacts("PyTorch", trains_together=False, with_cuda="a build of torch for CUDA"),
}
#: The backend of trainers unless settings say otherwise; it is always installed.
USUAL = BackendName.TENSORFLOW
OTHERS = tuple(name for name in BackendName if name != USUAL)
USE_GPUS_WITH = f"Use the backend {' or '.join(repr(str(n)) for n in BackendName if FACTS[n].with_cuda)} on GPUs."


def installing(*names: str) -> str:
    """Return the command that installs the packages of backends into a clone's library."""
    others = [name for name in names if name != USUAL]
    return f"make server BACKENDS='{' '.join([USUAL, *others])}'" if others else "make server"
