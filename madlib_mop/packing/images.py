"""Converts encoded images to uint8 tensors in a few decoder processes; used by the preprocessors."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from mop_backend.frames import Blob, Channel, Frame, PeerGone, of_answers
from mop_backend.machine import processors

from madlib_mop.columns.layout import BadRow

_BOOT = """
import json, sys
sys.path[:], guards = json.loads(sys.argv[1])
from madlib_mop.packing.decoder import main
main(guards)
"""
_MAX_DECODERS = 8


class _Decoder:
    """One decoder process, with this interpreter and its module path (nothing from the environment)."""

    def __init__(self, guards: Sequence[str]):
        path = [os.path.abspath(entry) for entry in sys.path if entry]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BOOT, json.dumps([path, guards])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            bufsize=0,
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None, "both are pipes"
        self._stdin, self._stdout = stdin, stdout
        self.channel = Channel(stdout.fileno(), stdin.fileno(), limits=of_answers())

    def stop(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()


class DecoderPool:
    """Decoder processes, started when first needed; close it, or use it as a context manager.

    Parameters
    ----------
    n_decoders : int or None
        Default: the number of processors that this process may use, at most 8.
    guards : tuple of str
        ``module:function`` of restrictions of a decoder, e.g. a sandbox.
    """

    def __init__(self, n_decoders: int | None = None, guards: tuple[str, ...] = ()):
        self._guards = guards
        self._n_decoders = n_decoders or min(_MAX_DECODERS, processors())
        self._decoders: list[_Decoder] = []

    def decode(
        self, images: Sequence[Blob], wanted: tuple[int, ...] | None, expected: tuple[int, ...] | None = None
    ) -> np.ndarray:
        """Decode images that must become one shape.

        Parameters
        ----------
        images : list of bytes-like
            Encoded images, at least one.
        wanted : tuple of int or None
            The target size: see `madlib_mop.packing.decoder.decode_image`.
        expected : tuple of int or None
            (h, w, c) that they must have then; needed for more than one image.

        Returns
        -------
        numpy.ndarray
            (n, h, w, c) uint8.

        Raises
        ------
        BadRow
            For the first image that cannot be decoded, or does not have the expected shape.
        """
        n_parts = min(self._n_decoders, len(images))
        while len(self._decoders) < n_parts:
            self._decoders.append(_Decoder(self._guards))
        bounds = [len(images) * part // n_parts for part in range(n_parts + 1)]
        decoders = self._decoders[:n_parts]
        try:
            for decoder, start, end in zip(decoders, bounds, bounds[1:], strict=False):
                decoder.channel.send({"wanted": wanted, "expected": expected}, images[start:end])
            answers = [decoder.channel.receive() for decoder in decoders]
        except PeerGone:
            self.close()
            if len(images) == 1:
                raise BadRow(0, "is an image that crashed the decoder") from None
            return self._decode_one_by_one(images, wanted, expected)
        return _join(answers, bounds)

    def close(self) -> None:
        """End all decoders."""
        for decoder in self._decoders:
            decoder.stop()
        self._decoders = []

    def __enter__(self) -> "DecoderPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decode_one_by_one(
        self, images: Sequence[Blob], wanted: tuple[int, ...] | None, expected: tuple[int, ...] | None
    ) -> np.ndarray:
        tensors = []
        for row, image in enumerate(images):
            try:
                tensors.append(self.decode([image], wanted, expected))
            except BadRow as problem:
                problem.row = row
                raise
        return np.concatenate(tensors)


def _join(answers: Sequence[Frame], starts: Sequence[int]) -> np.ndarray:
    tensors = []
    for (header, blobs), start in zip(answers, starts, strict=False):
        if "bad" in header:
            raise BadRow(start + header["bad"], header["problem"], header["hint"])
        tensors.append(np.frombuffer(blobs[0], np.uint8).reshape(header["shape"]))
    return tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
