"""The names of the backends of Keras; the standard library only."""

import enum


class BackendName(enum.StrEnum):
    """A backend of Keras; the values are Keras' own names, and those of the packages beside this one."""

    TENSORFLOW = "tensorflow"
    JAX = "jax"
    TORCH = "torch"
