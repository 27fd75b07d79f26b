"""Fused visits: configurations of one shape in one graph have the results of separate training, up to rounding."""

import dataclasses
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.trainer.data.state import decode_state, digest_of  # noqa: E402
from tests.helpers.training import one_thread  # noqa: E402
from tests.helpers.unit.trainer import BACKEND, Trainer, TrainerError  # noqa: E402
from tests.helpers.unit.trainer import member as of_request  # noqa: E402

one_thread()
pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="models are not trained together on PyTorch")

N_ROWS = 45  # not a multiple of the batch size: the last batch is short
RATES = (0.003, 0.01, 0.03)
STRENGTHS = (1e-2, 1e-4, 0.1)


def perceptron(l2: float, *extra) -> str:
    penalty = keras.regularizers.L2(l2)
    return keras.Sequential(
        [
            keras.Input((4, 3), name="rows"),
            layers.Flatten(name="flat"),
            layers.Dense(16, activation="relu", kernel_regularizer=penalty, name="wide"),
            *extra,
            layers.Dense(8, activation="tanh", bias_regularizer=penalty, name="narrow"),
            layers.Dense(3, activation="softmax", name="classes"),
        ],
        name="perceptron",  # Keras would number the names: a trainer would trace each call's network anew
    ).to_json()


def member(
    number: int, optimizer: str, fit: str = "batch_size=10, epochs=2", extra=(), loss="categorical_crossentropy"
):
    """Return ``model`` of a request: number 0, 1, 2 differ in learning rate, L2 strengths and key."""
    return {
        "arch": perceptron(STRENGTHS[number], *[make() for make in extra]),
        "compile_params": f"loss='{loss}', optimizer='{optimizer.format(rate=RATES[number])}', metrics=['accuracy']",
        "fit_params": fit,
        "seed": 7,
        "mst_key": 10 + number,
        "custom": None,
    }


@pytest.fixture(scope="module")
def trainer():
    with Trainer() as started:
        chance = np.random.default_rng(1)
        for segment in (0, 1):
            x = chance.normal(size=(N_ROWS + segment, 4, 3)).astype(np.float32)
            y = np.eye(3, dtype=np.int16)[chance.integers(0, 3, N_ROWS + segment)]
            started.send_shard(f"s{segment}", [x], [y])
        yield started


@dataclasses.dataclass
class Outcome:
    """A member's figures and trained state, or its error; None for both for an unused place."""

    answer: dict | None
    parts: list | None

    @property
    def digest(self):
        return self.answer["digest_out"]


def fused(trainer, models, shard, epoch, segment_id, states) -> list[Outcome]:
    """Make a fused visit; a model that is None has failed before."""
    members = [m and of_request(m, s) for m, s in zip(models, states, strict=True)]
    head = {"op": "train", "members": members, "shard": shard, "epoch": epoch, "segment_id": segment_id}
    blobs = [part for m, s in zip(models, states, strict=True) if m for part in s or ()]
    answer, out = trainer.ask(head, blobs)
    outcomes = []
    for part in answer["members"]:
        n = (part or {}).get("n_blobs", 0)
        answer = part and (part["figures"] or part["error"])
        outcomes.append(Outcome(answer, [bytes(blob) for blob in out[:n]] if n else None))
        del out[:n]
    assert not out
    return outcomes


def evaluated(trainer, models, shard, states) -> list:
    """Make a fused evaluation; return the answers."""
    members = [m and of_request(m, s) for m, s in zip(models, states, strict=True)]
    blobs = [part for m, s in zip(models, states, strict=True) if m for part in s]
    return trainer.ask({"op": "evaluate", "members": members, "shard": shard}, blobs)[0]["members"]


def train_fused(trainer, models, n_epochs=2) -> list[Outcome]:
    """Train on both shards; assert the chain of digests."""
    outcomes = [None] * len(models)
    for epoch in range(1, n_epochs + 1):
        for segment in (0, 1):
            states = [outcome and outcome.parts for outcome in outcomes]
            before, outcomes = outcomes, fused(trainer, models, f"s{segment}", epoch, segment, states)
            for old, new in zip(before, outcomes, strict=True):
                assert digest_of(new.parts) == new.digest
                assert old is None or new.answer["digest_in"] == old.digest
    return outcomes


def train_apart(trainer, model, n_epochs=2) -> Outcome:
    """Make the same visits with one member alone."""
    state, answer = None, None
    for epoch in range(1, n_epochs + 1):
        for segment in (0, 1):
            answer, parts = trainer.train(model, f"s{segment}", epoch=epoch, segment_id=segment, state=state)
            state = [bytes(part) for part in parts]
    return Outcome(answer, state)


def assert_near(ours: Outcome, theirs: Outcome, tolerance=1e-5):
    """Assert that all variables of two states are close, relative to the largest value of the tensor."""
    mine, other = decode_state(ours.parts), decode_state(theirs.parts)
    assert mine.static_batch == other.static_batch
    for group in ("weights", "variables", "optimizer"):
        assert mine.specs(group) == other.specs(group)
        for index in range(len(mine.specs(group))):
            a, b = mine.read(group, index), other.read(group, index)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1e-3, float(np.abs(b).max())))
    assert ours.answer["loss"] == pytest.approx(theirs.answer["loss"], rel=1e-4)
    assert ours.answer["metrics"] == pytest.approx(theirs.answer["metrics"], rel=1e-6)
    for name in ("n_rows", "n_batches", "model_bytes", "state_bytes", "forward_parts"):
        assert ours.answer[name] == theirs.answer[name]


OPTIMIZERS = (
    "Adam(lr={rate}, clipvalue=0.05)",
    "SGD(lr={rate}, momentum=0.9, nesterov=True)",
    "RMSprop(lr={rate})",
    *(
        pytest.param(optimizer, marks=pytest.mark.slow)
        for optimizer in (
            "AdamW(lr={rate}, weight_decay=0.01)",
            "Adam(lr={rate}, amsgrad=True)",
            "Adagrad(lr={rate})",
            "Adadelta(lr={rate})",
            "Adamax(lr={rate})",
        )
    ),
)


@pytest.mark.one_case
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_members_end_as_apart_but_for_rounding(trainer, optimizer):
    """Learning rates, strengths, orders and start weights differ."""
    models = [member(number, optimizer) for number in range(3)]
    together = train_fused(trainer, models)
    assert len({outcome.digest for outcome in together}) == 3
    for ours, model in zip(together, models, strict=True):
        assert_near(ours, train_apart(trainer, model))


@pytest.mark.one_case
@pytest.mark.parametrize(
    "extra",
    [
        (lambda: layers.Dropout(0.3), layers.ReLU),
        (lambda: layers.Reshape((4, 4)), lambda: layers.LeakyReLU(0.1), layers.Flatten),
        (layers.BatchNormalization, lambda: layers.Activation("gelu"), lambda: layers.Softmax(name="softmax")),
    ],
    ids=["dropout", "reshape", "normalised"],
)
def test_layers(trainer, extra):
    """Dropout draws the same. Batch normalisation amplifies rounding: its last batch has five rows."""
    models = [member(number, "Adam(lr={rate})", extra=extra) for number in range(3)]
    tolerance = 1e-3 if extra[0] is layers.BatchNormalization else 1e-5
    for ours, model in zip(train_fused(trainer, models), models, strict=True):
        assert_near(ours, train_apart(trainer, model), tolerance)


@pytest.mark.one_case
@pytest.mark.parametrize("fit", ["batch_size=15, shuffle=False", "batch_size=10, epochs=2, steps_per_epoch=3"])
def test_orders(trainer, fit):
    models = [member(number, "Adam(lr={rate})", fit) for number in range(3)]
    for ours, model in zip(train_fused(trainer, models), models, strict=True):
        assert_near(ours, train_apart(trainer, model))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mse", "mae", "kl_divergence", "binary_crossentropy", "huber"])
def test_losses(trainer, loss):
    models = [member(number, "Adam(lr={rate})", loss=loss) for number in range(2)]
    for ours, model in zip(train_fused(trainer, models), models, strict=True):
        assert_near(ours, train_apart(trainer, model))


def test_bits_are_the_same_again_whoever_the_others_are(trainer):
    """In the same place; in another one, elementwise operations may round differently (`fused.py`)."""
    models = [member(number, "Adam(lr={rate})") for number in range(3)]
    first = train_fused(trainer, models)
    assert [outcome.digest for outcome in train_fused(trainer, models)] == [outcome.digest for outcome in first]
    with_others = [member(2, "Adam(lr={rate})") | {"mst_key": 90}, models[1], models[2] | {"mst_key": 91}]
    assert train_fused(trainer, with_others)[1].digest == first[1].digest
    for ours, theirs in zip(train_fused(trainer, models[1:] + models[:1]), first[1:] + first[:1], strict=True):
        assert_near(ours, theirs)


def test_a_member_that_diverges_fails_alone(trainer):
    """Its loss is NaN; the others keep their bits."""
    well = [member(number, "SGD(lr={rate})") for number in range(3)]
    bad = member(1, "SGD(lr=1e30)")
    expected = train_fused(trainer, well, 1)
    first = fused(trainer, [well[0], bad, well[2]], "s0", 1, 0, [None] * 3)
    error = first[1].answer
    assert error["sqlstate"] == "38000" and "while training with" in error["message"] and first[1].parts is None
    second = fused(trainer, [well[0], None, well[2]], "s1", 1, 1, [first[0].parts, None, first[2].parts])
    assert second[1].answer is None
    assert [second[0].digest, second[2].digest] == [expected[0].digest, expected[2].digest]
    assert second[0].answer["timing"]["fused"] == 3


def test_a_state_of_another_shape_fails_its_member_alone(trainer):
    models = [member(number, "Adam(lr={rate})") for number in range(2)]
    other = models[1] | {"arch": perceptron(0.1, layers.Dense(5))}
    _, parts = trainer.train(other, "s0")
    good = fused(trainer, models, "s0", 1, 0, [None, None])
    mixed = fused(trainer, models, "s1", 1, 1, [good[0].parts, [bytes(part) for part in parts]])
    assert "does not fit the model" in mixed[1].answer["message"]
    assert mixed[0].digest == fused(trainer, models, "s1", 1, 1, [good[0].parts, good[1].parts])[0].digest


def test_members_of_different_shapes_are_refused(trainer):
    with pytest.raises(TrainerError, match="not of one shape"):
        fused(trainer, [member(0, "Adam(lr={rate})"), member(1, "SGD(lr={rate})")], "s0", 1, 0, [None, None])
    with pytest.raises(TrainerError, match="blobs too many"):
        trainer.ask({"op": "train", "members": [None], "shard": "s0", "epoch": 1, "segment_id": 0}, [b"x"])


def test_a_member_may_go_on_apart(trainer):
    """Its state is that of a plain visit, so the next one may be fused or not."""
    models = [member(number, "Adam(lr={rate})") for number in range(2)]
    first = fused(trainer, models, "s0", 1, 0, [None, None])
    alone, _ = trainer.train(models[0], "s1", epoch=1, segment_id=1, state=first[0].parts)
    assert alone["digest_in"] == first[0].digest
    together = fused(trainer, models, "s1", 1, 1, [outcome.parts for outcome in first])
    assert alone["loss"] == pytest.approx(together[0].answer["loss"], rel=1e-5)


EXTRA = (lambda: layers.Dropout(0.5), layers.BatchNormalization, lambda: layers.Softmax(name="softmax"))


@pytest.mark.one_case
@pytest.mark.parametrize("loss", ["categorical_crossentropy", "mse"])
def test_an_evaluation_gives_what_it_gives_apart_but_for_rounding(trainer, loss):
    """On another shard than the one trained on last; a place is empty, and what trains next is not disturbed."""
    models = [member(number, "Adam(lr={rate})", extra=EXTRA, loss=loss) for number in range(3)]
    for model in models:
        model["compile_params"] = model["compile_params"].replace("['accuracy']", "['accuracy', 'mae']")
    states = [outcome.parts for outcome in train_fused(trainer, models, 1)]
    forward = [state[: trainer.train(models[0], "s0")[0]["forward_parts"]] for state in states]
    told = evaluated(trainer, [models[0], None, models[2]], "s0", [forward[0], None, forward[2]])
    assert told[1] is None
    for ours, model, state in ((told[0], models[0], states[0]), (told[2], models[2], states[2])):
        theirs = trainer.evaluate(model, "s0", state=list(state))
        assert ours["n_rows"] == theirs["n_rows"] == N_ROWS and ours["timing"]["fused"] == 3
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert list(ours["metrics"]) == list(theirs["metrics"]) == ["accuracy", "mae"]
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-5)
    first, again = (fused(trainer, models, "s0", 2, 0, states) for _ in range(2))
    evaluated(trainer, models, "s1", states)
    after = fused(trainer, models, "s0", 2, 0, states)
    assert [o.digest for o in first] == [o.digest for o in again] == [o.digest for o in after]


def test_an_evaluation_of_a_member_without_a_state_is_refused(trainer):
    models = [member(number, "Adam(lr={rate})") for number in range(2)]
    (first, _) = fused(trainer, models, "s0", 1, 0, [None, None])
    with pytest.raises(TrainerError, match="no parts"):
        evaluated(trainer, models, "s0", [first.parts, []])
