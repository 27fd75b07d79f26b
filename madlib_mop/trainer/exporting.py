"""Converts a model to a file of another program, in the sandbox; called by ``server.py``.

The sandbox has no files: archives are made in memory, and TensorFlow writes SavedModels into its file system in memory
(``ram://``).
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.saving import saving_lib
from mop_backend.frames import Blob, Header

from madlib_mop.errors import NotReady, Unsupported
from madlib_mop.exports.formats import Format, archive, metadata_of, onnx_with, tflite_with
from madlib_mop.models.keras_layers import KERAS_2_HARD_SIGMOID
from madlib_mop.trainer.imports.layers import weight_names
from madlib_mop.trainer.process.failures import INPUT, MEMORY, MODEL, Failure, blaming, failure_of, sentence_of
from madlib_mop.trainer.recipe import Recipe
from madlib_mop.trainer.requests import malformed

_IN_MEMORY = "ram://export"
#: The newest operator set that tf2onnx writes for all operators; ONNX Runtime 1.14 and newer read it.
_OPSET = 18
_OTHER_FORMATS = "Export another format: 'keras' and 'safetensors' hold every model."


@dataclass(frozen=True)
class Conversion:
    """What to convert.

    Attributes
    ----------
    recipe : Recipe
    weights : bytes-like
        Float32, flattened, in ``get_weights()`` order.
    form : Format
    inputs, outputs : sequence of str
        The names in the file, in the order of the model.
    additions : mapping of str to str
        Texts to add to the file, by name.
    """

    recipe: Recipe
    weights: Blob
    form: Format
    inputs: Sequence[str]
    outputs: Sequence[str]
    additions: Mapping[str, str]


def read_request(header: Header, blobs: Sequence[Blob]) -> Conversion:
    """Read what to convert. Raises Failure (model) for an architecture that does not pass its check."""
    if len(blobs) != 1:
        raise malformed(f"export_model has {len(blobs)} blobs, expected 1")
    recipe = Recipe.read(header["model"])
    form, names = Format(header["format"]), (header["inputs"], header["outputs"])
    return Conversion(recipe, blobs[0], form, *names, header["additions"])


def convert(request: Conversion) -> bytes:
    """Return the file of a model.

    Raises
    ------
    Failure
        model: the model does not build. input: the format cannot express it. memory: it ran out of it.
    """
    with blaming(MODEL):
        model = request.recipe.build(request.weights)
        if (len(model.inputs), len(model.outputs)) != (len(request.inputs), len(request.outputs)):
            raise Unsupported(
                f"the model has {len(model.inputs)} inputs and {len(model.outputs)} outputs, but its tables name"
                f" {len(request.inputs)} and {len(request.outputs)}"
            )
    try:
        return _CONVERTERS[request.form](model, request)
    except Failure:
        raise
    except Exception as error:  # noqa: BLE001 -- converters raise errors of any class
        if (failure := failure_of(error)).kind == MEMORY:
            raise failure from error
        message = f"{request.form} cannot express this model: {sentence_of(error)}"
        raise Failure(INPUT, Unsupported(message, hint=_OTHER_FORMATS)) from error


def _keras(model: keras.Model, request: Conversion) -> bytes:
    """Return Keras' own archive, as ``model.save`` writes it; no layer that is allowed has assets."""
    config, metadata = saving_lib._serialize_model_as_json(model)
    if KERAS_2_HARD_SIGMOID in config:
        raise Failure(INPUT, Unsupported(
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
    return archive(members, request.additions)


def _without_date(metadata: str) -> str:
    """Return the metadata with a date that is always the same: the same model gives the same bytes."""
    return json.dumps({**json.loads(metadata), "date_saved": "1980-01-01@00:00:00"})


def _safetensors(model: keras.Model, request: Conversion) -> bytes:
    """Return the weights by the paths of the variables, in the order of ``get_weights()``."""
    from safetensors.numpy import save

    names = weight_names(model.weights)
    tensors = {
        name: np.ascontiguousarray(weight.numpy()) for name, weight in zip(names, model.weights, strict=True)
    }
    metadata = {"format": "keras", "architecture": model.to_json(), "weights": json.dumps(list(tensors))}
    return _in_order(save(tensors, {**metadata, **metadata_of(request.additions)}))


def _in_order(file: bytes) -> bytes:
    """Return a safetensors file with its metadata in order: the same model gives the same bytes."""
    n_header = int.from_bytes(file[:8], "little")
    header = json.dumps(json.loads(file[8 : 8 + n_header]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(8, "little"), header, memoryview(file)[8 + n_header :]])


def _onnx(model: keras.Model, request: Conversion) -> bytes:
    """Return an ONNX file.

    ``tf2onnx.convert.from_function``, which Keras uses, takes constants that a layer holds for inputs of the model, and
    writes nodes for operators that it cannot convert. So its parts are called, and the result is checked.
    """
    try:
        import onnx
        from keras.src.export.tf2onnx_lib import patch_tf2onnx
        from tf2onnx import convert as tf2onnx
        from tf2onnx import tf_loader
    except ImportError:
        raise Failure(INPUT, NotReady("tf2onnx is not installed on this server", hint="Run make install.")) from None
    patch_tf2onnx()
    _, function = _function(model, request)
    traced = function.get_concrete_function()
    inputs = [tensor.name for tensor in traced.inputs[: len(request.inputs)]]
    outputs = [tensor.name for tensor in traced.outputs]
    with tf.device("/cpu:0"):
        converted, _ = tf2onnx._convert_common(
            tf_loader.from_function(traced, inputs, outputs),
            name="madlib_mop",
            continue_on_error=False,
            opset=_OPSET,
            custom_op_handlers={"Erfc": (_erfc, [])},
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename=tf2onnx.tensor_names_from_structed(traced, inputs, outputs),
        )
    onnx.checker.check_model(converted, full_check=True)
    return onnx_with(converted.SerializeToString(deterministic=True), request.additions)


def _erfc(context: Any, node: Any, name: str, args: Any) -> Any:
    """Convert erfc(x), which gelu uses, to 1 - erf(x): ONNX has no such operator."""
    erf = context.make_node("Erf", node.input, name=f"{node.name}_erf")
    one = context.make_const(f"{node.name}_one", np.array(1, np.float32))
    shapes, dtypes, outputs = node.output_shapes, node.output_dtypes, node.output
    context.remove_node(node.name)
    return context.make_node(
        "Sub", [one.output[0], erf.output[0]], name=node.name, outputs=outputs, shapes=shapes, dtypes=dtypes
    )


def _saved_model(model: keras.Model, request: Conversion) -> bytes:
    members: dict[str, bytes | memoryview] = {}
    _write_saved_model(model, request)
    try:
        for folder, _, files in tf.io.gfile.walk(_IN_MEMORY):
            for name in files:
                path = f"{folder.rstrip('/')}/{name}"
                with tf.io.gfile.GFile(path, "rb") as file:
                    members[path.removeprefix(f"{_IN_MEMORY}/")] = file.read()
    finally:
        tf.io.gfile.rmtree(_IN_MEMORY)
    return archive(dict(sorted(members.items())), request.additions)


def _tflite(model: keras.Model, request: Conversion) -> bytes:
    """Return a TFLite file, with the operators of TensorFlow where TFLite has none, as Keras' own export does."""
    _write_saved_model(model, request)
    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(_IN_MEMORY)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        converter.experimental_enable_resource_variables = True
        return tflite_with(converter.convert(), request.additions)
    finally:
        tf.io.gfile.rmtree(_IN_MEMORY)


def _write_saved_model(model: keras.Model, request: Conversion) -> None:
    specs, function = _function(model, request)
    target = keras.export.ExportArchive()
    target.track(model)
    target.add_endpoint("serve", function, input_signature=specs)
    target.write_out(_IN_MEMORY, verbose=False)


def _function(model: keras.Model, request: Conversion) -> tuple[list[tf.TensorSpec], Any]:
    """Return the model as a function with named inputs and outputs, for batches of any size."""
    specs = [
        tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name)
        for tensor, name in zip(model.inputs, request.inputs, strict=True)
    ]

    def serve(*xs: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = model(xs[0] if len(xs) == 1 else list(xs), training=False)
        values = [tf.cast(output, tf.float32) for output in keras.tree.flatten(outputs)]
        return dict(zip(request.outputs, values, strict=True))

    return specs, tf.function(serve, input_signature=specs, autograph=False)


_CONVERTERS: Mapping[Format, Callable[[keras.Model, Conversion], bytes]] = {
    Format.KERAS: _keras,
    Format.SAVED_MODEL: _saved_model,
    Format.ONNX: _onnx,
    Format.SAFETENSORS: _safetensors,
    Format.TFLITE: _tflite,
}
