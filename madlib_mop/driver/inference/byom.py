"""A user's own model: architecture and weights from a row of an architecture table, everything else from the call."""

from collections.abc import Mapping, Sequence
from typing import Any

from madlib_mop.catalog.names import Identifier, statement
from madlib_mop.driver.data.library_tables import check_architecture_table
from madlib_mop.driver.inference.model import ModelLocation, TrainedModel, read_architecture
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, is_missing
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.shapes import ModelShape

#: The class values of an output, as text.
Values = tuple[str | None, ...]

_WHAT = "model_arch_table"
_COLUMNS = ("model_id", "model_arch", "model_weights")
_N_IDS_SHOWN = 20
#: A single unit after one of these activations is the score of a class; after any other it is a predicted number.
_SCORES = frozenset({"sigmoid", "hard_sigmoid", "softmax"})


def read_own_model(session: CallerSession, arguments: Mapping[str, Any]) -> TrainedModel:
    """Read one architecture with its weights, and the call's description of its outputs.

    Parameters
    ----------
    session : CallerSession
    arguments : dict
        ``model_arch_table``, ``model_id``, ``class_values``, ``normalizing_const`` and ``dependent_count``.

    Raises
    ------
    MopError
        If the table has no such model, the model has no weights, or the call does not fit it.
    """
    place = find_architecture(session, arguments.get(_WHAT), arguments.get("model_id"))
    label = f"model_id {place.key} of {place.relation}"
    arch, place = read_architecture(session, place, _WHAT, label)
    configuration = Configuration(0, "", "", arch)
    shape = configuration.shape
    return TrainedModel(
        label,
        place,
        configuration,
        metrics_type=None,
        loss_type=None,
        n_inputs=shape.n_inputs,
        outputs=outputs_of_call(shape, label, arguments),
        normalizing_const=arguments["normalizing_const"],
    )


def find_architecture(session: CallerSession, name: str | None, model_id: int | None) -> ModelLocation:
    """Return the place of a row of a table of architectures. Raises MopError if there is no such row."""
    relation = session.relation(name, _WHAT)
    check_architecture_table(session, relation, name, _WHAT, _COLUMNS)
    ids = [row["id"] for row in session.execute(statement("SELECT {i} AS id FROM {t}", i=_ID, t=relation))]
    n_found = ids.count(model_id)
    if model_id is None or not n_found:
        known = sorted(found for found in ids if found is not None)
        shown = ", ".join(map(str, known[:_N_IDS_SHOWN])) + (", ..." if known[_N_IDS_SHOWN:] else "")
        hint = f"Use one of: {shown}." if known else "The table is empty."
        if model_id is None:
            raise is_missing("model_id", model_id, hint)
        raise InvalidParameter(f"model_id is not in {relation}. Received: {model_id}", hint=hint)
    if n_found > 1:
        raise InvalidParameter(f"{_WHAT}: {relation} has {n_found} rows with model_id {model_id}. Received: {name!r}")
    return ModelLocation(relation, "model_id", model_id)


_ID = Identifier("model_id")


def outputs_of_call(shape: ModelShape, label: str, arguments: Mapping[str, Any]) -> tuple[DependentOutput, ...]:
    """Return the outputs as a call describes them, by ``class_values`` and ``dependent_count``.

    Raises InvalidParameter if these do not fit the model.
    """
    count = arguments.get("dependent_count")
    count = 1 if count is None else count
    if count != shape.n_outputs:
        raise InvalidParameter(
            f"dependent_count is the number of outputs, and {label} has {shape.n_outputs}. Received: {count}",
            hint=f"Use dependent_count => {shape.n_outputs}.",
        )
    names = ["dependent_var"] if count == 1 else [f"dependent_var_{number}" for number in range(count)]
    listed = _class_values(arguments.get("class_values"), count, label)
    outputs = []
    described = zip(names, listed, shape.output_units, shape.output_activations, strict=True)
    for name, values, n_units, activation in described:
        of_two = n_units == 1 and activation in _SCORES and values is not None and len(values) == 2
        if values is not None and n_units is not None and len(values) != n_units and not of_two:
            raise InvalidParameter(
                f"class_values has {len(values)} values for {name}, for which {label} has {n_units} outputs."
                f" Received: {list(values)}",
                hint="Pass one for each unit of the last layer, in order, or NULL for none.",
            )
        is_number = values is None and n_units == 1 and activation not in _SCORES
        outputs.append(DependentOutput(name, "real" if is_number else "real[]", values, None, None, is_exact=True))
    return tuple(outputs)


def _class_values(given: list[Any] | None, count: int, label: str) -> list[Values | None]:
    """Return the class values of each output, or None.

    SQL arrays are rectangular: outputs with fewer classes than others are padded with NULL, so a NULL class can be
    anywhere except at the end. A single output's values may be a plain list.
    """
    if given is None:
        return [None] * count
    if not any(isinstance(item, list) for item in given):
        given = [given]
    if len(given) != count:
        raise InvalidParameter(
            f"class_values has {len(given)} lists of values, but {label} has {count} outputs. Received: {given}",
            hint="Pass one list for each output: ARRAY[ARRAY['a', 'b', 'c'], ARRAY['x', 'y', NULL]].",
        )
    return [_without_padding(values) or None for values in given]


def _without_padding(values: Sequence[str | None]) -> Values:
    end = len(values)
    while end and values[end - 1] is None:
        end -= 1
    return tuple(values[:end])
