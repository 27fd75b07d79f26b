"""The names of the backends of Keras; the standard library only."""

import enum
from collections.abc import Mapping


class BackendName(enum.StrEnum):
    """A backend of Keras; the values are Keras' own names, and those of the packages beside this one."""

    TENSORFLOW = "tensorflow"
    JAX = "jax"
    TORCH = "torch"


def installing(name: BackendName) -> str:
    """Return the command that installs a backend's package into a clone's library."""
    return "make server" if name == BackendName.TENSORFLOW else f"make server BACKENDS='tensorflow {name}'"


#: What is installed to use a backend with GPUs; JAX is not used with GPUs.
WITH_CUDA: Mapping[BackendName, str] = {
    BackendName.TENSORFLOW: "tensorflow[and-cuda] instead of tensorflow-cpu",
    BackendName.TORCH: "a build of torch for CUDA",
}
#: Why it is not. JAX's packages have no library that compiles for GPUs, and XLA's flag to let the driver compile has no
#: effect, since JAX compiles without a device (seen on an H200).
JAX_WITHOUT_GPUS = (
    "JAX uses no GPUs here: it compiles for them with another program (ptxas), and a trainer's sandbox starts none"
)
OTHER_BACKENDS = "Use the backend 'tensorflow' or 'torch' on GPUs."
