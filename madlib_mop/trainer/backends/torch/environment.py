"""What must be known before PyTorch is imported; the standard library only."""

from collections.abc import Mapping

from mop_backend.keras_backends import BackendName

ENVIRONMENT: Mapping[str, str] = {
    "KERAS_BACKEND": BackendName.TORCH,
    "KERAS_TORCH_DEVICE": "cpu",
    # A part of PyTorch that Keras imports has a directory for compiled code, by default below /tmp, and would load what
    # lies there. Nothing is compiled here; in this one, which exists, only root can write.
    "TORCHINDUCTOR_CACHE_DIR": "/",  # defence: cache-of-pytorch = "/tmp"
}
#: What a trainer with GPUs sets instead.
WITH_GPUS: Mapping[str, str] = {"KERAS_TORCH_DEVICE": "cuda"}
#: What it uses of `loading.UNUSED`.
NEEDED: frozenset[str] = frozenset()
