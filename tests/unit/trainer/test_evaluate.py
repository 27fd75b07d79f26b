"""Evaluation and prediction: Keras' numbers, summed in float64, independent of the division of rows."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402

from madlib_mop.trainer.data import state  # noqa: E402
from madlib_mop.trainer.data.parts import SMALLEST_PART_BYTES  # noqa: E402
from tests.helpers.unit.cases import CASES, weights_of  # noqa: E402
from tests.helpers.unit.trainer import BACKEND, Trainer, TrainerError, member  # noqa: E402


@pytest.fixture(scope="module")
def trainer():
    with Trainer() as started:
        yield started


def by_keras(case, model, n):
    """Return the results of ``evaluate`` in plain Keras, by name."""
    xs, ys = case.data(n)
    ys = [y.astype(np.float32) for y in ys]
    return model.evaluate(
        xs if len(xs) > 1 else xs[0],
        ys if len(ys) > 1 else ys[0],
        batch_size=n,
        verbose=0,
        return_dict=True,
    )


@pytest.mark.one_case
@pytest.mark.parametrize("case", CASES[:5], ids=lambda case: case.name)
def test_evaluation_equals_keras(trainer, case):
    trainer.send_shard("s", *case.data(173))
    model = case.model()
    case.fit(model, 1, 0, *case.data(173))
    answer, parts = trainer.train(case.request(), "s")
    got = trainer.evaluate(case.request(), "s", state=parts)
    expected = by_keras(case, model, 173)
    assert got["n_rows"] == 173
    assert got["loss"] == pytest.approx(expected.pop("loss"), rel=1e-5)
    for name, value in got["output_losses"].items():
        assert value == pytest.approx(expected.pop(name), rel=1e-5)
    assert list(got["metrics"]) == [name for name in model._compile_metrics.result()]  # in the order of compile
    assert got["metrics"] == pytest.approx(expected, rel=1e-5)
    assert set(answer["metrics"]) == set(got["metrics"]) | set(got["output_losses"])


def test_the_parts_of_a_forward_pass_and_the_states_digest_give_the_same_numbers():
    case = CASES[0]
    with Trainer(part_bytes=SMALLEST_PART_BYTES) as trainer:
        trainer.send_shard("s", *case.data(50))
        answer, parts = trainer.train(case.request(), "s")
        assert answer["forward_parts"] < len(parts)
        whole = trainer.evaluate(case.request(), "s", state=list(parts))
        trainer.train(case.request(), "s", state=list(parts), epoch=2)  # changes the values of its variables
        head, needed = {"op": "evaluate", "shard": "s"}, parts[: answer["forward_parts"]]
        part, _ = trainer.visit(head, case.request(), needed, digest=answer["digest_out"])
        assert (part["loss"], part["metrics"]) == (whole["loss"], whole["metrics"])


@pytest.mark.parametrize("n_models", [1, 2])
@pytest.mark.parametrize("op", ["train", "evaluate"])
def test_a_state_without_the_recorded_digest_is_not_used(trainer, op, n_models):
    """Promise 15: one byte of a weight differs. An evaluation gets the first parts only."""
    if n_models > 1 and BACKEND == "torch":
        pytest.skip("models are not trained together on PyTorch")
    case = CASES[0]
    trainer.send_shard("s", *case.data(50))
    answer, parts = trainer.train(case.request(), "s")
    recorded = {"digest": answer["digest_out"], "weights_digest": answer["weights_digest"]}
    damaged = [bytearray(part) for part in parts]
    damaged[0][8 + int.from_bytes(damaged[0][:8], "little") + 2] ^= 1  # behind the header
    place = {"epoch": 2, "segment_id": 0} if op == "train" else {}

    def ask(blobs):
        members = [member(case.request(), blobs, **recorded), *[None] * (n_models - 1)]
        return trainer.ask({"op": op, "shard": "s", **place, "members": members}, list(blobs))[0]["members"][0]

    assert ask(parts).get("error") is None
    if (op, n_models) == ("train", 2):  # a member fails alone
        assert "SHA-256 that is recorded" in ask(damaged)["error"]["message"]
        return
    with pytest.raises(TrainerError, match="SHA-256 that is recorded") as refused:
        ask(damaged)
    assert refused.value.kind == "model"


def test_regularization_is_part_of_the_loss(trainer):
    case = CASES[0]
    strong = case.request()["arch"].replace("0.001", "100.0")
    trainer.send_shard("s", *case.data(50))
    weights = weights_of(case.model())
    losses = [
        trainer.evaluate({**case.request(), "arch": arch}, "s", weights=weights)["loss"]
        for arch in (case.request()["arch"], strong)
    ]
    assert losses[1] > 10 * losses[0]


def test_buffers_and_the_batch_size_of_fit_do_not_matter(trainer):
    case = CASES[0]
    weights, results = weights_of(case.model()), []
    for buffer_size, batch_size in ((7, 10), (1000, 10), (100, 3)):
        trainer.send_shard("s", *case.data(1500), buffer_size=buffer_size)
        request = {**case.request(), "fit_params": f"batch_size={batch_size}"}
        answer = trainer.evaluate(request, "s", weights=weights)
        results.append((answer["loss"], answer["metrics"]))
    assert results[0] == results[1] == results[2]


def test_metrics_are_added_in_float64(trainer):
    """After a million rows of 16, a row of 2**-10 would not change a float32 sum."""
    x = np.concatenate([np.full((1_000_000, 1), 16), np.full((1_000_000, 1), 2.0**-10)]).astype(np.float32)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    request = {
        "arch": model.to_json(),
        "compile_params": "loss='mae', optimizer='sgd', metrics=['mae']",
        "fit_params": "batch_size=1",
        "seed": 1,
        "mst_key": 1,
    }
    trainer.send_shard("s", [x], [np.zeros_like(x)], buffer_size=1_000_000)
    answer = trainer.evaluate(request, "s", weights=np.ones(1, np.float32).tobytes())
    assert answer["loss"] == answer["metrics"]["mae"] == (16 + 2.0**-10) / 2


def test_evaluation_leaves_the_state_alone(trainer):
    case = CASES[0]
    trainer.send_shard("s", *case.data(53))
    first = trainer.train(case.request(), "s")[1]
    expected = trainer.train(case.request(), "s", epoch=2, state=first)[0]["digest_out"]
    trainer.evaluate(case.request(), "s", state=first)
    assert trainer.train(case.request(), "s", epoch=2, state=first)[0]["digest_out"] == expected


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("stored", "case"),
    [
        pytest.param(stored, case, id=f"{stored}-{case.name}", marks=pytest.mark.slow if i and j else ())
        for i, stored in enumerate(("weights", "state")) for j, case in enumerate(CASES[:5])
    ],
)  # fmt: skip
def test_predictions_equal_keras(trainer, case, stored):
    xs, ys = case.data(2500)
    trainer.send_shard("s", xs, ys)
    parts = trainer.train(case.request(), "s")[1]
    weights = state.weights_of(parts)
    trainer.load_predictor(case.request(), **{"state": parts} if stored == "state" else {"weights": weights})
    outputs = trainer.predict(*xs)
    model, start = case.model(), 0
    values = np.frombuffer(weights, np.float32)
    for variable in model.weights:
        stop = start + int(np.prod(variable.shape))
        variable.assign(values[start:stop].reshape(variable.shape))
        start = stop
    expected = model.predict(xs if len(xs) > 1 else xs[0], verbose=0)
    for output, wanted in zip(outputs, expected if isinstance(expected, list) else [expected], strict=True):
        assert output.shape == wanted.shape
        np.testing.assert_allclose(output, wanted, rtol=2e-5, atol=1e-6)


def test_prediction_needs_an_architecture_and_weights_only(trainer):
    case = CASES[1]
    arch = {"arch": case.request()["arch"]}
    x = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 1)).astype(np.uint8)
    trainer.load_predictor(arch, normalizing_const=255.0, weights=weights_of(case.model()))
    raw = trainer.predict(x)[0]
    divided = trainer.predict(x.astype(np.float32) / np.float32(255))[0]
    assert np.array_equal(raw, divided)
    assert trainer.predict(x[:1])[0].shape == (1, 10)
    with pytest.raises(TrainerError, match=r"input 1 of the model has shape \(8, 8, 1\) a row, .* has \(8, 7, 1\)"):
        trainer.predict(np.ascontiguousarray(x[:, :, :7]))


def test_rows_to_predict_from_must_be_finite(trainer):
    case = CASES[0]
    trainer.load_predictor(case.request(), weights=weights_of(case.model()))
    x = case.data(10)[0][0]
    x[4, 2] = np.nan
    with pytest.raises(TrainerError, match="column x1 has nan in 1 of the rows") as caught:
        trainer.predict(x)
    assert (caught.value.kind, caught.value.sqlstate) == ("input", "22023")


def test_prediction_without_a_model_is_an_error():
    with Trainer() as trainer, pytest.raises(TrainerError, match="no model is loaded"):
        trainer.predict(np.zeros((1, 12), np.float32))
