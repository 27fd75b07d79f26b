"""The signature by which architectures share one compiled graph: everything except layer names and L2 strengths.

A grid over L2 strengths differs in numbers only, and Keras names the layers of each model anew. So the trainer traces
one of them, turns its L2 strengths into variables, and gives them the values of whichever configuration trains. Called
by ``fusion.py`` and, in the trainer, by ``trainer/recipe.py`` and ``trainer/graphs/compiled.py``.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from madlib_mop.models.architecture import check_architecture, has_frozen_layers
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.literals import CallSpec, canonical
from madlib_mop.models.parameters.parser import CompileParams
from madlib_mop.models.sizes import NetworkSize, size_of

_LAYERS = ("Dense", "Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
#: Optimizers that look for words in the paths of weights, which consist of the names of models and layers.
_BY_NAMES = ("Muon",)
_SLOTS = ("kernel_regularizer", "bias_regularizer")

Strengths = dict[tuple[int, str], float]


def strengths_of(config: Node) -> Strengths:
    """Return the L2 strengths of a checked architecture that can be variables.

    Parameters
    ----------
    config : dict
        The result of `architecture.check_architecture`.

    Returns
    -------
    dict of (int, str) to float
        By the number of the layer in the architecture's list and the name of the regularizer.
    """
    return {place: regularizer["config"]["l2"] for place, regularizer in _regularizers(config)}


def compile_signature(config: Node, compile_params: CompileParams, extra: str = "") -> str:
    """Return a digest that is equal for configurations whose compiled graphs are the same.

    A plain constant learning rate is a variable of the optimizer, so it does not count; neither do the batch size and
    what is not of the graph: the strengths of L2 regularizers, which are made variables, and the names of layers. Only
    optimizers that treat weights by their names (`_BY_NAMES`) make names count.

    Parameters
    ----------
    config : dict
        The result of `architecture.check_architecture`.
    compile_params : CompileParams
    extra : str
        Anything else that the graph depends on, such as a digest of custom functions.

    Returns
    -------
    str
        Hexadecimal SHA-256.
    """
    return KnownArchitecture(config).signature(compile_params, extra)


def _form_text(config: Node, with_names: bool) -> str:
    return json.dumps(shared_form(config, with_names), sort_keys=True)


def _signature(config: Node, form: str, compile_params: CompileParams, extra: str) -> str:
    name, kwargs, loss, metrics, loss_weights, weighted_metrics = shared_params(compile_params)
    parts = [
        form,
        name,
        kwargs,
        loss,
        metrics,
        loss_weights,
        json.dumps(config["config"].get("output_layers") if isinstance(compile_params.loss_weights, dict) else None),
        weighted_metrics,
        extra,
    ]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def shared_params(compile_params: CompileParams) -> tuple[str, str, str, str, str, str]:
    """Return what is equal for compile parameters of one graph: the optimizer's name and arguments, loss, metrics, loss
    weights and weighted metrics."""
    kwargs = dict(compile_params.optimizer.kwargs)
    if not isinstance(kwargs.get("learning_rate"), CallSpec):
        kwargs["learning_rate"] = "variable"
    others = compile_params.loss, compile_params.metrics, compile_params.loss_weights, compile_params.weighted_metrics
    loss, metrics, loss_weights, weighted_metrics = map(canonical, others)
    return compile_params.optimizer.name, canonical(kwargs), loss, metrics, loss_weights, weighted_metrics


class KnownArchitecture:
    """An architecture that passed its check; what is read from it is read once. Nobody changes it.

    Parameters
    ----------
    checked : dict
        The result of `architecture.check_architecture`.
    """

    def __init__(self, checked: Node):
        self.checked = checked
        self._forms: dict[bool, str] = {}
        self._sizes: dict[tuple[tuple[int, ...], ...], NetworkSize] = {}

    @cached_property
    def is_frozen(self) -> bool:
        """Whether some layers are not trained."""
        return has_frozen_layers(self.checked)

    def size(self, row_shapes: Sequence[Sequence[int]] = ()) -> NetworkSize:
        """Return the size of the network; see `sizes.size_of`. Raises MopError."""
        key = tuple(map(tuple, row_shapes))
        if key not in self._sizes:
            self._sizes[key] = size_of(self.checked, key)
        return self._sizes[key]

    def signature(self, compile_params: CompileParams, extra: str = "") -> str:
        """Return the `compile_signature` with some compile parameters."""
        with_names = compile_params.optimizer.name in _BY_NAMES
        if with_names not in self._forms:
            self._forms[with_names] = _form_text(self.checked, with_names)
        return _signature(self.checked, self._forms[with_names], compile_params, extra)


def known_architecture(c: Configuration) -> KnownArchitecture:
    """Return the architecture of a configuration, which is checked once in a call. Raises MopError."""
    return _known(json.dumps(c.arch))


@lru_cache(256)
def _known(text: str) -> KnownArchitecture:
    return KnownArchitecture(check_architecture(text))


def signature_of(c: Configuration, extra: str = "") -> str:
    """Return the `compile_signature` of a configuration. Raises MopError."""
    return known_architecture(c).signature(c.compiled, extra)


def shared_form(config: Node, with_names: bool = False) -> Node:
    """Return the architecture without the parts that can differ in a shared graph; for comparison only.

    With ``with_names``, the names of layers may not differ.
    """
    form: Node = json.loads(json.dumps(config))  # a copy, faster than copy.deepcopy
    for _, regularizer in _regularizers(form):
        regularizer["config"]["l2"] = "variable"
    if with_names:
        return form
    if form.get("class_name") == "Sequential":
        form["config"].pop("name", None)
        for layer in _layers(form):
            if isinstance(layer.get("config"), dict) and layer.get("class_name") in (*_LAYERS, *_NAMELESS):
                layer["config"].pop("name", None)
    elif _is_nameless_graph(form):
        _number_layers(form["config"])
    return form


def _is_nameless_graph(form: Node) -> bool:
    """Return whether a functional model's layers are called by their place: inputs in order, and one output.

    Several outputs are called by name in what a model logs, and a dictionary of inputs is in the order of its names.
    """
    inner = form.get("config")
    if form.get("class_name") != "Functional" or not isinstance(inner, dict):
        return False
    named = all(isinstance(layer.get("name"), str) for layer in _layers(form))
    return named and isinstance(inner.get("input_layers"), list) and len(_references(inner.get("output_layers"))) == 1


def _number_layers(inner: Node) -> None:
    """Put numbers in place of the names of a functional model's layers, wherever the graph refers to them."""
    inner.pop("name", None)
    numbers = {layer["name"]: number for number, layer in enumerate(inner["layers"])}
    for layer in inner["layers"]:
        layer["name"] = numbers[layer["name"]]
        if isinstance(layer.get("config"), dict):
            layer["config"].pop("name", None)
    edges = [layer.get("inbound_nodes") for layer in inner["layers"]]
    for reference in _references([inner["input_layers"], inner["output_layers"], edges]):
        reference[0] = numbers.get(reference[0], reference[0])


def _references(node: Any) -> list[list[Any]]:
    """Return all references to layers' outputs, ``[name, call, output]``, within a part of a functional model."""
    if isinstance(node, list) and len(node) == 3 and isinstance(node[0], str) and not isinstance(node[1], (list, dict)):
        return [node]
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [reference for part in inner for reference in _references(part)]


_NAMELESS = (
    "InputLayer", "Flatten", "Dropout", "Activation", "BatchNormalization", "MaxPooling1D", "MaxPooling2D",
    "MaxPooling3D", "AveragePooling2D", "GlobalAveragePooling2D", "GlobalMaxPooling2D", "Reshape", "ReLU", "LeakyReLU",
)  # fmt: skip


def layer_of(model: Any, config: Node, number: int) -> Any:
    """Return a layer of the Keras model that was built from an architecture, by its number in the architecture's list.

    JSON that was written by hand may leave names out; then Keras names the layers of a Sequential model.
    """
    layers = _layers(config)
    name = layers[number]["config"].get("name")
    if name is not None:
        return model.get_layer(name)
    n_inputs = sum(layer.get("class_name") == "InputLayer" for layer in layers[:number])
    return model.layers[number - n_inputs]  # a Sequential model has no InputLayer in its layers


def _layers(config: Node) -> list[Node]:
    inner = config.get("config")
    layers = inner.get("layers") if isinstance(inner, dict) else None
    return [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []


def _regularizers(config: Node) -> list[tuple[tuple[int, str], Any]]:
    found = []
    for number, layer in enumerate(_layers(config)):
        if layer.get("class_name") not in _LAYERS or not isinstance(layer.get("config"), dict):
            continue
        if config.get("class_name") != "Sequential" and "name" not in layer["config"]:
            continue
        if not _has_float32_weights(layer["config"].get("dtype")):
            continue  # Keras computes with the strength in the dtype of the weights
        for slot in _SLOTS:
            regularizer = layer["config"].get(slot)
            if _is_plain_l2(regularizer):
                found.append(((number, slot), regularizer))
    return found


def _has_float32_weights(dtype: Any) -> bool:
    """Return whether a layer's dtype or dtype policy, as it is serialised, has weights of float32."""
    if isinstance(dtype, dict):
        inner = dtype.get("config")
        dtype = inner.get("name") if isinstance(inner, dict) else ""
    return dtype in (None, "float32", "mixed_float16", "mixed_bfloat16")


def _is_plain_l2(regularizer: Any) -> bool:
    if not isinstance(regularizer, dict) or regularizer.get("class_name") != "L2":
        return False
    inner = regularizer.get("config")
    return isinstance(inner, dict) and set(inner) == {"l2"} and isinstance(inner["l2"], float)
