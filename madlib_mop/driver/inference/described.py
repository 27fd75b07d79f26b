"""Keras' description of an architecture, from a trainer: Keras' own JSON, and the weights by layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from mop_backend.frames import Header

from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.keras_layers import Node

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer.

    Attributes
    ----------
    name : str
        With the names of enclosing models, separated by slashes.
    shapes : tuple of (tuple of int)
        In the order of the layer's ``get_weights()``.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def n_bytes(self) -> int:
        """Their size as float32."""
        return FLOAT32_BYTES * sum(map(prod, self.shapes))

    def __str__(self) -> str:
        """Name and shapes, for messages."""
        return f"{self.name} " + " + ".join("x".join(map(str, shape)) or "1" for shape in self.shapes)


@dataclass(frozen=True)
class DescribedModel:
    """A model that Keras can build.

    Attributes
    ----------
    text : str
        The output of ``model.to_json()``.
    layers : tuple of LayerWeights
        In the order of ``get_weights()``, without layers that have no weights.
    drawn : bytes or None
        Its start weights, if requested.
    """

    text: str
    layers: tuple[LayerWeights, ...]
    drawn: bytes | None = None

    @property
    def n_bytes(self) -> int:
        """Size of all weights as float32."""
        return sum(layer.n_bytes for layer in self.layers)

    def check_weights(self, n_bytes: int, what: str) -> None:
        """Reject weights of another length. Raises InvalidParameter."""
        if n_bytes == self.n_bytes:
            return
        values = f"{n_bytes // FLOAT32_BYTES} float32 numbers" if n_bytes % FLOAT32_BYTES == 0 else "no float32 numbers"
        raise InvalidParameter(
            f"{what} do not fit the architecture, which has {self.n_bytes // FLOAT32_BYTES} weights of 4 bytes."
            f" Received: {n_bytes} bytes, {values}",
            hint="Pass all arrays of get_weights(), concatenated, as float32.",
            detail="Weights by layer: " + ", ".join(map(str, self.layers)),
        )


def describe_model(trainer: LocalTrainer, arch: Node, seed: int | None = None) -> DescribedModel:
    """Return Keras' description of an architecture.

    Parameters
    ----------
    trainer : LocalTrainer
    arch : dict
        Checked (`check_architecture`).
    seed : int or None
        Seed of the start weights.

    Raises
    ------
    MopError
        If Keras cannot build it; the message has the reason.
    """
    answer, blobs = trainer.ask({"op": "describe_model", "arch": arch, "seed": seed})
    return described_of(answer, bytes(blobs[0]) if blobs else None)


def described_of(answer: Header, drawn: bytes | None = None) -> DescribedModel:
    """Return the description in an answer of a trainer."""
    return DescribedModel(answer["arch"], tuple(_by_layer(answer["weights"])), drawn)


def _by_layer(weights: Sequence[tuple[str, list[int]]]) -> Iterator[LayerWeights]:
    for name, group in groupby(weights, key=lambda weight: weight[0]):
        yield LayerWeights(name, tuple(tuple(shape) for _, shape in group))
