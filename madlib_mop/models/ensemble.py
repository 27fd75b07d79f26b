"""The architecture of an ensemble: one functional model that averages the outputs of its members.

It is made of checked architectures, as JSON; used by the driver.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd, prod
from typing import Any

from madlib_mop.errors import Unsupported
from madlib_mop.models.keras_layers import MODELS, Node
from madlib_mop.models.shapes import ModelShape, Shape, describe

_LAYERS = "keras.layers"


@dataclass(frozen=True)
class EnsembleMember:
    """One model of an ensemble.

    Attributes
    ----------
    label : str
        For messages.
    arch : dict
        Checked (`architecture.check_architecture`).
    count : int
        How many times it counts in the average.
    activations : tuple of (str or None)
        The function to apply to each output before it is averaged, such as ``softmax`` to logits.
    """

    label: str
    arch: Node
    count: int
    activations: tuple[str | None, ...]


@dataclass(frozen=True)
class EnsembleArchitecture:
    """An ensemble as one model.

    Attributes
    ----------
    arch : dict
        For `architecture.check_architecture`.
    names : tuple of str
        The name of each member's layer, in the order of the members.
    """

    arch: Node
    names: tuple[str, ...]


def ensemble_architecture(members: Sequence[EnsembleMember]) -> EnsembleArchitecture:
    """Return the model whose outputs are the weighted averages of its members' outputs.

    Each member is a nested model on the same inputs. The weights are the members' counts, divided by their sum. The
    names of inputs and outputs are those of the first member. Regularizers are removed, because the sum of the
    members' penalties has no meaning for the ensemble.

    Parameters
    ----------
    members : sequence of EnsembleMember

    Raises
    ------
    Unsupported
        If the members do not have the same inputs and outputs.
    """
    shape = describe(members[0].arch)
    for member in members:
        _check_alike(members[0], shape, member)
    names, rows = _Names(), _rows(members[0], shape)
    outputs = [names.new(name) for name in shape.output_names]
    inputs = [names.new(name) for name in shape.input_names]
    layers: list[Node] = [
        _layer("InputLayer", name, {"batch_shape": [None, *row], "dtype": dtype})
        for name, row, dtype in zip(inputs, rows, input_dtypes(members[0].arch), strict=True)
    ]
    sources = [_tensor(name, [None, *row]) for name, row in zip(inputs, rows, strict=True)]
    averaged: list[list[Node]] = [[] for _ in outputs]
    shared, chosen = 0, []
    divisor = reduce(gcd, (member.count for member in members))
    for number, member in enumerate(members, 1):
        name = names.new(f"member_{number}")
        chosen.append(name)
        own = []
        for source, row, wanted in zip(sources, rows, _rows(member, describe(member.arch)), strict=True):
            if row == wanted:
                own.append(source)
                continue
            reshaped = names.new(f"{name}_input")
            layers.append(_layer("Reshape", reshaped, {"target_shape": list(wanted)}, [source]))
            own.append(_tensor(reshaped, [None, *wanted]))
        layers.append(_nested(member.arch, name, own, shared))
        shared += 1 + max(_shared_ids(member.arch), default=0)
        for i, activation in enumerate(member.activations):
            tensor = _tensor(name, [None, None], i)
            if activation is not None:
                activated = names.new(f"{name}_{activation}")
                layers.append(_layer("Activation", activated, {"activation": activation}, [tensor]))
                tensor = _tensor(activated, [None, None])
            averaged[i] += [tensor] * (member.count // divisor)
    layers += [_layer("Average", name, {}, [tensors]) for name, tensors in zip(outputs, averaged, strict=True)]
    config = {
        "name": "ensemble",
        "trainable": True,
        "layers": layers,
        "input_layers": _references(inputs),
        "output_layers": _references(outputs),
    }
    arch = {"module": MODELS["Functional"], "class_name": "Functional", "config": config, "registered_name": None}
    return EnsembleArchitecture(arch, tuple(chosen))


class _Names:
    """Names of layers, each given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, wanted: str) -> str:
        """Return the name, or the name with a number if it is taken."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


def _check_alike(first: EnsembleMember, shape: ModelShape, member: EnsembleMember) -> None:
    found = describe(member.arch)
    for what, here, there in (
        ("inputs", shape.n_inputs, found.n_inputs),
        ("outputs", shape.n_outputs, found.n_outputs),
    ):
        if here != there:
            raise _unlike(f"{member.label} has {there} {what}, {first.label} has {here}")
    for number, (ours, theirs) in enumerate(zip(_rows(first, shape), _rows(member, found), strict=True), 1):
        if ours != theirs and (None in (*ours, *theirs) or _size(ours) != _size(theirs)):
            raise _unlike(
                f"input {number} of {member.label} has the shape {list(theirs)}, that of {first.label} {list(ours)}"
            )
    for number, (units, others) in enumerate(zip(shape.output_units, found.output_units, strict=True), 1):
        if None not in (units, others) and units != others:
            raise _unlike(f"output {number} of {member.label} has {others} units, that of {first.label} {units}")
    config = member.arch["config"]
    if isinstance(config.get("input_layers"), dict) or isinstance(config.get("output_layers"), dict):
        raise Unsupported(f"{member.label} names its inputs or outputs by a dict, so it cannot be part of an ensemble")


def _size(row: Shape) -> int:
    return prod(size or 0 for size in row)


def _unlike(problem: str) -> Unsupported:
    return Unsupported(
        f"the models cannot be averaged: {problem}",
        hint="Pass the mst_keys of models with the same inputs and outputs.",
    )


def _rows(member: EnsembleMember, shape: ModelShape) -> list[Shape]:
    """Return the shape of one row of each input."""
    rows = [row for row in shape.input_shapes if row is not None]
    if len(rows) < shape.n_inputs:
        raise Unsupported(f"{member.label}: the shapes of its inputs are not in its architecture")
    return rows


def input_dtypes(arch: Node) -> list[str]:
    """Return the type of each input of a checked architecture, by NumPy's names."""
    layers = {layer["config"].get("name", layer.get("name")): layer for layer in arch["config"]["layers"]}
    found = [layers.get(name, {"config": {}}) for name in describe(arch).input_names]
    dtypes = [one["config"].get("dtype") if one.get("class_name") == "InputLayer" else None for one in found]
    return [dtype if isinstance(dtype, str) else "float32" for dtype in dtypes]


def _nested(arch: Node, name: str, inputs: Sequence[Node], shared: int) -> Node:
    """Return a member as a layer of the ensemble; ``shared`` is added to the numbers of its shared objects."""
    node: Node = _own(arch, shared)
    config = node["config"]
    config["name"] = name
    if node["class_name"] == "Functional":
        node.pop("build_config", None)
        shape = describe(arch)
        for key, n_tensors in (("input_layers", shape.n_inputs), ("output_layers", shape.n_outputs)):
            references = list(_reference_lists(config[key]))
            config[key] = references[0] if n_tensors == 1 else references
    args = list(inputs) if len(inputs) == 1 else [list(inputs)]
    return {**node, "name": name, "inbound_nodes": [{"args": args, "kwargs": {}}]}


def _own(value: Any, shared: int) -> Any:
    """Return a copy of a part of an architecture without regularizers, its shared objects numbered anew."""
    if isinstance(value, list):
        return [_own(item, shared) for item in value]
    if not isinstance(value, dict):
        return value
    copy: Node = {key: None if key.endswith("regularizer") else _own(item, shared) for key, item in value.items()}
    if isinstance(copy.get("shared_object_id"), int):
        copy["shared_object_id"] += shared
    if copy.get("class_name") == "ActivityRegularization":
        copy["config"] |= {"l1": 0.0, "l2": 0.0}
    return copy


def _shared_ids(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for item in value:
            yield from _shared_ids(item)
    elif isinstance(value, dict):
        if isinstance(value.get("shared_object_id"), int):
            yield value["shared_object_id"]
        for item in value.values():
            yield from _shared_ids(item)


def _reference_lists(value: Any) -> Iterator[list[Any]]:
    """Yield the references ``["dense", 0, 0]`` of one, or of a list."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _reference_lists(item)


def _references(names: Sequence[str]) -> list[Any]:
    references: list[Any] = [[name, 0, 0] for name in names]
    return references[0] if len(references) == 1 else references


def _tensor(name: str, shape: Sequence[int | None], number: int = 0) -> Node:
    config = {"shape": list(shape), "dtype": "float32", "keras_history": [name, 0, number]}
    return {"class_name": "__keras_tensor__", "config": config}


def _layer(class_name: str, name: str, config: Node, args: Sequence[Any] | None = None) -> Node:
    nodes = [] if args is None else [{"args": list(args), "kwargs": {}}]
    return {
        "module": _LAYERS,
        "class_name": class_name,
        "config": {"name": name, **config},
        "registered_name": None,
        "name": name,
        "inbound_nodes": nodes,
    }
