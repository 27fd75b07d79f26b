"""Stored architectures: their form for Keras, their comparison, and the check of their statistics."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.architecture import NODE_FORMS, check_architecture
from madlib_mop.models.keras_layers import LAYERS, MODELS, Node


def readable_by_keras(document: Node, checked: Node) -> Node:
    """Return an architecture as ``keras.models.model_from_json`` reads it.

    Parameters
    ----------
    document : dict
        As it is stored: what Keras wrote, or a shorter form by hand, or one of Keras 2.
    checked : dict
        What `check_architecture` made of it.

    Returns
    -------
    dict
        The document where each of its objects names its module, as in what Keras 3 writes; else the checked copy.
    """
    return document if _names_modules(document) else checked


def _names_modules(node: Any) -> bool:
    if isinstance(node, list):
        return all(map(_names_modules, node))
    if not isinstance(node, dict):
        return True
    is_object = "class_name" in node and node["class_name"] not in ("__numpy__", *NODE_FORMS)
    return (not is_object or {"module", "registered_name"} <= node.keys()) and all(map(_names_modules, node.values()))


def same_architecture(one: Node, other: Node) -> bool:
    """Return whether two architectures that pass the check are the same once they are checked."""
    return one == other or check_architecture(one) == check_architecture(other)


def without_names(arch: Node) -> str:
    """Return an architecture that passes the check as JSON, with numbers in place of the names of its layers.

    Keras numbers the layers of a session, so the same network has other names in another session.
    """
    checked = check_architecture(arch)
    numbers = {name: f"#{number}" for number, name in enumerate(dict.fromkeys(_names(checked)))}
    return json.dumps(_renamed(checked, numbers), sort_keys=True)


def _names(node: Any) -> Iterator[str]:
    """Yield the names of a model, its layers and operations."""
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _names(item)
    if isinstance(node, dict) and (node.get("class_name") in {*LAYERS, *MODELS} or "inbound_nodes" in node):
        for name in (node.get("name"), node["config"].get("name")):
            if isinstance(name, str):
                yield name


def _renamed(node: Any, numbers: Mapping[str, str]) -> Any:
    """Replace names of layers: values of ``name``, and in the lists that connect layers."""
    if isinstance(node, dict):
        return {
            key: numbers.get(item, item) if key == "name" and isinstance(item, str) else _renamed(item, numbers)
            for key, item in node.items()
        }
    if isinstance(node, list):
        return [numbers.get(item, item) if isinstance(item, str) else _renamed(item, numbers) for item in node]
    return node


def check_statistics(checked: Node) -> None:
    """Reject a Normalization layer without statistics, because it would have no effect.

    The results of ``adapt()`` are not in a model's JSON, and Keras does not take them from ``set_weights()``.

    Parameters
    ----------
    checked : dict
        What `check_architecture` gave.

    Raises
    ------
    InvalidParameter
    """
    for number, layer in enumerate(checked["config"]["layers"], 1):
        _check_layer_statistics(layer, f"model_arch: layer {number}")


def _check_layer_statistics(layer: Node, where: str) -> None:
    config = layer["config"]
    if layer["class_name"] in MODELS:
        for number, inner in enumerate(config["layers"], 1):
            _check_layer_statistics(inner, f"{where}: layer {number}")
    elif layer["class_name"] == "Normalization" and None in (config.get("mean"), config.get("variance")):
        raise InvalidParameter(
            f"{where} ({config.get('name', 'Normalization')}) has no statistics, so it would have no effect."
            f" Received: mean {config.get('mean')}, variance {config.get('variance')}",
            hint="The JSON does not contain the results of adapt(): write the layer as"
            " keras.layers.Normalization(mean=layer.mean.numpy(), variance=layer.variance.numpy()).",
        )
