"""Converts a model to the file formats of TensorFlow, and by way of it to ONNX, in the sandbox.

Called by ``backend.py``. The sandbox has no files: TensorFlow writes SavedModels into its file system in memory
(``ram://``).
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from madlib_mop.errors import NotReady
from madlib_mop.exports.formats import Format, archive, onnx_with
from madlib_mop.trainer.backends.base.interface import Converter, FileSpec
from madlib_mop.trainer.process.failures import INPUT, RequestFailure

_IN_MEMORY = "ram://export"
#: The newest operator set that tf2onnx writes for all operators; ONNX Runtime 1.14 and newer read it.
_OPSET = 18


def _onnx(model: keras.Model, spec: FileSpec) -> bytes:
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
        raise RequestFailure(
            INPUT, NotReady("tf2onnx is not installed on this server", hint="Run make install.")
        ) from None
    patch_tf2onnx()
    _, function = _function(model, spec)
    traced = function.get_concrete_function()
    inputs = [tensor.name for tensor in traced.inputs[: len(spec.inputs)]]
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
    return onnx_with(converted.SerializeToString(deterministic=True), spec.additions)


def _erfc(context: Any, node: Any, name: str, args: Any) -> Any:
    """Convert erfc(x), which gelu uses, to 1 - erf(x): ONNX has no such operator."""
    erf = context.make_node("Erf", node.input, name=f"{node.name}_erf")
    one = context.make_const(f"{node.name}_one", np.array(1, np.float32))
    shapes, dtypes, outputs = node.output_shapes, node.output_dtypes, node.output
    context.remove_node(node.name)
    return context.make_node(
        "Sub", [one.output[0], erf.output[0]], name=node.name, outputs=outputs, shapes=shapes, dtypes=dtypes
    )


def _saved_model(model: keras.Model, spec: FileSpec) -> bytes:
    members: dict[str, bytes | memoryview] = {}
    _write_saved_model(model, spec)
    try:
        for folder, _, files in tf.io.gfile.walk(_IN_MEMORY):
            for name in files:
                path = f"{folder.rstrip('/')}/{name}"
                with tf.io.gfile.GFile(path, "rb") as file:
                    members[path.removeprefix(f"{_IN_MEMORY}/")] = file.read()
    finally:
        tf.io.gfile.rmtree(_IN_MEMORY)
    return archive(dict(sorted(members.items())), spec.additions)


def _write_saved_model(model: keras.Model, spec: FileSpec) -> None:
    inputs, function = _function(model, spec)
    target = keras.export.ExportArchive()
    target.track(model)
    target.add_endpoint("serve", function, input_signature=inputs)
    target.write_out(_IN_MEMORY, verbose=False)


def _function(model: keras.Model, spec: FileSpec) -> tuple[list[tf.TensorSpec], Any]:
    """Return the model as a function with named inputs and outputs, for batches of any size."""
    inputs = [
        tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name)
        for tensor, name in zip(model.inputs, spec.inputs, strict=True)
    ]

    def serve(*xs: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = model(xs[0] if len(xs) == 1 else list(xs), training=False)
        values = [tf.cast(output, tf.float32) for output in keras.tree.flatten(outputs)]
        return dict(zip(spec.outputs, values, strict=True))

    return inputs, tf.function(serve, input_signature=inputs, autograph=False)


CONVERTERS: Mapping[Format, Converter] = {
    Format.SAVED_MODEL: _saved_model,
    Format.ONNX: _onnx,
}
