"""A trainer sees only its assigned GPUs; it reports an error if its backend cannot use them."""

import pytest

from tests.helpers.unit.trainer import BACKEND, Trainer, TrainerError


def has_gpu():
    from madlib_mop.driver.data.gpus import count_gpus

    return count_gpus() > 0


@pytest.mark.skipif(has_gpu(), reason="this host has a GPU")
def test_gpus_that_cannot_be_used_are_one_clear_error():
    expected = "use_gpus: JAX uses no GPUs" if BACKEND == "jax" else "the host has a GPU, but .* cannot use it"
    with Trainer(started=False) as trainer:
        start = {"op": "start", "backend": BACKEND, "threads": 1, "shard_cache_bytes": 0, "sandbox": True}
        with pytest.raises(TrainerError, match=expected) as got:
            trainer.ask({**start, "gpus": [0]})
        assert (got.value.kind, got.value.sqlstate) == ("input", "0A000" if BACKEND == "jax" else "55000")
        assert trainer.ask({**start, "gpus": [0], "need_gpus": False})[0]["gpus"] == []


@pytest.mark.parametrize("gpus", [["0"], [-1], [True], {"a": 1}])
def test_gpus_are_numbers(gpus):
    with Trainer(started=False) as trainer, pytest.raises(TrainerError, match="gpus of start must be"):
        trainer.ask({"op": "start", "threads": 1, "shard_cache_bytes": 0, "sandbox": False, "gpus": gpus})


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="this host has no GPU")
@pytest.mark.skipif(BACKEND == "jax", reason="JAX uses no GPUs here")
@pytest.mark.parametrize("sandbox", [False, True])
def test_a_visit_on_a_gpu(sandbox):
    """It trains on the GPU within the sandbox, with the same result as on a CPU, up to rounding.

    Both begin with one state, because PyTorch draws other numbers on a GPU.
    """
    from tests.helpers.unit.cases import CASES

    case, state, losses = CASES[1], None, []
    for gpus in ([], [], [0]):
        with Trainer(forked=False, gpus=gpus, sandbox=sandbox) as trainer:
            assert len(trainer.versions["gpus"]) == len(gpus)
            trainer.send_shard("s", *case.data(53))
            answer, parts = trainer.train(case.request(), "s", state=state)
            state = state or [bytes(part) for part in parts]
            losses.append(answer["loss"])
    assert losses[1] == pytest.approx(losses[2], rel=1e-3) and losses[0] > losses[1]
