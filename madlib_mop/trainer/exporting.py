"""Converts a model to a file of another program, in the sandbox; called by ``server.py``.

The sandbox has no files, so archives are made in memory. Formats that are not Keras' own are converted by the backend.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np
from keras.src.saving import saving_lib
from mop_backend.frames import Blob, Header

from madlib_mop.errors import Unsupported
from madlib_mop.exports.formats import Format, archive, metadata_of
from madlib_mop.imports.weights.layers import weight_names
from madlib_mop.models.keras_layers import KERAS_2_HARD_SIGMOID
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.interface import Converter, FileSpec
from madlib_mop.trainer.process.failures import INPUT, MEMORY, MODEL, RequestFailure, blaming, failure_of, sentence_of
from madlib_mop.trainer.recipe import Recipe
from madlib_mop.trainer.requests import malformed

_OTHER_FORMATS = "Export another format: 'keras' and 'safetensors' hold every model."


@dataclass(frozen=True)
class Conversion:
    """What to convert.

    Attributes
    ----------
    recipe : Recipe
    weights : sequence of bytes-like
        Float32, flattened, in ``get_weights()`` order, in one buffer or several.
    form : Format
    spec : FileSpec
    """

    recipe: Recipe
    weights: Sequence[Blob]
    form: Format
    spec: FileSpec


def read_request(header: Header, blobs: Sequence[Blob]) -> Conversion:
    """Read what to convert. Raises RequestFailure (model) for an architecture that does not pass its check."""
    if not blobs:
        raise malformed("export_model has no blobs")
    recipe = Recipe.read(header["model"])
    spec = FileSpec(header["inputs"], header["outputs"], header["additions"])
    return Conversion(recipe, list(blobs), Format(header["format"]), spec)


def convert(request: Conversion) -> bytes:
    """Return the file of a model.

    Raises
    ------
    RequestFailure
        model: the model does not build. input: the format cannot express it. memory: it ran out of it.
    """
    spec = request.spec
    with blaming(MODEL):
        model = request.recipe.build(request.weights)
        if (len(model.inputs), len(model.outputs)) != (len(spec.inputs), len(spec.outputs)):
            raise Unsupported(
                f"the model has {len(model.inputs)} inputs and {len(model.outputs)} outputs, but its tables name"
                f" {len(spec.inputs)} and {len(spec.outputs)}"
            )
    try:
        convert_model = _CONVERTERS.get(request.form) or choice.current().converters()[request.form]
        return convert_model(model, spec)
    except RequestFailure:
        raise
    except Exception as error:  # noqa: BLE001 -- converters raise errors of any class
        if (failure := failure_of(error)).kind == MEMORY:
            raise failure from error
        message = f"{request.form} cannot express this model: {sentence_of(error)}"
        raise RequestFailure(INPUT, Unsupported(message, hint=_OTHER_FORMATS)) from error


def _keras(model: keras.Model, spec: FileSpec) -> bytes:
    """Return Keras' own archive, as ``model.save`` writes it; no layer that is allowed has assets."""
    config, metadata = saving_lib._serialize_model_as_json(model)
    if KERAS_2_HARD_SIGMOID in config:
        raise RequestFailure(INPUT, Unsupported(
            "the model has Keras 2's hard_sigmoid, which Keras 3 cannot load",
            hint="Export 'onnx' or 'saved_model', which hold the function itself.",
        ))  # fmt: skip
    weights = io.BytesIO()
    store = saving_lib.H5IOStore(weights, mode="w")
    try:
        saving_lib._save_state(
            model, weights_store=store, assets_store=None, inner_path="", visited_saveables=set()
        )
    finally:
        store.close()
    members: dict[str, bytes | memoryview] = {
        "metadata.json": _without_date(metadata).encode(),
        "config.json": config.encode(),
        "model.weights.h5": weights.getbuffer(),
    }
    return archive(members, spec.additions)


def _without_date(metadata: str) -> str:
    """Return the metadata with a date that is always the same: the same model gives the same bytes."""
    return json.dumps({**json.loads(metadata), "date_saved": "1980-01-01@00:00:00"})


def _safetensors(model: keras.Model, spec: FileSpec) -> bytes:
    """Return the weights by the paths of the variables, in the order of ``get_weights()``."""
    from safetensors.numpy import save

    names = weight_names(model.weights)
    tensors = {
        name: np.ascontiguousarray(weight.numpy()) for name, weight in zip(names, model.weights, strict=True)
    }
    metadata = {"format": "keras", "architecture": model.to_json(), "weights": json.dumps(list(tensors))}
    return _in_order(save(tensors, {**metadata, **metadata_of(spec.additions)}))


def _in_order(file: bytes) -> bytes:
    """Return a safetensors file with its metadata in order: the same model gives the same bytes."""
    n_header = int.from_bytes(file[:8], "little")
    header = json.dumps(json.loads(file[8 : 8 + n_header]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(8, "little"), header, memoryview(file)[8 + n_header :]])


_CONVERTERS: Mapping[Format, Converter] = {Format.KERAS: _keras, Format.SAFETENSORS: _safetensors}
