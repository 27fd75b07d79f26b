"""The command import_version: the model of a ``.keras`` file becomes a version of a registered model."""

import hashlib
import json
from typing import Any

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.imports.reading import ImportedFile, read_file
from madlib_mop.driver.imports.signed import Meaning, meaning_of
from madlib_mop.driver.inference.model import RegisteredVersion, TrainedModel, losses_of
from madlib_mop.driver.inference.registered import document_of
from madlib_mop.driver.planning.label_fit import check_single_values
from madlib_mop.driver.registry.registering import add_version, check_model, check_registry
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import MopError
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.functions import flat_names
from madlib_mop.models.parameters.parser import parse_compile_params
from madlib_mop.models.shapes import describe

#: The document of a version names the table that it was copied from; this one comes from none.
_NO_TABLE = Relation("", "")
_CONTENT = (
    "INSERT INTO madlib_mop.version_content (version_id, document, weights) VALUES ($1::pg_catalog.uuid, $2, $3)"
)


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
    compile_params = _compile_params(given["compile_params"])
    file = read_file(session, given["file"])
    arch = check_architecture(file.model.text)
    meaning = meaning_of(session, file, arch, given)
    model = _model(arch, meaning, given["name"], compile_params)
    check_model(model)
    details = {
        "note": given["note"],
        "digest": hashlib.sha256(file.weights).hexdigest(),
        "n_bytes": len(file.weights),
        "model_arch": json.loads(file.model.text),
        "lineage": {"imported": _origin(given["file"], meaning)},
    }
    version_id, version = add_version(session, given["name"], details)
    _store(session, version_id, document_of(model), file)
    return version


def _compile_params(text: str | None) -> str | None:
    """Check compile parameters; the registry has no custom functions."""
    if text is None:
        return None
    try:
        parse_compile_params(text)
    except MopError as error:
        error.message = f"compile_params: {error.message}"
        raise
    return text


def _model(arch: Node, meaning: Meaning, name: str, compile_params: str | None) -> TrainedModel:
    params = None if compile_params is None else parse_compile_params(compile_params)
    outputs = meaning.outputs
    if params is not None:
        check_single_values(params, describe(arch))
        losses = losses_of(compile_params, arch, len(outputs))
        outputs = tuple(
            type(output)(output.name, output.vartype, output.values, output.values_text, loss)
            for output, loss in zip(outputs, losses, strict=True)
        )
    return TrainedModel(
        label=f"the model for {name}",
        place=RegisteredVersion("import_version", name, _NO_TABLE),
        arch=arch,
        compile_params=compile_params,
        fit_params=None,
        metrics_type=None if params is None else list(params.metric_names) or None,
        loss_type=None if params is None else ", ".join(flat_names(params.loss)),
        n_inputs=describe(arch).n_inputs,
        outputs=outputs,
        normalizing_const=meaning.normalizing_const,
        preprocessor=meaning.preprocessor,
    )


def _origin(file: bytes, meaning: Meaning) -> dict[str, Any]:
    """Return where the version comes from, for its lineage."""
    signature = meaning.signature
    return {
        "file_digest": hashlib.sha256(file).hexdigest(),
        "model": None if signature is None else signature.model,
        "library": None if signature is None else signature.library,
    }


def _store(session: CallerSession, version_id: str, document: str, file: ImportedFile) -> None:
    session.execute(_CONTENT, [version_id, document, file.weights], ["text", "text", "bytea"])
