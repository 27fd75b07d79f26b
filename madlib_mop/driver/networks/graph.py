"""A functional Keras model, written layer by layer as JSON without importing Keras; the proposals build on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Node = dict[str, Any]

#: Operations of keras.ops that a graph can have.
_OPERATIONS = {"Cos": "keras.src.ops.numpy"}


@dataclass(frozen=True)
class LayerOutput:
    """The output of a layer.

    Attributes
    ----------
    layer : str
        The name of its layer.
    shape : tuple of int
        Of one row.
    dtype : str
    """

    layer: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def reference(self) -> Node:
        """The tensor as an argument of a layer's call."""
        config = {"shape": [None, *self.shape], "dtype": self.dtype, "keras_history": [self.layer, 0, 0]}
        return {"class_name": "__keras_tensor__", "config": config}


class Graph:
    """Layers in the order of their calls.

    Parameters
    ----------
    name : str
        The model's name.
    """

    def __init__(self, name: str):
        self._name = name
        self._layers: list[Node] = []
        self._inputs: list[LayerOutput] = []
        self._names: set[str] = set()

    def input(self, name: str, shape: Sequence[int], dtype: str) -> LayerOutput:
        """Add an input; ``shape`` is that of one row."""
        config: Node = {"batch_shape": [None, *shape], "dtype": dtype}
        tensor = self._add("InputLayer", name, config, "keras.layers", [], tuple(shape), dtype)
        self._inputs.append(tensor)
        return tensor

    def dense(self, x: LayerOutput, units: int, name: str = "dense", **config: Any) -> LayerOutput:
        """Add a Dense layer."""
        return self.layer("Dense", x, (*x.shape[:-1], units), name, units=units, **config)

    def same(self, class_name: str, x: LayerOutput, name: str | None = None, **config: Any) -> LayerOutput:
        """Add a layer that keeps the shape, such as Dropout or LayerNormalization."""
        return self.layer(class_name, x, x.shape, name, **config)

    def dropout(self, x: LayerOutput, rate: float) -> LayerOutput:
        """Add a Dropout layer, unless the rate is 0."""
        return self.same("Dropout", x, rate=rate) if rate else x

    def flatten(self, x: LayerOutput) -> LayerOutput:
        """Make each row a vector."""
        if len(x.shape) == 1:
            return x
        size = 1
        for length in x.shape:
            size *= length
        return self.layer("Flatten", x, (size,))

    def concatenate(self, tensors: Sequence[LayerOutput]) -> LayerOutput:
        """Join vectors; one alone stays as it is."""
        if len(tensors) == 1:
            return tensors[0]
        return self.layer("Concatenate", list(tensors), (sum(x.shape[-1] for x in tensors),))

    def add(self, tensors: Sequence[LayerOutput], name: str | None = None) -> LayerOutput:
        """Add tensors of one shape."""
        return self.layer("Add", list(tensors), tensors[0].shape, name)

    def layer(
        self,
        class_name: str,
        x: LayerOutput | list[LayerOutput],
        shape: tuple[int, ...],
        name: str | None = None,
        **config: Any,
    ) -> LayerOutput:
        """Add a layer of any class, or an operation; ``shape`` is that of one row of its output."""
        module = _OPERATIONS.get(class_name, "keras.layers")
        argument = [one.reference for one in x] if isinstance(x, list) else x.reference
        calls = [{"args": [argument], "kwargs": {}}]
        return self._add(class_name, name or class_name.lower(), config, module, calls, shape, "float32")

    def document(self, outputs: Sequence[LayerOutput]) -> Node:
        """Return the model's JSON as `load_keras_model` takes it."""
        ends = [[[tensor.layer, 0, 0] for tensor in tensors] for tensors in (self._inputs, outputs)]
        config = {"name": self._name, "layers": self._layers, "input_layers": ends[0], "output_layers": ends[1]}
        return {"module": "keras", "class_name": "Functional", "config": config}

    def _add(
        self, class_name: str, name: str, config: Node, module: str, calls: list[Node], shape: tuple[int, ...],
        dtype: str,
    ) -> LayerOutput:  # fmt: skip
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name}_{number}"
        self._names.add(unique)
        self._layers.append(
            {
                "module": module,
                "class_name": class_name,
                "name": unique,
                "config": {"name": unique, **config},
                "inbound_nodes": calls,
            }
        )
        return LayerOutput(unique, shape, dtype)
