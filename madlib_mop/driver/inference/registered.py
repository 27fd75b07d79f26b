"""Models by any name: of an output table, or of the registry, such as churn@champion; and the registry's documents.

The owner of a version could have written its document by hand, so it is checked as an output table is.
"""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from mop_backend.held_out import HeldOut
from mop_backend.registered_names import NO_REGISTRY, is_registered

from madlib_mop.catalog.names import Relation
from madlib_mop.columns.preprocessors.canonical import build, plain
from madlib_mop.driver.inference.model import RegisteredVersion, TrainedModel, read_model
from madlib_mop.driver.inference.output import DependentOutput, PredictionProfile
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, MopError, UnreadableText, Unsupported, mst_key_with_name
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration

T = TypeVar("T")


def find_model(
    session: CallerSession, function: str, name: str | None, mst_key: int | None, right: str = "PREDICT"
) -> TrainedModel:
    """Read a model of an output table or of the registry.

    Parameters
    ----------
    session : CallerSession
    function : str
        The SQL function, for messages.
    name : str or None
        As written by the caller.
    mst_key : int or None
    right : str
        What the caller wants to do with a registered model (`CallerSession.registered`).

    Raises
    ------
    MopError
        If there is no such model, or the caller may not use it.
    """
    if name is None or not is_registered(name):
        return read_model(session, name, mst_key)
    if mst_key is not None:
        raise mst_key_with_name(name, mst_key, "Omit mst_key, or pass NULL.")
    return read_registered(session, function, name, right)


def read_registered(session: CallerSession, function: str, name: str, right: str = "PREDICT") -> TrainedModel:
    """Read a version of a registered model, without its weights. Raises MopError, as `find_model`."""
    found = session.registered(function, name, right)
    label = f"{found.name}@{found.version}"
    try:
        return _model_of(json.loads(found.document), label, function, right, found.details)
    except MopError as error:
        error.message = f"{label}: {error.message}"
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidParameter(
            f"the document of {label} cannot be read: {type(error).__name__}: {error}",
            hint="Register the model again with madlib_mop.register.",
        ) from None


def need_registry(session: CallerSession) -> None:
    """Raise Unsupported on a server without a registry."""
    (row,) = session.execute("SELECT pg_catalog.to_regclass('madlib_mop.registered_model') IS NOT NULL AS there")
    if not row["there"]:
        raise Unsupported(NO_REGISTRY, hint="Predict with the output table itself.")


def document_of(
    model: TrainedModel, predictions: Sequence[PredictionProfile] = (), held_out: Sequence[HeldOut] = ()
) -> str:
    """Return the registry's document of a model of a table: everything that a prediction needs except the weights.

    Parameters
    ----------
    model : TrainedModel
    predictions : sequence of PredictionProfile
        Its predictions for rows of earlier, which drift compares with later ones.
    held_out : sequence of HeldOut
        The scores of rows that neither trained nor chose it.
    """
    relation, c = model.place.relation, model.configuration
    return json.dumps(
        {
            "table_schema": relation.schema,
            "table_name": relation.name,
            "arch": c.arch,
            "compile_params": c.compile_params or None,
            "fit_params": c.fit_params or None,
            "metrics_type": model.metrics_type,
            "loss_type": model.loss_type,
            "n_inputs": model.n_inputs,
            "inputs": model.inputs,
            "outputs": [
                {
                    "name": output.name,
                    "vartype": output.vartype,
                    "values": output.values,
                    "values_text": output.values_text,
                    "loss": output.loss,
                }
                for output in model.outputs
            ],
            "normalizing_const": model.normalizing_const,
            "object_table": model.object_table,
            "preprocessor": model.preprocessor,
            "predictions": [plain(one) for one in predictions],
            "held_out": [plain(one) for one in held_out],
        }
    )


def _model_of(document: Any, label: str, function: str, right: str, details: str | None) -> TrainedModel:
    relation = Relation(_text(document["table_schema"]), _text(document["table_name"]))
    metrics = document["metrics_type"]
    return TrainedModel(
        label,
        RegisteredVersion(function, label, relation, right, details),
        Configuration.recorded(
            0,
            _text_or_none(document["compile_params"]),
            _text_or_none(document["fit_params"]),
            check_architecture(json.dumps(document["arch"])),  # defence: documents-by-hand = document["arch"]
        ),
        None if metrics is None else [_text(name) for name in metrics],
        _text_or_none(document["loss_type"]),
        int(document["n_inputs"]),
        tuple(map(_output, document["outputs"])),
        float(document["normalizing_const"]),
        _text_or_none(document["object_table"]),
        preprocessor=_text_or_none(document["preprocessor"]),
        predictions=_records(PredictionProfile, document.get("predictions", []), "predictions"),
        inputs=tuple(map(_text, document.get("inputs", []))),
        held_out=_held_out(document.get("held_out", [])),
    )


def _records(cls: type[T], values: Any, what: str) -> tuple[T, ...]:
    try:
        return tuple(build(cls, value, f"[{place}]") for place, value in enumerate(values))
    except UnreadableText as error:
        message = error.message.replace("the preprocessor is", f"its recorded {what} are")
        raise InvalidParameter(message, hint="Register the model again with madlib_mop.register.") from None


def _held_out(values: Any) -> tuple[HeldOut, ...]:
    found = _records(HeldOut, values, "held-out rows")
    for one in found:
        if (problem := one.problem()) is not None:  # defence: held-out-by-hand
            raise InvalidParameter(
                f"its recorded held-out rows of {one.output!r:.100} are damaged: {problem}",
                hint="Register the model again with madlib_mop.register.",
            )
    return found


def _output(fields: Any) -> DependentOutput:
    values = fields["values"]
    return DependentOutput(
        _text(fields["name"]),
        _text(fields["vartype"]),
        None if values is None else tuple(_text_or_none(value) for value in values),
        _text_or_none(fields["values_text"]),
        _text_or_none(fields["loss"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)
