"""A trainer sees only its assigned GPUs; it reports an error if its backend cannot use them."""

import contextlib

import pytest

from tests.helpers.unit.backends import WORDS
from tests.helpers.unit.trainer import BACKEND, Trainer, TrainerError


def has_gpu():
    from madlib_mop.driver.data.gpus import count_gpus

    return count_gpus() > 0


@pytest.mark.skipif(has_gpu(), reason="this host has a GPU")
def test_gpus_that_cannot_be_used_are_one_clear_error():
    message, sqlstate, hint = WORDS[BACKEND].gpus
    with Trainer(started=False) as trainer:
        start = {"op": "start", "backend": BACKEND, "threads": 1, "shard_cache_bytes": 0, "sandbox": True}
        with pytest.raises(TrainerError, match=f"use_gpus: {message}") as got:
            trainer.ask({**start, "gpus": [0]})
        assert (got.value.kind, got.value.sqlstate) == ("input", sqlstate) and hint in got.value.hint
        assert trainer.ask({**start, "gpus": [0], "need_gpus": False})[0]["gpus"] == []


@pytest.mark.parametrize("gpus", [["0"], [-1], [True], {"a": 1}])
def test_gpus_are_numbers(gpus):
    with Trainer(started=False) as trainer, pytest.raises(TrainerError, match="gpus of start must be"):
        trainer.ask({"op": "start", "threads": 1, "shard_cache_bytes": 0, "sandbox": False, "gpus": gpus})


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="this host has no GPU")
@pytest.mark.skipif(BACKEND == "jax", reason="JAX uses no GPUs here")
@pytest.mark.parametrize("sandbox", [False, True])
class TestOnAGpu:
    """The results are those of a CPU, up to rounding; a trainer with GPUs runs with and without its sandbox."""

    def test_training(self, sandbox):
        """Both begin with one state, and the case has no random numbers: PyTorch draws others on a GPU."""
        case = _case("numbers and int32 indices, Adam")
        with _trainer(case, [], sandbox) as trainer:
            state = _state(trainer.train(case.request(), "s"))
            on_cpu, _ = trainer.train(case.request(), "s", state=state)
        with _trainer(case, [0], sandbox) as trainer:
            on_gpu, _ = trainer.train(case.request(), "s", state=state)
        assert on_gpu["loss"] == pytest.approx(on_cpu["loss"], rel=1e-3)

    def test_a_convolutional_model_that_was_trained_there(self, sandbox):
        case = _case("cnn, SGD with momentum, decaying rate")
        with _trainer(case, [0], sandbox) as trainer:
            state = _state(trainer.train(case.request(), "s"))
            on_gpu = trainer.evaluate(case.request(), "s", state=state)
        with _trainer(case, [], sandbox) as trainer:
            on_cpu = trainer.evaluate(case.request(), "s", state=state)
        assert on_gpu["loss"] == pytest.approx(on_cpu["loss"], rel=1e-3)


def _case(name):
    from tests.helpers.unit.cases import CASES

    return next(case for case in CASES if case.name == name)


@contextlib.contextmanager
def _trainer(case, gpus, sandbox):
    with Trainer(forked=False, gpus=gpus, sandbox=sandbox) as trainer:
        assert len(trainer.versions["gpus"]) == len(gpus)
        trainer.send_shard("s", *case.data(53))
        yield trainer


def _state(trained):
    return [bytes(part) for part in trained[1]]
