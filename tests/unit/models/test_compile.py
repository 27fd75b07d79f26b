"""Optimizers, losses, metrics and callbacks are those of plain Keras, argument for argument."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
from keras import losses, metrics, optimizers  # noqa: E402
from keras.optimizers import schedules  # noqa: E402

from madlib_mop.errors import ModelFailed  # noqa: E402
from madlib_mop.models.build import make  # noqa: E402
from madlib_mop.models.parameters.keras_names import LOSS_STRINGS, METRIC_STRINGS, REQUIRED, snake_case  # noqa: E402
from madlib_mop.models.parameters.literals import CallSpec  # noqa: E402
from madlib_mop.models.parameters.parser import CompileParams, parse_compile_params, parse_fit_params  # noqa: E402
from tests.helpers.unit.plain import build_model, data_for, functional, perceptron  # noqa: E402

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


@pytest.mark.slow
def test_every_loss_and_metric_by_name_trains():
    needed = {snake_case(name) for name in REQUIRED}
    skip = {"concordance_correlation", "pearson_correlation", "binary_io_u", "ctc", "circle"}  # these need other data
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


@pytest.mark.slow
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
        metrics=[
            "accuracy",
            *(metrics.TopKCategoricalAccuracy(k=k, name=f"k{k}") for k in (2, 3)),
            metrics.AUC(curve="PR"),
        ],
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


@pytest.mark.one_case
@pytest.mark.parametrize("metric", ["'mae'", "['mae']", "['MeanAbsoluteError(name=\"mae\")']"])
def test_one_metric_alone_is_for_every_output(metric):
    """As in Keras 2; each output gets its own object."""
    params = f"loss=['categorical_crossentropy', 'mse'], metrics={metric}, weighted_metrics={metric}"
    model = build_model(functional().to_json(), parse_compile_params(f"optimizer='sgd', {params}"), 4)
    x, (kind, amount) = data_for(model)
    found = model.evaluate(x, [kind, amount], verbose=0, return_dict=True)
    for name, y, scores in zip(("kind", "amount"), (kind, amount), model.predict(x, verbose=0), strict=True):
        assert found[f"{name}_mae"] == pytest.approx(np.mean(np.abs(y - scores)), rel=1e-5)


def test_custom_functions_are_used_by_name():
    def mine(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

    params = parse_compile_params("loss='mine', optimizer='sgd', metrics=['mine', 'mae']", {"mine"})
    model = build_model(perceptron().to_json(), params, 1, {"mine": mine})
    found = model.evaluate(*data_for(model), verbose=0, return_dict=True)
    assert found["mine"] == pytest.approx(found["mae"])
    with pytest.raises(ModelFailed, match="'mine' is no longer registered"):
        build_model(perceptron().to_json(), params, 1)


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


def test_a_model_that_does_not_compile_fails_with_one_sentence():
    params = CompileParams(CallSpec("Adam", (), {"clipnorm": 1.0, "clipvalue": 1.0}), "mse")  # the parser refuses it
    with pytest.raises(ModelFailed, match="the model does not compile: Only one of `clipnorm`, `clipvalue`"):
        build_model(perceptron().to_json(), params)
