"""Input and output shapes of a checked architecture, as far as its JSON defines them; used to compare it with data."""

from dataclasses import dataclass
from typing import Any

from madlib_mop.models.keras_layers import MODELS, Node
from madlib_mop.models.parameters.calls import is_int

_KEEPS_LAST_DIMENSION = frozenset(
    """
    Activation ActivityRegularization AlphaDropout BatchNormalization Dropout ELU GaussianDropout GaussianNoise Identity
    LayerNormalization LeakyReLU PReLU ReLU Rescaling Softmax UnitNormalization
    """.split()
)
_KEEPS_VALUES = frozenset(
    """
    ActivityRegularization AlphaDropout Dropout Flatten GaussianDropout GaussianNoise Identity Permute Reshape
    """.split()
)

#: Layers whose output has a property that the outputs of all their sources share.
_KEEPS_WHAT_SOURCES_SHARE = frozenset({"Average"})
#: Layers that return the shape of their sources, if all have the same.
_OF_ONE_SHAPE = frozenset({"Add", "Average"})

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class ModelShape:
    """Inputs and outputs of a model.

    Attributes
    ----------
    input_names : tuple of str
        Names of the input layers, in the model's order.
    input_shapes : tuple of (tuple of (int or None), or None)
        Shape of one row of each input, without the batch dimension; None if not in the JSON.
    output_names : tuple of str
        Names of the layers that give the outputs, in the model's order.
    output_units : tuple of (int or None)
        Last dimension of each output, e.g. the number of classes; None if not in the JSON.
    output_activations : tuple of (str or None)
        Name of the function that each output went through last; None if not in the JSON.
    """

    input_names: tuple[str, ...]
    input_shapes: tuple[tuple[int | None, ...] | None, ...]
    output_names: tuple[str, ...]
    output_units: tuple[int | None, ...]
    output_activations: tuple[str | None, ...]

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return len(self.input_names)

    @property
    def n_outputs(self) -> int:
        """Number of outputs."""
        return len(self.output_names)


def shapes_fit(wanted: Shape, row: Shape) -> bool:
    """Return whether rows of a shape can go into a tensor; as in Keras, a last dimension of 1 may be missing or extra.

    None stands for any size.
    """
    if abs(len(wanted) - len(row)) == 1:
        longer, shorter = (wanted, row) if len(wanted) > len(row) else (row, wanted)
        return longer[-1] in (1, None) and shapes_fit(longer[:-1], shorter)
    return len(wanted) == len(row) and all(None in (a, b) or a == b for a, b in zip(wanted, row, strict=True))


def describe(checked: Node) -> ModelShape:
    """Describe a model.

    Parameters
    ----------
    checked : dict
        The result of `architecture.check_architecture`.
    """
    config = checked["config"]
    layers = config["layers"]
    units, activations = (question().of_outputs(checked) for question in (_Units, _Activations))
    if checked["class_name"] == "Sequential":
        name, shape = _sequential_input(config)
        return ModelShape((name,), (shape,), (_name(layers[-1]),), units, activations)
    by_name = _by_name(layers)
    inputs, outputs = _references(config["input_layers"]), _references(config["output_layers"])
    shapes = tuple(_row_shape(by_name.get(name, {}).get("config", {}).get("batch_shape")) for name in inputs)
    return ModelShape(inputs, shapes, outputs, units, activations)


def _by_name(layers: list[Node]) -> dict[str, Node]:
    return {_name(layer): layer for layer in layers}


def _sequential_input(config: Node) -> tuple[str, tuple[int | None, ...] | None]:
    first = config["layers"][0]
    if first["class_name"] == "InputLayer":
        return _name(first), _row_shape(first["config"].get("batch_shape"))
    if first["class_name"] == "Sequential":
        return _sequential_input(first["config"])
    return _name(first), _row_shape(config.get("build_input_shape"))


def _row_shape(batch_shape: Any) -> tuple[int | None, ...] | None:
    return tuple(batch_shape[1:]) if isinstance(batch_shape, list) and batch_shape else None


def _name(layer: Node) -> str:
    return str(layer["config"].get("name", layer.get("name", layer["class_name"].lower())))


def _references(value: Any) -> tuple[str, ...]:
    """Return the layers' names in ``["dense", 0, 0]``, in a list of such, or in a dict of such."""
    if isinstance(value, dict):
        return tuple(name for item in value.values() for name in _references(item))
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        return (value[0],)
    return tuple(name for item in value for name in _references(item)) if isinstance(value, list) else ()


class _Question:
    """A property of outputs, which is read from the last layer that does not pass it through.

    Each model within the model is looked at once, however many layers take its outputs.
    """

    passed_through: frozenset[str]
    shared_by_sources = _KEEPS_WHAT_SOURCES_SHARE

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, ...]] = {}

    def of_layer(self, layer: Node) -> Any:
        """Return the property of the output of a layer that is no model; None if not in the JSON."""
        raise NotImplementedError

    def of_outputs(self, model: Node) -> tuple[Any, ...]:
        """Return the property of each output of a model."""
        if id(model) not in self._known:
            config = model["config"]
            layers = config["layers"]
            if model["class_name"] == "Sequential":
                self._known[id(model)] = (self._of_last(layers),)
            else:
                self._known[id(model)] = self._of_tensors(_by_name(layers), _tensors(config["output_layers"]))
        return self._known[id(model)]

    def _of_output(self, layer: Node, number: int) -> Any:
        if layer["class_name"] not in MODELS:
            return self.of_layer(layer)
        outputs = self.of_outputs(layer)
        return outputs[number] if number < len(outputs) else None

    def _of_last(self, layers: list[Node]) -> Any:
        """Follow a Sequential back from its last layer to the one that has the answer."""
        deciding = (layer for layer in reversed(layers) if layer["class_name"] not in self.passed_through)
        layer = next(deciding, None)
        return None if layer is None else self._of_output(layer, 0)

    def _of_tensors(self, by_name: dict[str, Node], tensors: list["_Tensor"]) -> tuple[Any, ...]:
        """Follow a functional model back from each output to the layer that has the answer."""
        known: dict[_Tensor, Any] = {}
        try:
            return tuple(self._of_tensor(by_name, tensor, known) for tensor in tensors)
        except RecursionError:  # hundreds of layers that only pass their input through
            return (None,) * len(tensors)

    def _of_tensor(self, by_name: dict[str, Node], tensor: "_Tensor", known: "dict[_Tensor, Any]") -> Any:
        if tensor not in known:
            known[tensor] = None  # of a layer that takes its own output
            known[tensor] = self._follow(by_name, tensor, known)
        return known[tensor]

    def _follow(self, by_name: dict[str, Node], tensor: "_Tensor", known: "dict[_Tensor, Any]") -> Any:
        layer = by_name.get(tensor[0])
        if layer is None:
            return None
        sources = list(dict.fromkeys(_tensors(layer.get("inbound_nodes"))))
        if layer["class_name"] in self.shared_by_sources:
            answers = {self._of_tensor(by_name, source, known) for source in sources}
            return answers.pop() if len(answers) == 1 else None
        if layer["class_name"] not in self.passed_through:
            return self._of_output(layer, tensor[1])
        return self._of_tensor(by_name, sources[0], known) if len(sources) == 1 else None


class _Units(_Question):
    """The last dimension."""

    passed_through = _KEEPS_LAST_DIMENSION
    shared_by_sources = _OF_ONE_SHAPE

    def of_layer(self, layer: Node) -> int | None:
        config = layer["config"]
        width = config.get("units") if layer["class_name"] == "Dense" else None
        if layer["class_name"] == "InputLayer":
            shape = config.get("batch_shape")
            width = shape[-1] if isinstance(shape, list) and shape else None
        if layer["class_name"] == "Reshape":
            shape = config.get("target_shape")
            width = shape[-1] if isinstance(shape, list) and shape and is_int(shape[-1]) and shape[-1] > 0 else None
        return width if isinstance(width, int) else None


class _Activations(_Question):
    """The name of the function that an output went through last."""

    passed_through = _KEEPS_VALUES

    def of_layer(self, layer: Node) -> str | None:
        if layer["class_name"] == "Softmax":
            return "softmax"
        activation = layer["config"].get("activation")
        return activation if isinstance(activation, str) else None


#: An output of a layer: the layer's name, and the number of the output.
_Tensor = tuple[str, int]


def _tensors(nodes: Any) -> list[_Tensor]:
    """Return the outputs that a layer takes, as names of layers and numbers, in the forms of Keras 3 and of Keras 2."""
    if isinstance(nodes, dict):
        if nodes.get("class_name") == "__keras_tensor__":
            return _tensors(nodes["config"].get("keras_history"))
        return [tensor for item in nodes.values() for tensor in _tensors(item)]
    if isinstance(nodes, list) and len(nodes) >= 3 and isinstance(nodes[0], str):
        return [(nodes[0], nodes[2] if is_int(nodes[2]) else 0)]
    return [tensor for item in nodes for tensor in _tensors(item)] if isinstance(nodes, list) else []
