"""Describes an architecture with Keras: Keras' own JSON, and the weights by layer; imported by trainers only.

Importing this module imports Keras and its backend.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.utils import naming
from mop_backend.frames import Header

from madlib_mop.errors import MopError
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.build import build_architecture, does_not_build
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.calls import unknown_argument

#: Keras' modules whose classes may appear in a checked architecture with arguments of their own.
_MODULES = {
    "keras.layers": keras.layers,
    "keras.initializers": keras.initializers,
    "keras.regularizers": keras.regularizers,
    "keras.constraints": keras.constraints,
}
#: Keras' name of the variables that it has not drawn yet.
_TO_DRAW = "uninitialized_variables"
#: Arguments that every layer takes, in addition to those of its signature.
_EVERY_LAYER_TAKES = ("input_dim", "input_shape", "batch_shape", "batch_input_shape")


@dataclass(frozen=True)
class WeightShape:
    """One array of ``get_weights()``: its layer, with the names of enclosing models, and its shape."""

    layer: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """Keras' description of an architecture.

    Attributes
    ----------
    text : str
        The output of ``model.to_json()``.
    weights : tuple of WeightShape
        In the order of ``get_weights()``.
    """

    text: str
    weights: tuple[WeightShape, ...]


def describe_architecture(document: Node) -> Description:
    """Return Keras' description of an architecture, without drawing or allocating weights.

    Parameters
    ----------
    document : dict
        Architecture JSON; it is always checked here.

    Raises
    ------
    UnreadableText, Unsupported
        If the architecture does not pass its check.
    InvalidParameter
        If a layer gets an argument that it does not have.
    ModelFailed
        If Keras cannot build the model.
    """
    checked = check_architecture(document)
    naming.reset_uids()  # unnamed layers get the same names in each process
    try:
        with _without_weights():
            model = build_architecture(checked)
            return Description(model.to_json(), tuple(_weight_shapes(model)))
    except MopError as error:
        raise _unknown_argument(checked) or error from None
    except Exception as error:  # noqa: BLE001 -- Keras raises errors of any class on bad layers
        raise _unknown_argument(checked) or does_not_build(error) from None


def draw_weights(document: Node, seed: int) -> bytes:
    """Return a model's start weights: those of plain Keras after ``keras.utils.set_random_seed(seed)``.

    Returns
    -------
    bytes
        float32 in native byte order, flattened in the order of ``get_weights()``.
    """
    naming.reset_uids()
    weights = build_architecture(document, seed).get_weights()
    return b"".join(np.ascontiguousarray(weight, np.float32).tobytes() for weight in weights)


@contextmanager
def _without_weights() -> Iterator[None]:
    """Build models without weights. Keras notes their variables, to draw them when it builds the next model; they are
    forgotten here, because that could take any memory."""
    others = list(global_state.get_global_attribute(_TO_DRAW) or ())
    try:
        with StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute(_TO_DRAW, others)


def _weight_shapes(model: keras.Model) -> Iterator[WeightShape]:
    owners = dict(_owners(model, ""))
    for weight in model.weights:
        yield WeightShape(owners[id(weight)], tuple(weight.shape))


def _owners(model: keras.Model, prefix: str) -> Iterator[tuple[int, str]]:
    for layer in model.layers:
        name = prefix + layer.name
        if isinstance(layer, keras.Model):
            yield from _owners(layer, f"{name}/")
        else:
            yield from ((id(weight), name) for weight in layer.weights)


def _unknown_argument(document: Node) -> MopError | None:
    """Return the error about the first argument that its class does not have, if there is one."""
    for place, node in _objects(document, "model_arch"):
        module = _MODULES.get(node["module"])
        cls = getattr(module, node["class_name"], None)
        if not isinstance(cls, type):
            continue
        known = arguments_of(cls)
        for name in node["config"]:
            if known is not None and name not in known:
                return unknown_argument(place, node["class_name"], name, known)
    return None


def arguments_of(cls: type) -> set[str] | None:
    """Return the names of the arguments that a class of Keras takes; None if it takes any."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        given = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        names |= {one.name for one in given if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        if base is keras.layers.Layer:
            return names | {*_EVERY_LAYER_TAKES}
        if not any(one.kind is one.VAR_KEYWORD for one in given):
            return names
    return None


def _objects(node: Any, place: str) -> Iterator[tuple[str, Node]]:
    """Yield the serialised objects of a checked architecture with where they are, outer ones first."""
    if isinstance(node, list):
        for item in node:
            yield from _objects(item, place)
        return
    if not isinstance(node, dict):
        return
    config = node.get("config")
    if isinstance(node.get("class_name"), str) and isinstance(config, dict):
        if isinstance(node.get("module"), str):
            yield place, node
        for number, layer in enumerate(config.get("layers") or (), 1):
            label = f" ({layer['config']['name']})" if isinstance(_name_of(layer), str) else ""
            yield from _objects(layer, f"{place}: layer {number}{label}")
        node = {key: value for key, value in config.items() if key != "layers"}
    for key, value in node.items():
        yield from _objects(value, f"{place}: {key}" if isinstance(value, dict) and "class_name" in value else place)


def _name_of(layer: Any) -> Any:
    config = layer.get("config") if isinstance(layer, dict) else None
    return config.get("name") if isinstance(config, dict) else None


def as_answer(description: Description) -> Header:
    """Return a description for a frame."""
    return {
        "arch": description.text,
        "weights": [[weight.layer, list(weight.shape)] for weight in description.weights],
    }
