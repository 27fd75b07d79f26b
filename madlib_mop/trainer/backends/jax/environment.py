"""What must be known before JAX is imported; the standard library only."""

from collections.abc import Mapping

from mop_backend.keras_backends import BackendName

ENVIRONMENT: Mapping[str, str] = {
    "KERAS_BACKEND": BackendName.JAX,
    "JAX_PLATFORMS": "cpu",
    # JAX asks servers of cloud providers whether it runs on a TPU; a trainer has no network.
    "TPU_SKIP_MDS_QUERY": "1",
}
#: What a trainer with GPUs sets instead; JAX uses none.
WITH_GPUS: Mapping[str, str] = {}
#: What it uses of `loading.UNUSED`.
NEEDED = frozenset({"scipy"})
