"""An exported model as a directory that MLflow reads: a model of its own kind, MLmodel; called by `mlflow_runs`.

``mlflow.keras.load_model`` loads the network. ``mlflow.pyfunc.load_model`` calls
`madlib_mop.client.exported.mlflow_model`, which encodes rows and decodes outputs, too. No file is a pickle.
"""

import json
import platform
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.exports.directory import write_directory
from madlib_mop.exports.formats import PREPROCESSOR, SIGNATURE, Format, read_additions
from madlib_mop.exports.signature import ModelOutput, Signature
from madlib_mop.imports.signatures import read_preprocessor, read_signature
from madlib_mop.trackers.requirements import package

#: The directory of a model among the artifacts of a run, as MLflow's own functions name it.
MODEL = "model"
LOADER = "madlib_mop.client.exported.mlflow_model"
#: The parameter of ``predict``, and the method of an exported model that it names by default.
METHOD, PREDICT = "method", "predict"
_REQUIREMENTS, _ENVIRONMENT = "requirements.txt", "python_env.yaml"
_INTEGERS = ("smallint", "integer", "bigint")
_NUMBERS = (*_INTEGERS, "real", "double precision", "numeric")


def write_model(directory: Path, data: bytes, run_id: str) -> dict[str, Any]:
    """Write a model of MLflow.

    Parameters
    ----------
    directory : Path
        Created; its parent must exist.
    data : bytes
        A Keras file that ``madlib_mop.export_model`` returned.
    run_id : str
        MLflow's id of the run whose artifact it becomes.

    Returns
    -------
    dict
        What the run's tag ``mlflow.log-model.history`` has to say of the model.

    Raises
    ------
    InvalidParameter, UnreadableText
        If it cannot be written, or the data are no export.
    """
    models, signatures = package("mlflow", "models.model", "models.signature")
    write_directory(directory, Format.KERAS, data)
    additions = read_additions(Format.KERAS.file_name, data)
    signature = read_signature(additions[SIGNATURE])
    preprocessor = read_preprocessor(signature, additions.get(PREPROCESSOR))
    _write_environment(directory, signature)
    model = models.Model(
        artifact_path=MODEL,
        run_id=run_id,
        signature=signatures.ModelSignature(**_schemas(signature, preprocessor)),
        metadata={"madlib_mop.model": signature.model, "madlib_mop.weights_digest": signature.weights_digest},
    )
    model.add_flavor(
        "keras",
        data=Path(Format.KERAS.file_name).stem,  # MLflow adds the ending
        keras_version=_keras_version(directory / Format.KERAS.file_name),
        keras_backend="tensorflow",
        save_exported_model=False,
    )
    model.add_flavor(
        "python_function",
        loader_module=LOADER,
        python_version=platform.python_version(),
        env={"virtualenv": _ENVIRONMENT},
    )
    model.save(str(directory / "MLmodel"))
    names = ("run_id", "artifact_path", "utc_time_created", "model_uuid", "mlflow_version", "flavors")
    return {name: getattr(model, name) for name in names}


def _schemas(signature: Signature, preprocessor: Preprocessor | None) -> Mapping[str, Any]:
    """Return MLflow's schemas of inputs, outputs and parameters.

    Columns of rows have the type ``any``: with others, MLflow refuses columns of numbers with missing values.
    """
    (types,) = package("mlflow", "types.schema")
    if preprocessor is not None:
        inputs = [types.ColSpec(types.AnyType(), column.name) for column in preprocessor.inputs]
    else:
        are_named = len(signature.inputs) > 1
        shapes = [[-1 if size is None else size for size in one.shape] for one in signature.inputs]
        inputs = [
            types.TensorSpec(np.dtype(one.dtype), shape, one.name if are_named else None)
            for one, shape in zip(signature.inputs, shapes, strict=True)
        ]
    outputs = [types.ColSpec(_type_of(types, one), one.target) for one in signature.outputs]
    params = types.ParamSchema([types.ParamSpec(METHOD, "string", PREDICT)])
    return {"inputs": types.Schema(inputs), "outputs": types.Schema(outputs), "params": params}


def _type_of(types: Any, output: ModelOutput) -> Any:
    if output.classes is None:
        return "double" if output.sql_type in _NUMBERS else types.AnyType()
    if None in output.classes:
        return types.AnyType()
    return "long" if output.sql_type in _INTEGERS else "boolean" if output.sql_type == "boolean" else "string"


def _write_environment(directory: Path, signature: Signature) -> None:
    """Write what MLflow installs for a process that serves the model."""
    (directory / _REQUIREMENTS).write_text(f"madlib_mop[keras]=={signature.library}\n", encoding="utf-8")
    environment = {
        "python": platform.python_version(),
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": [f"-r {_REQUIREMENTS}"],
    }
    (directory / _ENVIRONMENT).write_text(json.dumps(environment, indent=2) + "\n", encoding="utf-8")  # JSON is YAML


def _keras_version(path: Path) -> str:
    with zipfile.ZipFile(path) as file:
        return str(json.loads(file.read("metadata.json"))["keras_version"])
