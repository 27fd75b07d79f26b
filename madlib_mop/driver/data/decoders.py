"""The processes that decode images: images are untrusted bytes, so they run in the sandbox of trainers.

The driver has a pool of them for a call. A session that predicts rows with images runs this module as one process.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.encoding.encoder import BadFile
from madlib_mop.columns.layout import BadRow
from madlib_mop.packing.images import DecoderPool

SANDBOX = ("madlib_mop.trainer.process.sandbox:restrict_files", "madlib_mop.trainer.process.seccomp:restrict_calls")


def image_decoders() -> DecoderPool:
    """Return a pool of decoders, not started yet; close it, or use it as a context manager."""
    return DecoderPool(guards=SANDBOX)  # defence: decoders-of-the-driver = DecoderPool()


class FileDecoder:
    """Decodes the images of a table, for an encoder; use it as a context manager.

    The processes start when the first image comes, so it costs nothing for tables without images.
    """

    def __init__(self) -> None:
        self._pool = image_decoders()

    def __enter__(self) -> "FileDecoder":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def __call__(self, files: Sequence[bytes], shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
        """Return the pixels of some files, resized: uint8 (n, height, width, channels). Raises BadFile as `scaled`."""
        return self.scaled(files, shape, shape)

    def scaled(
        self, files: Sequence[bytes], wanted: tuple[int, ...] | None, expected: tuple[int, ...] | None
    ) -> npt.NDArray[np.uint8]:
        """Return the pixels of some files: uint8 (n, height, width, channels); see `DecoderPool.decode`.

        Raises
        ------
        BadFile
            For the first one that cannot be decoded, or has another shape than is expected.
        """
        try:
            pixels: npt.NDArray[np.uint8] = self._pool.decode(files, wanted, expected)
        except BadRow as bad:
            raise BadFile(bad.row, bad.problem, bad.hint) from None
        return pixels


if __name__ == "__main__":
    from madlib_mop.packing.decoder import main

    main(list(SANDBOX))  # defence: decoder-of-a-session = main([])
