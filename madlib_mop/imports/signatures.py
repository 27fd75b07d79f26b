"""Reads and checks the signature and the preprocessor of a model's file; imports, the client and trackers call it.

A signature is a text in a file, so anybody could have written it. It is checked as a whole: the types of all its
fields, and that it fits the architecture, the weights and the preprocessor that came with it.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from mop_backend.bounded_json import read_json

from madlib_mop.columns.preprocessors.canonical import build
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.errors import InvalidParameter, MopError, UnreadableText
from madlib_mop.exports.formats import SIGNATURE
from madlib_mop.exports.signature import FORMAT, Signature
from madlib_mop.models.ensemble import input_dtypes
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.shapes import describe, shapes_fit

_HINT = "Export the model again, or import its weights with import_weights."
_MAX_NAME = 1000
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+]{0,60}")
#: Keras has no tensors of more dimensions.
_MAX_DIMENSIONS = 32


def read_signature(text: str) -> Signature:
    """Read a signature, with the types of all fields checked.

    Raises
    ------
    UnreadableText
        If it is not one that `Signature.to_json` wrote.
    """
    try:
        fields = read_json(text)
        _check_texts(fields)
    except (ValueError, RecursionError):
        raise UnreadableText("the signature is damaged: it is not JSON of Unicode texts", hint=_HINT) from None
    if isinstance(fields, dict) and fields.get("format", FORMAT) != FORMAT:
        raise UnreadableText(
            f"the signature of the exported model has format {fields['format']!r:.40}; this version reads {FORMAT}",
            hint="Update madlib_mop.",
        )
    try:
        signature = build(Signature, fields, SIGNATURE)  # defence: fields-of-a-signature = Signature(**fields)
    except UnreadableText as error:
        raise UnreadableText(error.message.replace("the preprocessor is", "the signature is"), hint=_HINT) from None
    # defence: library-of-a-signature
    if not _VERSION.fullmatch(signature.library):  # MLflow installs what is named so
        raise UnreadableText("the signature is damaged: the version of the library is none", hint=_HINT)
    names = [signature.model, *(one.target for one in signature.outputs)]
    if any(len(name) > _MAX_NAME or "\0" in name for name in (*names, *(one.sql_type for one in signature.outputs))):
        raise UnreadableText("the signature is damaged: it has a name that is too long", hint=_HINT)
    for one in signature.inputs:
        if not 1 <= len(one.shape) <= _MAX_DIMENSIONS or any(size is not None and size < 0 for size in one.shape):
            raise UnreadableText(f"the signature is damaged: input {one.name!r:.100} has no shape", hint=_HINT)
    return signature


def check_signature(signature: Signature, arch: Node, weights_digest: str) -> None:
    """Check that a signature belongs to a model.

    Parameters
    ----------
    signature : Signature
    arch : dict
        The checked architecture of the model.
    weights_digest : str
        SHA-256 of its weights: float32, flattened, in ``get_weights()`` order.

    Raises
    ------
    InvalidParameter
        For the first contradiction.
    """
    shape = describe(arch)
    if signature.weights_digest != weights_digest:
        raise contradiction("its signature is of other weights")
    if tuple(one.layer for one in signature.inputs) != shape.input_names:
        raise other_names("inputs", shape.input_names)
    if tuple(one.layer for one in signature.outputs) != shape.output_names:
        raise other_names("outputs", shape.output_names)
    for one, dtype, row in zip(signature.inputs, input_dtypes(arch), shape.input_shapes, strict=True):
        if one.dtype != dtype or (row is not None and not shapes_fit(row, one.shape[1:])):
            raise other_shape(one.layer)
    check_meaning(signature)
    for output, n_units in zip(signature.outputs, shape.output_units, strict=True):
        n_classes = None if output.classes is None else len(output.classes)
        of_two = n_units == 1 and n_classes == 2
        if n_classes is not None and n_units not in (None, n_classes) and not of_two:
            raise contradiction(
                f"its signature has {n_classes} classes for {output.target!r}, and the model {n_units} outputs"
            )


def check_meaning(signature: Signature) -> None:
    """Raise InvalidParameter if a signature contradicts itself, whatever its model."""
    if not signature.inputs or not signature.outputs:
        raise contradiction("its signature has no inputs, or no outputs")
    for one in signature.inputs:
        if not (one.divide_by > 0 and math.isfinite(one.divide_by)):
            raise contradiction(f"its signature divides input {one.layer!r} by {one.divide_by}")
    targets = [one.target for one in signature.outputs]
    if len(set(targets)) != len(targets) or not all(targets):
        raise contradiction("its signature names two outputs alike")
    for output in signature.outputs:
        rows = output.held_out
        problem = None if rows is None else rows.problem()
        if rows is not None and rows.output != output.target:
            problem = f"it is of {rows.output!r:.100}"
        if problem is not None:  # defence: held-out-of-a-signature
            raise contradiction(f"its record of the held-out rows of {output.target!r:.100} is damaged: {problem}")


def read_preprocessor(signature: Signature, text: str | None) -> Preprocessor | None:
    """Return the preprocessor of a model's file; None for a model of arrays, without such a text.

    Raises
    ------
    UnreadableText
        If the text is damaged.
    InvalidParameter
        If it is not the preprocessor that the signature names, or has other inputs or targets.
    """
    found = None if text is None else Preprocessor.from_json(text)
    try:
        _check_texts(None if text is None else read_json(text))
    except ValueError:
        raise UnreadableText("the preprocessor is damaged: it has a text that is not Unicode", hint=_HINT) from None
    # defence: preprocessor-of-a-signature
    if (None if found is None else found.digest) != signature.preprocessor_digest:
        raise contradiction("its signature is of another preprocessor")
    if found is not None:
        tensors = [one.name for one in found.tensors]
        if tensors != [one.source for one in signature.inputs]:
            raise contradiction(f"its preprocessor has other inputs than its signature ({_listed(tensors)})")
        for one, tensor in zip(signature.inputs, found.tensors, strict=True):
            if not shapes_fit(one.shape[1:], tensor.shape):
                raise contradiction(f"its preprocessor has another shape of input {one.layer!r} than its signature")
        targets = [one.name for one in found.targets]
        if targets != [one.target for one in signature.outputs]:
            raise contradiction(f"its preprocessor has other targets than its signature ({_listed(targets)})")
    return found


def other_names(what: str, names: Iterable[str]) -> MopError:
    """Return the error for a signature whose inputs or outputs are not those of the model, which ``names`` are."""
    return contradiction(f"its signature has other {what} than the model ({', '.join(names)})")


def other_shape(name: str) -> MopError:
    """Return the error for a signature with another input than the model has under this name."""
    return contradiction(f"its signature has another type or shape of input {name!r} than the model")


def contradiction(problem: str) -> MopError:
    """Return the error for a file whose parts do not belong together."""
    return InvalidParameter(f"the file contradicts itself: {problem}", hint=_HINT)


def _check_texts(fields: Any) -> None:
    """Raise ValueError if a text of a document has half of a surrogate pair, which JSON can escape but UTF-8 lacks."""
    json.dumps(fields, ensure_ascii=False).encode()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name)[:100] for name in names[:10])
