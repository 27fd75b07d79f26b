"""Converts architecture JSON of Keras 2 to the form of Keras 3; called by `architecture` before its check.

It supports three dialects: Keras 2.1 (a Sequential's config is a list of layers, ``batch_input_shape`` on the first of
them), tf.keras 2.2-2.9 (a dict with ``name`` and ``layers``, an InputLayer since 2.4) and tf.keras 2.10-2.15 (some
``module`` paths, ``build_config``). The result is checked like any other document.
"""

from typing import Any

from madlib_mop.errors import UnreadableText, Unsupported
from madlib_mop.models.keras_layers import KERAS_2_HARD_SIGMOID, LAYERS, MODELS, Node
from madlib_mop.models.parameters.literals import shorten

# Arguments that Keras 3 has dropped, and the values that equal the behaviour of Keras 3.
_DROPPED: dict[str, dict[str, Any]] = {
    "*": {"batch_input_shape": ..., "input_dtype": ..., "dynamic": False, "ragged": False, "autocast": ...},
    "Attention": {"causal": False},
    "AdditiveAttention": {"causal": False},
    "BatchNormalization": {"fused": ..., "virtual_batch_size": None, "adjustment": None, "mode": 0},
    "Conv1DTranspose": {"groups": 1},
    "Conv2DTranspose": {"groups": 1},
    "Conv3DTranspose": {"groups": 1},
    "ConvLSTM2D": {"implementation": ...},
    "DepthwiseConv1D": {"groups": 1, "filters": ...},
    "DepthwiseConv2D": {"groups": 1, "filters": ...},
    "Embedding": {"input_length": ...},
    "GRU": {"implementation": ..., "time_major": False},
    "LSTM": {"implementation": ..., "time_major": False},
    "MultiHeadAttention": {"query_shape": ..., "key_shape": ..., "value_shape": ...},
    "RNN": {"time_major": False, "implementation": ...},
    "SeparableConv1D": {
        "groups": 1,
        **dict.fromkeys(("kernel_initializer", "kernel_regularizer", "kernel_constraint"), ...),
    },
    "SeparableConv2D": {
        "groups": 1,
        **dict.fromkeys(("kernel_initializer", "kernel_regularizer", "kernel_constraint"), ...),
    },
    "SimpleRNN": {"implementation": ..., "time_major": False},
    "SpatialDropout1D": {"noise_shape": ...},
    "SpatialDropout2D": {"noise_shape": ...},
    "SpatialDropout3D": {"noise_shape": ...},
}
_RENAMED = {"LeakyReLU": {"alpha": "negative_slope"}, "ThresholdedReLU": {"theta": "threshold"}}
_OLD_CLASSES = {
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    "GRUCellV2": "GRUCell",
    "GRUV2": "GRU",
    "LSTMCellV2": "LSTMCell",
    "LSTMV2": "LSTM",
    "Model": "Functional",
    "SyncBatchNormalization": "BatchNormalization",
    "ThresholdedReLU": "ReLU",
}
# Suffixes of class names with which TensorFlow 1 and 2 serialised initializers and other objects.
_OLD_SUFFIXES = ("V1", "V2")
_OLD_OBJECTS = {"uniform": "RandomUniform", "normal": "RandomNormal", "maxnorm": "MaxNorm", "nonneg": "NonNeg"}
_OLD_STRINGS = {"maxnorm": "max_norm", "nonneg": "non_neg", "unitnorm": "unit_norm", "l1_l2": "l1l2"}
_OBJECT_KEYS = ("initializer", "regularizer", "constraint")


def is_keras_2(document: Node) -> bool:
    """Return whether a model's JSON was written by Keras 2: it has its version, or classes have no modules."""
    version = str(document.get("keras_version", ""))
    return version[:1] in ("1", "2") or "module" not in document


def translate(document: Node) -> Node:
    """Translate a model of Keras 2.

    Parameters
    ----------
    document : dict
        JSON of a Sequential, Model or Functional.

    Returns
    -------
    dict
        The model in Keras 3's form, unchecked.

    Raises
    ------
    Unsupported
        If it was written by Keras 1, or uses an argument that Keras 3 does not have.
    UnreadableText
        If a model has no layers.
    """
    if str(document.get("keras_version", "")).startswith("1"):
        raise Unsupported(
            f"model_arch was written by Keras 1, which cannot be read. Received: keras_version "
            f"{document['keras_version']!r}",
            hint="Export it again with Keras 2 or Keras 3.",
        )
    translated: Node = _node(_without_containers(document))
    return translated


def _without_containers(value: Any) -> Any:
    """Unwrap tuples and shapes, which tf.keras wrote as ``{"class_name": "__tuple__", "items": [...]}``."""
    if isinstance(value, list):
        return [_without_containers(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("class_name") in ("__tuple__", "TensorShape") and isinstance(value.get("items"), list):
        return _without_containers(value["items"])
    return {key: _without_containers(item) for key, item in value.items()}


def _node(node: Any) -> Any:
    """Translate a model or a layer; anything else is left to the check."""
    if not isinstance(node, dict) or not isinstance(node.get("class_name"), str):
        return node
    old_name = node["class_name"]
    name = _OLD_CLASSES.get(old_name, old_name)
    kept = {key: node[key] for key in ("name", "inbound_nodes", "shared_object_id") if key in node}
    if name in MODELS:
        return {**kept, "module": MODELS[name], "class_name": name, "config": _model(name, node.get("config"))}
    config = node.get("config")
    if name in LAYERS and isinstance(config, dict):
        config = _layer(name, config, _RENAMED.get(old_name, {}))
    return {**kept, "module": node.get("module", "keras.layers"), "class_name": name, "config": config}


def _model(name: str, config: Any) -> Node:
    if isinstance(config, list):
        config = {"name": "sequential", "layers": config}
    if not isinstance(config, dict) or not isinstance(config.get("layers"), list) or not config["layers"]:
        raise UnreadableText(f"model_arch: a {name} has no list of layers. Received: {shorten(config)}")
    kept = {key: value for key, value in config.items() if key != "batch_input_shape"}
    layers = [_node(layer) for layer in config["layers"]]
    if name == "Sequential":
        layers = _input_of(config["layers"][0]) + layers
    kept["layers"] = layers
    if name == "Functional":
        names = frozenset(layer["name"] for layer in layers if isinstance(layer, dict) and _has_name(layer))
        kept["layers"] = [_connected(layer, names) for layer in layers]
        for key in ("input_layers", "output_layers"):
            # Keras 2 treated a list of one tensor as the tensor; Keras 3 would take and return lists.
            kept[key] = _single(kept.get(key))
    return kept


def _has_name(layer: Node) -> bool:
    return isinstance(layer.get("name"), str)


def _input_of(first: Any) -> list[Node]:
    """Create the InputLayer for the first layer's ``batch_input_shape``."""
    config = first.get("config") if isinstance(first, dict) else None
    if not isinstance(config, dict) or first.get("class_name") in ("InputLayer", *MODELS, "Model"):
        return []
    shape = config.get("batch_input_shape")
    if shape is None and isinstance(config.get("layer"), dict):
        inner = config["layer"].get("config")
        shape = inner.get("batch_input_shape") if isinstance(inner, dict) else None
    if shape is None:
        return []
    dtype = _dtype(config.get("dtype")) or "float32"
    made = {"batch_shape": shape, "dtype": dtype if isinstance(dtype, str) else "float32", "sparse": False}
    made["name"] = f"{config.get('name', 'sequential')}_input"
    return [{"module": "keras.layers", "class_name": "InputLayer", "config": made}]


def _connected(layer: Any, names: frozenset[str]) -> Any:
    """Read a layer's inbound nodes as Keras 3 does: a list of calls, each a list of tensors."""
    if not isinstance(layer, dict):
        return layer
    nodes = layer.get("inbound_nodes")
    return {**layer, "inbound_nodes": [_call(node, names) for node in nodes] if isinstance(nodes, list) else []}


def _call(node: Any, names: frozenset[str]) -> Any:
    """Translate one call of a layer: ``[[name, node, tensor, kwargs], ...]``, where kwargs may name tensors too."""
    if isinstance(node, list) and node and isinstance(node[0], str):
        node = [node]  # some versions wrote a call of one tensor as a flat list
    if not isinstance(node, list) or not all(_is_reference(item, names) for item in node):
        return node
    kwargs = next((item[3] for item in node if len(item) > 3 and item[3]), None)
    if not isinstance(kwargs, dict):
        return node
    tensors = [_tensor(item) for item in node]
    return {
        "args": tensors if len(tensors) == 1 else [tensors],
        "kwargs": {name: _argument(value, names) for name, value in kwargs.items()},
    }


def _argument(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, list) and len(value) >= 3 and value[0] == "_CONSTANT_VALUE":
        return value[2]
    if _is_reference(value, names):
        return _tensor(value)
    return [_argument(item, names) for item in value] if isinstance(value, list) else value


def _is_reference(value: Any, names: frozenset[str]) -> bool:
    return isinstance(value, list) and len(value) in (3, 4) and isinstance(value[0], str) and value[0] in names


def _tensor(reference: list[Any]) -> Node:
    """Name a tensor as Keras 3 does; its shape and type are those of its source layer."""
    config = {"shape": [None], "dtype": "float32", "keras_history": reference[:3]}
    return {"class_name": "__keras_tensor__", "config": config}


def _layer(name: str, config: Node, renamed: dict[str, str]) -> Node:
    if config.get("ragged"):
        raise Unsupported(f"model_arch: ragged inputs cannot be used. Received: {shorten(config.get('name'))}")
    values = {renamed.get(key, key): _value(key, value) for key, value in config.items()}
    if name == "InputLayer" and "batch_input_shape" in values:
        values["batch_shape"] = values["batch_input_shape"]
    for key, harmless in {**_DROPPED["*"], **_DROPPED.get(name, {})}.items():
        if key in values and (harmless is ... or values[key] == harmless):
            del values[key]
    if name == "BatchNormalization":
        values["axis"] = _single(values.get("axis", -1))
        for key in ("renorm", "renorm_clipping"):
            if not values.get(key):
                values.pop(key, None)
        if "renorm" not in values:
            values.pop("renorm_momentum", None)
    if name == "Concatenate" or name == "Softmax":
        values["axis"] = _single(values.get("axis", -1))
    if name in ("GRU", "GRUCell"):
        # Keras before 2.2 always applied the reset gate before the product.
        values.setdefault("reset_after", False)
    for key in ("layer", "backward_layer", "cell"):
        if isinstance(values.get(key), dict):
            values[key] = _node(values[key])
    if isinstance(values.get("cells"), list):
        values["cells"] = [_node(cell) for cell in values["cells"]]
    return values


def _single(value: Any) -> Any:
    """Return ``3`` for ``[3]``: tf.keras wrote a list, Keras 3 takes the value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _dtype(value: Any) -> Any:
    """Return a policy's name: tf.keras wrote ``{"class_name": "Policy", "config": {"name": ...}}``."""
    if isinstance(value, dict) and value.get("class_name") in ("Policy", "PolicyV1"):
        config = value.get("config")
        return config.get("name") if isinstance(config, dict) else value
    return value


def _value(key: str, value: Any) -> Any:
    if key == "dtype":
        return _dtype(value)
    if key.endswith(_OBJECT_KEYS) and isinstance(value, str):
        return _OLD_STRINGS.get(value.lower(), value)
    if key.endswith(_OBJECT_KEYS) and isinstance(value, dict) and isinstance(value.get("class_name"), str):
        return _small_object(value)
    if key.endswith("activation") and value == "hard_sigmoid":
        return KERAS_2_HARD_SIGMOID
    if key.endswith("activation") and isinstance(value, dict) and value.get("class_name") in (*LAYERS, *_OLD_CLASSES):
        return _node(value)
    return value


def _small_object(value: Node) -> Node:
    """Translate an initializer, regularizer or constraint."""
    name = value["class_name"]
    for suffix in _OLD_SUFFIXES:
        name = name.removesuffix(suffix)
    name = _OLD_OBJECTS.get(name.lower(), name)
    config = value.get("config")
    config = dict(config) if isinstance(config, dict) else {}
    config.pop("dtype", None)
    if name == "VarianceScaling" and config.get("distribution") == "normal":
        config["distribution"] = "truncated_normal"
    if name == "Constant" and isinstance(config.get("value"), list) and len(config["value"]) == 1:
        config["value"] = config["value"][0]
    return {"class_name": name, "config": config}
