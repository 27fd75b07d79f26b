"""Materialised features: visits after a frozen prefix have the bits of plain Keras, which computes the prefix."""

import dataclasses
import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.models.prefix import split  # noqa: E402
from madlib_mop.trainer.data import state  # noqa: E402
from tests.helpers.unit.cases import CASES, Case, weights_of  # noqa: E402
from tests.helpers.unit.kernels import features_keep_bits  # noqa: E402
from tests.helpers.unit.trainer import Trainer  # noqa: E402

_LOSS = "loss='categorical_crossentropy', metrics=['accuracy'], optimizer="
_SGD = _LOSS + "'SGD(lr=0.05, momentum=0.9, clipnorm=0.5)'"


def frozen(*made):
    """Return layers that are not trained."""
    for layer in made:
        layer.trainable = False
    return made


def perceptron(units=3, l2=1e-3, name="first"):
    """Its prefix ends before the dropout layer, which draws again in each epoch."""
    return keras.Sequential(
        [
            keras.Input((12,)),
            *frozen(layers.Dense(17, "tanh", name=name), layers.BatchNormalization()),
            layers.Dropout(0.3),
            layers.Dense(9, "relu", kernel_regularizer=keras.regularizers.L2(l2)),
            layers.BatchNormalization(),
            layers.Dense(units, "softmax"),
        ]
    )


def standardised(units=3, l2=1e-3, name="first"):
    """Its prefix is one operation for each element, whose bits do not depend on the batch on any processor."""
    return keras.Sequential(
        [
            keras.Input((12,)),
            *frozen(layers.BatchNormalization(name=name)),
            layers.Dropout(0.3),
            layers.Dense(9, "relu", kernel_regularizer=keras.regularizers.L2(l2)),
            layers.Dense(units, "softmax"),
        ]
    )


def convolutional():
    """Its prefix ends after the activation and Flatten layers, which have no weights."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            *frozen(layers.Conv2D(6, 3, kernel_regularizer="l2"), layers.BatchNormalization()),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, "softmax"),
        ]
    )


def nested():
    """The usual form of transfer learning: an inner model that is frozen as a whole, and a new head."""
    inputs = keras.Input((8, 8, 1))
    inner = layers.Conv2D(4, 3, activation="relu")(inputs)
    inner = layers.Add()([inner, layers.Conv2D(4, 3, padding="same")(inner)])
    base = keras.Model(inputs, layers.BatchNormalization()(inner), name="base")
    base.trainable = False
    images = keras.Input((8, 8, 1))
    head = layers.GlobalAveragePooling2D()(base(images))
    return keras.Model(images, layers.Dense(10, "softmax")(layers.Dropout(0.2)(head)))


def one_frozen_branch():
    a, b = keras.Input((4,), name="a"), keras.Input((5, 2), name="b")
    (known,) = frozen(layers.Dense(5, "relu"))
    both = layers.Concatenate()([known(a), layers.Dense(3)(layers.Flatten()(b))])
    return keras.Model(
        [a, b], [layers.Dense(3, "softmax", name="kind")(both), layers.Dense(1, name="size")(both)], name="branches"
    )


def layer_normalised():
    """LayerNormalization's bits depend on a row's place in batches that are not a multiple of the vector width."""
    return keras.Sequential(
        [keras.Input((12,)), *frozen(layers.Dense(16), layers.LayerNormalization()), layers.Dense(3, "softmax")]
    )


def compiled_sgd():
    return {
        "loss": "categorical_crossentropy",
        "metrics": ["accuracy"],
        "optimizer": keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5),
    }


PERCEPTRON = dataclasses.replace(CASES[0], name="perceptron", build=perceptron)
STANDARDISED = dataclasses.replace(PERCEPTRON, name="standardised", build=standardised)
LEARNS = [
    STANDARDISED,
    PERCEPTRON,
    dataclasses.replace(PERCEPTRON, name="weighted", class_weight={0: 0.5, 2: 3.0}, batch_size=16, passes=1),
    Case("convolutional", convolutional, _SGD, compiled_sgd, CASES[1].data, batch_size=20),
    Case("nested", nested, _SGD, compiled_sgd, CASES[1].data, batch_size=32),
    dataclasses.replace(CASES[4], name="one frozen branch", build=one_frozen_branch),
]
SIZES = (53, 80, 7)


@pytest.fixture(scope="module")
def trainer():
    with Trainer() as started:
        yield started


@pytest.fixture(scope="module")
def through():
    """A trainer without materialised features."""
    with Trainer(materialise_features=False) as started:
        yield started


def train(trainer, case, sizes, weights=None):
    """Make two epochs of visits; return the state, the training and the evaluation answers."""
    parts, trained = None, []
    for epoch in (1, 2):
        for segment_id, n in enumerate(sizes):
            trainer.send_shard(str(n), *case.data(n), buffer_size=11)
            start = {"weights": weights} if parts is None and weights else {"state": parts}
            answer, parts = trainer.train(case.request(), str(n), epoch=epoch, segment_id=segment_id, **start)
            trained.append(answer)
    return parts, trained, [trainer.evaluate(case.request(), str(n), state=parts) for n in sizes]


def by_keras(case, sizes, weights=None):
    model = case.model()
    if weights is not None:
        model.set_weights(weights.get_weights())
    for epoch in (1, 2):
        for segment_id, n in enumerate(sizes):
            case.fit(model, epoch, segment_id, *case.data(n))
    return model


OTHERS = ("weighted", "nested", "standardised", "one frozen branch")
SLOW = [pytest.param(c, marks=pytest.mark.slow) if c.name in OTHERS else c for c in LEARNS]


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_the_same_weights_as_through_the_prefix(trainer, through, case):
    """Batch sizes that divide a shard and others, and fewer rows than a batch."""
    parts, trained, evaluated = train(trainer, case, SIZES)
    kept = all(features_keep_bits(case.model(), case.data(n)[0], case.batch_size) for n in SIZES)
    assert kept or case is not STANDARDISED
    if kept:
        assert sum("features_s" in answer["timing"] for answer in trained) >= len(trained) - 2
    model = by_keras(case, SIZES)
    assert state.weights_of(parts) == weights_of(model)
    for index, variable in enumerate(model.optimizer.variables):
        assert np.array_equal(state.decode_state(parts).read("optimizer", index), variable.numpy())
    parts_through, trained_through, evaluated_through = train(through, case, SIZES)
    assert through.ask({"op": "stats"})[0]["features"] == 0
    assert [bytes(p) for p in parts] == [bytes(p) for p in parts_through]
    for ours, theirs in zip(trained + evaluated, trained_through + evaluated_through, strict=True):
        assert (ours["loss"], ours["metrics"]) == (theirs["loss"], theirs["metrics"])
        assert "features_s" not in theirs["timing"]


def test_the_frozen_layers_keep_their_bits_and_the_others_learn(trainer):
    weights = perceptron()
    parts, _, _ = train(trainer, PERCEPTRON, (53,), weights=weights_of(weights))
    decoded = state.decode_state(parts)
    for index, variable in enumerate(weights.weights):
        layer = variable.path.split("/")[-2]
        kept = np.array_equal(decoded.read("weights", index), variable.numpy())
        assert kept == (layer in ("first", weights.layers[1].name)), variable.path


@pytest.mark.slow
def test_a_frozen_batch_normalization_uses_its_statistics(trainer):
    """The statistics differ from those of the data, so the output shows which were used."""
    model = shifted(STANDARDISED.model())
    parts, trained, _ = train(trainer, STANDARDISED, (80,), weights=weights_of(model))
    assert all("features_s" in answer["timing"] for answer in trained)
    assert state.weights_of(parts) == weights_of(by_keras(STANDARDISED, (80,), model))


def shifted(model):
    """Give the first layer, a frozen batch normalisation, other statistics."""
    mean, variance = model.layers[0].non_trainable_weights[-2:]
    mean.assign(np.full(12, 0.3))
    variance.assign(np.full(12, 4.0))
    return model


@pytest.mark.slow
def test_models_that_begin_alike_share_features():
    """Models with another head, L2 strength or names share features; other weights of the prefix have their own."""
    weights = weights_of(STANDARDISED.model())
    heads = [{}, {"l2": 0.1}, {"name": "other"}, {"units": 3, "l2": 1e-5}]
    with Trainer() as trainer:
        trainer.send_shard("s", *STANDARDISED.data(60))
        for head in heads:
            case = dataclasses.replace(STANDARDISED, build=lambda head=head: standardised(**head))
            trainer.train(case.request(), "s", weights=weights)
        assert trainer.ask({"op": "stats"})[0]["features"] == 1
        trainer.train(STANDARDISED.request(), "s", weights=weights_of(shifted(STANDARDISED.model())))
        stats = trainer.ask({"op": "stats"})[0]
        assert (stats["features"], stats["feature_bytes"]) == (2, 2 * 60 * 12 * 4)


@pytest.mark.slow
def test_features_are_used_only_for_batches_that_give_their_bits(trainer):
    """Layer normalisation: a batch of 10 rows differs in bits from one of 16; both visits equal Keras."""
    for batch_size in (10, 16):
        case = Case("normalised", layer_normalised, _SGD, compiled_sgd, CASES[0].data, batch_size=batch_size)
        parts, _, _ = train(trainer, case, (80, 53))
        assert state.weights_of(parts) == weights_of(by_keras(case, (80, 53)))


@pytest.mark.slow
def test_features_give_way_to_shards():
    """Features use the memory that shards leave; without any, visits compute the prefix with the same result."""
    xs, ys = STANDARDISED.data(80)
    n_bytes = xs[0].nbytes + ys[0].nbytes
    results = []
    for room in (80 * 12 * 4 - 1, 80 * 12 * 4):
        with Trainer(shard_cache_bytes=n_bytes + room) as trainer:
            parts, trained, _ = train(trainer, STANDARDISED, (80,))
            stats = trainer.ask({"op": "stats"})[0]
            assert stats["feature_bytes"] in (0, room) and stats["cached_shards"] == ["80"]
            assert any("features_s" in answer["timing"] for answer in trained) == (room == 80 * 12 * 4)
            trainer.send_shard("more", *STANDARDISED.data(40))
            assert trainer.ask({"op": "stats"})[0]["feature_bytes"] in (0, room)
            results.append(state.weights_of(parts))
    assert results[0] == results[1]


def through_shared_layer():
    (shared,) = frozen(layers.Dense(6, "relu"))
    x = keras.Input((6,))
    return keras.Model(x, layers.Dense(2)(shared(layers.Dense(6)(shared(x)))))


def reused_part():
    """A trained layer before a frozen one: no output is equal in all epochs."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(3), *frozen(layers.Dense(3)), layers.Dense(2)])


UNSPLIT = {
    "nothing frozen": lambda: CASES[0].build(),
    "all frozen": lambda: keras.Sequential([keras.Input((4,)), *frozen(layers.Dense(3), layers.Dense(2))]),
    "frozen in the middle": reused_part,
    "frozen dropout, which draws all the same": lambda: keras.Sequential(
        [keras.Input((4,)), *frozen(layers.Dropout(0.5), layers.Dense(3)), layers.Dense(2)]
    ),
    "batch normalisation that is not frozen": lambda: keras.Sequential(
        [
            keras.Input((4,)),
            layers.BatchNormalization(center=False, scale=False),
            *frozen(layers.Dense(3)),
            layers.Dense(2),
        ]
    ),
    "an activity regularizer, which is part of the loss": lambda: keras.Sequential(
        [keras.Input((4,)), *frozen(layers.Dense(3, activity_regularizer="l2")), layers.Dense(2)]
    ),
    "masks": lambda: keras.Sequential(
        [keras.Input((4,)), *frozen(layers.Embedding(9, 3, mask_zero=True)), layers.LSTM(2)]
    ),
    "half precision": lambda: keras.Sequential(
        [keras.Input((4,)), *frozen(layers.Dense(3, dtype="mixed_bfloat16")), layers.Dense(2)]
    ),
}


@pytest.mark.parametrize("name", UNSPLIT)
def test_what_is_not_the_same_in_every_epoch_is_not_split(name):
    assert split(UNSPLIT[name]()) is None


def test_a_layer_on_both_sides_is_split_where_its_input_is_known():
    model = through_shared_layer()
    parts = split(model)
    assert [tuple(tensor.shape) for tensor in parts.prefix.outputs] == [(None, 6)]
    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    convert = keras.ops.convert_to_numpy
    assert np.array_equal(convert(parts.tail(parts.prefix(x))), convert(model(x)))
