"""Why a command with `use_gpus` is refused on a host without GPUs, with the tests' backend of Keras; and the hint."""

import os

NO_GPU, HINT = (
    ("JAX uses no GPUs here", "Use the backend")
    if os.environ.get("MOP_TEST_BACKEND") == "jax"
    else ("this host has no GPU: there are no NVIDIA devices at /dev/nvidia[0-9]*", "use_gpus => false")
)
