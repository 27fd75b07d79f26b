"""How large a network is, from its JSON alone: layers, weights, and multiplications a row; used to compare costs.

The sizes are exact for the usual layers. The others are named (`NetworkSize.not_counted`), and the sizes are then too
small, as a rule. Only the trainer, with Keras, knows them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from madlib_mop.errors import Unsupported
from madlib_mop.models.keras_layers import Node

_CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D", "SeparableConv1D", "SeparableConv2D")
_TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
#: Recurrent layers, with the number of their gates.
_GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
#: A recurrent layer is traced and run as a loop, which costs as much as so many layers.
_LAYERS_OF_A_LOOP = 8
_NO_OPS = ("InputLayer", "Flatten", "Reshape", "Identity")
_NORMALIZATIONS = ("BatchNormalization", "LayerNormalization")
_POOLING = tuple(f"{kind}Pooling{rank}D" for kind in ("Average", "Max") for rank in (1, 2, 3))
_GLOBAL_POOLING = tuple(f"Global{kind}" for kind in _POOLING)
#: Layers and operations that have no weights, and return what has the shape of their largest source. (Keras writes Any
#: for masks, which are no source of a layer that is counted.)
_KEEPS_SHAPE = frozenset(
    """
    Activation ActivityRegularization Add AlphaDropout Average Dropout ELU GaussianDropout GaussianNoise Identity
    LeakyReLU Masking Maximum Minimum Multiply ReLU Rescaling Softmax SpatialDropout1D SpatialDropout2D
    SpatialDropout3D Subtract UnitNormalization
    Abs Absolute Any Celu Clip Cos Divide Elu Exp Expm1 Floor Gelu HardSigmoid HardSilu HardTanh LeakyRelu Log Log10
    Log1p Log2 LogSigmoid LogSoftmax LogicalOr Negative NotEqual Power Reciprocal Relu Relu6 Round Selu Sigmoid Sign
    Silu Sin Softplus Softsign Sqrt Square Squareplus Tanh TrueDivide ZerosLike
    """.split()
)
#: Arguments of layers, with the values for which the layers are counted.
_USUAL_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "data_format": ("channels_last",), "depth_multiplier": (1,), "groups": (1,), "merge_mode": ("concat",),
    "output_padding": (), "return_state": (False,),
}  # fmt: skip
#: The greatest number that a column of type bigint takes.
_MOST = 2**63 - 1
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
    not_counted : frozenset of str
        The classes of layers and operations whose weights, multiplications or output shapes are not known from the
        JSON; empty if the size is exact.
    """

    n_layers: int
    n_weights: int
    n_multiplications: int
    n_activations: int
    not_counted: frozenset[str] = field(default=frozenset(), compare=False)

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

    Raises
    ------
    Unsupported
        The arguments of a layer are none that Keras takes.
    """
    walk = _Walk([tuple(shape) for shape in row_shapes])
    try:
        walk.model(checked, None)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # the check does not read arguments
        raise Unsupported("model_arch: the size of the network cannot be computed: a layer is malformed") from None
    return NetworkSize(
        n_layers=walk.n_layers,
        n_weights=min(walk.n_weights, _MOST),
        n_multiplications=min(walk.n_multiplications, _MOST),
        n_activations=min(walk.n_activations, _MOST),
        not_counted=frozenset(walk.not_counted),
    )


def optimizer_slots(name: str, arguments: Mapping[str, Any]) -> int:
    """Return how many numbers an optimizer keeps for each weight."""
    found = _SLOTS.get(name, _USUAL_SLOTS)
    return found + bool(name in ("SGD", "RMSprop") and arguments.get("momentum")) + bool(arguments.get("amsgrad"))


class _Walk:
    """Adds up the layers of a model, and follows the shapes of their outputs."""

    def __init__(self, row_shapes: list[Shape]):
        self.n_layers = self.n_weights = self.n_multiplications = self.n_activations = 0
        self.not_counted: set[str] = set()
        self._row_shapes = row_shapes

    def model(self, node: Node, given: Shape | None) -> Shape:
        """Walk through a model; return the shape of its last output."""
        outputs: dict[str, Shape] = {}
        layers, built = node["config"].get("layers") or [], node["config"].get("build_input_shape")
        shape = given or ()
        if not shape and built and layers[0]["class_name"] != "InputLayer":
            shape = self._input({"batch_shape": built})
        for layer in layers:
            sources = [outputs[name] for name in _sources(layer.get("inbound_nodes")) if name in outputs]
            shape = self._layer(layer, sources or [shape])
            outputs[str(layer["config"].get("name", layer.get("name", "")))] = shape
        return shape

    def _layer(self, layer: Node, sources: list[Shape]) -> Shape:
        kind, config, source = layer["class_name"], layer["config"], sources[0]
        if kind == "InputLayer":
            return self._input(config)
        if isinstance(nodes := layer.get("inbound_nodes"), list) and len(nodes) > 1:
            self.not_counted.add(kind)  # a shared layer
        if isinstance(config.get("layers"), list):
            return self.model(layer, source)
        if not source:  # a Sequential without an input layer
            sources = [source := self._input(config)]
        self.n_layers += kind not in _NO_OPS
        shape = self._computed(kind, config, source, sources)
        self.n_activations += prod(shape)
        return shape

    def _input(self, config: Node) -> Shape:
        row = self._row_shapes.pop(0) if self._row_shapes else ()
        known = config.get("batch_shape") or config.get("batch_input_shape")
        if not isinstance(known, list):
            if not row:
                self.not_counted.add("InputLayer")
            return row
        sizes = known[1:]
        filled = row if len(row) == len(sizes) else (None,) * len(sizes)
        found = [size or other or 0 for size, other in zip(sizes, filled, strict=True)]
        if any(size < 0 for size in found):
            raise ValueError("a shape has no negative sizes")
        if 0 in found:
            self.not_counted.add("InputLayer")
        return tuple(size or 1 for size in found)

    def _computed(self, kind: str, config: Node, source: Shape, sources: list[Shape]) -> Shape:
        """Add what a layer has and does; return the shape of its output."""
        if not _is_usual(kind, config, len(source)):
            self.not_counted.add(kind)
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
            n_biases = 2 if kind == "GRU" and config.get("reset_after", True) else 1
            weights = gates * units * (last + units + bias * n_biases)
            self._add(weights, source[0] * gates * units * (last + units))
            return (source[0], units) if config.get("return_sequences") else (units,)
        if kind == "Bidirectional" and (inner := config["layer"])["class_name"] in _GATES:
            for _ in range(2):
                once = self._computed(inner["class_name"], inner["config"], source, sources)
            return (*once[:-1], 2 * once[-1])
        if kind == "Embedding":
            width = _whole(config.get("output_dim"))
            self._add(_whole(config.get("input_dim")) * width, prod(source) * width)
            return (*source, width)
        if kind == "Dot" and len(sources) == 2:
            axes = config.get("axes")
            summed = list(axes) if isinstance(axes, list) else [axes, axes]
            kept = [_without(shape, axis) for shape, axis in zip(sources, summed, strict=True)]
            self._add(0, prod(source) * prod(kept[1]))
            return (*kept[0], *kept[1]) or (1,)
        if kind in _NORMALIZATIONS:
            n_trained = sum(bool(config.get(name, True)) for name in ("center", "scale"))
            self._add((n_trained + 2 * (kind == "BatchNormalization")) * last, prod(source))
            return source
        shape = _without_weights(kind, config, source, sources)
        if shape is None:
            self.not_counted.add(kind)
            return source
        return shape

    def _convolution(self, kind: str, config: Node, source: Shape, bias: bool) -> Shape:
        filters, rank = _whole(config.get("filters")), len(source) - 1
        kernel, strides = (_sizes(config.get(name), rank) for name in ("kernel_size", "strides"))
        axes = list(zip(source[:-1], kernel, strides, strict=True))
        n_products = prod(places := [_places(*axis, config.get("padding")) for axis in axes])
        if kind in _TRANSPOSED:
            n_products, is_same = prod(source[:-1]), config.get("padding") == "same"
            places = [n * stride + (0 if is_same else max(0, size - stride)) for n, size, stride in axes]
        each = prod(kernel) * source[-1] * filters
        if kind.startswith("Separable"):
            each = prod(kernel) * source[-1] + source[-1] * filters
        self._add(each + bias * filters, each * n_products)
        return (*places, filters)

    def _add(self, n_weights: int, n_multiplications: int) -> None:
        self.n_weights += n_weights
        self.n_multiplications += n_multiplications


def _is_usual(kind: str, config: Node, rank: int) -> bool:
    """Return whether the arguments of a layer have no influence on its size that is not counted."""
    if any(config.get(name) not in (None, *usual) for name, usual in _USUAL_ARGUMENTS.items()):
        return False
    if kind in (*_NORMALIZATIONS, "Concatenate") and config.get("axis", -1) not in (-1, rank, [-1], [rank]):
        return False
    rates = config.get("dilation_rate", 1)
    return all(rate == 1 for rate in (rates if isinstance(rates, list) else [rates]))


def _without_weights(kind: str, config: Node, source: Shape, sources: list[Shape]) -> Shape | None:
    """Return the shape of the output of a layer without weights; None if the layer is another one."""
    if kind == "Flatten":
        return (prod(source),)
    if kind == "Reshape":
        target = [n for n in config.get("target_shape") or () if isinstance(n, int)]
        known = prod(n for n in target if n > 0)
        return tuple(n if n > 0 else prod(source) // max(1, known) for n in target)
    if kind in _GLOBAL_POOLING:
        return (*(1 for _ in source[:-1] if config.get("keepdims")), *source[-1:])
    if kind in _POOLING:
        rank = len(source) - 1
        pool = _sizes(config.get("pool_size"), rank)
        strides = _sizes(config.get("strides"), rank) if config.get("strides") else pool
        each = zip(source[:-1], pool, strides, strict=True)
        return (*(_places(*one, config.get("padding")) for one in each), source[-1])
    if kind == "Concatenate":
        return (*source[:-1], sum(shape[-1] for shape in sources if shape))
    if kind == "RepeatVector":
        return (_whole(config.get("n")), *source)
    return max(sources, key=prod) if kind in _KEEPS_SHAPE else None


def _without(shape: Shape, axis: Any) -> Shape:
    """Return the shape of a row without an axis, which is counted with that of the rows."""
    place = axis - (axis > 0) if isinstance(axis, int) and not isinstance(axis, bool) else -1
    return tuple(size for number, size in enumerate(shape) if number != place % max(1, len(shape)))


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
