"""Splits a model after its frozen, deterministic leading layers, whose output for a row is the same in every epoch.

Called by ``trainer/graphs/compiled.py``; importing this module imports Keras and its backend.
"""

import json
from dataclasses import dataclass
from typing import Any

import keras

#: Layers whose output for a row does not depend on the other rows, the epoch or earlier calls, if they are frozen
#: (BatchNormalization then uses its moving statistics), and that create no masks.
_SETTLED = frozenset(
    """
    Activation Add Average AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization Concatenate Conv1D
    Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose Cropping1D Cropping2D Cropping3D Dense DepthwiseConv1D
    DepthwiseConv2D Dot ELU Embedding Flatten Functional GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization Identity
    InputLayer LayerNormalization LeakyReLU MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum Multiply
    Normalization PReLU Permute ReLU Rescaling RepeatVector Reshape SeparableConv1D SeparableConv2D Sequential Softmax
    Subtract UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
    """.split()
)


@dataclass(frozen=True)
class Split:
    """A model in two parts, made of its own layers, so they always have its weights.

    Attributes
    ----------
    prefix : keras.Model
        From the inputs ``sources`` of the model to the features.
    tail : keras.Model
        From the features, and the inputs that bypass the prefix, to the model's outputs. Not compiled.
    sources : tuple of int
        Numbers of the model's inputs that the prefix takes.
    tail_inputs : tuple of (bool, int)
        The inputs of the tail, in order: (True, number of a feature) or (False, number of an input of the model).
    form : str
        The prefix without names: equal for different architectures with the same leading layers.
    """

    prefix: keras.Model
    tail: keras.Model
    sources: tuple[int, ...]
    tail_inputs: tuple[tuple[bool, int], ...]
    form: str


def split(model: keras.Model) -> Split | None:
    """Split a built model after its frozen and deterministic leading layers; None without a benefit.

    There is no benefit without frozen weights, or if all weights are frozen. Only float32 models are split, because
    features are float32.
    """
    graph = getattr(model, "_functional", None) or model
    if not hasattr(graph, "_nodes_by_depth"):
        return None
    nodes = [node for depth in sorted(graph._nodes_by_depth, reverse=True) for node in graph._nodes_by_depth[depth]]
    settled_nodes, tail_nodes, settled = [], [], {id(tensor) for tensor in model.inputs}
    for node in nodes:
        if node.is_input:
            continue
        if _is_settled(node.operation) and all(id(tensor) in settled for tensor in node.input_tensors):
            settled.update(id(tensor) for tensor in node.outputs)
            settled_nodes.append(node)
        else:
            tail_nodes.append(node)
    if any(id(tensor) in settled for tensor in model.outputs) or not _trained_alike(model, tail_nodes):
        return None
    frontier = {id(t): t for node in tail_nodes for t in node.input_tensors if id(t) in settled}
    numbers = {id(tensor): number for number, tensor in enumerate(model.inputs)}
    features = [tensor for key, tensor in frontier.items() if key not in numbers]
    if not features or any(tensor.dtype != "float32" for tensor in frontier.values()):
        return None
    used = _leading_to(features, settled_nodes)
    if not any(getattr(node.operation, "weights", None) for node in used):
        return None
    taken = {id(tensor) for node in used for tensor in node.input_tensors}
    sources = tuple(number for key, number in numbers.items() if key in taken)
    places = {id(tensor): number for number, tensor in enumerate(features)}
    tail = _replayed(list(frontier.values()), tail_nodes, model.outputs)
    if [id(v) for v in tail.trainable_weights] != [id(v) for v in model.trainable_weights]:
        return None  # the order would change, in which gradients are clipped or summed
    return Split(
        keras.Model([model.inputs[number] for number in sources], features),
        tail,
        sources,
        tuple((True, places[key]) if key in places else (False, numbers[key]) for key in frontier),
        _form(used, [model.inputs[number] for number in sources], features),
    )


def _is_settled(operation: Any) -> bool:
    """Return whether a layer, or all layers of a nested model, give a row the same at any time."""
    if not isinstance(operation, keras.layers.Layer):
        return False
    return all(
        type(layer).__name__ in _SETTLED
        and not layer.trainable_weights
        and not (isinstance(layer, keras.layers.BatchNormalization) and layer.trainable)
        and not getattr(layer, "mask_zero", False)
        and getattr(layer, "activity_regularizer", None) is None
        and layer.dtype_policy.compute_dtype == "float32"
        for layer in operation._flatten_layers()
    )


def _trained_alike(model: keras.Model, tail_nodes: list[Any]) -> bool:
    """Return whether all weights that are trained are behind the cut (a shared layer may be on both sides)."""
    behind = {id(v) for node in tail_nodes for v in getattr(node.operation, "trainable_weights", ())}
    return all(id(variable) in behind for variable in model.trainable_weights)


def _leading_to(features: list[Any], nodes: list[Any]) -> list[Any]:
    """Return the nodes that the features are computed by, in order."""
    wanted, used = {id(tensor) for tensor in features}, []
    for node in reversed(nodes):
        if any(id(tensor) in wanted for tensor in node.outputs):
            used.append(node)
            wanted.update(id(tensor) for tensor in node.input_tensors)
    return used[::-1]


def _replayed(inputs: list[Any], nodes: list[Any], outputs: list[Any]) -> keras.Model:
    """Call the layers of the nodes again, on new inputs."""
    tensors = {id(old): keras.Input(batch_shape=old.shape, dtype=old.dtype) for old in inputs}
    starts = list(tensors.values())
    for node in nodes:
        args, kwargs = node.arguments.fill_in(tensors)
        results = keras.tree.flatten(node.operation(*args, **kwargs))
        tensors.update((id(old), new) for old, new in zip(node.outputs, results, strict=True))
    return keras.Model(starts, [tensors[id(tensor)] for tensor in outputs])


def _form(nodes: list[Any], inputs: list[Any], features: list[Any]) -> str:
    """Write down what is computed; layers are numbered in order, for a shared one counts as the same."""
    tensors: dict[int, tuple[str | int, int]] = {id(tensor): ("input", number) for number, tensor in enumerate(inputs)}
    layers: dict[int, int] = {}
    lines: list[list[Any]] = [[list(tensor.shape) for tensor in inputs]]
    for number, node in enumerate(nodes):
        config = {**node.operation.get_config(), "name": None, "trainable": None}
        layer = layers.setdefault(id(node.operation), len(layers))
        sources = [tensors[id(tensor)] for tensor in node.input_tensors]
        lines.append([layer, type(node.operation).__name__, config, sources, _call_values(node)])
        tensors.update((id(tensor), (number, place)) for place, tensor in enumerate(node.outputs))
    lines.append([tensors[id(tensor)] for tensor in features])
    return json.dumps(lines, sort_keys=True, default=str)


def _call_values(node: Any) -> list[str]:
    """Return what a layer was called with besides tensors."""
    flat = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
    return [repr(value) for value in flat if not isinstance(value, keras.KerasTensor)]
