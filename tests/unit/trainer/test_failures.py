"""An invalid configuration: the answer has the reason, and the trainer continues unaffected."""

import json
import signal

import keras
import numpy as np
import pytest
from keras import layers
from mop_backend.frames import PeerGone

from madlib_mop.errors import ModelFailed, UnreadableText
from madlib_mop.trainer.process.failures import MODEL, failure_of, sentence_of
from tests.helpers.unit.backends import WORDS
from tests.helpers.unit.cases import CASES, weights_of
from tests.helpers.unit.trainer import Trainer, TrainerError, member

CASE = CASES[0]


@pytest.fixture(scope="module")
def trainer():
    with Trainer() as started:
        started.send_shard("s", *CASE.data(53))
        started.expected = started.train(CASE.request(), "s")[0]["digest_out"]
        yield started


@pytest.fixture(autouse=True)
def nobody_else_is_hurt(trainer):
    """After each failure, the valid configuration has the same digest as without it."""
    yield
    assert trainer.train(CASE.request(), "s")[0]["digest_out"] == trainer.expected


def refused(call, kind):
    with pytest.raises(TrainerError) as caught:
        call()
    assert caught.value.kind == kind
    assert "\n" not in caught.value.message and "Traceback" not in caught.value.message
    return caught.value


def changed(**words):
    return {**CASE.request(), **words}


def model_of(*hidden, units=3, shape=(12,)):
    return keras.Sequential([keras.Input(shape), *hidden, layers.Dense(units, "softmax")])


def test_a_loss_that_is_not_finite(trainer):
    request = changed(compile_params="loss='mse', optimizer='SGD(lr=1e30)'")
    error = refused(lambda: trainer.train(request, "s"), "model")
    assert error.sqlstate == "38000"
    assert error.message.startswith(("loss became nan", "loss became inf"))
    assert "SGD(lr=1e30)" in error.message
    assert "smaller learning rate" in error.hint


def test_weights_that_are_not_finite_after_a_finite_loss(trainer):
    """One batch: its loss is computed before the step that makes the weights infinite."""
    params = "loss='categorical_crossentropy', loss_weights=[1e10], optimizer='SGD(lr=1e38)'"
    request = changed(compile_params=params, fit_params="batch_size=53")
    error = refused(lambda: trainer.train(request, "s"), "model")
    assert error.message.startswith("a weight became NaN or infinite")


def test_an_architecture_that_does_not_build(trainer):
    arch = keras.Sequential([keras.Input((12,)), layers.Dense(3)]).to_json().replace('"units": 3', '"units": -3')
    error = refused(lambda: trainer.train(changed(arch=arch), "s"), "model")
    assert "units" in error.message


@pytest.mark.parametrize("arch", ["", "null", "[]", "{", '{"class_name": "Lambda"}'])
def test_an_architecture_that_is_none(trainer, arch):
    refused(lambda: trainer.train(changed(arch=arch), "s"), "model")


@pytest.mark.parametrize("params", ["", "loss='mse'", "optimizer='sgd', loss=__import__('os')"])
def test_compile_parameters_that_are_none(trainer, params):
    assert "compile_params" in refused(lambda: trainer.train(changed(compile_params=params), "s"), "model").message


def test_too_few_units(trainer):
    error = refused(lambda: trainer.train(changed(arch=model_of(units=4).to_json()), "s"), "model")
    assert error.message == "output 1 of the model has shape (4) a row, the packed column y1 has (3)"
    assert "num_classes" in error.hint


def test_rows_of_another_shape(trainer):
    arch = model_of(shape=(13,)).to_json()
    error = refused(lambda: trainer.train(changed(arch=arch), "s"), "model")
    assert error.message == "input 1 of the model has shape (13) a row, the packed column x1 has (12)"


def test_too_many_inputs(trainer):
    arch = CASES[4].request()["arch"]
    error = refused(lambda: trainer.train(changed(arch=arch), "s"), "model")
    assert error.message == "the model has 2 input(s), the packed table has 1 x column(s)"


def test_weights_of_another_architecture(trainer):
    weights = weights_of(model_of().build() or model_of())
    error = refused(lambda: trainer.train(CASE.request(), "s", weights=weights), "model")
    assert (
        f"have {len(weights)} bytes, the architecture needs {4 * (12 * 17 + 17 + 4 * 17 + 17 * 3 + 3)}" in error.message
    )


def test_a_state_of_another_optimizer(trainer):
    parts = trainer.train(changed(compile_params="loss='mse', optimizer='sgd'"), "s")[1]
    error = refused(lambda: trainer.train(CASE.request(), "s", state=parts), "model")
    assert "its optimizer are 2 tensors" in error.message
    assert "warm_start" in error.hint


def test_a_damaged_state(trainer):
    parts = trainer.train(CASE.request(), "s")[1]
    error = refused(lambda: trainer.train(CASE.request(), "s", state=[parts[0][:-1]]), "model")
    assert "its stored state is damaged" in error.message and "state has" in error.message


def test_class_weights_for_two_outputs(trainer):
    two = CASES[4]
    trainer.send_shard("two", *two.data(20))
    request = {**two.request(), "fit_params": "class_weight={0: 2.0}"}
    assert (
        "class_weight cannot be used for a model with 2 outputs"
        in refused(lambda: trainer.train(request, "two"), "model").message
    )


def test_class_weights_for_rows_with_several_classes(trainer):
    """Plain Keras fails too; PyTorch alone would add up such weights."""
    x, y = np.zeros((8, 6, 4), np.float32), np.tile(np.eye(3, dtype=np.int16)[:1], (8, 6, 1))
    trainer.send_shard("sequences", [x], [y])
    model = keras.Sequential([keras.Input((6, 4)), keras.layers.Dense(3, "softmax")])
    request = {**changed(arch=model.to_json()), "fit_params": "class_weight={0: 2.0}"}
    error = refused(lambda: trainer.train(request, "sequences"), "model")
    assert error.message == "class_weight cannot be used for y of shape [6, 3]: a row has 6 classes"


def test_a_shard_that_is_not_there(trainer):
    error = refused(lambda: trainer.train(CASE.request(), "elsewhere"), "input")
    assert "'elsewhere' is not in the trainer's memory" in error.message


@pytest.mark.slow
def test_a_layer_that_fails_inside_of_the_backend(trainer):
    """TensorFlow's kernel detects an index beyond an embedding's rows; the message has stack frames of the graph."""
    words = CASES[2]
    xs, ys = words.data(20)
    trainer.send_shard("words", [xs[0] + 1000], ys)
    error = refused(lambda: trainer.train(words.request(), "words"), "model")
    assert WORDS[keras.config.backend()].index in error.message
    assert "File" not in error.message and "{{" not in error.message


LIMIT_BYTES = 700 << 20


CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}


@pytest.mark.one_case
@pytest.mark.parametrize("batch_size", [4000, 3999], ids=["static", "general"])
@pytest.mark.parametrize("hidden", [[layers.BatchNormalization], []], ids=["normalized", "plain"])
def test_a_batch_too_large_for_memory(hidden, batch_size):
    """The process limit applies before the host's memory is full: an error, or a crash of this process only."""
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(64, 3),
            *(layer() for layer in hidden),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, "softmax"),
        ]
    )
    request = changed(arch=model.to_json(), fit_params=f"batch_size={batch_size}")
    x, y = np.zeros((4000, 32, 32, 3), np.uint8), np.eye(10, dtype=np.int16)[np.arange(4000) % 10]
    with Trainer(memory_limit_bytes=LIMIT_BYTES) as trainer:
        assert trainer.versions["memory_limit_bytes"] == LIMIT_BYTES
        assert trainer.versions["memory_bytes"] < LIMIT_BYTES
        trainer.send_shard("s", [x], [y], n_rows=4000)
        answer = trainer.train({**request, "fit_params": "batch_size=32, steps_per_epoch=2"}, "s")[0]
        assert answer["n_batches"] == 2
        try:
            error = refused(lambda: trainer.train(request, "s"), "memory")
        except PeerGone:
            assert trainer.process.wait(20) in CRASHES
            return
        assert error.sqlstate == "53000"
        assert error.message.startswith("not enough memory")
        assert "smaller batch_size" in error.hint and "madlib_mop.trainer_memory_mb" in error.hint


def test_a_model_too_large_for_memory():
    arch = model_of(layers.Dense(777), layers.Dense(777)).to_json().replace("777", "100000")
    with Trainer(memory_limit_bytes=LIMIT_BYTES) as trainer:
        trainer.send_shard("s", *CASE.data(53))
        error = refused(lambda: trainer.train(changed(arch=arch), "s"), "memory")
        assert "(100000, 100000)" in error.message or "40,000,000,000 bytes" in error.message
        assert trainer.train(CASE.request(), "s")[0]["n_rows"] == 53


def test_a_shard_too_large_for_memory():
    with Trainer(memory_limit_bytes=LIMIT_BYTES) as trainer:
        head = {"op": "shard_begin", "shard": "s", "n_x": 1, "n_y": 0, "normalizing_const": 1.0, "n_rows": 10**9}
        trainer.channel.send(head)
        trainer.channel.send({"op": "shard_rows", "shapes": [[1, 10]]}, [bytes(40)])
        refused(lambda: trainer.ask({"op": "shard_end", "shard": "s"}), "memory")
        assert trainer.send_shard("s", *CASE.data(53))["cached"]


def test_a_limit_that_tensorflow_does_not_fit_into():
    with pytest.raises(TrainerError, match="memory limit of 100 MB is too small") as caught:
        Trainer(memory_limit_bytes=100 << 20)
    assert "madlib_mop.trainer_memory_mb" in caught.value.hint


@pytest.mark.slow
def test_what_was_lost_by_a_failure_ends_the_process():
    """A recurrent layer's loop leaks its tensors; the answer says that the process ends."""
    arch = keras.Sequential([keras.Input((32, 96)), layers.LSTM(1024), layers.Dense(10)]).to_json()
    x, y = np.zeros((4000, 32, 96), np.float32), np.zeros((4000, 10), np.float32)
    model = {**changed(arch=arch), "fit_params": "batch_size=4000"}
    head = {"op": "train", "shard": "s", "epoch": 1, "segment_id": 0, "members": [member(model)]}
    with Trainer(memory_limit_bytes=1000 << 20) as trainer:
        trainer.send_shard("s", [x], [y])
        answer, _ = trainer.channel.ask(head)
        assert answer["kind"] == "memory"
        if answer["ending"]:
            assert trainer.process.wait(20) == 0
        else:
            assert trainer.ask({"op": "stats"})[0]["memory_bytes"] < 700 << 20


def test_what_keras_says_in_one_line():
    message = (
        "Exception encountered when calling Dense.call().\n\n\x1b[1mInput 0 of layer is wrong.\x1b[0m\n\n"
        "Arguments received by Dense.call():\n  • inputs=tf.Tensor(...)"
    )
    assert sentence_of(ValueError(message)) == "Input 0 of layer is wrong."
    assert len(sentence_of(ValueError("x" * 10_000))) <= 400
    assert sentence_of(ValueError()) == "ValueError"


def test_a_lack_of_memory_that_has_no_class_of_its_own():
    """As PyTorch and JAX report it."""

    class JaxRuntimeError(RuntimeError):
        pass

    def kind_of(error):
        return failure_of(error, MODEL).kind

    of_jax = "INTERNAL: Error dispatching computation: Out of memory allocating 2816003984 bytes."
    assert kind_of(JaxRuntimeError(of_jax)) == kind_of(JaxRuntimeError("RESOURCE_EXHAUSTED: no")) == "memory"
    assert failure_of(JaxRuntimeError(of_jax)).error.message.endswith("for a tensor of 2,816,003,984 bytes")
    assert kind_of(RuntimeError("std::bad_alloc")) == "memory"
    assert kind_of(JaxRuntimeError("INTERNAL: no")) == kind_of(ValueError("std::bad_alloc")) == "model"


def test_errors_of_the_library_keep_their_sqlstate():
    failure = failure_of(UnreadableText("no JSON"), MODEL)
    assert (failure.kind, failure.error.sqlstate) == ("model", "22P02")
    assert isinstance(failure_of(ValueError("a"), MODEL).error, ModelFailed)
    assert json.dumps(failure.as_answer())
