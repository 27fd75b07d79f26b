"""Checks architecture JSON against the allow-list before it is passed to Keras; JSON of Keras 2 is converted to the
form of Keras 3 first.

Three dialects of Keras 2 are supported: Keras 2.1 (a Sequential's config is a list of layers, ``batch_input_shape`` on
the first of them), tf.keras 2.2-2.9 (a dict with ``name`` and ``layers``, an InputLayer since 2.4) and tf.keras
2.10-2.15 (some ``module`` paths, ``build_config``). The result is checked like any other document.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mop_backend.bounded_json import read_json

from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.models.keras_layers import (
    ACTIVATIONS,
    BY_KEY,
    CONSTRAINTS,
    DTYPE_POLICIES,
    INITIALIZERS,
    KERAS_2_HARD_SIGMOID,
    LAYERS,
    MODELS,
    OPERATIONS,
    OWN_MODULE,
    REFUSED_LAYERS,
    REGULARIZERS,
    Node,
)
from madlib_mop.models.parameters.calls import is_int, is_number, suggestion
from madlib_mop.models.parameters.keras_names import DTYPES
from madlib_mop.models.parameters.literals import json_float, json_int, shorten

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


MAX_JSON_LENGTH = 64_000_000
MAX_DEPTH = 100
MAX_LAYERS = 20_000
_HINT = "Load the output of Keras' model.to_json() for a Sequential or functional model of Keras' own layers."
NODE_FORMS = ("__keras_tensor__", "__slice__", "__ellipsis__")


def check_architecture(arch: str | Node) -> Node:
    """Check an architecture and return it in the form of Keras 3.

    Parameters
    ----------
    arch : str or dict
        JSON of a Sequential or functional model written by Keras 2 or Keras 3. A result of this function is
        accepted too, and returned unchanged.

    Returns
    -------
    dict
        For ``keras.saving.deserialize_keras_object``; without unchecked parts and compile parameters.

    Raises
    ------
    UnreadableText
        If it is not JSON, or not a model.
    Unsupported
        If it contains anything except Keras' own layers, initializers, regularizers, constraints and activations, has
        no input shape, or is too large.
    """
    document = _read(arch)
    if not isinstance(document, dict) or not isinstance(document.get("class_name"), str):
        raise UnreadableText(f"model_arch is not a Keras model. Received: {shorten(arch)}", hint=_HINT)
    try:
        if is_keras_2(document):
            document = translate(document)
        checked = _Checker().model(document, "model_arch", 0)
        _freeze_nested(checked)
    except RecursionError:
        raise Unsupported(f"model_arch is nested more than {MAX_DEPTH} levels deep") from None
    if not _has_input(checked):
        raise Unsupported(
            "model_arch has no input shape, so its weights cannot be created in advance",
            hint="Start the model with keras.Input(shape), or set input_shape in its first layer, and export its JSON "
            "again.",
        )
    return checked


def _read(arch: str | Node) -> Any:
    no_numbers: list[_NoNumber] = []

    def no_number(word: str) -> _NoNumber:
        no_numbers.append(_NoNumber(word))
        return no_numbers[-1]

    try:
        text = arch if isinstance(arch, str) else json.dumps(arch)
        if len(text) > MAX_JSON_LENGTH:
            raise Unsupported(f"model_arch is longer than {MAX_JSON_LENGTH:,} characters. Received: {len(text):,}")
        document = read_json(text, parse_constant=no_number, parse_int=json_int, parse_float=json_float)
        found = _find_no_number(document, "model_arch", "") if no_numbers else None
        if found is not None:
            raise found
        return document
    except MopError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UnreadableText(f"model_arch is not JSON ({reason}). Received: {shorten(arch)}", hint=_HINT) from None


@dataclass(frozen=True)
class _NoNumber:
    """NaN, Infinity or -Infinity, which Keras writes into JSON, though JSON has no such number."""

    word: str


def _find_no_number(value: Any, where: str, key: str) -> UnreadableText | None:
    """Return the error for the first of these in a document, with its layer and argument; None if there is none."""
    if isinstance(value, _NoNumber):
        return UnreadableText(
            f"{where}: {key or 'a value'} is {value.word}, which is no number of JSON",
            hint="Give the layer a finite number, and export the JSON again.",
        )
    if not isinstance(value, dict | list):
        return None
    items: Any = value.items() if isinstance(value, dict) else ((key, one) for one in value)
    if isinstance(value, dict) and isinstance(config := value.get("config"), dict):
        name = config.get("name", value.get("name"))
        is_model = _is_one_of(value.get("class_name"), MODELS)
        if isinstance(name, str) and not is_model:
            where = f"model_arch: layer {name[:100]!r}"
    for name, one in items:
        if isinstance(one, dict | list | _NoNumber):
            found = _find_no_number(one, where, name)
            if found is not None:
                return found
    return None


def _has_input(model: Node) -> bool:
    """Return whether a checked model defines its input shape."""
    config = model["config"]
    if model["class_name"] == "Functional" or config.get("build_input_shape"):
        return True
    first = config["layers"][0]
    return first["class_name"] == "InputLayer" or (first["class_name"] in MODELS and _has_input(first))


class _Checker:
    """Walks over one document and builds the checked copy for Keras."""

    def __init__(self) -> None:
        self.n_layers = 0

    def model(self, node: Any, where: str, depth: int) -> Node:
        name = self._class_of(node, where)
        if name in LAYERS and depth == 0:
            raise UnreadableText(f"{where} is a single layer, not a model. Received: {name}", hint=_HINT)
        if name not in MODELS:
            raise self._unknown(name, where, MODELS)
        config = node["config"]
        layers = config.get("layers")
        if not isinstance(layers, list) or not layers:
            raise UnreadableText(f"{where} has no list of layers. Received: {shorten(config)}", hint=_HINT)
        self._deeper(depth, where)
        clean = {key: self.value(item, key, where, depth + 1) for key, item in config.items() if key != "layers"}
        clean.setdefault("name", name.lower())
        clean["layers"] = [self.entry(layer, f"{where}: layer {i + 1}", depth + 1) for i, layer in enumerate(layers)]
        if name == "Functional":
            for key in ("input_layers", "output_layers"):
                if not config.get(key):
                    raise UnreadableText(f"{where} has no {key}. Received: {shorten(config)}", hint=_HINT)
        return self._object(node, name, MODELS[name], clean, where, depth)

    def entry(self, node: Any, where: str, depth: int) -> Node:
        """Check a layer of a model: a layer, an operation or a model, and the nodes that connect it."""
        self.n_layers += 1
        if self.n_layers > MAX_LAYERS:
            raise Unsupported(f"model_arch has more than {MAX_LAYERS:,} layers")
        name = self._class_of(node, where)
        label = node["config"].get("name", node.get("name"))
        where = f"{where} ({label})" if isinstance(label, str) else where
        clean = self.layer(node, where, depth)
        if "name" in node:
            clean["name"] = self.value(node["name"], "", where, depth)
        if "inbound_nodes" in node:
            clean["inbound_nodes"] = self._nodes(node["inbound_nodes"], where, depth)
        elif name in OPERATIONS and name not in LAYERS:
            raise UnreadableText(f"{where}: an operation needs inbound_nodes. Received: {name}", hint=_HINT)
        return clean

    def layer(self, node: Any, where: str, depth: int) -> Node:
        name = self._class_of(node, where)
        if name in MODELS:
            return self.model(node, where, max(depth, 1))
        module = node.get("module")
        is_operation = isinstance(module, str) and ".ops." in module
        if is_operation and name in OPERATIONS:
            target = OPERATIONS[name]
        elif name in LAYERS and not is_operation:  # defence: listed-layers = not is_operation
            target = "keras.layers"
        else:
            raise self._unknown(name, where, LAYERS)
        if node["config"].get("stateful"):
            raise Unsupported(
                f"{where}: stateful=True is not supported: a mini-batch does not continue the one before it",
                hint="Set stateful=False.",
            )
        self._deeper(depth, where)
        config = {key: self.value(item, key, where, depth + 1) for key, item in node["config"].items()}
        return self._object(node, name, target, config, where, depth)

    def value(self, item: Any, key: str, where: str, depth: int) -> Any:
        """Check one value of a configuration; ``key`` determines the allowed values."""
        self._deeper(depth, where)
        kind = next((kind for kind in BY_KEY if key.endswith(kind)), None)
        if isinstance(item, str):
            self._text(item, key, kind, where)
            return item
        if isinstance(item, list):
            return [self.value(element, key, where, depth + 1) for element in item]
        if not isinstance(item, dict):
            return item
        if "class_name" not in item:
            return {name: self.value(element, name, where, depth + 1) for name, element in item.items()}
        return self._serialized(item, key, kind, where, depth)

    def _text(self, item: str, key: str, kind: str | None, where: str) -> None:
        if kind and item not in BY_KEY[kind][0]:
            raise Unsupported(
                f"{where}: {key} is not one of Keras' classes or modules. Received: {shorten(item)}",
                hint=suggestion(item, BY_KEY[kind][0]),
            )
        if key.endswith("dtype") and item not in DTYPES:
            raise Unsupported(f"{where}: {key} is unknown. Received: {shorten(item)}", hint=suggestion(item, DTYPES))

    def _serialized(self, item: Node, key: str, kind: str | None, where: str, depth: int) -> Any:
        """Check an object inside a configuration: an initializer, an activation, a dtype policy, a wrapped layer."""
        if item["class_name"] == "function":
            return self._function(item, key, where)
        if item["class_name"] == "__numpy__":
            return self._numpy(item, where)
        name = self._class_of(item, where)
        if name in DTYPE_POLICIES and key.endswith("dtype"):
            policy = item["config"].get("name")
            self._text(policy if isinstance(policy, str) else str(policy), "dtype", None, where)
            return self._object(item, "DTypePolicy", "keras", {"name": policy}, where, depth)
        if kind and kind != "activation":
            allowed, module = BY_KEY[kind]
            if name not in allowed:
                raise self._unknown(name, f"{where}: {key}", allowed)
            config = {inner: self.value(value, inner, where, depth + 1) for inner, value in item["config"].items()}
            return self._object(item, name, module, config, where, depth)
        if not kind and name in INITIALIZERS | REGULARIZERS | CONSTRAINTS and name not in LAYERS:
            raise Unsupported(f"{where}: {key} cannot be of class {name}", hint=_HINT)
        return self.layer(item, f"{where}: {key}", depth)

    def _function(self, item: Node, key: str, where: str) -> str:
        module, name = item.get("module"), item.get("config")
        own = module in (None, "builtins") or (isinstance(module, str) and OWN_MODULE.match(module))
        if not key.endswith("activation") or not own or not _is_one_of(name, BY_KEY["activation"][0]):
            raise Unsupported(
                f"{where}: {key or 'a value'} is a function that is not one of Keras' activations. "
                f"Received: {shorten(name)} of module {module!r}",
                hint=suggestion(name, ACTIVATIONS),
            )
        return str(name)

    def _numpy(self, item: Node, where: str) -> Node:
        config = item.get("config")
        given: Node = config if isinstance(config, dict) else {}
        if not _is_one_of(given.get("dtype"), DTYPES) or not _is_numeric(given.get("value"), 0):
            raise Unsupported(f"{where}: an array may contain numbers only. Received: {shorten(item)}")
        return {"class_name": "__numpy__", "config": {"value": given["value"], "dtype": given["dtype"]}}

    def _nodes(self, item: Any, where: str, depth: int) -> Any:
        """Check the calls that connect a layer: names of layers, numbers, slices, and arrays of numbers."""
        self._deeper(depth, where)
        if isinstance(item, list):
            return [self._nodes(element, where, depth + 1) for element in item]
        if not isinstance(item, dict):
            return item
        name = item.get("class_name")
        if name is None:
            return {key: self._nodes(element, where, depth + 1) for key, element in item.items()}
        if name == "__numpy__":
            return self._numpy(item, where)
        if name not in NODE_FORMS:
            raise self._unknown(name, f"{where}: inbound_nodes", NODE_FORMS)
        config = item.get("config") or {}
        if name == "__ellipsis__":
            return {"class_name": name, "config": {}}
        keys = ("start", "stop", "step") if name == "__slice__" else ("shape", "dtype", "keras_history")
        if not isinstance(config, dict) or not all(_is_plain(config.get(key), 0) for key in keys):
            raise Unsupported(f"{where}: inbound_nodes cannot be parsed. Received: {shorten(item)}")
        if "dtype" in keys and not _is_one_of(config.get("dtype"), DTYPES):
            raise Unsupported(f"{where}: dtype is unknown. Received: {shorten(config.get('dtype'))}")
        return {"class_name": name, "config": {key: config.get(key) for key in keys}}

    def _object(self, node: Node, name: str, module: str, config: Node, where: str, depth: int) -> Node:
        """Return the checked copy of a serialised object, with Keras' module instead of the document's."""
        given = node.get("module")
        if given is not None and not (isinstance(given, str) and OWN_MODULE.match(given)):  # defence: modules-of-keras
            raise Unsupported(
                f"{where}: module is not one of Keras' classes or modules. Received: {shorten(given)}", hint=_HINT
            )
        registered = node.get("registered_name")
        if registered is not None and registered not in (name, node["class_name"]):
            raise Unsupported(
                f"{where}: registered classes cannot be used. Received: {shorten(registered)}", hint=_HINT
            )
        clean = {"module": module, "class_name": name, "config": config, "registered_name": None}
        if is_int(node.get("shared_object_id")):
            clean["shared_object_id"] = node["shared_object_id"]
        build = node.get("build_config")
        if isinstance(build, dict) and _is_plain(list(build.values()), 0):
            clean["build_config"] = build
        return clean

    def _class_of(self, node: Any, where: str) -> str:
        """Return the class of a serialised object, after checking its form: a dict with a class_name and a config."""
        name = node.get("class_name") if isinstance(node, dict) else None
        if isinstance(name, str) and name in REFUSED_LAYERS:
            raise self._unknown(name, where, LAYERS)
        if not isinstance(name, str) or not isinstance(node.get("config"), dict):
            raise UnreadableText(
                f"{where} is not a layer or object of Keras (class_name and config). Received: {shorten(node)}",
                hint=_HINT,
            )
        return name

    def _unknown(self, name: Any, where: str, allowed: Collection[str]) -> Unsupported:
        if isinstance(name, str) and name in REFUSED_LAYERS:
            return Unsupported(f"{where}: {name} is not allowed: {REFUSED_LAYERS[name]}", hint=_HINT)
        hint = (
            suggestion(name, allowed) if len(allowed) < 60 else suggestion(name, allowed).split("Allowed:")[0] + _HINT
        )
        return Unsupported(
            f"{where}: class is not one of the allowed Keras classes. Received: {shorten(name)}", hint=hint
        )

    def _deeper(self, depth: int, where: str) -> None:
        if depth > MAX_DEPTH:
            raise Unsupported(f"{where} is nested more than {MAX_DEPTH} levels deep")


def has_frozen_layers(model: Node) -> bool:
    """Return whether a model, or a layer of it at any depth, is frozen."""
    if isinstance(model, dict):
        return model.get("trainable") is False or any(map(has_frozen_layers, model.values()))
    return isinstance(model, list) and any(map(has_frozen_layers, model))


def _freeze_nested(model: Node) -> None:
    """Freeze the layers of a nested model that is frozen as a whole: Keras does this when `trainable` is set, not when
    it loads JSON.

    If some of its layers are already frozen, Keras wrote the JSON, and the others are trained.
    """
    for layer in model["config"].get("layers", ()):
        config = layer.get("config")
        if layer.get("class_name") not in MODELS or not isinstance(config, dict):
            continue
        inner = [one["config"] for one in config.get("layers", ()) if isinstance(one.get("config"), dict)]
        if config.get("trainable") is False and not any(one.get("trainable") is False for one in inner):
            for one in inner:
                one["trainable"] = False
        _freeze_nested(layer)


def _is_one_of(value: Any, names: Collection[str]) -> bool:
    """Return whether a value of a document, which may be a list or an object, is one of some names."""
    return isinstance(value, str) and value in names


def _is_numeric(value: Any, depth: int) -> bool:
    if isinstance(value, list):
        return depth < MAX_DEPTH and all(_is_numeric(item, depth + 1) for item in value)
    return is_number(value) or isinstance(value, bool)


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether a value is made of numbers, strings, None, lists and dicts without a class name."""
    if isinstance(value, dict):
        return "class_name" not in value and _is_plain(list(value.values()), depth)
    if isinstance(value, list):
        return depth < MAX_DEPTH and all(_is_plain(item, depth + 1) for item in value)
    return True
