"""Architectures are copied from an allow-list; whatever could run code or open a file is refused, and does not run."""

import base64
import copy
import json
import marshal
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.shapes import describe
from tests.unit.models.documents import KERAS_2_1, KERAS_2_2_4_TF, KERAS_2_10, dense, keras_3, layer

DOCUMENTS = {"keras 3": keras_3(dense()), "2.1": KERAS_2_1, "2.2.4-tf": KERAS_2_2_4_TF, "2.10": KERAS_2_10}


class Marker:
    """A file that is made when code from an architecture runs."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")

    @property
    def code(self):
        """The marshalled code of a lambda that makes the file, as Keras stores lambdas."""
        function = eval(f"lambda x, *rest: open({str(self.path)!r}, 'w') and x")  # noqa: S307 -- makes the test's payload
        return base64.b64encode(marshal.dumps(function.__code__)).decode()

    @property
    def lambda_config(self):
        return {"class_name": "__lambda__", "config": {"code": self.code, "defaults": None, "closure": None}}

    @property
    def pickled(self):
        return base64.b64encode(pickle.dumps(self)).decode()


@pytest.fixture
def marker(tmp_path):
    return Marker(tmp_path / "ran")


def dangerous(marker):
    """Give documents that Keras, given the chance, would turn into running code or opened files."""
    path = str(marker.path)
    lambda_3 = layer("Lambda", name="l", function={"class_name": "__lambda__", "config": {"value": [marker.code, None, None]}})
    get_file = {
        "module": "keras.utils",
        "class_name": "function",
        "config": "get_file",
        "registered_name": "get_file",
    }
    class_of_os = {"module": "os", "class_name": "system", "config": {"command": f"touch {path}"}, "registered_name": None}
    lambda_2 = {"class_name": "Lambda", "config": {"function": [marker.code, None, None], "function_type": "lambda"}}
    typespec = {"class_name": "__typespec__", "module": "os", "spec_name": "system", "registered_name": None, "config": [path]}
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
        "TorchModuleWrapper": keras_3(layer("TorchModuleWrapper", module={"class_name": "__bytes__", "config": {"value": marker.pickled}})),
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
        "initializer of another module": keras_3(dense(bias_initializer={"module": "evil", "class_name": "Zeros", "config": {}})),
        "other class of keras": keras_3(layer("KerasFileEditor", module="keras.saving", filepath=path)),
        "model loaded from a file": keras_3(layer("load_model", module="keras.models", filepath=path)),
        "registered class": keras_3({**dense(), "registered_name": "Custom>Evil"}),
        "typespec": keras_3(dense(units=typespec)),
        "tensor": keras_3(dense(units={"class_name": "__tensor__", "config": {"value": 1, "dtype": "int32"}})),
        "bytes": keras_3(dense(units={"class_name": "__bytes__", "config": {"value": "x"}})),
        "array of objects": keras_3(layer("Rescaling", scale={"class_name": "__numpy__", "config": {"value": [1], "dtype": "object"}})),
        "array of dicts": keras_3(layer("Rescaling", scale={"class_name": "__numpy__", "config": {"value": [{}], "dtype": "float32"}})),
        "optimizer in a layer": keras_3(dense(units=layer("Adam", module="keras.optimizers"))),
        "Keras 2 operation": {**KERAS_2_1, "config": [*KERAS_2_1["config"], {"class_name": "TFOpLambda", "config": {"function": "io.write_file"}}]},
        "op that writes": keras_3(layer("Vectorize", module="keras.src.ops.numpy", pyfunc=marker.lambda_config)),
        "policy": keras_3(dense(dtype={"module": "keras", "class_name": "DTypePolicyMap", "config": {"policy_map": {}}})),
        "quantized": keras_3(dense(quantization_config=layer("GPTQConfig", module="keras.quantizers", dataset=[]))),
        "bare Lambda": lambda_3,
        "bare lambda": marker.lambda_config,
        "subclass of Model": {**keras_3(dense()), "class_name": "Evil", "module": "evil"},
    }  # fmt: skip


@pytest.mark.parametrize("name", dangerous(Marker("x")))
def test_dangerous_constructs_are_refused_and_nothing_runs(name, marker, monkeypatch):
    document = dangerous(marker)[name]

    def forbidden(*args, **kwargs):
        raise AssertionError("something was opened")

    for module, function in ((marshal, "loads"), (pickle, "loads"), (pickle, "load")):
        monkeypatch.setattr(module, function, forbidden)
    with pytest.raises(MopError) as caught:
        check_architecture(json.dumps(document))
    assert isinstance(caught.value, Unsupported | UnreadableText)
    assert not marker.path.exists()


def test_what_is_refused_would_have_run(marker):
    """The payload of these tests is a real one: unmarshalled and called, it makes the file."""
    code = marshal.loads(base64.b64decode(marker.code))
    type(lambda: None)(code, {"open": open})(1)
    assert marker.path.exists()


@pytest.mark.parametrize("name", ["Lambda", "TFSMLayer", "TextVectorization", "TorchModuleWrapper"])
def test_the_reason_is_named(name, marker):
    with pytest.raises(Unsupported, match=f"{name} is not taken: it "):
        check_architecture(dangerous(marker)[name])


def test_what_was_not_checked_is_not_handed_on(marker):
    document = keras_3({**dense(), "unknown": marker.lambda_config, "build_config": {"x": marker.lambda_config}})
    document["compile_config"] = {"loss": marker.lambda_config}
    document["more"] = marker.lambda_config
    checked = check_architecture(document)
    assert "__lambda__" not in json.dumps(checked)
    assert checked == check_architecture(keras_3(dense()))


@pytest.mark.parametrize(
    "text",
    ["null", "[]", "{}", "1", '"Sequential"', "[1, 2]", "{", "", "NaN", '{"class_name": null}', '{"class_name": "Sequential"}',
     '{"class_name": "Sequential", "config": {"name": "s", "layers": []}}', '{"config": [1, 2, 3]}',
     '{"class_name": "Sequential", "config": null}', '{"class_name": "Sequential", "config": [1]}',
     '{"class_name": "Functional", "config": {"layers": [1]}}'],
)  # fmt: skip
def test_what_is_no_model_is_unreadable(text):
    with pytest.raises(UnreadableText) as caught:
        check_architecture(text)
    assert caught.value.sqlstate == "22P02"
    assert "model_arch" in caught.value.message


def test_a_bare_layer_is_no_model():
    with pytest.raises(UnreadableText, match="single layer"):
        check_architecture(dense())


def test_a_model_without_input_shape_is_refused():
    document = keras_3(dense())
    del document["config"]["layers"][0]
    with pytest.raises(Unsupported, match="no input shape"):
        check_architecture(document)
    document["config"]["build_input_shape"] = [None, 4]
    assert check_architecture(document)["config"]["build_input_shape"] == [None, 4]


def test_unknown_names_get_a_close_match():
    for document, match in (
        (keras_3(layer("Dnese", units=3)), "Did you mean Dense?"),
        (keras_3(dense(activation="rleu")), "Did you mean relu?"),
        (keras_3(dense(kernel_initializer="glorot")), "glorot_"),
        (keras_3(dense(kernel_regularizer={"class_name": "L3", "config": {}})), "Allowed: L1"),
        (keras_3(dense(dtype="float31")), "Did you mean float"),
    ):
        with pytest.raises(Unsupported) as caught:
            check_architecture(document)
        assert match in caught.value.hint


def test_depth_length_and_number_of_layers_are_limited(monkeypatch):
    with pytest.raises(UnreadableText, match="nested too deep"):
        check_architecture('{"class_name":' * 100_000)
    deep = keras_3(dense())
    for level in range(120):
        deep = keras_3(deep, name=f"m{level}")
    with pytest.raises(Unsupported, match="nested more than"):
        check_architecture(deep)
    for depth in (150, 700):
        value = "[" * depth + "]" * depth
        for document in (keras_3(dense(units="?")), {**KERAS_2_1, "config": "?"}, {**KERAS_2_10, "config": "?"}):
            with pytest.raises((Unsupported, UnreadableText)):
                check_architecture(json.dumps(document).replace('"?"', value))
    monkeypatch.setattr("madlib_mop.models.architecture.MAX_LAYERS", 50)
    with pytest.raises(Unsupported, match="more than 50 layers"):
        check_architecture(keras_3(*[dense()] * 60))
    monkeypatch.setattr("madlib_mop.models.architecture.MAX_JSON_LENGTH", 100)
    with pytest.raises(Unsupported, match="longer than 100"):
        check_architecture(keras_3(dense()))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_checked_architecture_checks_again_to_the_same(name):
    checked = check_architecture(json.dumps(DOCUMENTS[name]))
    assert check_architecture(checked) == checked
    assert check_architecture(json.dumps(checked)) == checked


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_that_was_given_is_left_as_it_was(name):
    document = copy.deepcopy(DOCUMENTS[name])
    check_architecture(document)
    assert document == DOCUMENTS[name]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["relu", "Dense", "Sequential", "keras", "function"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["class_name", "config", "module", "layers", "name", "activation"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(_JSON, _JSON)
def test_any_json_is_checked_or_refused_in_one_way(document, inner):
    for candidate in (document, keras_3(dense(x=inner)), {**keras_3(), "config": document}):
        try:
            check_architecture(json.dumps(candidate))
        except (UnreadableText, Unsupported):
            pass


def test_inputs_and_outputs_are_described():
    found = describe(check_architecture(KERAS_2_10))
    assert (found.n_inputs, found.n_outputs) == (2, 2)
    assert found.input_names == ("words", "numbers")
    assert found.input_shapes == ((6,), (4,))
    assert found.output_names == ("kind", "amount")
    assert found.output_units == (3, 1)
    found = describe(check_architecture(KERAS_2_2_4_TF))
    assert (found.input_names, found.input_shapes, found.output_units) == (("conv2d_input",), ((8, 8, 1),), (3,))


def test_units_are_found_behind_layers_that_keep_them():
    found = describe(check_architecture(keras_3(dense(5), layer("Dropout", rate=0.5), layer("Activation", activation="softmax"))))
    assert found.output_units == (5,)
    assert describe(check_architecture(keras_3(layer("Flatten"), name="x"))).output_units == (None,)
    nested = keras_3(keras_3(dense(7), name="inner"), layer("Softmax"))
    assert describe(check_architecture(nested)).output_units == (7,)
