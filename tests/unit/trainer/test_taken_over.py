"""A state that a search copies to a model with other parameters: the same bits as Keras continuing with them."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402

from madlib_mop.trainer.data import state  # noqa: E402
from tests.helpers.unit.perceptron import LABELS, ROWS, bits, fit, plain, request  # noqa: E402
from tests.helpers.unit.trainer import Trainer  # noqa: E402


@pytest.fixture(scope="module")
def trainer():
    with Trainer() as started:
        started.send_shard("rows", [ROWS], [LABELS])
        yield started


@pytest.mark.one_case
@pytest.mark.parametrize(
    "before, after, made, keep",
    [
        ("Adam(0.01)", "Adam(0.2)", lambda: keras.optimizers.Adam(0.2), True),
        ("Adam(0.01)", "Adam(0.2)", lambda: keras.optimizers.Adam(0.2), False),
        ("SGD(0.01, momentum=0.9)", "SGD(0.1, momentum=0.5)", lambda: keras.optimizers.SGD(0.1, 0.5), True),
        ("Adam(0.01)", "SGD(0.1)", lambda: keras.optimizers.SGD(0.1), False),
        # does not fit, so it starts fresh
        ("SGD(0.01, momentum=0.9)", "SGD(0.1)", lambda: keras.optimizers.SGD(0.1), True),
        # starts from the copied weights
        ("Adam(0.01)", "ScheduleFreeAdamW(0.1)", lambda: keras.optimizers.ScheduleFreeAdamW(0.1), False),
    ],
)
def test_a_state_is_gone_on_with_by_other_parameters(trainer, before, after, made, keep):
    _, parts = trainer.train(request(before, 1), "rows")
    copied = [bytes(part) for part in parts]
    taken_over = {"version": 1, "mst_key": 1, "optimizer": keep}
    head = {"op": "train", "shard": "rows", "epoch": 2, "segment_id": 0}
    state_of_other = [bytearray(part) for part in copied]
    answer, parts = trainer.visit(head, request(after, 2), state_of_other, taken_over=taken_over)
    assert answer["digest_in"] == state.digest_of(copied)

    source, oracle = state.decode_state(copied), plain(made(), 2)
    weights = list(oracle.weights)
    others = [v for v in oracle.variables if not any(v is w for w in weights)]
    for group, targets in {"weights": weights, "variables": others}.items():
        for index, variable in enumerate(targets):
            variable.assign(source.read(group, index))
    oracle.optimizer.build(oracle.trainable_variables)
    mine = list(oracle.optimizer.variables)
    if keep and len(source.specs("optimizer")) == len(mine):
        for index, variable in enumerate(mine):
            if variable is not oracle.optimizer._learning_rate:
                variable.assign(source.read("optimizer", index))
    fit(oracle, 2, 2)
    decoded = state.decode_state(parts)
    groups = (("weights", weights), ("optimizer", mine))
    assert b"".join(decoded.read(g, i).tobytes() for g, vs in groups for i in range(len(vs))) == bits(oracle)

    _, plain_parts = trainer.train(request(after, 2), "rows", epoch=3, state=[bytes(part) for part in parts])
    fit(oracle, 3, 2)
    decoded = state.decode_state(plain_parts)
    assert b"".join(decoded.read(g, i).tobytes() for g, vs in groups for i in range(len(vs))) == bits(oracle)
