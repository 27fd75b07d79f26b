"""The processes that decode images for the driver: their bytes are strangers', so they are shut in as trainers are."""

from madlib_mop.packing.images import DecoderPool

SANDBOX = ("madlib_mop.trainer.process.sandbox:restrict_files", "madlib_mop.trainer.process.seccomp:restrict_calls")


def image_decoders() -> DecoderPool:
    """Return a pool of decoders, of which none runs yet; close it, or use it as a context manager."""
    return DecoderPool(guards=SANDBOX)
