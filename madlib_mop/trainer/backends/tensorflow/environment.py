"""What must be known before TensorFlow is imported; the standard library only."""

from collections.abc import Mapping

from mop_backend.keras_backends import BackendName

ENVIRONMENT: Mapping[str, str] = {
    "KERAS_BACKEND": BackendName.TENSORFLOW,
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Allocates tensors with malloc. TensorFlow's own pool doubles in size, so a model of 240 MB maps 1.1 GB; it never
    # releases memory, so the model after one that was too large would be aborted.
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
}
#: What a trainer with GPUs sets instead.
WITH_GPUS: Mapping[str, str] = {}
#: What it uses of `loading.UNUSED`.
NEEDED: frozenset[str] = frozenset()
