"""A trainer whose memory limit is below the size of its shard trains, evaluates and caches features as in memory."""

import contextlib
import os
import signal
from dataclasses import dataclass

import keras
import numpy as np
import pytest
from keras import layers
from mop_backend.frames import PeerGone
from mop_backend.shard_file import open_shard_file

from madlib_mop.trainer.data.shard_file import ShardFile
from madlib_mop.trainer.data.shards import ShardCache
from madlib_mop.trainer.server import TrainerService
from madlib_mop.trainer.visits import Visitor
from tests.helpers.unit.cases import CASES
from tests.helpers.unit.trainer import BACKEND, Trainer, TrainerError, member
from tests.unit.trainer.test_features import LEARNS
from tests.unit.trainer.test_fused_visits import fused
from tests.unit.trainer.test_fused_visits import member as fused_member

MIB = 1 << 20
DISK = {"shard_disk_bytes": 1 << 30}
#: Rows of uint8, which take more than the memory beyond that of an idle trainer. JAX has some batches at once.
N_ROWS, WIDTH, LEFT_BYTES = (15000, 32 << 10, 400 * MIB) if BACKEND == "jax" else (5000, 32 << 10, 130 * MIB)


@contextlib.contextmanager
def trainer_with_file(directory, **more):
    """A trainer that keeps no rows in memory."""
    with Trainer(shard_cache_bytes=0, **DISK, shard_directory=str(directory), **more) as trainer:
        yield trainer
        assert not list(directory.iterdir()), "its file has no name"


def in_file(trainer) -> int:
    stats = trainer.ask({"op": "stats"})[0]
    assert stats["shard_bytes"] == 0
    return stats["shard_file_bytes"]


def links(trainer, directory) -> list[str]:
    """Return the names of a trainer's descriptors of files in a directory."""
    fds = f"/proc/{trainer.process.pid}/fd"
    every = [f"{fds}/{fd}" for fd in os.listdir(fds)]
    return [link for link in every if os.readlink(link).startswith(str(directory))]


def begin_to_send(trainer, rows, planned_rows) -> None:
    """Send a first buffer of the shard "s", with one x and one y."""
    head = {"op": "shard_begin", "shard": "s", "n_x": 1, "n_y": 1, "normalizing_const": 255.0}
    trainer.channel.send({**head, "planned_rows": planned_rows})
    trainer.channel.send({"op": "shard_rows", "shapes": [r.shape for r in rows]}, rows)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A trainer with all rows in memory, and one with all in its file, in a sandbox."""
    with Trainer() as usual, trainer_with_file(tmp_path_factory.mktemp("files"), sandbox=True) as other:
        assert other.versions["seccomp"]
        yield usual, other


def visits(trainer, case, sizes=(53, 80)) -> list:
    """Make two epochs of visits, and evaluate; return everything but times."""
    found, parts = [], None
    for epoch in (1, 2):
        for segment_id, n in enumerate(sizes):
            shard = trainer.send_shard(str(n), *case.data(n), buffer_size=11, planned_rows=n)
            assert shard["cached"]
            figures, parts = trainer.train(case.request(), str(n), epoch=epoch, segment_id=segment_id, state=parts)
            parts = [bytes(part) for part in parts]
            found += [shard["fingerprint"], parts, figures]
    found += [trainer.evaluate(case.request(), str(n), state=parts) for n in sizes]
    for figures in found:
        if isinstance(figures, dict):
            figures.pop("timing")
    return found


@pytest.mark.one_case
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_has_the_same_bits(pair, case):
    usual, other = pair
    assert visits(other, case) == visits(usual, case)
    assert in_file(other) > 0


@pytest.mark.slow
@pytest.mark.parametrize("case", LEARNS, ids=lambda case: case.name)
def test_features_in_the_file_have_the_same_bits(pair, case):
    usual, other = pair
    assert visits(other, case) == visits(usual, case)
    if BACKEND != "jax":
        stats = other.ask({"op": "stats"})[0]
        assert (stats["features"] > 0) == (usual.ask({"op": "stats"})[0]["features"] > 0)
        assert stats["feature_bytes"] == 0


@pytest.mark.skipif(BACKEND == "torch", reason="models are not trained together on PyTorch")
def test_models_that_train_together_have_the_same_bits(pair):
    chance = np.random.default_rng(1)
    x = chance.normal(size=(45, 4, 3)).astype(np.float32)
    y = np.eye(3, dtype=np.int16)[chance.integers(0, 3, 45)]
    models, found = [fused_member(number, "Adam(lr={rate})") for number in range(3)], []
    for trainer in pair:
        trainer.send_shard("fused", [x], [y], planned_rows=45)
        outcomes = fused(trainer, models, "fused", 1, 0, [None] * 3)
        found.append([(one.digest, one.answer["loss"], one.answer["metrics"]) for one in outcomes])
    assert found[0] == found[1]


def wide(fit="batch_size=50, epochs=2"):
    """Return a model of wide rows: few of them take 156 MiB or more, and five stretches of reading ahead or more."""
    arch = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(3, "softmax")]).to_json()
    compile_params = "loss='categorical_crossentropy', optimizer='SGD(lr=0.001, momentum=0.9)', metrics=['accuracy']"
    return {"arch": arch, "compile_params": compile_params, "fit_params": fit, "seed": 3, "mst_key": 1, "custom": None}


@pytest.fixture(scope="module")
def wide_rows():
    chance = np.random.default_rng(0)
    x = np.frombuffer(chance.bytes(N_ROWS * WIDTH), np.uint8).reshape(N_ROWS, WIDTH)
    return [x], [np.eye(3, dtype=np.int16)[chance.integers(0, 3, N_ROWS)]]


@dataclass(frozen=True)
class Usual:
    """A trainer with the wide rows in memory, as the shard "s", and the memory that another one may have."""

    trainer: Trainer
    memory_limit_bytes: int


@pytest.fixture(scope="module")
def usual(wide_rows):
    with Trainer(shard_cache_bytes=1 << 30) as trainer:
        limit = trainer.versions["memory_bytes"] + LEFT_BYTES
        trainer.send_shard("s", *wide_rows, normalizing_const=255.0, planned_rows=N_ROWS)
        yield Usual(trainer, limit)


@pytest.fixture(scope="module")
def beyond(tmp_path_factory, wide_rows, usual):
    """A trainer with the same rows in its file, which are more than its memory limit leaves room for."""
    assert wide_rows[0][0].nbytes > LEFT_BYTES
    directory = tmp_path_factory.mktemp("beyond memory")
    with trainer_with_file(directory, memory_limit_bytes=usual.memory_limit_bytes) as trainer:
        shard = trainer.send_shard("s", *wide_rows, normalizing_const=255.0, planned_rows=N_ROWS)
        assert shard["cached"] and in_file(trainer) >= shard["n_bytes"]
        yield trainer


SHUFFLES = {"shuffled": "", "in order": ", shuffle=False", "weighted": ", class_weight={0: 3.0, 1: 0.5}"}


@pytest.mark.parametrize("fit", SHUFFLES.values(), ids=SHUFFLES)
def test_rows_of_more_than_the_memory_limit_have_the_same_bits(usual, beyond, fit):
    request = wide(f"batch_size={10 if BACKEND == 'jax' else 50}, epochs=2" + fit)
    found = []
    for trainer in (usual.trainer, beyond):
        figures, parts = trainer.train(request, "s")
        evaluated = trainer.evaluate(request, "s", state=parts)
        found.append((figures["digest_out"], figures["loss"], figures["metrics"], {**evaluated, "timing": 0}))
    assert found[0] == found[1]
    assert beyond.ask({"op": "stats"})[0]["memory_bytes"] < usual.memory_limit_bytes


@pytest.mark.parametrize("fit", SHUFFLES.values(), ids=SHUFFLES)
def test_a_visit_that_begins_while_such_rows_arrive_has_the_same_bits(usual, beyond, wide_rows, fit):
    request = wide("batch_size=50, epochs=2" + fit)
    beyond.begin(request, "s")
    shard = beyond.send_shard("s", *wide_rows, normalizing_const=255.0, planned_rows=N_ROWS)
    assert shard["cached"] and in_file(beyond) >= shard["n_bytes"]
    figures, _ = beyond.train(request, "s")
    assert "rows_s" in figures["timing"] and figures["n_rows"] == N_ROWS
    assert figures["digest_out"] == usual.trainer.train(request, "s")[0]["digest_out"]
    assert beyond.ask({"op": "stats"})[0]["memory_bytes"] < usual.memory_limit_bytes


def test_without_room_in_the_file_the_error_says_what_to_do(tmp_path, wide_rows, usual):
    start = {"shard_disk_bytes": 100 * MIB, "shard_directory": str(tmp_path)}
    start["memory_limit_bytes"] = usual.memory_limit_bytes
    with Trainer(shard_cache_bytes=20 * MIB, **start) as trainer:
        with pytest.raises(TrainerError) as caught:
            trainer.send_shard("s", *wide_rows, planned_rows=N_ROWS)
        assert (caught.value.kind, caught.value.sqlstate) == ("input", "53000")
        assert caught.value.message == (
            f"the rows of the shard take {N_ROWS * (WIDTH + 6) >> 20} MB: more than the 20 MB of"
            " madlib_mop.shard_cache_mb, and the trainer's file has no room for them: the file may take 100 MB"
            " (madlib_mop.shard_disk_mb)"
        )
        assert "Free disk space there" in caught.value.hint and "shard_directory" in caught.value.hint
        case = CASES[0]
        assert trainer.send_shard("small", *case.data(53), planned_rows=53)["cached"]
        assert trainer.train(case.request(), "small")[0]["n_rows"] == 53


def test_a_file_that_could_not_be_made_is_named_when_it_is_needed(tmp_path, wide_rows, usual):
    start = {**DISK, "shard_directory": str(tmp_path / "none"), "memory_limit_bytes": usual.memory_limit_bytes}
    with Trainer(**start, shard_cache_bytes=0) as one:
        with pytest.raises(TrainerError, match="cannot be made in .*/none: No such file or directory"):
            one.send_shard("s", *wide_rows, planned_rows=N_ROWS)


@pytest.mark.parametrize("case", [CASES[0], *LEARNS[:1]], ids=lambda case: case.name)
def test_a_trainer_that_waits_has_no_rows_in_its_file_and_serves_the_next_run_with_the_same_bits(tmp_path, case):
    start = {"shard_cache_bytes": 0, **DISK, "shard_directory": str(tmp_path)}
    with Trainer(**start) as trainer:
        expected = visits(trainer, case)
        (held,) = {os.stat(link).st_ino: os.open(link, os.O_RDONLY) for link in links(trainer, tmp_path)}.values()
        assert in_file(trainer) > 0 and os.fstat(held).st_blocks > 0
        (x,), (y,) = case.data(53)
        begin_to_send(trainer, [x, y], planned_rows=100)
        assert trainer.ask({"op": "reset"})[0]["reusable"]
        assert in_file(trainer) == 0 and os.fstat(held).st_blocks == 0
        os.close(held)
        trainer.start(backend=BACKEND, **start)
        assert visits(trainer, case) == expected and in_file(trainer) > 0


@pytest.mark.parametrize("stay", [True, False])
def test_a_trainer_serves_no_other_run_if_rows_stay_in_its_file(tmp_path, stay):
    made = open_shard_file({**DISK, "shard_directory": str(tmp_path)})
    file = ShardFile(made.fd, made.limit_bytes, made.directory)
    service = TrainerService(lambda: None)
    service._shards, service._start = ShardCache(0, file), None
    service._visitor = Visitor(file=file)
    kept = file.arrays([((10,), np.dtype(np.float32))])
    if not stay:
        kept.clear()
    assert service.reset({}, []) == ({"reusable": not stay}, [])
    made.close()


def test_a_trainer_whose_file_could_not_be_made_serves_no_other_run(tmp_path):
    with Trainer(**DISK, shard_directory=str(tmp_path / "none")) as trainer:
        assert not trainer.ask({"op": "reset"})[0]["reusable"]


MOMENTS = ("start", "rows", "training")
_KILLS = [
    *((moment, True) for moment in MOMENTS),
    # a process of its own takes three seconds to start
    *(pytest.param(moment, False, marks=[pytest.mark.slow] * (moment != "training")) for moment in MOMENTS),
]


@pytest.mark.parametrize(("moment", "forked"), _KILLS)
def test_a_killed_trainer_leaves_nothing(tmp_path, wide_rows, moment, forked):
    trainer = Trainer(shard_cache_bytes=0, **DISK, shard_directory=str(tmp_path), forked=forked)
    try:
        held = os.open(links(trainer, tmp_path)[0], os.O_RDONLY)  # shows what becomes of the file
        if moment != "start":
            begin_to_send(trainer, [column[:1000] for (column,) in wide_rows], planned_rows=N_ROWS)
        if moment == "training":
            rows = [column[1000:] for (column,) in wide_rows]
            trainer.channel.send({"op": "shard_rows", "shapes": [r.shape for r in rows]}, rows)
            trainer.ask({"op": "shard_end", "shard": "s"})
            head = {"op": "train", "members": [member(wide("batch_size=1, epochs=1000"))], "shard": "s"}
            trainer.channel.send({**head, "epoch": 1, "segment_id": 0})
        os.kill(trainer.process.pid, signal.SIGKILL)
        assert trainer.process.wait(20) == -signal.SIGKILL
        assert os.fstat(held).st_nlink == 0 and not list(tmp_path.iterdir())
        os.close(held)
        with pytest.raises(PeerGone):
            trainer.ask({"op": "stats"})
    finally:
        trainer.close()
