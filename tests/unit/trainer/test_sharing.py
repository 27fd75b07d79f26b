"""Configurations that differ in L2 strengths and layer names share one graph, and keep the bits of plain Keras."""

import functools
import json
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.models.build import build_architecture  # noqa: E402
from madlib_mop.models.sharing import shared_form, strengths_of  # noqa: E402
from madlib_mop.trainer.data import state  # noqa: E402
from tests.helpers.unit.cases import Case, weights_of  # noqa: E402
from tests.helpers.unit.trainer import Trainer  # noqa: E402

STRENGTHS = (1e-2, 3e-5, 0.7)


def perceptron(l2: float) -> keras.Model:
    penalty = keras.regularizers.L2(l2)
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Flatten(),
            layers.Dense(12, activation="relu", kernel_regularizer=penalty, bias_regularizer=penalty),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(4, activation="softmax", kernel_regularizer=keras.regularizers.L2(l2 / 3)),
        ]
    )


def convolutional(l2: float) -> keras.Model:
    penalty = keras.regularizers.L2(l2)
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(5, 3, activation="relu", kernel_regularizer=penalty, padding="same"),
            layers.MaxPooling2D(2),
            layers.Conv2D(3, 2, kernel_regularizer=penalty),
            layers.Flatten(),
            layers.Dense(4, activation="softmax", kernel_regularizer=penalty),
        ]
    )


def residual(l2: float) -> keras.Model:
    penalty = keras.regularizers.L2(l2)
    image = keras.Input((6, 6, 1))
    x = layers.Conv2D(4, 3, padding="same", kernel_regularizer=penalty)(image)
    inner = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Add()([x, layers.Conv2D(4, 3, padding="same", kernel_regularizer=penalty)(inner)])
    return keras.Model(image, layers.Dense(4, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def data(n: int):
    chance = np.random.default_rng(n)
    x = chance.random((n, 6, 6, 1), np.float32)
    return [x], [np.eye(4, dtype=np.int16)[chance.integers(0, 4, n)]]


OPTIMIZERS = {
    "Adam(learning_rate=0.01)": lambda: keras.optimizers.Adam(0.01),
    "SGD(lr=0.05, momentum=0.9, nesterov=True)": lambda: keras.optimizers.SGD(0.05, 0.9, True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "optimizer"),
    [
        pytest.param(build, optimizer, marks=() if i == j else pytest.mark.slow)
        for i, build in enumerate([perceptron, convolutional, residual]) for j, optimizer in enumerate(OPTIMIZERS)
    ],
)  # fmt: skip
def test_they_take_turns_in_one_graph_with_the_bits_of_plain_keras(build, optimizer):
    make = OPTIMIZERS[optimizer]
    cases = [
        Case(
            f"l2 {l2}",
            functools.partial(build, l2),
            f"loss='categorical_crossentropy', optimizer='{optimizer}', metrics=['accuracy']",
            lambda: {"loss": "categorical_crossentropy", "optimizer": make(), "metrics": ["accuracy"]},
            data,
        )
        for l2 in STRENGTHS
    ]
    with Trainer() as trainer:
        for key, n in (("53", 53), ("47", 47)):
            trainer.send_shard(key, *data(n), buffer_size=9)
        requests = [case.request(mst_key=i) for i, case in enumerate(cases)]
        assert len({request["arch"] for request in requests}) == len(cases)
        models, parts = [case.model(mst_key=i) for i, case in enumerate(cases)], [None] * len(cases)
        for epoch in (1, 2):
            for segment, key in enumerate(("53", "47")):
                for i, case in enumerate(cases):
                    _, parts[i] = trainer.train(requests[i], key, epoch=epoch, segment_id=segment, state=parts[i])
                    case.fit(models[i], epoch, segment, *data(int(key)), mst_key=i)
        for i, model in enumerate(models):
            assert state.weights_of(parts[i]) == weights_of(model), f"{cases[i].name} differs"
        assert len({state.weights_of(p) for p in parts}) == len(cases)
        losses = [trainer.evaluate(r, "53", state=p)["loss"] for r, p in zip(requests, parts, strict=True)]
        for loss, model in zip(losses, models, strict=True):
            xs, ys = data(53)
            expected = model.evaluate(xs[0], ys[0].astype("f4"), verbose=0, batch_size=53)[0]
            assert loss == pytest.approx(expected, rel=1e-5)
        assert trainer.ask({"op": "stats"})[0]["compiled_models"] == 1


def test_only_what_may_differ_is_left_out_of_the_shared_form():
    def config(model):
        return json.loads(model.to_json())

    one, other = config(perceptron(0.1)), config(perceptron(0.2))
    assert one != other and shared_form(one) == shared_form(other)
    assert sorted(strengths_of(one).values()) == sorted([0.1, 0.1, 0.1 / 3])
    wider = perceptron(0.1)
    wider = config(wider)
    wider["config"]["layers"][2]["config"]["units"] = 13
    assert shared_form(wider) != shared_form(one)
    penalty = keras.regularizers.L1L2(1, 2)
    both = config(keras.Sequential([keras.Input((3,)), layers.Dense(2, kernel_regularizer=penalty)]))
    assert strengths_of(both) == {}


def test_a_graph_is_told_by_its_edges_not_by_the_names_of_its_layers():
    def config(turned=False, names=("a", "b", "c"), n_outputs=1):
        x = keras.Input((3,), name="x")
        first, second, last = (layers.Dense(3, name=name) for name in names)
        inner = second(first(x)) if not turned else first(second(x))
        outputs = [last(layers.Add(name="sum")([x, inner])), inner]
        return json.loads(keras.Model(x, outputs[:n_outputs]).to_json())

    other_names = ("c", "d", "e")
    assert shared_form(config()) == shared_form(config(names=other_names))
    straight, turned = config(), config(turned=True)
    order = [layer["name"] for layer in straight["config"]["layers"]]
    turned["config"]["layers"].sort(key=lambda layer: order.index(layer["name"]))
    assert shared_form(straight) != shared_form(turned)
    # The logs of a model with several outputs contain the outputs' names.
    assert shared_form(config(n_outputs=2)) != shared_form(config(names=other_names, n_outputs=2))


def test_muon_finds_embeddings_and_excluded_layers_by_their_names():
    """It trains them as AdamW does. So models with other names do not take turns in one compiled model."""
    optimizer = "Muon(learning_rate=0.01, exclude_layers=['head'])"
    cases = [
        Case(
            " ".join(names),
            functools.partial(_named, *names),
            f"loss='categorical_crossentropy', optimizer=\"{optimizer}\"",
            lambda: {
                "loss": "categorical_crossentropy",
                "optimizer": keras.optimizers.Muon(0.01, exclude_layers=["head"]),
            },
            data,
        )
        for names in (("body", "last"), ("embedding_of_body", "last"), ("body", "head"))
    ]
    with Trainer() as trainer:
        trainer.send_shard("53", *data(53), buffer_size=9)
        for case in cases:
            model = case.model()
            case.fit(model, 1, 0, *data(53))
            _, parts = trainer.train(case.request(), "53")
            assert state.weights_of(parts) == weights_of(model), case.name
        assert trainer.ask({"op": "stats"})[0]["compiled_models"] == len(cases)


def _named(*names):
    hidden, last = (layers.Dense(4, "softmax", name=name) for name in names)
    return keras.Sequential([keras.Input((6, 6, 1)), layers.Flatten(), hidden, last])


@pytest.mark.tensorflow
def test_a_model_that_is_built_leaves_the_compiled_functions_of_others_alone(monkeypatch):
    """TensorFlow's global seed empties its cache of kernels, and each function is optimized again at its next call."""
    import tensorflow as tf

    seeded = []
    monkeypatch.setattr(tf.random, "set_seed", seeded.append)
    build_architecture(perceptron(0.1).to_json(), 1)
    assert not seeded


def test_the_seed_decides_the_weights_that_are_drawn():
    weights = [build_architecture(perceptron(0.1).to_json(), seed).get_weights() for seed in (1, 1, 2)]
    for drawn, again, other in zip(*weights, strict=True):
        assert (drawn == again).all()
        assert drawn.ndim == 1 or (drawn != other).any()


def test_architectures_without_names_train_as_those_with_names():
    xs, ys = data(53)
    with_names = Case(
        "named", functools.partial(convolutional, 0.01), "loss='categorical_crossentropy', optimizer='Adam'", dict, data
    ).request()
    document = json.loads(with_names["arch"])
    for layer in document["config"]["layers"]:
        del layer["config"]["name"]
    without_names = {**with_names, "arch": json.dumps(document)}
    with Trainer() as trainer:
        trainer.send_shard("53", xs, ys, buffer_size=9)
        parts = [trainer.train(request, "53", epoch=1)[1] for request in (without_names, with_names)]
        assert trainer.ask({"op": "stats"})[0]["compiled_models"] == 1
    assert state.weights_of(parts[0]) == state.weights_of(parts[1])
