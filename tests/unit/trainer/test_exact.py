"""A trainer's visits have the same bits as plain Keras' ``fit`` on the same shards in the same order (promise 1)."""

import dataclasses
import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402

from madlib_mop.models.parameters import keras_names  # noqa: E402
from madlib_mop.trainer.data import state  # noqa: E402
from tests.helpers.unit.cases import CASES, weights_of  # noqa: E402
from tests.helpers.unit.trainer import Trainer  # noqa: E402

# Rows of the shards: with a short last batch, multiples of the batch sizes, fewer than a batch, and orders in which
# Keras compiles its step first for one batch size, first for any size, or for both.
SHARDS = {"53": 53, "80": 80, "160": 160, "7": 7, "54": 54}
ORDERS = ["53 80 7 160", "80 53 160", "7 160 80 54", "80 160"]


@pytest.fixture(scope="module")
def trainer():
    with Trainer() as started:
        yield started


@pytest.fixture(scope="module")
def another_trainer():
    with Trainer() as started:
        yield started


def send_shards(trainer, case, keys):
    for key in keys:
        trainer.send_shard(key, *case.data(SHARDS[key]), buffer_size=9)


PAIRS = [
    pytest.param(case, order, marks=() if i < 2 or (i + j) % 4 == 1 else pytest.mark.slow)
    for i, case in enumerate(CASES) for j, order in enumerate(ORDERS) if i < 2 or (i + j) % 2
]  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize(("case", "order"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_visits_equal_keras(trainer, case, order):
    keys = order.split()
    send_shards(trainer, case, keys)
    request, model, parts = case.request(), case.model(), None
    digests, first = [], [variable.numpy().copy() for variable in model.variables]
    for epoch in (1, 2):
        for segment_id, key in enumerate(keys):
            answer, parts = trainer.train(request, key, epoch=epoch, segment_id=segment_id, state=parts)
            digests.append((answer["digest_in"], answer["digest_out"]))
            case.fit(model, epoch, segment_id, *case.data(SHARDS[key]))
    assert state.weights_of(parts) == weights_of(model)
    decoded = state.decode_state(parts)
    for index, variable in enumerate(model.optimizer.variables):
        assert np.array_equal(decoded.read("optimizer", index), variable.numpy())
    begun, trained = digests[0]
    assert begun is not None
    # With no weights to train, Keras on PyTorch counts no steps.
    pairs = zip(first, model.variables, strict=True)
    changed = any(not np.array_equal(old, variable.numpy()) for old, variable in pairs)
    assert (begun != trained) == (changed or int(model.optimizer.iterations) > 0)
    assert all(before[1] == after[0] for before, after in zip(digests, digests[1:], strict=False))
    assert digests[-1][1] == state.digest_of(parts)


@pytest.mark.slow
def test_models_taking_turns_equal_models_alone(trainer):
    """Four configurations with dropout, two to a compiled model; one after the other on each shard."""
    keys = ("53",)
    turns = [(case, mst_key) for case in (CASES[0], CASES[1]) for mst_key in (1, 2)]
    states = dict.fromkeys(turns)
    for epoch in (1, 2):
        for segment_id, key in enumerate(keys):
            for case, mst_key in turns:
                trainer.send_shard(key, *case.data(SHARDS[key]))
                request = case.request(mst_key=mst_key)
                states[case, mst_key] = trainer.train(
                    request, key, epoch=epoch, segment_id=segment_id, state=states[case, mst_key]
                )[1]
    for case, mst_key in turns:
        model = case.model(mst_key=mst_key)
        for epoch in (1, 2):
            for segment_id, key in enumerate(keys):
                case.fit(model, epoch, segment_id, *case.data(SHARDS[key]), mst_key=mst_key)
        assert state.weights_of(states[case, mst_key]) == weights_of(model), (case.name, mst_key)


@pytest.mark.slow
def test_learning_rates_share_a_compiled_model_and_not_their_values(trainer):
    case = CASES[0]
    send_shards(trainer, case, ["53"])
    before = trainer.ask({"op": "stats"})[0]["compiled_models"]
    for rate in (0.01, 0.2, 0.01):
        request = {**case.request(), "compile_params": case.compile_params.replace("0.01", str(rate))}
        _, parts = trainer.train(request, "53")
        model = case.model()
        model.compile(**{**case.compiled(), "optimizer": keras.optimizers.Adam(rate)})
        case.fit(model, 1, 0, *case.data(53))
        assert state.weights_of(parts) == weights_of(model)
    assert trainer.ask({"op": "stats"})[0]["compiled_models"] <= before + 1


@pytest.mark.slow
def test_start_weights_replace_the_drawn_ones(trainer):
    case = CASES[0]
    send_shards(trainer, case, ["53"])
    other = case.model(seed=99)
    _, parts = trainer.train(case.request(), "53", weights=weights_of(other))
    model = case.model()
    model.set_weights(other.get_weights())
    case.fit(model, 1, 0, *case.data(53))
    assert state.weights_of(parts) == weights_of(model)


OPTIMIZERS = sorted(keras_names.OPTIMIZERS)


@pytest.mark.one_case
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_goes_on_in_another_process(trainer, another_trainer, name):
    """The state contains all of an optimizer: visits alternate between two processes, both with compiled models."""
    case = dataclasses.replace(
        CASES[0],
        build=lambda: keras.Sequential([keras.Input((12,)), keras.layers.Dense(3, "softmax")]),
        compile_params=f"loss='categorical_crossentropy', optimizer='{name}'",
        compiled=lambda: {"loss": "categorical_crossentropy", "optimizer": getattr(keras.optimizers, name)()},
    )
    weights = weights_of(case.model(seed=5))
    model, parts = case.model(), None
    model.set_weights(case.model(seed=5).get_weights())
    model.optimizer.build(model.trainable_variables)  # Keras' fit builds ScheduleFreeAdamW again in every step
    for segment_id, process in enumerate((trainer, another_trainer, trainer)):
        send_shards(process, case, ["53"])
        start = {"weights": weights} if parts is None else {"state": parts}
        parts = process.train(case.request(), "53", segment_id=segment_id, **start)[1]
        case.fit(model, 1, segment_id, *case.data(53))
    assert state.weights_of(parts) == weights_of(model)


POLICIES = ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(trainer, policy):
    """With float16 the loss is scaled; the scale is in the state too."""

    def build():
        hidden = [keras.layers.Dense(17, "relu", dtype=policy), keras.layers.Dropout(0.3, dtype=policy)]
        return keras.Sequential([keras.Input((12,)), *hidden, keras.layers.Dense(3, "softmax", dtype="float32")])

    case, parts = dataclasses.replace(CASES[0], build=build), None
    send_shards(trainer, case, ["53", "80"])
    model = case.model()
    for segment_id, key in enumerate(["53", "80"]):
        parts = trainer.train(case.request(), key, segment_id=segment_id, state=parts)[1]
        case.fit(model, 1, segment_id, *case.data(SHARDS[key]))
    assert state.weights_of(parts) == weights_of(model)


def test_a_frozen_layer_stays(trainer):
    model = CASES[0].model()
    model.layers[0].trainable = False
    case = CASES[0]
    send_shards(trainer, case, ["53"])
    request = {**case.request(), "arch": model.to_json()}
    _, parts = trainer.train(request, "53", weights=weights_of(model))
    decoded = state.decode_state(parts)
    kernel, last = model.get_weights()[0], model.get_weights()[-1]
    assert np.array_equal(decoded.read("weights", 0), kernel)
    assert not np.array_equal(decoded.read("weights", len(decoded.specs("weights")) - 1), last)


@pytest.mark.slow
def test_images_are_normalized_as_before_packing(trainer):
    """uint8 x divided in the graph is float32 x divided by NumPy; 3 is no power of 2, so 1/3 times x would differ."""
    case, rng = CASES[1], np.random.default_rng(1)
    x = rng.integers(0, 256, (53, 8, 8, 1)).astype(np.uint8)
    y = case.data(53)[1]
    trainer.send_shard("uint8", [x], y, normalizing_const=3.0)
    trainer.send_shard("float", [x.astype(np.float32) / np.float32(3)], y)
    weights = [state.weights_of(trainer.train(case.request(), key)[1]) for key in ("uint8", "float")]
    assert weights[0] == weights[1]
    evaluated = [trainer.evaluate(case.request(), key, weights=weights[0])["loss"] for key in ("uint8", "float")]
    assert evaluated[0] == evaluated[1]


@pytest.mark.parametrize("settings", [{"buffer_size": 1}, {"buffer_size": 1000}, {"n_rows": 53}], ids=str)
def test_buffers_do_not_matter(trainer, settings):
    case = CASES[0]
    reference = trainer.send_shard("53", *case.data(53), buffer_size=10)
    expected = trainer.train(case.request(), "53")[0]["digest_out"]
    answer = trainer.send_shard("53", *case.data(53), **settings)
    assert answer["fingerprint"] == reference["fingerprint"]
    assert trainer.train(case.request(), "53")[0]["digest_out"] == expected
