"""What must be known before PyTorch is imported; the standard library only."""

from collections.abc import Mapping

from madlib_mop.trainer.backends.base.names import BackendName

ENVIRONMENT: Mapping[str, str] = {"KERAS_BACKEND": BackendName.TORCH, "KERAS_TORCH_DEVICE": "cpu"}
#: What it uses of `loading.UNUSED`.
NEEDED: frozenset[str] = frozenset()
