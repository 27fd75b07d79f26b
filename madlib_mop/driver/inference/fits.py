"""Checks before any computation that data fit a model: number, shape, classes and scale of columns."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.data.packed import PackedTable, read_preprocessor_row
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.shapes import ModelShape, shapes_fit

if TYPE_CHECKING:  # brings NumPy along
    from madlib_mop.columns.preprocessors.preprocessor import Preprocessor


class EncodedRows(Protocol):
    """Rows that were encoded: of a packed table, or by a model's encoder; as `LabelledRows`."""

    @property
    def relation(self) -> Relation: ...
    @property
    def independent(self) -> list[str]: ...
    @property
    def dependent(self) -> list[str]: ...
    @property
    def class_values(self) -> list[tuple[str, str | None]]: ...
    @property
    def normalizing_const(self) -> float: ...
    @property
    def shapes(self) -> list[list[int]]: ...


def check_input_shape(model: TrainedModel, number: int, column: str, row: tuple[int, ...]) -> None:
    """Reject a column if its rows do not have the shape of the model's input.

    Parameters
    ----------
    model : TrainedModel
    number : int
        0-based.
    column : str
        For the message.
    row : tuple of int
        Shape of one row.

    Raises
    ------
    InvalidParameter
    """
    shapes = model.shape.input_shapes
    wanted = shapes[number] if number < len(shapes) else None
    if wanted is not None and not shapes_fit(wanted, row):
        raise InvalidParameter(
            f"column {column!r} has rows of the shape {list(row)}, but input {number + 1} of {model.label} takes"
            f" {['any' if size is None else size for size in wanted]}",
            hint="Pass data of the same form as in training.",
        )


def is_split(shape: ModelShape, packed: EncodedRows) -> bool:
    """Return whether a packed row of numbers is split into the inputs of a model, one number each."""
    return (
        shape.n_inputs > 1
        and packed.shapes[: len(packed.independent)] == [[shape.n_inputs]]
        and all(wanted in ((), (1,)) for wanted in shape.input_shapes)
    )


def check_fit(model: TrainedModel, preprocessor: "Preprocessor") -> None:
    """Raise InvalidParameter if a model's table contradicts the preprocessor that it has."""
    targets = [column.name for column in preprocessor.targets]
    outputs = [output.name for output in model.outputs]
    if outputs != targets:  # defence: preprocessor-of-the-model
        raise _contradiction(model, f"it has the targets {_listed(targets)}, the model {_listed(outputs)}")
    tensors = preprocessor.tensors
    if len(tensors) != model.shape.n_inputs:
        raise _contradiction(model, f"it has {len(tensors)} inputs, the model {model.shape.n_inputs}")
    for number, tensor in enumerate(tensors):
        check_input_shape(model, number, tensor.name, tensor.shape)


def _contradiction(model: TrainedModel, problem: str) -> InvalidParameter:
    return InvalidParameter(
        f"model_table: the preprocessor does not belong to {model.label}: {problem}", hint="Train the model again."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def check_test_table(model: TrainedModel, packed: EncodedRows, argument: str = "test_table") -> None:
    """Reject encoded rows with another encoding than the model's training data.

    Parameters
    ----------
    model : TrainedModel
    packed : EncodedRows
    argument : str
        The one that named the table, for messages.

    Raises
    ------
    InvalidParameter
    """
    for what, ours, theirs in (
        ("inputs", model.n_inputs, len(packed.independent)),
        ("outputs", len(model.outputs), len(packed.dependent)),
    ):
        if ours != theirs:
            raise _unlike(argument, packed, f"it has {theirs} {what}, {model.label} has {ours}")
    n_inputs = len(packed.independent)
    inputs = enumerate(zip(packed.independent, packed.shapes, strict=False))
    for number, (column, shape) in inputs if not is_split(model.shape, packed) else ():
        check_input_shape(model, number, column, tuple(shape))
    units = [*model.shape.output_units, *[None] * len(model.outputs)]
    columns = zip(model.outputs, units, packed.dependent, packed.shapes[n_inputs:], packed.class_values, strict=False)
    for output, n_units, column, shape, (_, classes) in columns:
        n_values = shape[-1] if shape else 1
        by_index = shape == [1] and classes is not None
        if n_units is not None and n_values != n_units and not by_index:
            problem = f"its column {column!r} has {n_values} values a row, {model.label} has {n_units}"
            raise _unlike(argument, packed, problem)
        if None not in (classes, output.values_text) and classes != output.values_text:
            trained = f"{model.label} has {output.values_text}"
            raise _unlike(argument, packed, f"its column {column!r} has the classes {classes}, {trained}")
    if not math.isclose(packed.normalizing_const, model.normalizing_const, rel_tol=1e-6):
        raise _unlike(
            argument,
            packed,
            f"its normalizing_const is {packed.normalizing_const:g}, {model.label} was trained with"
            f" {model.normalizing_const:g}",
        )


def check_preprocessor(
    session: CallerSession, model: TrainedModel, packed: PackedTable, argument: str = "test_table"
) -> None:
    """Reject a packed test table whose columns were encoded by another preprocessor than the training table's.

    Parameters
    ----------
    session : CallerSession
    model : TrainedModel
    packed : PackedTable
    argument : str
        The one that named the table, for messages.

    Raises
    ------
    InvalidParameter
    """
    if model.preprocessor is None:
        return
    row = read_preprocessor_row(session, packed.summary.relation, packed.summary.types)
    if row is None or row.document != model.preprocessor:
        problem = f"its columns were encoded by another preprocessor than those of {model.label}"
        raise _unlike(argument, packed, problem)


def _unlike(argument: str, packed: EncodedRows, problem: str) -> InvalidParameter:
    return InvalidParameter(
        f"{argument}: {problem}. Received: {str(packed.relation)!r}",
        hint="Pass the table of the rows before they were packed: each model encodes it as its training table was. Or"
        " pack it by validation_preprocessor_dl with the model's training table as training_preprocessor_table.",
    )
