"""The processes that decode images for the driver: images are untrusted bytes, so they run in the sandbox of
trainers."""

from madlib_mop.packing.images import DecoderPool

SANDBOX = ("madlib_mop.trainer.process.sandbox:restrict_files", "madlib_mop.trainer.process.seccomp:restrict_calls")


def image_decoders() -> DecoderPool:
    """Return a pool of decoders, not started yet; close it, or use it as a context manager."""
    return DecoderPool(guards=SANDBOX)
