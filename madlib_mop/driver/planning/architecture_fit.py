"""Checks that architectures fit the packed table to train on, and the backend; called when a run is planned."""

from collections.abc import Iterable, Iterator

from mop_backend.keras_backends import BackendName

from madlib_mop.driver.data.packed import PackedTable
from madlib_mop.driver.inference.fits import is_split
from madlib_mop.errors import InvalidParameter, MopError, Unsupported
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.shapes import describe, shapes_fit

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
