"""What an imported model takes and returns: from the signature that an export of ours wrote, or from the call."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mop_backend.held_out import HeldOut

from madlib_mop.driver.imports.reading import ImportedFile
from madlib_mop.driver.inference.byom import outputs_of_call
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, MopError
from madlib_mop.exports.formats import PREPROCESSOR, SIGNATURE
from madlib_mop.exports.signature import Signature
from madlib_mop.imports.signatures import check_signature, contradiction, read_preprocessor, read_signature
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.shapes import describe


@dataclass(frozen=True)
class Meaning:
    """What the inputs and outputs of a network mean.

    Attributes
    ----------
    outputs : tuple of DependentOutput
    normalizing_const : float
    preprocessor : str or None
        Its canonical text.
    signature : Signature or None
        None: the file is of others.
    held_out : tuple of HeldOut
        What an export of a version has of held-out rows.
    """

    outputs: tuple[DependentOutput, ...]
    normalizing_const: float
    preprocessor: str | None = None
    signature: Signature | None = None
    held_out: tuple[HeldOut, ...] = ()


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
            raise contradiction("the file has a preprocessor, but no signature")
        return Meaning(_own_outputs(session, arch, classes), 1.0 if constant is None else constant)
    signature = read_signature(file.additions[SIGNATURE])
    check_signature(signature, arch, hashlib.sha256(file.weights).hexdigest())  # defence: model-of-a-signature
    preprocessor = read_preprocessor(signature, file.additions.get(PREPROCESSOR))
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
        tuple(one.held_out for one in signature.outputs if one.held_out is not None),
    )


def _constant(signature: Signature) -> float:
    """Return the number by which inputs are divided; inputs that a preprocessor has scaled are not."""
    constants = {one.divide_by for one in signature.inputs} - {1.0}
    if len(constants) > 1:
        raise contradiction(f"its signature divides inputs by different numbers: {sorted(constants)}")
    return constants.pop() if constants else 1.0


def _signed_outputs(session: CallerSession, signature: Signature) -> tuple[DependentOutput, ...]:
    return tuple(
        DependentOutput(one.target, one.sql_type, one.classes, array_text(session, one.classes), one.loss)
        for one in signature.outputs
    )


def _own_outputs(session: CallerSession, arch: Node, classes: list[Any] | None) -> tuple[DependentOutput, ...]:
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
