"""The command import_version: the model of a ``.keras`` file becomes a version of a registered model."""

import hashlib
import json
from typing import Any

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.imports.reading import read_file
from madlib_mop.driver.imports.signed import Meaning, meaning_of
from madlib_mop.driver.inference.model import RegisteredVersion, TrainedModel, losses_of
from madlib_mop.driver.inference.registered import document_of
from madlib_mop.driver.planning.data_fit import check_single_values
from madlib_mop.driver.registry.registering import add_content, add_version, check_model, check_registry
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import MopError
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration, compile_params_of

#: The document of a version names the table that it was copied from; this one comes from none.
_NO_TABLE = Relation("", "")


def import_version(call: Call) -> int:
    """Store the model of a file in the registry; return the number of its version.

    Raises
    ------
    MopError
        If the file is none of a Keras model of Keras' own layers, contradicts itself or the call, or the name is that
        of another role's model.
    """
    session, given = call.session, call.arguments
    check_registry(session)
    _check_compile_params(given["compile_params"])
    file = read_file(session, given["file"])
    configuration = Configuration(0, given["compile_params"] or "", "", check_architecture(file.model.text))
    meaning = meaning_of(session, file, configuration.arch, given)
    model = _model(configuration, meaning, given["name"])
    check_model(model)
    details = {
        "note": given["note"],
        "digest": hashlib.sha256(file.weights).hexdigest(),
        "n_bytes": len(file.weights),
        "model_arch": json.loads(file.model.text),
        "lineage": {"imported": _origin(given["file"], meaning)},
    }
    version_id, version = add_version(session, given["name"], details)
    document = document_of(model, held_out=model.held_out)
    add_content(session, version_id, document, len(file.weights), [file.weights])
    return version


def _check_compile_params(text: str | None) -> None:
    """Raise MopError if compile parameters cannot be parsed; the registry has no custom functions."""
    if text is None:
        return
    try:
        compile_params_of(text, frozenset())
    except MopError as error:
        error.message = f"compile_params: {error.message}"
        raise


def _model(c: Configuration, meaning: Meaning, name: str) -> TrainedModel:
    outputs = meaning.outputs
    if c.compile_params:
        check_single_values(c.compiled, c.shape)
        losses = losses_of(c, len(outputs))
        outputs = tuple(
            type(output)(output.name, output.vartype, output.values, output.values_text, loss)
            for output, loss in zip(outputs, losses, strict=True)
        )
    return TrainedModel(
        label=f"the model for {name}",
        place=RegisteredVersion("import_version", name, _NO_TABLE),
        configuration=c,
        metrics_type=c.metrics_type if c.compile_params else None,
        loss_type=c.loss_type if c.compile_params else None,
        n_inputs=c.shape.n_inputs,
        outputs=outputs,
        normalizing_const=meaning.normalizing_const,
        preprocessor=meaning.preprocessor,
        held_out=meaning.held_out,
    )


def _origin(file: bytes, meaning: Meaning) -> dict[str, Any]:
    """Return where the version comes from, for its lineage."""
    signature = meaning.signature
    return {
        "file_digest": hashlib.sha256(file).hexdigest(),
        "model": None if signature is None else signature.model,
        "library": None if signature is None else signature.library,
    }
