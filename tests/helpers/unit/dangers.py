"""Architectures that would run code or open files if Keras loaded them, and a payload that shows that its code ran.

``tests/unit/models/test_architecture.py`` has each of them refused by the one check. The tests of what calls the check,
such as imports of files, take one or two of them.
"""

import base64
import copy
import marshal
import pickle

from tests.helpers.unit.documents import KERAS_2_1, KERAS_2_10, dense, keras_3, layer

_CODE, _FILES = "it contains Python code", "it can read files of the server as its vocabulary"
_LAMBDA, _NO_CLASS = f"Lambda is not allowed: {_CODE}", "class is not one of the allowed Keras classes"
_NO_MODULE = "module is not one of Keras' classes or modules"
_NO_FUNCTION = "activation is a function that is not one of Keras' activations"
#: Text in the allow-list's refusal of each document of ``dangerous``; another error would mean that it was accepted.
REFUSALS = {
    "Lambda": f": {_LAMBDA}",
    "Lambda of Keras 2": f": {_LAMBDA}",
    "Lambda by name only": f": {_LAMBDA}",
    "Lambda in a wrapper": f": {_LAMBDA}",
    "Lambda in a nested model": f"layer 2 (inner): layer 2: {_LAMBDA}",
    "Lambda in a nested model in a nested model": f"layer 2 (a): layer 2 (b): layer 2: {_LAMBDA}",
    "Lambda as activation": f": {_LAMBDA}",
    "Lambda as initializer": f": {_LAMBDA}",
    "lambda as activation": f"__lambda__ is not allowed: {_CODE}",
    "lambda as initializer": f"__lambda__ is not allowed: {_CODE}",
    "lambda as units": f"__lambda__ is not allowed: {_CODE}",
    "lambda in a list": f"__lambda__ is not allowed: {_CODE}",
    "lambda in a dict": f"__lambda__ is not allowed: {_CODE}",
    "lambda in inbound nodes": f"inbound_nodes: __lambda__ is not allowed: {_CODE}",
    "TFSMLayer": "TFSMLayer is not allowed: it loads a program from a file of the server",
    "TorchModuleWrapper": "TorchModuleWrapper is not allowed: it unpickles data, which can run any code",
    "JaxLayer": "JaxLayer is not allowed: it runs code that is not Keras'",
    "FlaxLayer": "FlaxLayer is not allowed: it runs code that is not Keras'",
    "StringLookup": f"StringLookup is not allowed: {_FILES}",
    "IntegerLookup": f"IntegerLookup is not allowed: {_FILES}",
    "TextVectorization": f"TextVectorization is not allowed: {_FILES}",
    "FeatureSpace": f"FeatureSpace is not allowed: {_FILES}",
    "function of keras.utils": f"{_NO_FUNCTION}. Received: 'get_file' of module 'keras.utils'",
    "function as a layer": "is not a layer or object of Keras",
    "function of another module": f"{_NO_FUNCTION}. Received: 'system' of module 'os'",
    "builtin function": f"{_NO_FUNCTION}. Received: 'eval' of module 'builtins'",
    "class of another module": f"{_NO_CLASS}. Received: 'system'",
    "class of another module as initializer": f"kernel_initializer: {_NO_CLASS}. Received: 'system'",
    "allowed class of another module": f"{_NO_MODULE}. Received: 'os'",
    "allowed class of a look-alike module": f"{_NO_MODULE}. Received: 'keras_evil.layers'",
    "module with a path": f"{_NO_MODULE}. Received: 'keras/../../evil'",
    "module that is a list": f"{_NO_MODULE}. Received: ['keras']",
    "initializer of another module": f"{_NO_MODULE}. Received: 'evil'",
    "other class of keras": f"{_NO_CLASS}. Received: 'KerasFileEditor'",
    "model loaded from a file": f"{_NO_CLASS}. Received: 'load_model'",
    "registered class": "registered classes cannot be used. Received: 'Custom>Evil'",
    "typespec": "__typespec__ is not allowed: TensorFlow objects cannot be part of an architecture",
    "tensor": "__tensor__ is not allowed: tensors cannot be part of an architecture",
    "bytes": "__bytes__ is not allowed: bytes cannot be part of an architecture",
    "array of objects": "an array may contain numbers only",
    "array of dicts": "an array may contain numbers only",
    "optimizer in a layer": f"units: {_NO_CLASS}. Received: 'Adam'",
    "Keras 2 operation": "TFOpLambda is not allowed: Keras 2 operations outside of layers cannot be converted",
    "op that writes": f"{_NO_CLASS}. Received: 'Vectorize'",
    "policy": f"dtype: {_NO_CLASS}. Received: 'DTypePolicyMap'",
    "quantized": f"quantization_config: {_NO_CLASS}. Received: 'GPTQConfig'",
    "bare Lambda": f"model_arch: {_LAMBDA}",
    "bare lambda": f"model_arch: __lambda__ is not allowed: {_CODE}",
    "subclass of Model": f"model_arch: {_NO_CLASS}. Received: 'Evil'",
}


class Marker:
    """A file that is created if code from an architecture runs."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")

    @property
    def code(self):
        """The marshalled code of a lambda that creates the file, in Keras' format."""
        source = f"lambda x, *rest: open({str(self.path)!r}, 'w') and x"
        code = compile(source, "payload", "eval").co_consts[0]
        return base64.b64encode(marshal.dumps(code)).decode()

    @property
    def lambda_config(self):
        return {"class_name": "__lambda__", "config": {"code": self.code, "defaults": None, "closure": None}}

    @property
    def pickled(self):
        return base64.b64encode(pickle.dumps(self)).decode()


def _bytes(value):
    return {"class_name": "__bytes__", "config": {"value": value}}


def _array(value, dtype):
    return {"class_name": "__numpy__", "config": {"value": value, "dtype": dtype}}


def dangerous(marker):
    """Return documents with which Keras would run code or open files, by the names of ``REFUSALS``."""
    path = str(marker.path)
    lambda_3 = layer(
        "Lambda", name="l", function={"class_name": "__lambda__", "config": {"value": [marker.code, None, None]}}
    )
    get_file = {
        "module": "keras.utils",
        "class_name": "function",
        "config": "get_file",
        "registered_name": "get_file",
    }
    class_of_os = {
        "module": "os",
        "class_name": "system",
        "config": {"command": f"touch {path}"},
        "registered_name": None,
    }
    lambda_2 = {"class_name": "Lambda", "config": {"function": [marker.code, None, None], "function_type": "lambda"}}
    typespec = {
        "class_name": "__typespec__",
        "module": "os",
        "spec_name": "system",
        "registered_name": None,
        "config": [path],
    }
    operation_2 = {"class_name": "TFOpLambda", "config": {"function": "io.write_file"}}
    connected = copy.deepcopy(KERAS_2_10)
    connected["config"]["layers"][2]["inbound_nodes"][0][0][3] = {"mask": marker.lambda_config}
    compiled = keras_3(dense())
    compiled["compile_config"] = {"optimizer": "adam", "loss": marker.lambda_config}
    return {
        "Lambda": keras_3(lambda_3),
        "Lambda of Keras 2": {**KERAS_2_1, "config": [*KERAS_2_1["config"], lambda_2]},
        "Lambda by name only": keras_3(layer("Lambda", function="relu")),
        "Lambda in a wrapper": keras_3(layer("TimeDistributed", layer=lambda_3), input_shape=(2, 4)),
        "Lambda in a nested model": keras_3(keras_3(lambda_3, name="inner")),
        "Lambda in a nested model in a nested model": keras_3(keras_3(keras_3(lambda_3, name="b"), name="a")),
        "Lambda as activation": keras_3(dense(activation=lambda_3)),
        "Lambda as initializer": keras_3(dense(kernel_initializer=lambda_3)),
        "lambda as activation": keras_3(dense(activation=marker.lambda_config)),
        "lambda as initializer": keras_3(dense(kernel_initializer=marker.lambda_config)),
        "lambda as units": keras_3(dense(units=marker.lambda_config)),
        "lambda in a list": keras_3(layer("Reshape", target_shape=[4, marker.lambda_config])),
        "lambda in a dict": keras_3(layer("Reshape", target_shape=[4], other={"deep": [marker.lambda_config]})),
        "lambda in inbound nodes": connected,
        "TFSMLayer": keras_3(layer("TFSMLayer", filepath=path, call_endpoint="serve")),
        "TorchModuleWrapper": keras_3(layer("TorchModuleWrapper", module=_bytes(marker.pickled))),
        "JaxLayer": keras_3(layer("JaxLayer", call_fn=marker.lambda_config)),
        "FlaxLayer": keras_3(layer("FlaxLayer", module=marker.lambda_config)),
        "StringLookup": keras_3(layer("StringLookup", vocabulary=path)),
        "IntegerLookup": keras_3(layer("IntegerLookup", vocabulary=path)),
        "TextVectorization": keras_3(layer("TextVectorization", vocabulary=path)),
        "FeatureSpace": keras_3(layer("FeatureSpace", module="keras.utils", features={})),
        "function of keras.utils": keras_3(dense(activation=get_file)),
        "function as a layer": keras_3(get_file),
        "function of another module": keras_3(dense(activation={**get_file, "module": "os", "config": "system"})),
        "builtin function": keras_3(dense(activation={**get_file, "module": "builtins", "config": "eval"})),
        "class of another module": keras_3(class_of_os),
        "class of another module as initializer": keras_3(dense(kernel_initializer=class_of_os)),
        "allowed class of another module": keras_3(layer("Dense", module="os", units=3)),
        "allowed class of a look-alike module": keras_3(layer("Dense", module="keras_evil.layers", units=3)),
        "module with a path": keras_3(layer("Dense", module="keras/../../evil", units=3)),
        "module that is a list": keras_3(layer("Dense", module=["keras"], units=3)),
        "initializer of another module": keras_3(dense(bias_initializer=layer("Zeros", module="evil"))),
        "other class of keras": keras_3(layer("KerasFileEditor", module="keras.saving", filepath=path)),
        "model loaded from a file": keras_3(layer("load_model", module="keras.models", filepath=path)),
        "registered class": keras_3({**dense(), "registered_name": "Custom>Evil"}),
        "typespec": keras_3(dense(units=typespec)),
        "tensor": keras_3(dense(units={"class_name": "__tensor__", "config": {"value": 1, "dtype": "int32"}})),
        "bytes": keras_3(dense(units=_bytes("x"))),
        "array of objects": keras_3(layer("Rescaling", scale=_array([1], "object"))),
        "array of dicts": keras_3(layer("Rescaling", scale=_array([{}], "float32"))),
        "optimizer in a layer": keras_3(dense(units=layer("Adam", module="keras.optimizers"))),
        "Keras 2 operation": {**KERAS_2_1, "config": [*KERAS_2_1["config"], operation_2]},
        "op that writes": keras_3(layer("Vectorize", module="keras.src.ops.numpy", pyfunc=marker.lambda_config)),
        "policy": keras_3(dense(dtype=layer("DTypePolicyMap", module="keras", policy_map={}))),
        "quantized": keras_3(dense(quantization_config=layer("GPTQConfig", module="keras.quantizers", dataset=[]))),
        "bare Lambda": lambda_3,
        "bare lambda": marker.lambda_config,
        "subclass of Model": {**keras_3(dense()), "class_name": "Evil", "module": "evil"},
    }  # fmt: skip
