"""Models built here equal the same models in plain Keras, bit for bit."""

import json
import os
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.errors import InvalidParameter, ModelFailed, Unsupported  # noqa: E402
from madlib_mop.models.architecture import check_architecture  # noqa: E402
from madlib_mop.models.build import build_architecture, first_reason, make  # noqa: E402
from madlib_mop.models.configuration import Configuration  # noqa: E402
from madlib_mop.models.described import describe_architecture  # noqa: E402
from madlib_mop.models.parameters.parser import parse_compile_params  # noqa: E402
from madlib_mop.models.shapes import describe  # noqa: E402
from madlib_mop.models.sharing import _known, compile_signature, known_architecture, signature_of  # noqa: E402
from madlib_mop.models.sizes import size_of  # noqa: E402
from tests.helpers.unit.dangers import REFUSALS, Marker, dangerous  # noqa: E402
from tests.helpers.unit.documents import KERAS_2_1, KERAS_2_2_4_TF, KERAS_2_10, dense, keras_3, layer  # noqa: E402
from tests.helpers.unit.plain import (  # noqa: E402
    build_model,
    convolutional,
    data_for,
    functional,
    nested,
    perceptron,
    recurrent,
)

MODELS = {
    "perceptron": (perceptron, "adam"),
    "convolutional": (convolutional, "SGD(lr=0.1, momentum=0.9)"),
    "functional": (functional, "rmsprop"),
    "recurrent": (recurrent, "Nadam(lr=0.01)"),
    "nested": (nested, "AdamW"),
}


def compile_text(model, optimizer):
    loss = "'mse'" if len(model.outputs) == 1 else "['categorical_crossentropy', 'mse']"
    return f"loss={loss}, optimizer='{optimizer}'"


def train(model, **kwargs):
    keras.utils.set_random_seed(34)  # on PyTorch, Dropout draws from the global generator
    model.fit(*data_for(model), batch_size=7, epochs=2, shuffle=False, verbose=0, **kwargs)
    return [np.asarray(variable) for variable in (*model.variables, *model.optimizer.variables)]


@pytest.mark.one_case
@pytest.mark.parametrize("name", MODELS)
def test_start_weights_and_training_are_those_of_plain_keras(name):
    make_plain, optimizer = MODELS[name]
    text = make_plain().to_json()
    compile_params = parse_compile_params(compile_text(make_plain(), optimizer))

    keras.utils.set_random_seed(12)
    plain = keras.models.model_from_json(text)
    plain.compile(
        optimizer=make(compile_params.optimizer, "optimizer"),
        loss=["categorical_crossentropy", "mse"] if name == "functional" else "mse",
    )
    start, expected = [np.array(weight) for weight in plain.get_weights()], train(plain)

    ours = build_model(text, compile_params, 12)
    assert [weight.tobytes() for weight in ours.get_weights()] == [weight.tobytes() for weight in start]
    assert [value.tobytes() for value in train(ours)] == [value.tobytes() for value in expected]


def test_the_same_seed_gives_the_same_weights_and_another_others():
    text, params = perceptron().to_json(), parse_compile_params("loss='mse', optimizer='adam'")
    one, same, other = (build_model(text, params, seed).get_weights() for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0], other[0])


@pytest.mark.one_case
@pytest.mark.parametrize("document", [KERAS_2_1, KERAS_2_2_4_TF, KERAS_2_10], ids=["2.1.6", "2.2.4-tf", "2.10"])
def test_models_of_keras_2_train(document):
    shape = describe(check_architecture(document))
    loss = "['categorical_crossentropy', 'mse']" if shape.n_outputs == 2 else "'categorical_crossentropy'"
    model = build_model(
        json.dumps(document), parse_compile_params(f"loss={loss}, optimizer='Adam(lr=0.05, decay=0.01)'"), 1
    )
    assert tuple(tensor._keras_history.operation.name for tensor in model.outputs) == shape.output_names
    x, y = data_for(model)
    history = model.fit(x, y, epochs=15, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    assert history[-1] < history[0]


def test_models_of_keras_2_are_what_they_say():
    model = build_architecture(KERAS_2_1)
    plain = keras.Sequential(
        [
            keras.Input((4,), name="dense_1_input"),
            *(
                layers.Dense(
                    units,
                    activation=activation,
                    name=name,
                    kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_in", "truncated_normal"),
                    kernel_regularizer=keras.regularizers.L1L2(0.0, 9.999999747378752e-05),
                    kernel_constraint=keras.constraints.MaxNorm(3),
                )
                for name, units, activation in (("dense_1", 10, "relu"), ("dense_2", 3, "softmax"))
            ),
        ]
    )
    plain = keras.Sequential([plain.layers[0], layers.Dropout(0.5, name="dropout_1"), plain.layers[1]])
    plain.build((None, 4))
    found, expected = model.get_config()["layers"][1:], plain.get_config()["layers"][1:]
    for one, other in zip(found, expected, strict=True):
        assert one["config"] == other["config"]
    convolution = build_architecture(KERAS_2_2_4_TF)
    normalization, leaky = convolution.layers[1], convolution.layers[2]
    assert (normalization.axis, leaky.negative_slope) == (3, pytest.approx(0.2))


def test_a_gru_of_keras_2_1_resets_before_the_product():
    gru = {
        "class_name": "GRU",
        "config": {"name": "g", "units": 3, "batch_input_shape": [None, 5, 4], "implementation": 1},
    }
    document = {"class_name": "Sequential", "config": [gru], "keras_version": "2.1.6"}
    assert build_architecture(document).layers[0].reset_after is False


def test_keras_2_calls_with_tensors_by_name_are_connected():
    attention = {
        "class_name": "MultiHeadAttention",
        "config": {"name": "attention", "num_heads": 2, "key_dim": 2, "query_shape": [None, 5, 4], "dropout": 0.0},
        "name": "attention",
        "inbound_nodes": [[["x", 0, 0, {"value": ["flat", 0, 0], "training": ["_CONSTANT_VALUE", -1, False, {}]}]]],
    }
    shape = {"batch_input_shape": [None, 5, 4], "dtype": "float32", "sparse": False, "ragged": False, "name": "x"}
    layers_2 = [
        {"class_name": "InputLayer", "config": shape, "name": "x", "inbound_nodes": []},
        {"class_name": "Activation", "config": {"name": "flat", "activation": "tanh"}, "name": "flat",
         "inbound_nodes": [["x", 0, 0, {}]]},
        attention,
    ]  # fmt: skip
    config = {"name": "m", "layers": layers_2, "input_layers": [["x", 0, 0]], "output_layers": [["attention", 0, 0]]}
    document = {"class_name": "Functional", "config": config, "keras_version": "2.10.0"}
    model = build_architecture(json.dumps(document), 3)
    x = np.random.default_rng(0).random((2, 5, 4), np.float32)
    attended = model.get_layer("attention")
    expected = attended(x, keras.ops.tanh(x), training=False)
    found, expected = (keras.ops.convert_to_numpy(value) for value in (model(x), expected))
    assert np.array_equal(found, expected)
    assert model(x).shape == (2, 5, 4)


def test_tf_keras_2_13_with_modules_is_read_too():
    initializer = layer("GlorotUniform", module="keras.initializers", seed=None)
    document = keras_3(dense(kernel_initializer=initializer, name="d"))
    del document["module"], document["registered_name"]
    document["keras_version"] = "2.13.1"
    first = document["config"]["layers"][0]["config"]
    first["batch_input_shape"] = first.pop("batch_shape")
    first["ragged"] = False
    assert build_architecture(document).count_params() == 15


NO_MODELS = {
    "units": (keras_3(dense(-1)), "units"),
    "unknown argument": (keras_3(dense(3, colour="red")), "colour"),
    "shapes": (keras_3(layer("Conv2D", filters=2, kernel_size=[3, 3])), "ndim"),
    "missing argument": (keras_3(layer("Dense")), "units"),
    "a Functional that is not connected": (
        {**KERAS_2_10, "config": {**KERAS_2_10["config"], "output_layers": [["nobody", 0, 0]]}},
        "nobody",
    ),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_a_model_that_does_not_build_fails_with_one_sentence(name):
    document, word = NO_MODELS[name]
    with pytest.raises(ModelFailed) as caught:
        build_model(document, parse_compile_params("loss='mse', optimizer='adam'"))
    assert caught.value.message.startswith("the architecture does not build: ")
    assert word in caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 350
    assert "config=" not in caught.value.message


def test_running_out_of_memory_is_not_blamed_on_the_model(monkeypatch):
    def full(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(keras.saving, "deserialize_keras_object", full)
    with pytest.raises(MemoryError):
        build_architecture(keras_3(dense()))


def test_first_reason_is_the_innermost_line():
    text = (
        "<class 'x'> could not be deserialized properly.\n\nconfig={...}.\n\nException encountered: Bad `units`.\nMore."
    )
    assert first_reason(ValueError(text)) == "Bad `units`."
    assert first_reason(ValueError("")) == "ValueError"
    assert len(first_reason(ValueError("x" * 9000))) == 300


@pytest.mark.parametrize("name", ["Lambda", "lambda in inbound nodes"])
def test_keras_never_sees_what_is_refused(name, tmp_path, monkeypatch):
    marker, seen = Marker(tmp_path / "ran"), []
    monkeypatch.setattr(keras.saving, "deserialize_keras_object", lambda *args, **kwargs: seen.append(args))
    with pytest.raises(Unsupported) as caught:
        build_architecture(json.dumps(dangerous(marker)[name]))
    assert REFUSALS[name] in caught.value.message
    assert seen == [] and not marker.path.exists()


def test_signature_is_blind_to_a_constant_learning_rate_only():
    config = check_architecture(perceptron().to_json())

    def signature(optimizer, others="", config=config):
        return compile_signature(config, parse_compile_params(f"loss='mse', optimizer={optimizer}{others}"))

    base = signature("Adam(lr=0.1)")
    assert base == signature("'adam(learning_rate=0.001)'") == signature("adam") == signature("Adam(lr=1)")
    assert signature("Adam(lr=0.1, beta_1=0.8, beta_2=0.9)") == signature("Adam(beta_2=0.9, beta_1=0.8)")
    different = [
        signature("SGD(lr=0.1)"),
        signature("Adam(lr=0.1, beta_1=0.8)"),
        signature("Adam(lr=0.1, decay=0.1)"),
        signature("Adam(lr=0.2, decay=0.1)"),
        signature("Adam(lr=0.1)", ", metrics=['mae']"),
        signature("Adam(lr=0.1)", ", loss_weights=2"),
        signature("Adam(lr=0.1)", config=check_architecture(keras_3(dense()))),
        compile_signature(config, parse_compile_params("loss='mae', optimizer='adam'")),
        compile_signature(config, parse_compile_params("loss='mse', optimizer='adam'"), "custom"),
    ]
    assert len({base, *different}) == 1 + len(different)


def test_configurations_of_one_architecture_are_signed_as_each_alone_would_be(monkeypatch):
    checks = []

    def counted(arch):
        checks.append(arch)
        return check_architecture(arch)

    sized = Mock(wraps=size_of)
    monkeypatch.setattr("madlib_mop.models.sharing.check_architecture", counted)
    monkeypatch.setattr("madlib_mop.models.sharing.size_of", sized)
    architectures = [json.loads(model().to_json()) for model in (perceptron, perceptron, convolutional)]
    optimizers = ("adam", "Adam(lr=0.1)", "sgd", "muon", "'Muon(learning_rate=0.1)'")
    _known.cache_clear()
    for arch in architectures:
        for optimizer in optimizers:
            c = Configuration(1, f"loss='mse', optimizer={optimizer}", "batch_size=4", json.loads(json.dumps(arch)))
            alone = [compile_signature(check_architecture(arch), c.compiled, extra) for extra in ("", "custom")]
            assert [signature_of(c), signature_of(c, "custom")] == alone
            assert known_architecture(c).checked == check_architecture(arch)
            assert known_architecture(c).size() == size_of(check_architecture(arch))
    assert len(checks) == sized.call_count == len({json.dumps(arch) for arch in architectures})


@pytest.mark.slow
def test_a_learning_rate_is_a_variable_of_the_optimizer():
    texts = ("loss='mse', optimizer='SGD(lr=0.1)'", "loss='mse', optimizer='SGD(lr=0.4)'")
    models = [build_model(perceptron().to_json(), parse_compile_params(text), 1) for text in texts]
    train(models[0])
    compiled = build_model(perceptron().to_json(), parse_compile_params(texts[1]), 1)
    compiled.optimizer.build(compiled.trainable_variables)
    compiled.optimizer.learning_rate.assign(0.1)
    expected = train(build_model(perceptron().to_json(), parse_compile_params(texts[0]), 1))
    assert [value.tobytes() for value in train(compiled)] == [value.tobytes() for value in expected]


def test_an_architecture_that_does_not_pass_its_check_never_becomes_a_model():
    with pytest.raises(Unsupported):
        build_model(keras_3(layer("Lambda")), parse_compile_params("loss='mse', optimizer='adam'"))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_importing_build_is_what_imports_tensorflow():
    code = "import sys, madlib_mop.models.build; assert 'tensorflow' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, stderr=subprocess.DEVNULL)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["a: 1 [b]", "é", "a b", "a(b"])
def test_a_name_that_tensorflow_refuses_is_an_error_before_the_first_visit(name):
    model = keras_3(layer("Dense", units=2, name=name), input_shape=(3,))
    nested = keras_3(model, input_shape=(3,))
    for document in (model, nested):
        with pytest.raises(InvalidParameter, match="the name of a layer must consist of ASCII letters") as caught:
            build_architecture(document)
        assert f"Received: {name!r}" in caught.value.message
    built = build_architecture(keras_3(layer("Dense", units=2, name="_a.b>c-1"), input_shape=(3,)))
    assert built.layers[-1].name == "_a.b>c-1"


def test_what_is_only_described_is_not_drawn_with_the_next_model():
    """Keras draws the variables that it has postponed when it builds another model; these would take 4 TB."""
    described = describe_architecture(keras_3(layer("Dense", units=10**12)))
    assert max(described.weights[0].shape) == 10**12

    class Twice(keras.Layer):
        def call(self, x):
            return 2 * x

    assert Twice()(keras.Input((3,))).shape == (None, 3)
