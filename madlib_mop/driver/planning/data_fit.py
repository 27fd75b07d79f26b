"""Checks that architectures, losses and metrics fit the packed table to train on and the backend, and computes class
weights; called when a run is planned.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from mop_backend.keras_backends import BackendName

from madlib_mop.driver.data.packed import PackedTable
from madlib_mop.driver.inference.fits import is_split
from madlib_mop.errors import InvalidParameter, MopError, Unsupported
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.class_weights import BALANCED, balanced_weights, written_out
from madlib_mop.models.parameters.keras_names import LOSS_STRINGS, LOSSES
from madlib_mop.models.parameters.literals import CallSpec, write_value
from madlib_mop.models.parameters.parser import CompileParams, FitParams, several_values
from madlib_mop.models.shapes import ModelShape, describe, shapes_fit

#: Layers of Keras that call TensorFlow's operations on every backend.
_OF_TENSORFLOW = frozenset({"Hashing", "HashedCrossing"})


def check_fit(architectures: Iterable[tuple[int, Node]], packed: PackedTable, backend: BackendName) -> None:
    """Reject architectures with inputs or outputs that differ from those of the packed table.

    Layers that the run's backend does not have are rejected too.

    Shapes that are not in the JSON (only Keras can compute them) are checked by the trainer.

    Parameters
    ----------
    architectures : iterable of (int, dict)
        model_id and the architecture's JSON; repetitions are allowed.
    packed : PackedTable
        The training data.
    backend : BackendName
        That of the run.

    Raises
    ------
    InvalidParameter
        With the model_id, and the shapes of both sides.
    Unsupported
        With the model_id and the layer.
    """
    seen = set()
    for model_id, arch in architectures:
        if model_id in seen:
            continue
        seen.add(model_id)
        try:
            _check_one(arch, packed)
            _check_backend(arch, backend)
        except MopError as error:
            error.message = f"model_arch_table: model_id {model_id}: {error.message}"
            raise


def _check_one(arch: Node, packed: PackedTable) -> None:
    shape = describe(check_architecture(arch))
    split = is_split(shape, packed)
    sides = (
        ("input", shape.n_inputs, packed.independent, "independent_varname"),
        ("output", shape.n_outputs, packed.dependent, "dependent_varname"),
    )
    for side, n_wanted, columns, argument in sides:
        if n_wanted != len(columns) and not (split and side == "input"):
            raise InvalidParameter(
                f"the architecture has {n_wanted} {side}(s), but {packed.relation} has"
                f" {len(columns)} {side} column(s). Received: {', '.join(columns)}",
                hint=f"Name one column for each {side} in {argument} when packing.",
            )
    n_inputs = len(packed.independent)
    for wanted, column, row in zip(shape.input_shapes, packed.independent, packed.shapes, strict=False):
        if wanted is not None and not split and not shapes_fit(wanted, tuple(row)):
            raise InvalidParameter(
                f"the architecture's input takes rows of the shape {_text(wanted)}, but column {column!r} of"
                f" {packed.relation} has {_text(row)}",
                hint="Change the first layer's input shape, or pack arrays of the shape that the architecture takes.",
            )
    outputs = zip(shape.output_units, packed.dependent, packed.shapes[n_inputs:], strict=True)
    for number, (units, column, row) in enumerate(outputs):
        classes = packed.num_classes[number] if number < len(packed.num_classes) else None
        fitting = _units_that_fit(row) | ({classes} if classes and row == [1] else set())
        if units is not None and units not in fitting:
            what = "classes" if classes else "values a row"
            n_values = classes or (row[-1] if row else 1)
            raise InvalidParameter(
                f"the architecture's output has {units} units, but column {column!r} of {packed.relation} has"
                f" {n_values} {what}",
                hint=_hint(units, classes, row),
            )


def _check_backend(arch: Node, backend: BackendName) -> None:
    found = sorted(_OF_TENSORFLOW.intersection(_classes(arch))) if backend != BackendName.TENSORFLOW else []
    if found:
        raise Unsupported(
            f"layers of class {', '.join(found)} need TensorFlow, and the run's backend is {backend}",
            hint="SET madlib_mop.backend = 'tensorflow';",
        )


def _classes(value: object) -> Iterator[object]:
    """Return the class names in a part of an architecture."""
    if isinstance(value, dict):
        yield value.get("class_name")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _classes(inner)


def _hint(units: int, classes: int | None, row: list[int]) -> str:
    if units == 1 and classes == 2 and row == [2]:
        return "Pack it with labels => 'index', which makes two classes 0 and 1; or use 2 units in the last layer."
    if not classes and row == [1]:
        return "A sparse loss needs classes: pack it with labels => 'index', without num_classes => '{}'."
    return "Use that number of units in the last layer; num_classes of training_preprocessor_dl adds classes."


def _units_that_fit(row: list[int]) -> set[int]:
    """Return the allowed last dimensions of outputs for rows of y of a shape."""
    if not row:
        return {1}
    without_last = row[-2] if len(row) > 1 else 1
    return {row[-1], without_last} if row[-1] == 1 else {row[-1]}


def _text(shape: Iterable[int | None]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


_PACK_INDEX = "Pack it with labels => 'index'"
_PACK_ONE_HOT = "Pack it with labels => 'one-hot'"
_KNOWN_LOSSES = {name.replace("_", "").lower() for name in (*LOSSES, *LOSS_STRINGS)}
_OF_TWO = ("binarycrossentropy", "binaryfocalcrossentropy", "bce")
_SPARSE_BY_DEFAULT = ("IoU", "MeanIoU")


class Labels(Enum):
    """How one dependent column was packed."""

    ONE_HOT = "one-hot"  # class labels, one-hot encoded
    INDEX = "index"  # class labels, as class numbers
    VALUES = "values"  # unchanged: one-hot arrays, soft labels, regression targets


def labels_of(packed: PackedTable, number: int) -> Labels:
    """Return how a dependent column, by number from 0, was packed."""
    n_classes = packed.num_classes[number] if number < len(packed.num_classes) else None
    if not n_classes or packed.class_values[number][1] is None:
        return Labels.VALUES
    row = packed.shapes[len(packed.independent) + number]
    return Labels.INDEX if row == [1] and n_classes > 1 else Labels.ONE_HOT


def check_labels(configurations: Mapping[int, Configuration], packed: PackedTable, in_table: bool) -> None:
    """Reject losses and metrics that do not fit the form of the labels.

    Parameters
    ----------
    configurations : mapping of int to Configuration
        By mst_key.
    packed : PackedTable
    in_table : bool
        Whether they come from a model selection table; then messages have the mst_key.

    Raises
    ------
    InvalidParameter
        With the configuration, the column and how to pack it.
    """
    shapes: dict[int, ModelShape] = {}
    seen = set()
    for mst_key, c in configurations.items():
        if (c.model_id, c.compile_params) in seen:
            continue
        seen.add((c.model_id, c.compile_params))
        if c.model_id not in shapes:
            shapes[c.model_id] = c.shape
        try:
            check_compile_params(c.compiled, shapes[c.model_id], packed)
        except MopError as error:
            if in_table:
                error.message = f"model_selection_table: mst_key {mst_key}: {error.message}"
            raise


def check_single_values(params: CompileParams, shape: ModelShape) -> None:
    """Check that each metric has one value: early stopping, leaderboards and output tables take a number.

    Keras itself reports an array of values, for example the F1 score of each class.

    Raises
    ------
    InvalidParameter
        With the metric, and how to write it.
    """
    n_outputs = max(1, shape.n_outputs)
    for key, value in (("metrics", params.metrics), ("weighted_metrics", params.weighted_metrics)):
        for number, metrics in enumerate(by_output(value, shape, n_outputs)):
            units = shape.output_units[number] if number < len(shape.output_units) else None
            for metric in _flat(metrics):
                hint = several_values(metric)
                of_thresholds = isinstance(metric, CallSpec) and isinstance(metric.kwargs.get("thresholds"), list)
                if hint is not None and (of_thresholds or units != 1):
                    several = "threshold" if of_thresholds else "class or output"
                    raise InvalidParameter(
                        f"compile_params: {key}: {_name(metric)} has a value for each {several}, and a metric of a run"
                        f" is one number. Received: {write_value(metric)}",
                        hint=hint,
                    )


def check_compile_params(params: CompileParams, shape: ModelShape, packed: PackedTable) -> None:
    """Check losses and metrics of one architecture, see `check_labels`."""
    check_single_values(params, shape)
    n_outputs = len(packed.dependent)
    losses = by_output(params.loss, shape, n_outputs)
    metrics = by_output(params.metrics, shape, n_outputs)
    for number, column in enumerate(packed.dependent):
        labels = labels_of(packed, number)
        units = shape.output_units[number] if number < len(shape.output_units) else None
        where = f"column {column!r} of {packed.relation}"
        if labels is Labels.VALUES:
            continue
        n_classes = packed.num_classes[number]
        for loss in _flat(losses[number]):
            _check_loss(loss, labels, units, n_classes, where)
        for metric in _flat(metrics[number]):
            _check_metric(metric, labels, units, where)


def _check_loss(loss: Any, labels: Labels, units: int | None, n_classes: int, where: str) -> None:
    name = _name(loss)
    plain = name.replace("_", "").lower()
    if labels is Labels.ONE_HOT:
        if _is_sparse(loss):
            raise InvalidParameter(
                f"loss {name!r} takes class indices, but {where} was packed one-hot",
                hint=f"{_PACK_INDEX}, or use 'categorical_crossentropy'.",
            )
    elif _is_sparse(loss):
        if units is not None and units != n_classes:
            raise InvalidParameter(
                f"the architecture's output has {units} units, but {where} has {n_classes} classes",
                hint="The last layer needs one unit for each class; num_classes of training_preprocessor_dl adds "
                "classes.",
            )
    elif plain in _OF_TWO and units == 1 and n_classes > 2:
        raise InvalidParameter(
            f"loss {name!r} with one unit is for two classes, but {where} has {n_classes}",
            hint="Use one unit for each class with 'sparse_categorical_crossentropy'.",
        )
    elif plain in _KNOWN_LOSSES and units not in (None, 1):
        raise InvalidParameter(
            f"loss {name!r} takes one-hot labels, but {where} was packed with labels => 'index'",
            hint=f"{_PACK_ONE_HOT}, or use 'sparse_categorical_crossentropy'.",
        )


def _check_metric(metric: Any, labels: Labels, units: int | None, where: str) -> None:
    name = _name(metric)
    if labels is Labels.ONE_HOT and _is_sparse(metric):
        raise InvalidParameter(
            f"metric {name!r} takes class indices, but {where} was packed one-hot",
            hint=f"{_PACK_INDEX}, or use the metric for one-hot labels, e.g. 'accuracy' or OneHotMeanIoU.",
        )
    if labels is Labels.INDEX and units != 1 and "categorical" in name.lower() and not _is_sparse(metric):
        raise InvalidParameter(
            f"metric {name!r} takes one-hot labels, but {where} was packed with labels => 'index'",
            hint=f"{_PACK_ONE_HOT}, or use 'accuracy' or a sparse metric.",
        )


def by_output(value: Any, shape: ModelShape, n_outputs: int) -> list[Any]:
    """Return the value of compile() for each output; a plain list of metrics belongs to the only output."""
    if isinstance(value, dict):
        return [value.get(name) for name in (*shape.output_names, *[None] * n_outputs)][:n_outputs]
    if n_outputs > 1 and isinstance(value, list) and len(value) == n_outputs:
        return value
    return [value] * n_outputs


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [item for part in value for item in _flat(part)]
    return [] if value is None else [value]


def _name(function: Any) -> str:
    return function.name if isinstance(function, CallSpec) else str(function)


def _is_sparse(function: Any) -> bool:
    if isinstance(function, CallSpec) and function.name in _SPARSE_BY_DEFAULT:
        return bool(function.kwargs.get("sparse_y_true", True))
    return "sparse" in _name(function).lower()


def weights_of_classes(fit_params: Iterable[FitParams], packed: PackedTable) -> dict[int, float] | None:
    """Check the class weights of fit parameters, and return those that ``class_weight='balanced'`` stands for.

    Returns
    -------
    dict of int to float, or None
        None if no fit parameters have ``'balanced'``.

    Raises
    ------
    InvalidParameter
        If a weight is that of a class that there is not, the model has several outputs, or the packed table does not
        record the number of rows of its classes.
    """
    given = [params.class_weight for params in fit_params if params.class_weight is not None]
    if given and len(packed.dependent) > 1:
        raise InvalidParameter(
            f"fit_params: class_weight cannot be used with {len(packed.dependent)} outputs. Received: {given[0]!r}",
            hint="Keras supports class weights only for models with a single output; omit class_weight.",
        )
    n_classes = _n_classes(packed)
    for weights in given:
        unknown = [] if isinstance(weights, str) else [index for index in weights if index >= n_classes]
        if unknown:
            raise InvalidParameter(
                f"fit_params: class_weight has a weight of class {min(unknown)}, and {packed.relation} has the classes"
                f" 0 to {n_classes - 1}. Received: {weights!r}",
                hint="The key is the number of a class in the order of the column's class values, from 0.",
            )
    if BALANCED not in given:
        return None
    if not packed.class_counts[0]:
        raise InvalidParameter(
            f"fit_params: class_weight='balanced' needs the number of rows of each class, which {packed.relation} "
            f"does not record."
            " Received: 'balanced'",
            hint="Pack it again from a column of labels, not of arrays; or write the weights: {0: 1.0, 1: 3.0}.",
        )
    return balanced_weights(packed.class_counts[0])


def _n_classes(packed: PackedTable) -> float:
    """Return the number of classes of the first dependent column; infinite if the table does not say it."""
    row = packed.shapes[len(packed.independent)]
    if labels_of(packed, 0) is Labels.VALUES:
        return row[-1] if row and row[-1] > 1 else math.inf
    return packed.num_classes[0] or math.inf


def with_class_weights(
    configurations: dict[int, Configuration], packed: PackedTable
) -> tuple[dict[int, Configuration], dict[int, float] | None]:
    """Return configurations with explicit balanced weights, and the weights for the run's plan."""
    weights = weights_of_classes([c.fit for c in configurations.values()], packed)
    if weights is None:
        return configurations, None
    changed = {key: replace(c, fit_params=written_out(c.fit_params, weights)) for key, c in configurations.items()}
    return changed, weights
