"""Models built here are those that the same thing written in plain Keras gives, bit for bit."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
from keras import layers, losses, metrics, optimizers  # noqa: E402
from keras.optimizers import schedules  # noqa: E402

from madlib_mop.errors import MopError, ModelFailed, Unsupported  # noqa: E402
from madlib_mop.models.architecture import check_architecture  # noqa: E402
from madlib_mop.models.build import build_architecture, build_model, compile_signature, first_reason, make  # noqa: E402
from madlib_mop.models.params import parse_compile_params, parse_fit_params  # noqa: E402
from madlib_mop.models.shapes import describe  # noqa: E402
from tests.unit.models.documents import KERAS_2_1, KERAS_2_2_4_TF, KERAS_2_10, dense, keras_3, layer  # noqa: E402
from tests.unit.models.test_architecture import Marker, dangerous  # noqa: E402

ROWS = 24


def perceptron():
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, activation="relu", kernel_initializer="he_uniform", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(3, activation="softmax", bias_constraint=keras.constraints.MaxNorm(2.0)),
        ]
    )


def convolutional():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(1 / 16),
            layers.Conv2D(4, 3, padding="same", kernel_regularizer=keras.regularizers.L1L2(1e-4, 1e-4)),
            layers.LeakyReLU(negative_slope=0.1),
            layers.SeparableConv2D(4, 3, activation=keras.activations.gelu),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(3, activation=layers.Softmax(), kernel_initializer=keras.initializers.VarianceScaling(2.0)),
        ]
    )


def functional():
    one, other = keras.Input((4,), name="one"), keras.Input((4,), name="other")
    shared = layers.Dense(4, activation="tanh", name="shared")
    joined = layers.Concatenate()([shared(one), shared(other)]) + layers.Dense(8)(one)
    joined = keras.ops.relu(joined[:, 1:])
    kind = layers.Dense(3, activation="softmax", name="kind")(joined)
    return keras.Model([one, other], [kind, layers.Dense(1, name="amount")(joined)])


def recurrent():
    return keras.Sequential(
        [
            keras.Input((5, 4)),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True, dropout=0.1)),
            layers.TimeDistributed(layers.Dense(4, activation="relu")),
            layers.GRU(3),
            layers.Dense(3, activation="softmax"),
        ]
    )


def nested():
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu")], name="inner")
    inner.trainable = False
    x = keras.Input((4,))
    attended = layers.MultiHeadAttention(2, 2)(layers.Reshape((5, 1))(inner(x)), layers.Reshape((5, 1))(inner(x)))
    return keras.Model(x, layers.Dense(3, activation="softmax")(layers.Flatten()(attended)))


MODELS = {
    "perceptron": (perceptron, "adam"),
    "convolutional": (convolutional, "SGD(lr=0.1, momentum=0.9)"),
    "functional": (functional, "rmsprop"),
    "recurrent": (recurrent, "Nadam(lr=0.01)"),
    "nested": (nested, "AdamW"),
}


def data_for(model, seed=0):
    rng = np.random.default_rng(seed)
    xs = [rng.random((ROWS, *tensor.shape[1:]), np.float32) for tensor in model.inputs]
    if model.inputs[0].name.startswith("words"):
        xs[0] = np.floor(xs[0] * 20)
    ys = [
        np.eye(3, dtype=np.float32)[rng.integers(3, size=ROWS)] if tensor.shape[-1] == 3 else rng.random((ROWS, 1), np.float32)
        for tensor in model.outputs
    ]  # fmt: skip
    return (xs[0] if len(xs) == 1 else xs), (ys[0] if len(ys) == 1 else ys)


def compile_text(model, optimizer):
    loss = "'mse'" if len(model.outputs) == 1 else "['categorical_crossentropy', 'mse']"
    return f"loss={loss}, optimizer='{optimizer}'"


def train(model, **kwargs):
    model.fit(*data_for(model), batch_size=7, epochs=2, shuffle=False, verbose=0, **kwargs)
    return [np.asarray(variable) for variable in (*model.variables, *model.optimizer.variables)]


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
    start, expected = [np.asarray(weight) for weight in plain.get_weights()], train(plain)

    ours = build_model(text, compile_params, 12)
    assert [weight.tobytes() for weight in ours.get_weights()] == [weight.tobytes() for weight in start]
    assert [value.tobytes() for value in train(ours)] == [value.tobytes() for value in expected]


def test_the_same_seed_gives_the_same_weights_and_another_others():
    text, params = perceptron().to_json(), parse_compile_params("loss='mse', optimizer='adam'")
    one, same, other = (build_model(text, params, seed).get_weights() for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0], other[0])


OPTIMIZERS = {
    "adam": lambda: optimizers.Adam(),
    "'Adam(lr=0.01, decay=1e-6)'": lambda: optimizers.Adam(schedules.InverseTimeDecay(0.01, 1, 1e-6)),
    "SGD(lr=0.1, momentum=0.9, nesterov=True)": lambda: optimizers.SGD(0.1, 0.9, True),
    "'sgd(learning_rate=ExponentialDecay(0.1, decay_steps=100, decay_rate=0.96, staircase=True))'": (
        lambda: optimizers.SGD(schedules.ExponentialDecay(0.1, 100, 0.96, staircase=True))
    ),
    "RMSprop(0.01, rho=0.8, centered=True, clipnorm=1.0)": (
        lambda: optimizers.RMSprop(0.01, rho=0.8, centered=True, clipnorm=1.0)
    ),
    "adamw(weight_decay=0.01, lr=CosineDecay(0.1, 50, warmup_target=1, warmup_steps=5))": (
        lambda: optimizers.AdamW(schedules.CosineDecay(0.1, 50, warmup_target=1.0, warmup_steps=5), weight_decay=0.01)
    ),
    "Nadam(lr=0.1, epsilon=None, schedule_decay=0.004)": lambda: optimizers.Nadam(0.1),
    "Adagrad(lr=PiecewiseConstantDecay([10, 20], [1, 0.5, 0.1]))": (
        lambda: optimizers.Adagrad(schedules.PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.1]))
    ),
    "Ftrl(l1_regularization_strength=0.01)": lambda: optimizers.Ftrl(l1_regularization_strength=0.01),
    "Lion(lr=PolynomialDecay(1, 10, power=2), use_ema=True)": (
        lambda: optimizers.Lion(schedules.PolynomialDecay(1.0, 10, power=2.0), use_ema=True)
    ),
    "Adadelta(lr=CosineDecayRestarts(0.5, 10, t_mul=1))": (
        lambda: optimizers.Adadelta(schedules.CosineDecayRestarts(0.5, 10, t_mul=1.0))
    ),
    "Adamax(lr=0.002, name='mine')": lambda: optimizers.Adamax(0.002, name="mine"),
}


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_optimizers_are_those_of_plain_keras(text):
    model = build_model(perceptron().to_json(), parse_compile_params(f"loss='mse', optimizer={text}"))
    plain = OPTIMIZERS[text]()
    found, expected = model.optimizer.get_config(), plain.get_config()
    if "name=" not in text:
        assert found.pop("name") == type(plain).__name__.lower()
        expected.pop("name")
    assert type(model.optimizer) is type(plain)
    assert found == expected


@pytest.mark.parametrize("iteration", [0, 1, 10, 1000])
def test_decay_is_what_keras_2_did(iteration):
    params = parse_compile_params("loss='mse', optimizer='SGD(lr=0.5, decay=0.01)'")
    schedule = make(params.optimizer.kwargs["learning_rate"], "schedule")
    assert float(schedule(iteration)) == pytest.approx(0.5 * (1 / (1 + 0.01 * iteration)), rel=1e-6)


LOSSES = {
    "CategoricalCrossentropy(label_smoothing=0.1)": lambda: losses.CategoricalCrossentropy(label_smoothing=0.1),
    "'CategoricalCrossentropy(True)'": lambda: losses.CategoricalCrossentropy(from_logits=True),
    "Huber(delta=2)": lambda: losses.Huber(2.0),
    "keras.losses.CategoricalFocalCrossentropy(alpha=[0.2, 0.3, 0.5])": (
        lambda: losses.CategoricalFocalCrossentropy(alpha=[0.2, 0.3, 0.5])
    ),
    "KLDivergence": lambda: losses.KLDivergence(),
    "Tversky(alpha=0.3, beta=0.7)": lambda: losses.Tversky(0.3, 0.7),
    "CosineSimilarity(axis=-1)": lambda: losses.CosineSimilarity(axis=-1),
    "MeanSquaredError(reduction='sum')": lambda: losses.MeanSquaredError(reduction="sum"),
    "CategoricalGeneralizedCrossEntropy": lambda: losses.CategoricalGeneralizedCrossEntropy(),
}


@pytest.mark.parametrize("text", LOSSES)
def test_losses_are_those_of_plain_keras(text):
    model = build_model(perceptron().to_json(), parse_compile_params(f"loss={text}, optimizer='adam'"))
    assert type(model.loss) is type(LOSSES[text]())
    assert model.loss.get_config() == LOSSES[text]().get_config()


def test_every_loss_and_metric_by_name_trains():
    from madlib_mop.models.keras_names import LOSS_STRINGS, METRIC_STRINGS, REQUIRED, snake_case

    needed = {snake_case(name) for name in REQUIRED}
    skip = {"concordance_correlation", "pearson_correlation", "binary_io_u", "ctc", "circle"}  # need other data
    metric_names = sorted(name for name in METRIC_STRINGS - needed - skip if "sparse" not in name)
    model = perceptron()
    text = f"loss='mse', optimizer='sgd', metrics={metric_names}"
    ours = build_model(model.to_json(), parse_compile_params(text))
    ours.run_eagerly = True
    x, y = data_for(model)
    assert {*metric_names} <= {*ours.evaluate(x, y, verbose=0, return_dict=True)}
    for name in sorted(LOSS_STRINGS - skip):
        if "sparse" not in name:
            ours = build_model(model.to_json(), parse_compile_params(f"loss='{name}', optimizer='sgd'"), 1)
            ours.run_eagerly = True
            assert np.isfinite(ours.evaluate(x, y, verbose=0)), name


def test_metrics_by_class_are_those_of_plain_keras_with_names_of_their_own():
    text = "metrics=['accuracy', TopKCategoricalAccuracy(k=2), TopKCategoricalAccuracy(k=3), AUC(curve='PR')]"
    params = parse_compile_params(f"loss='mse', optimizer='sgd', {text}")
    ours = build_model(perceptron().to_json(), params, 3)
    names = ("accuracy", "top_k_categorical_accuracy", "top_k_categorical_accuracy_1", "auc")
    assert params.metric_names == names
    plain = perceptron()
    plain.set_weights(ours.get_weights())
    plain.compile(
        loss="mse",
        metrics=["accuracy", *(metrics.TopKCategoricalAccuracy(k=k, name=f"k{k}") for k in (2, 3)), metrics.AUC(curve="PR")],
    )
    expected = plain.evaluate(*data_for(plain), verbose=0)
    found = ours.evaluate(*data_for(ours), verbose=0, return_dict=True)
    assert [found[name] for name in ("loss", *names)] == expected


def test_several_outputs_by_list_and_by_name():
    text = functional().to_json()
    by_list = "loss=['categorical_crossentropy', 'mse'], loss_weights=[1, 0.5], metrics=[['accuracy'], ['mae', 'mape']]"
    by_name = """loss={'kind': 'categorical_crossentropy', 'amount': 'mse'}, loss_weights={'kind': 1, 'amount': 0.5},
                 metrics={'kind': 'accuracy', 'amount': ['mae', 'mape']}"""
    results = []
    for params in (by_list, by_name):
        model = build_model(text, parse_compile_params(f"optimizer='sgd', {params}"), 4)
        results.append(model.evaluate(*data_for(model), verbose=0, return_dict=True))
    assert results[0] == results[1]
    assert {"kind_accuracy", "amount_mae", "amount_mape"} <= {*results[0]}


def test_custom_functions_are_used_by_name():
    def mine(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

    params = parse_compile_params("loss='mine', optimizer='sgd', metrics=['mine', 'mae']", {"mine"})
    model = build_model(perceptron().to_json(), params, 1, {"mine": mine})
    found = model.evaluate(*data_for(model), verbose=0, return_dict=True)
    assert found["mine"] == pytest.approx(found["mae"])
    with pytest.raises(ModelFailed, match="'mine' is not registered"):
        build_model(perceptron().to_json(), params, 1)


@pytest.mark.parametrize("document", [KERAS_2_1, KERAS_2_2_4_TF, KERAS_2_10], ids=["2.1.6", "2.2.4-tf", "2.10"])
def test_models_of_keras_2_train(document):
    shape = describe(check_architecture(document))
    loss = "['categorical_crossentropy', 'mse']" if shape.n_outputs == 2 else "'categorical_crossentropy'"
    model = build_model(json.dumps(document), parse_compile_params(f"loss={loss}, optimizer='Adam(lr=0.05, decay=0.01)'"), 1)
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
    gru = {"class_name": "GRU", "config": {"name": "g", "units": 3, "batch_input_shape": [None, 5, 4], "implementation": 1}}
    document = {"class_name": "Sequential", "config": [gru], "keras_version": "2.1.6"}
    assert build_architecture(document).layers[0].reset_after is False


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


def test_a_model_that_does_not_compile_fails_with_one_sentence():
    params = parse_compile_params("loss='mse', optimizer='adam(clipnorm=1, clipvalue=1)'")
    with pytest.raises(ModelFailed, match="the model does not compile: Only one of `clipnorm`, `clipvalue`"):
        build_model(perceptron().to_json(), params)


def test_running_out_of_memory_is_not_blamed_on_the_model(monkeypatch):
    def full(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(keras.saving, "deserialize_keras_object", full)
    with pytest.raises(MemoryError):
        build_architecture(keras_3(dense()))


def test_first_reason_is_the_innermost_line():
    text = "<class 'x'> could not be deserialized properly.\n\nconfig={...}.\n\nException encountered: Bad `units`.\nMore."
    assert first_reason(ValueError(text)) == "Bad `units`."
    assert first_reason(ValueError("")) == "ValueError"
    assert len(first_reason(ValueError("x" * 9000))) == 300


@pytest.mark.parametrize("name", dangerous(Marker("x")))
def test_keras_never_sees_what_is_refused(name, tmp_path, monkeypatch):
    marker = Marker(tmp_path / "ran")
    document = dangerous(marker)[name]

    def forbidden(*args, **kwargs):
        raise AssertionError("Keras was called")

    monkeypatch.setattr(keras.saving, "deserialize_keras_object", forbidden)
    with pytest.raises(MopError):
        build_architecture(json.dumps(document))
    assert not marker.path.exists()


def test_callbacks_are_made_by_name():
    text = """callbacks=[EarlyStopping(patience=2), ReduceLROnPlateau(factor=0.5), TerminateOnNaN(),
                         LearningRateScheduler(ExponentialDecay(0.1, 1, 0.5))]"""
    made = [make(spec) for spec in parse_fit_params(text).callbacks]
    assert [type(item).__name__ for item in made] == [
        "EarlyStopping",
        "ReduceLROnPlateau",
        "TerminateOnNaN",
        "LearningRateScheduler",
    ]
    assert (made[0].patience, made[0].monitor, made[1].factor) == (2, "loss", 0.5)
    model = build_model(perceptron().to_json(), parse_compile_params("loss='mse', optimizer='sgd'"))
    model.fit(*data_for(model), epochs=3, verbose=0, callbacks=made)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.025)


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


def test_importing_build_is_what_imports_tensorflow():
    code = "import sys, madlib_mop.models.build; assert 'tensorflow' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, stderr=subprocess.DEVNULL)
