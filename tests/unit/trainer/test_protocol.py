"""The protocol: answers to all requests, including malformed ones, after which the process continues."""

import hashlib
import importlib
import importlib.util
import random
from types import SimpleNamespace

import numpy as np
import pytest

from madlib_mop.trainer.data import state
from madlib_mop.trainer.data.parts import SMALLEST_PART_BYTES
from madlib_mop.trainer.server import TrainerService
from tests.helpers.unit.cases import CASES, weights_of
from tests.helpers.unit.trainer import BACKEND, Trainer, TrainerError

CASE = CASES[0]


@pytest.fixture(scope="module")
def trainer():
    with Trainer(shard_cache_bytes=20_000, part_bytes=SMALLEST_PART_BYTES) as started:
        yield started


def test_start_tells_what_runs(trainer):
    import keras

    answer = trainer.versions
    assert answer["pid"] == trainer.process.pid
    backend = importlib.import_module(BACKEND)
    assert (answer[BACKEND], answer["keras"]) == (backend.__version__, keras.__version__)
    assert answer["numpy"] == np.__version__
    assert answer["memory_limit_bytes"] is None and answer["memory_bytes"] > 100 << 20
    assert (answer["landlock"], answer["seccomp"]) == (False, False)


def test_a_visit_is_accounted_for(trainer):
    xs, ys = CASE.data(53)
    shard = trainer.send_shard("s", xs, ys)
    assert (shard["n_rows"], shard["n_bytes"], shard["cached"]) == (53, 53 * (12 * 4 + 3 * 2), True)
    answer, parts = trainer.train(CASE.request(), "s")
    assert (answer["n_rows"], answer["n_batches"]) == (53, 6 * CASE.passes)
    assert len(parts) > 2 and all(len(part) <= SMALLEST_PART_BYTES for part in parts)
    assert answer["state_bytes"] == sum(map(len, parts))
    weights = state.weights_of(parts)
    assert answer["model_bytes"] == len(weights)
    assert answer["weights_digest"] == hashlib.sha256(weights).hexdigest()
    assert answer["digest_out"] == state.digest_of(parts)
    assert list(answer["metrics"]) == ["accuracy"] and 0 <= answer["metrics"]["accuracy"] <= 1
    assert set(answer["timing"]) == {"build_s", "state_in_s", "trace_s", "compute_s", "state_out_s"}
    again = trainer.train(CASE.request(), "s", epoch=2, state=parts)[0]
    assert again["digest_in"] == answer["digest_out"]
    assert again["timing"]["trace_s"] < 0.05  # traced already


def test_training_logs_are_those_of_keras(trainer):
    trainer.send_shard("s", *CASE.data(53))
    answer = trainer.train(CASE.request(), "s")[0]
    model = CASE.model()
    CASE.fit(model, 1, 0, *CASE.data(53))
    last = {name: values[-1] for name, values in model.history.history.items()}
    assert {"loss": answer["loss"], **answer["metrics"]} == pytest.approx(last, rel=1e-6)


def test_a_shard_above_the_cap_serves_one_visit(trainer):
    xs, ys = CASE.data(500)
    answer = trainer.send_shard("big", xs, ys)
    assert not answer["cached"] and "big" not in answer["cached_shards"]
    assert trainer.train(CASE.request(), "big")[0]["n_rows"] == 500
    with pytest.raises(TrainerError, match="'big' is not in the trainer's memory"):
        trainer.train(CASE.request(), "big")


def test_shards_and_stats(trainer):
    for key in "abcdefgh":
        trainer.send_shard(key, *CASE.data(53))
    stats = trainer.ask({"op": "stats"})[0]
    assert stats["cached_shards"] == list("cdefgh")  # 2,862 bytes each, so seven would exceed the limit
    assert stats["shard_bytes"] == 6 * 2862
    assert trainer.ask({"op": "drop_shard", "shard": "e"})[0]["cached_shards"] == list("cdfgh")
    trainer.train(CASE.request(), "h")
    stats = trainer.ask({"op": "stats"})[0]
    assert stats["compiled_models"] >= 1 and stats["compiled_model_bytes"] > 0
    assert stats["memory_bytes"] > 0


def test_the_reason_why_a_shard_is_refused_comes_at_its_end(trainer):
    x, y = (columns[0].copy() for columns in CASE.data(53))
    x[30, 5] = np.inf
    with pytest.raises(TrainerError, match="column image has inf in 1 of the rows 30 to 39") as caught:
        trainer.send_shard("s", [x], [y], buffer_size=10, names=["image", "label"])
    assert (caught.value.kind, caught.value.sqlstate) == ("input", "22023")
    with pytest.raises(TrainerError, match="is not in the trainer's memory"):
        trainer.train(CASE.request(), "s")
    assert trainer.send_shard("s", *CASE.data(53))["n_rows"] == 53


def test_the_order_of_a_reinforced_callback(trainer):
    """EarlyStopping ends the passes of a visit; a schedule numbers passes over all visits of the model."""
    trainer.send_shard("s", *CASE.data(53))
    stop = "callbacks=[EarlyStopping(monitor='loss', min_delta=1000.0, patience=1)]"
    answer = trainer.train({**CASE.request(), "fit_params": f"batch_size=10, epochs=9, {stop}"}, "s")[0]
    assert answer["n_batches"] == 6 * 2
    drop = "callbacks=[LearningRateScheduler(schedule=PiecewiseConstantDecay([2], [0.5, 0.125]))]"
    request, parts, rates = {**CASE.request(), "fit_params": f"batch_size=10, epochs=2, {drop}"}, None, []
    for epoch in (1, 2):
        parts = trainer.train(request, "s", epoch=epoch, state=parts)[1]
        rates.append(float(state.decode_state(parts).read("optimizer", 1)))
    assert rates == [0.5, 0.125]


def test_tensorboard_writes_nothing_and_changes_no_bit(trainer, tmp_path):
    trainer.send_shard("s", *CASE.data(53))
    request = {**CASE.request(), "fit_params": "batch_size=10"}
    plain = trainer.train(request, "s")[0]
    request["fit_params"] += f", callbacks=[TensorBoard(log_dir={str(tmp_path)!r})]"
    assert trainer.train(request, "s")[0]["digest_out"] == plain["digest_out"]
    assert not list(tmp_path.iterdir())


VISIT = {"op": "train", "shard": "s", "epoch": 1, "segment_id": 0}
MALFORMED = [
    {},
    {"op": None},
    {"op": "fly"},
    {"op": "__init__"},
    {"op": "recover"},
    {"op": ["train"]},
    {"op": "train"},
    {"op": "train", "shard": "s"},
    {**VISIT, "epoch": "1", "members": [{"model": {}}]},
    {**VISIT, "epoch": -1, "members": [{"model": "a good one"}]},
    {**VISIT, "members": []},
    {**VISIT, "members": [None]},
    {**VISIT, "members": [{"model": None}]},
    {**VISIT, "members": [{"model": {"arch": 5}}]},
    {**VISIT, "members": [{"model": "a good one", "more": 1}]},
    {**VISIT, "members": [{"model": "a good one", "n_blobs": -1}]},
    {**VISIT, "members": [{"model": "a good one", "has_state": True}]},
    {**VISIT, "members": [{"model": "a good one", "has_weights": True}]},
    {"op": "evaluate", "shard": "s"},
    {"op": "predict", "shapes": 5},
    {"op": "predict", "shapes": []},
    {"op": "predict_load", "model": {}},
    {"op": "shard_end", "shard": "never begun"},
    {"op": "drop_shard"},
    {"op": "start", "threads": 1, "shard_cache_bytes": 0},
    [],
    "stop",
    None,
    5,
]


@pytest.mark.parametrize("header", MALFORMED, ids=lambda header: str(header)[:80])
def test_a_malformed_request_is_answered(trainer, header):
    trainer.send_shard("s", *CASE.data(53))
    if isinstance(header, dict) and "a good one" in str(header):
        header = {**header, "members": [{**header["members"][0], "model": CASE.request()}]}
    with pytest.raises(TrainerError) as caught:
        trainer.ask(header)
    assert caught.value.kind in ("internal", "input", "model")
    assert "\n" not in caught.value.message
    assert trainer.ask({"op": "stats"})[0]["ok"]


@pytest.mark.parametrize(
    "frames",
    [
        [{"op": "shard_begin"}],
        [{"op": "shard_begin", "shard": "s", "n_x": 0, "n_y": 1, "normalizing_const": 1.0}],
        [{"op": "shard_begin", "shard": "s", "n_x": 1, "n_y": 1, "normalizing_const": 0}],
        [{"op": "shard_begin", "shard": "s", "n_x": 1, "n_y": 1, "normalizing_const": "x"}],
        [{"op": "shard_begin", "shard": "s", "n_x": 1, "n_y": 0, "normalizing_const": 1.0, "n_rows": "x"}],
        [{"op": "shard_begin", "shard": "s", "n_x": 1, "n_y": 0, "normalizing_const": 1.0, "names": ["a", "b"]}],
        [{"op": "shard_rows", "shapes": [[1, 1]]}],
        [{"op": "shard_begin", "shard": "s", "n_x": 1, "n_y": 1, "normalizing_const": 1.0}, {"op": "shard_rows"}],
    ],
    ids=str,
)
def test_malformed_shards_are_answered_at_their_end(trainer, frames):
    for header in frames:
        trainer.channel.send(header, [bytes(4)] if header["op"] == "shard_rows" else [])
    with pytest.raises(TrainerError):
        trainer.ask({"op": "shard_end", "shard": "s"})
    assert trainer.ask({"op": "stats"})[0]["ok"]


def test_nothing_is_done_before_start():
    with Trainer(started=False) as trainer:
        with pytest.raises(TrainerError, match="before start"):
            trainer.ask({"op": "stats"})
        with pytest.raises(TrainerError, match="threads"):
            trainer.ask({"op": "start", "threads": 0, "shard_cache_bytes": 0, "sandbox": False})
        start = {"op": "start", "threads": 1, "shard_cache_bytes": 0, "sandbox": False, "backend": BACKEND}
        assert trainer.ask(start)[0]["ok"]


def test_random_bytes_end_it_quietly():
    """Bytes that are not a frame can only come from a broken parent."""
    import os

    with Trainer() as trainer:
        os.write(trainer.channel.write_fd, random.Random(1).randbytes(4096))
        trainer.process.stdin.close()
        assert trainer.process.wait(20) == 0


def test_weights_replace_those_of_the_architecture_only(trainer):
    """With start weights, dropout's seed generator still depends on the seed: two seeds have two results."""
    trainer.send_shard("s", *CASE.data(53))
    weights = weights_of(CASE.model())
    digests = {trainer.train(CASE.request(seed=seed), "s", weights=weights)[0]["digest_out"] for seed in (1, 2)}
    assert len(digests) == 2


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="JAX is installed")
@pytest.mark.parametrize("forked", [True, False])
def test_a_trainer_without_its_backend_says_what_to_install(forked):
    with Trainer(started=False, forked=forked, backend="jax") as trainer, pytest.raises(TrainerError) as raised:
        trainer.start(backend="jax")
    assert raised.value.kind == "input" and raised.value.sqlstate == "55000"
    assert "have no package jax" in raised.value.message and "BACKENDS='tensorflow jax'" in raised.value.hint


def test_only_small_records_are_predicted_together():
    service = TrainerService(lambda: None, is_shared=True)
    service.started = True
    service._visitor = SimpleNamespace(predictors=SimpleNamespace(is_same_in_batches=lambda key: True))
    header = {"op": "predict_row", "fields": [], "encoding": "UTF8", "key": "k"}
    assert service.form_of_row(header, [bytes(1 << 16)]) is not None
    assert service.form_of_row(header, [bytes((1 << 16) + 1)]) is None
