"""What an imported model takes and returns: from the signature that an export of ours wrote, or from the call.

A signature is a text in a file, so anybody could have written it. It is checked as a whole: the types of all its
fields, and that it fits the architecture, the weights and the preprocessor that came with it.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from madlib_mop.columns.preprocessors.canonical import build
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.imports.reading import ImportedFile
from madlib_mop.driver.inference.byom import outputs_of_call
from madlib_mop.driver.inference.output import Output
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, MopError, UnreadableText
from madlib_mop.exports.formats import PREPROCESSOR, SIGNATURE
from madlib_mop.exports.signature import Signature
from madlib_mop.models.ensemble import input_dtypes
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.shapes import describe, shapes_fit

_HINT = "Export the model again, or import its weights with import_weights."
_MAX_NAME = 1000


@dataclass(frozen=True)
class Meaning:
    """What the inputs and outputs of a network mean.

    Attributes
    ----------
    outputs : tuple of Output
    normalizing_const : float
    preprocessor : str or None
        Its canonical text.
    signature : Signature or None
        None: the file is of others.
    """

    outputs: tuple[Output, ...]
    normalizing_const: float
    preprocessor: str | None = None
    signature: Signature | None = None


def meaning_of(session: CallerSession, file: ImportedFile, arch: Node, arguments: Mapping[str, Any]) -> Meaning:
    """Return what a model's inputs and outputs mean.

    Parameters
    ----------
    session : CallerSession
    file : ImportedFile
    arch : dict
        Its architecture, checked.
    arguments : mapping
        ``class_values`` and ``normalizing_const`` of the call; None for those of the file.

    Raises
    ------
    UnreadableText
        If the signature or the preprocessor is damaged.
    InvalidParameter
        If they contradict the model or the call.
    """
    classes, constant = arguments["class_values"], arguments["normalizing_const"]
    if SIGNATURE not in file.additions:
        if PREPROCESSOR in file.additions:
            raise _contradiction("the file has a preprocessor, but no signature")
        return Meaning(_own_outputs(session, arch, classes), 1.0 if constant is None else constant)
    signature = read_signature(file.additions[SIGNATURE])
    check_signature(signature, arch, file.weights)
    preprocessor = _preprocessor(signature, file.additions.get(PREPROCESSOR))
    if preprocessor is not None and (classes is not None or constant is not None):
        given = "class_values" if classes is not None else "normalizing_const"
        raise InvalidParameter(
            f"{given} is in the file, which has the preprocessor of the training rows", hint=f"Omit {given}."
        )
    outputs = _signed_outputs(session, signature)
    if classes is not None:
        named = zip(outputs, _own_outputs(session, arch, classes), strict=True)
        outputs = tuple(replace(own, name=signed.name) for signed, own in named)
    return Meaning(
        outputs,
        _constant(signature) if constant is None else constant,
        None if preprocessor is None else preprocessor.to_json(),
        signature,
    )


def read_signature(text: str) -> Signature:
    """Read a signature, with the types of all fields checked. Raises UnreadableText."""
    Signature.from_json(text)
    try:
        signature = build(Signature, json.loads(text), SIGNATURE)
    except UnreadableText as error:
        raise UnreadableText(error.message.replace("the preprocessor is", "the signature is"), hint=_HINT) from None
    names = [signature.model, signature.library, *(one.target for one in signature.outputs)]
    if any(len(name) > _MAX_NAME or "\0" in name for name in (*names, *(one.sql_type for one in signature.outputs))):
        raise UnreadableText("the signature is damaged: it has a name that is too long", hint=_HINT)
    return signature


def check_signature(signature: Signature, arch: Node, weights: bytes) -> None:
    """Raise InvalidParameter if a signature does not belong to a model."""
    shape = describe(arch)
    if signature.weights_digest != hashlib.sha256(weights).hexdigest():
        raise _contradiction("its signature is of other weights")
    if tuple(one.layer for one in signature.inputs) != shape.input_names:
        raise _contradiction(f"its signature has other inputs than the model ({', '.join(shape.input_names)})")
    if tuple(one.layer for one in signature.outputs) != shape.output_names:
        raise _contradiction(f"its signature has other outputs than the model ({', '.join(shape.output_names)})")
    for one, dtype, row in zip(signature.inputs, input_dtypes(arch), shape.input_shapes, strict=True):
        if one.dtype != dtype or not one.shape or (row is not None and not shapes_fit(row, one.shape[1:])):
            raise _contradiction(f"its signature has another type or shape of input {one.layer!r} than the model")
        if not (one.divide_by > 0 and math.isfinite(one.divide_by)):
            raise _contradiction(f"its signature divides input {one.layer!r} by {one.divide_by}")
    targets = [one.target for one in signature.outputs]
    if len(set(targets)) != len(targets) or not all(targets):
        raise _contradiction("its signature names two outputs alike")
    for output, n_units in zip(signature.outputs, shape.output_units, strict=True):
        n_classes = None if output.classes is None else len(output.classes)
        of_two = n_units == 1 and n_classes == 2
        if n_classes is not None and n_units not in (None, n_classes) and not of_two:
            raise _contradiction(
                f"its signature has {n_classes} classes for {output.target!r}, and the model {n_units} outputs"
            )


def _preprocessor(signature: Signature, text: str | None) -> Preprocessor | None:
    """Return the preprocessor that the signature names."""
    found = None if text is None else Preprocessor.from_json(text)
    if (None if found is None else found.digest) != signature.preprocessor_digest:
        raise _contradiction("its signature is of another preprocessor")
    return found


def _constant(signature: Signature) -> float:
    """Return the number by which inputs are divided; inputs that a preprocessor has scaled are not."""
    constants = {one.divide_by for one in signature.inputs} - {1.0}
    if len(constants) > 1:
        raise _contradiction(f"its signature divides inputs by different numbers: {sorted(constants)}")
    return constants.pop() if constants else 1.0


def _signed_outputs(session: CallerSession, signature: Signature) -> tuple[Output, ...]:
    return tuple(
        Output(one.target, one.sql_type, one.classes, array_text(session, one.classes), one.loss)
        for one in signature.outputs
    )


def _own_outputs(session: CallerSession, arch: Node, classes: list[Any] | None) -> tuple[Output, ...]:
    """Return the outputs of a model of others, named after their layers."""
    shape = describe(arch)
    arguments = {"class_values": classes, "dependent_count": shape.n_outputs}
    found = outputs_of_call(shape, "the model", arguments)
    return tuple(
        replace(
            output,
            name=name,
            vartype=output.vartype if output.values is None else "text",
            values_text=array_text(session, output.values),
        )
        for output, name in zip(found, shape.output_names, strict=True)
    )


def array_text(session: CallerSession, values: tuple[str | None, ...] | None) -> str | None:
    """Return class values in PostgreSQL's text form of an array."""
    if values is None:
        return None
    try:
        (row,) = session.execute("SELECT $1::pg_catalog.text[]::pg_catalog.text AS value", [list(values)], ["text[]"])
    except MopError as error:
        raise InvalidParameter(f"the classes are none that the server can store: {error.message}") from None
    text: str = row["value"]
    return text


def _contradiction(problem: str) -> MopError:
    return InvalidParameter(f"the file contradicts itself: {problem}", hint=_HINT)
