"""The operation describe_model: Keras' own JSON and the weights by layer, without memory for them."""

import json

import keras
import numpy as np
import pytest

from tests.helpers.unit.documents import KERAS_2_1, dense, keras_3, layer
from tests.helpers.unit.plain import functional, nested, recurrent
from tests.helpers.unit.trainer import Trainer, TrainerError


@pytest.fixture(scope="module")
def trainer():
    with Trainer(threads=1, shard_cache_bytes=1 << 20, memory_limit_bytes=1 << 31) as trainer:
        yield trainer


@pytest.mark.parametrize("make", [functional, nested, recurrent], ids=lambda make: make.__name__)
def test_it_is_what_keras_writes(trainer, make):
    model = make()
    answer = trainer.ask({"op": "describe_model", "arch": json.loads(model.to_json())})[0]
    assert json.loads(answer["arch"]) == json.loads(keras.models.model_from_json(answer["arch"]).to_json())
    if make is not nested:  # Keras does not freeze the layers of a frozen inner model until `trainable` is set again
        assert json.loads(answer["arch"]) == json.loads(model.to_json())
    assert [tuple(shape) for _, shape in answer["weights"]] == [weight.shape for weight in model.get_weights()]
    first = model.layers[[bool(one.weights) for one in model.layers].index(True)]
    assert answer["weights"][0][0].split("/")[0] == first.name


def test_names_are_the_same_each_time(trainer):
    layers = keras_3(layer("Dense", units=2), dense())["config"]["layers"]
    arch = {"class_name": "Sequential", "config": {"layers": layers}}
    answers = [trainer.ask({"op": "describe_model", "arch": arch})[0] for _ in range(2)]
    assert answers[0] == answers[1]
    assert [name for name, _ in answers[0]["weights"]] == ["dense", "dense", "dense_1", "dense_1"]


def test_weights_are_drawn_as_plain_keras_draws_them(trainer):
    answer, (drawn,) = trainer.ask({"op": "describe_model", "arch": KERAS_2_1, "seed": 7})
    keras.utils.set_random_seed(7)
    plain = keras.models.model_from_json(answer["arch"]).get_weights()
    assert bytes(drawn) == b"".join(weight.astype(np.float32).tobytes() for weight in plain)


def test_it_takes_no_memory_for_weights(trainer):
    huge = keras_3(dense(300_000), dense(300_000), input_shape=(300_000,))  # 720 GB
    answer = trainer.ask({"op": "describe_model", "arch": huge})[0]
    assert answer["weights"][0][1] == [300_000, 300_000]


def test_an_argument_that_keras_does_not_have_is_named_with_the_nearest(trainer):
    with pytest.raises(TrainerError, match="layer 2: Dense has no argument of that name. Received: 'unit'") as caught:
        trainer.ask({"op": "describe_model", "arch": keras_3(layer("Dense", unit=3))})
    assert (caught.value.kind, caught.value.sqlstate) == ("input", "22023")
    assert caught.value.hint.startswith("Did you mean units?")
