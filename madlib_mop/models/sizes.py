"""How large a network is, from its JSON alone: layers, weights, and multiplications a row; used to compare costs.

The sizes are exact for the usual layers, and too small for others. Only the trainer, with Keras, knows them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from madlib_mop.models.keras_layers import Node

_CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D", "SeparableConv1D", "SeparableConv2D")
_TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
#: Recurrent layers, with the number of their gates.
_GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
#: A recurrent layer is traced and run as a loop, which costs as much as so many layers.
_LAYERS_OF_A_LOOP = 8
_NO_OPS = ("InputLayer", "Flatten", "Reshape", "Identity")
#: Variables of an optimizer for each weight.
_SLOTS = {
    "Adam": 2, "AdamW": 2, "Adamax": 2, "Nadam": 2, "Adadelta": 2, "RMSprop": 1, "Adagrad": 1, "Ftrl": 2, "Lion": 1,
    "Lamb": 2, "SGD": 0,
}  # fmt: skip
_USUAL_SLOTS = 2
_WEIGHT_BYTES = 4

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """The size of a network.

    Attributes
    ----------
    n_layers : int
        Layers that compute; a recurrent layer counts as several.
    n_weights : int
    n_multiplications : int
        Of the forward pass of one row.
    n_activations : int
        Numbers that the layers return for one row.
    """

    n_layers: int
    n_weights: int
    n_multiplications: int
    n_activations: int

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights."""
        return self.n_weights * _WEIGHT_BYTES


def size_of(checked: Node, row_shapes: Sequence[Sequence[int]] = ()) -> NetworkSize:
    """Return the size of a network.

    Parameters
    ----------
    checked : dict
        The result of `architecture.check_architecture`.
    row_shapes : sequence of sequences of int
        The shape of a row of each input, where the JSON has none.
    """
    walk = _Walk([tuple(shape) for shape in row_shapes])
    walk.model(checked, None)
    return NetworkSize(walk.n_layers, walk.n_weights, walk.n_multiplications, walk.n_activations)


def optimizer_slots(name: str, arguments: Mapping[str, Any]) -> int:
    """Return how many numbers an optimizer keeps for each weight."""
    found = _SLOTS.get(name, _USUAL_SLOTS)
    return found + bool(name in ("SGD", "RMSprop") and arguments.get("momentum")) + bool(arguments.get("amsgrad"))


class _Walk:
    """Adds up the layers of a model, and follows the shapes of their outputs."""

    def __init__(self, row_shapes: list[Shape]):
        self.n_layers = self.n_weights = self.n_multiplications = self.n_activations = 0
        self._row_shapes = row_shapes

    def model(self, node: Node, given: Shape | None) -> Shape:
        """Walk through a model; return the shape of its last output."""
        outputs: dict[str, Shape] = {}
        shape = given or ()
        for layer in node["config"].get("layers") or ():
            sources = [outputs[name] for name in _sources(layer.get("inbound_nodes")) if name in outputs]
            shape = self._layer(layer, sources or [shape])
            outputs[str(layer["config"].get("name", layer.get("name", "")))] = shape
        return shape

    def _layer(self, layer: Node, sources: list[Shape]) -> Shape:
        kind, config, source = layer["class_name"], layer["config"], sources[0]
        if kind == "InputLayer":
            return self._input(config)
        if isinstance(config.get("layers"), list):
            return self.model(layer, source)
        if not source:  # a Sequential without an input layer
            source = self._input(config)
        self.n_layers += kind not in _NO_OPS
        shape = self._computed(kind, config, source, sources)
        self.n_activations += prod(shape)
        return shape

    def _input(self, config: Node) -> Shape:
        row = self._row_shapes.pop(0) if self._row_shapes else ()
        known = config.get("batch_shape") or config.get("batch_input_shape")
        if not isinstance(known, list):
            return row
        sizes = known[1:]
        filled = row if len(row) == len(sizes) else (None,) * len(sizes)
        return tuple(size or other or 1 for size, other in zip(sizes, filled, strict=True))

    def _computed(self, kind: str, config: Node, source: Shape, sources: list[Shape]) -> Shape:
        """Add what a layer has and does; return the shape of its output."""
        bias = bool(config.get("use_bias", True))
        last = source[-1] if source else 1
        if kind == "Dense":
            units = _whole(config.get("units"))
            self._add(last * units + bias * units, prod(source[:-1]) * last * units)
            return (*source[:-1], units)
        if kind in _CONVOLUTIONS or kind in _TRANSPOSED:
            return self._convolution(kind, config, source, bias)
        if kind in _GATES:
            units, gates = _whole(config.get("units")), _GATES[kind]
            self.n_layers += _LAYERS_OF_A_LOOP
            weights = gates * units * (last + units + bias * (2 if kind == "GRU" else 1))
            self._add(weights, source[0] * gates * units * (last + units))
            return (source[0], units) if config.get("return_sequences") else (units,)
        if kind == "Bidirectional":
            inner = config.get("layer") or {}
            once = self._computed(inner.get("class_name", ""), inner.get("config") or {}, source, sources)
            self._computed(inner.get("class_name", ""), inner.get("config") or {}, source, sources)
            return (*once[:-1], 2 * once[-1])
        if kind == "Embedding":
            width = _whole(config.get("output_dim"))
            self._add(_whole(config.get("input_dim")) * width, prod(source) * width)
            return (*source, width)
        if kind in ("BatchNormalization", "LayerNormalization"):
            parts = 4 if kind == "BatchNormalization" else 2
            self._add(parts * last, prod(source))
            return source
        return _without_weights(kind, config, source, sources)

    def _convolution(self, kind: str, config: Node, source: Shape, bias: bool) -> Shape:
        filters, rank = _whole(config.get("filters")), len(source) - 1
        kernel, strides = (_sizes(config.get(name), rank) for name in ("kernel_size", "strides"))
        places = [_places(*each, config.get("padding")) for each in zip(source[:-1], kernel, strides, strict=True)]
        if kind in _TRANSPOSED:
            places = [n * stride for n, stride in zip(source[:-1], strides, strict=True)]
        each = prod(kernel) * source[-1] * filters
        if kind.startswith("Separable"):
            each = prod(kernel) * source[-1] + source[-1] * filters
        self._add(each + bias * filters, each * prod(places))
        return (*places, filters)

    def _add(self, n_weights: int, n_multiplications: int) -> None:
        self.n_weights += n_weights
        self.n_multiplications += n_multiplications


def _without_weights(kind: str, config: Node, source: Shape, sources: list[Shape]) -> Shape:
    """Return the shape of the output of a layer without weights."""
    if kind == "Flatten":
        return (prod(source),)
    if kind == "Reshape":
        target = [n for n in config.get("target_shape") or () if isinstance(n, int)]
        known = prod(n for n in target if n > 0)
        return tuple(n if n > 0 else prod(source) // max(1, known) for n in target)
    if kind.startswith("Global"):
        return source[-1:]
    if "Pooling" in kind:
        rank = len(source) - 1
        pool = _sizes(config.get("pool_size"), rank)
        strides = _sizes(config.get("strides"), rank) if config.get("strides") else pool
        each = zip(source[:-1], pool, strides, strict=True)
        return (*(_places(*one, config.get("padding")) for one in each), source[-1])
    if kind == "Concatenate":
        return (*source[:-1], sum(shape[-1] for shape in sources if shape))
    if kind == "RepeatVector":
        return (_whole(config.get("n")), *source)
    return source


def _places(size: int, kernel: int, stride: int, padding: Any) -> int:
    stride = max(1, stride)
    return max(1, -(-size // stride) if padding in ("same", "causal") else (size - kernel) // stride + 1)


def _sizes(value: Any, rank: int) -> list[int]:
    values = list(value) if isinstance(value, list | tuple) else [value] * rank
    found = [_whole(item) for item in values[:rank]]
    return found + [1] * (rank - len(found))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _sources(nodes: Any) -> list[str]:
    """Return the names of the layers whose outputs a layer takes, in the forms of Keras 3 and of Keras 2."""
    if isinstance(nodes, dict):
        if nodes.get("class_name") == "__keras_tensor__":
            return [str(nodes["config"]["keras_history"][0])]
        return [name for item in nodes.values() for name in _sources(item)]
    if isinstance(nodes, list):
        if len(nodes) >= 3 and isinstance(nodes[0], str):
            return [nodes[0]]
        return [name for item in nodes for name in _sources(item)]
    return []
