"""States of another backend: a run may begin with one, and then has the bits of plain Keras with the same values."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402

from madlib_mop.trainer.data.parts import GROUPS, TensorSpec  # noqa: E402
from madlib_mop.trainer.data.state import decode_state, digest_of, encode_state  # noqa: E402
from tests.helpers.unit.perceptron import LABELS, ROWS, bits, fit, plain, request  # noqa: E402
from tests.helpers.unit.trainer import Trainer, TrainerError  # noqa: E402

pytestmark = pytest.mark.tensorflow
PLACE = {"op": "train", "shard": "rows", "segment_id": 0}


@pytest.fixture(scope="module")
def trainer():
    with Trainer() as started:
        started.send_shard("rows", [ROWS], [LABELS])
        yield started


def as_other(parts, backend="jax"):
    """Return a state with the dtypes that it would have on JAX, and other random numbers."""
    state = decode_state(parts)
    dtypes = {"weights": None, "variables": "uint32", "optimizer": None}
    shorter = {"int64": "int32", "float64": "float32"}
    values = {group: [state.read(group, i) for i in range(len(state.specs(group)))] for group in GROUPS}
    for group, dtype in dtypes.items():
        values[group] = [v.astype(dtype or shorter.get(v.dtype.name, v.dtype)) for v in values[group]]
    values["variables"] = [np.full_like(v, 99) for v in values["variables"]]
    specs = {group: [TensorSpec(v.shape, v.dtype.name) for v in values[group]] for group in GROUPS}
    made = encode_state(specs, lambda group, index: values[group][index], static_batch=0, backend=backend)
    return [bytes(part) for part in made]


@pytest.fixture(scope="module")
def state(trainer):
    """A state after a visit, with the dtypes of JAX."""
    _, parts = trainer.train(request("Adam(0.01)", 1), "rows")
    return as_other([bytes(part) for part in parts])


def begin(trainer, parts, optimizer="Adam(0.01)", **more):
    start = {"begins": True, **more}
    return trainer.visit({**PLACE, "epoch": 2}, request(optimizer, 1), [bytearray(part) for part in parts], **start)


def test_a_run_that_begins_with_one_has_the_bits_of_plain_keras_with_its_values(trainer, state):
    answer, parts = begin(trainer, state)
    assert answer["digest_in"] == digest_of(state)
    theirs, oracle = decode_state(state), plain(keras.optimizers.Adam(0.01), 1)
    oracle.optimizer.build(oracle.trainable_variables)
    for group, variables in (("weights", oracle.weights), ("optimizer", oracle.optimizer.variables)):
        for index, variable in enumerate(variables):
            variable.assign(theirs.read(group, index))
    fit(oracle, 2, 1)
    ours = decode_state(parts)
    found = [ours.read(g, i) for g in ("weights", "optimizer") for i in range(len(ours.specs(g)))]
    assert b"".join(value.tobytes() for value in found) == bits(oracle)
    assert ours.backend == "tensorflow" and theirs.backend == "jax"


def test_a_run_that_has_begun_refuses_it(trainer, state):
    with pytest.raises(TrainerError, match="a state of the backend jax in a run on tensorflow") as raised:
        begin(trainer, state, begins=False)
    assert raised.value.kind == "internal"


@pytest.mark.parametrize("keep", [True, False])
def test_a_clone_with_another_optimizer_begins_with_its_weights(trainer, state, keep):
    """A clone of a model that has begun with such a state, and has made no visit."""
    _, parts = begin(trainer, state, "SGD(0.1)", taken_over={"version": 0, "mst_key": 1, "optimizer": keep})
    oracle, theirs = plain(keras.optimizers.SGD(0.1), 1), decode_state(state)
    for index, variable in enumerate(oracle.weights):
        variable.assign(theirs.read("weights", index))
    fit(oracle, 2, 1)
    ours = decode_state(parts)
    found = [ours.read("weights", i).tobytes() for i in range(len(oracle.weights))]
    assert found == [np.asarray(weight).tobytes() for weight in oracle.weights]


def test_one_of_another_optimizer_is_refused(trainer, state):
    with pytest.raises(TrainerError, match="its optimizer are .* the model's are"):
        begin(trainer, state, "SGD(0.1)")


def test_a_model_of_float64_begins_with_one(trainer):
    """JAX computes it in float32; the numbers are converted, and a prediction has them too."""
    model = keras.Sequential([keras.Input(ROWS.shape[1:]), keras.layers.Dense(LABELS.shape[1], dtype="float64")])
    recipe = {**request("Adam(0.01)", 1), "arch": model.to_json(), "compile_params": "loss='mse', optimizer='Adam()'"}
    state = as_other([bytes(part) for part in trainer.train(recipe, "rows")[1]])
    theirs = decode_state(state)
    assert {spec.dtype for spec in theirs.specs("weights")} == {"float32"}
    _, parts = trainer.visit({**PLACE, "epoch": 2}, recipe, [bytearray(part) for part in state], begins=True)
    ours = decode_state(parts)
    assert {spec.dtype for spec in ours.specs("weights")} == {"float64"}
    trainer.load_predictor(recipe, state=state)
    kernel, bias = (theirs.read("weights", index).astype(np.float64) for index in range(2))
    assert np.allclose(trainer.predict(ROWS)[0], ROWS @ kernel + bias, atol=1e-6)


def test_predictions_need_its_weights_only(trainer, state):
    trainer.load_predictor(request("Adam(0.01)", 1), state=state)
    (found,) = trainer.predict(ROWS)
    oracle = plain(keras.optimizers.Adam(0.01), 1)
    oracle.set_weights([decode_state(state).read("weights", index) for index in range(len(oracle.weights))])
    assert np.allclose(found, oracle.predict(ROWS, verbose=0), atol=1e-6)
