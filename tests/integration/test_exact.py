"""Promises 1 and 2: final weights equal those of plain Keras with the same visits, bit for bit, and are repeatable.

tests/helpers/engines/promises.py has the smallest of these runs and its replay, for every engine.
"""

import pytest

from tests.helpers.oracle import assert_exact
from tests.helpers.training import (
    ALIKE,
    MIXED,
    digests,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    script,
    weights,
)
from tests.helpers.training import select_configurations as select

pytestmark = pytest.mark.one_session

SCHEDULES = ("rotation", "longest_first", "auto")
QUICK = {(3, 2, "longest_first")}
MATRIX = [
    pytest.param(n, p, schedule, marks=() if (n, p, schedule) in QUICK else pytest.mark.slow)
    for n in (1, 3, 7)
    for p in (1, 2, 4)
    for schedule in SCHEDULES
]


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db)
    load_architectures(db)
    for p in (1, 2, 4):
        pack(db, p, suffix=f"_{p}")
    for n in (1, 3, 7):
        select(db, f"mst_{n}", MIXED[:n])
    select(db, "mst_alike", ALIKE)
    return db


@pytest.mark.parametrize("n, p, schedule", MATRIX)
def test_weights_are_those_of_plain_keras(bench, n, p, schedule):
    table = f"out_{n}_{p}_{schedule}"
    run = fit(bench, table, f"mst_{n}", 3, source_table=f"train_{p}", schedule=schedule, seed=11)
    visits = bench.rows(
        "SELECT mst_key, epoch, segment_id, position FROM madlib_mop.visit WHERE run_id = %s", [run.run_id]
    )
    assert len({v[:3] for v in visits}) == len(visits) == n * p * 3
    assert_exact(bench, run.run_id, table, MIXED[:n])
    for mst_key in range(1, n + 1):
        assert_every_hop_reads_what_the_last_wrote(bench, run.run_id, mst_key)


def assert_every_hop_reads_what_the_last_wrote(db, run_id: int, mst_key: int) -> None:
    """Assert the chain of a model's digests, visit by visit, up to its newest state."""
    chain = db.rows(
        "SELECT digest_in, digest_out FROM madlib_mop.visit WHERE run_id = %s AND mst_key = %s"
        " ORDER BY epoch, position",
        [run_id, mst_key],
    )
    assert [before for before, _ in chain[1:]] == [after for _, after in chain[:-1]]
    assert chain[-1][1] == digests(db, run_id)[mst_key]


@pytest.mark.slow
def test_rotation_does_not_depend_on_buffers_caching_or_a_warm_start(bench):
    whole = fit(bench, "out_whole", "mst_alike", 3, source_table="train_2", schedule="rotation", seed=9)
    expected = weights(bench, "out_whole")

    pack(bench, 2, buffer_size=11, suffix="_small")
    assert shards(bench, "train_small") == shards(bench, "train_2")
    uncached = ("SET madlib_mop.shard_cache_mb = 0",)
    fit(bench, "out_small", "mst_alike", 3, uncached, source_table="train_small", schedule="rotation", seed=9)
    assert weights(bench, "out_small") == expected, "small buffers, no cache"

    cached = {"source_table": "train_2", "schedule": "rotation", "use_caching": True}
    first = fit(bench, "out_split", "mst_alike", 1, seed=9, **cached)
    second = fit(bench, "out_split", "mst_alike", 2, warm_start=True, **cached)
    assert weights(bench, "out_split") == expected, "all cached, in two calls"
    assert digests(bench, second.run_id) == digests(bench, whole.run_id) != digests(bench, first.run_id)


def test_models_stay_with_a_trainer_where_each_can_hold_all_rows(bench):
    """The visits and the bits are the same, and the record says whose trainer made a visit."""
    given = {"source_table": "train_2", "schedule": "rotation", "seed": 4}
    stays = fit(bench, "out_stays", "mst_alike", 2, **given)
    moves = fit(bench, "out_moves", "mst_alike", 2, ("SET madlib_mop.shard_cache_mb = 0",), **given)
    assert weights(bench, "out_stays") == weights(bench, "out_moves")
    chain = (
        "SELECT mst_key, epoch, position, segment_id, digest_out FROM madlib_mop.visit WHERE run_id = %s"
        " ORDER BY 1, 2, 3"
    )
    assert bench.rows(chain, [stays.run_id]) == bench.rows(chain, [moves.run_id])
    elsewhere = (
        "SELECT DISTINCT mst_key FROM madlib_mop.timeline WHERE run_id = %s AND trainer <> segment_id ORDER BY 1"
    )
    assert bench.rows(elsewhere, [stays.run_id]) == [(1,), (2,), (3,), (4,)]
    assert bench.rows(elsewhere, [moves.run_id]) == [], "each shard in its own trainer"
    bench.rows("SELECT madlib_mop.replay(%s, 'out_again')", [stays.run_id])
    assert weights(bench, "out_again") == weights(bench, "out_stays")


def shards(db, table: str) -> list:
    """Return each segment's rows as one digest."""
    return db.rows(
        f"SELECT __dist_key__, sha256(string_agg(x, '' ORDER BY buffer_id)) FROM {table} GROUP BY 1 ORDER BY 1"
    )


@pytest.mark.parametrize("schedule", ["longest_first", pytest.param("auto", marks=pytest.mark.slow)])
def test_replay_gives_the_same_bits(bench, schedule):
    run = fit(bench, f"out_r_{schedule}", "mst_alike", 2, source_table="train_2", schedule=schedule, seed=2)
    script(bench, f"SELECT madlib_mop.replay({run.run_id}, 'again_{schedule}')")
    assert weights(bench, f"again_{schedule}") == weights(bench, f"out_r_{schedule}")
    order = (
        "SELECT mst_key, epoch, position, segment_id, digest_out FROM madlib_mop.visit WHERE run_id = %s"
        " ORDER BY 1, 2, 3"
    )
    (replayed,) = bench.rows(
        "SELECT run_id FROM madlib_mop.run WHERE parent_run_id = %s AND kind = 'replay'", [run.run_id]
    )
    assert bench.rows(order, [replayed[0]]) == bench.rows(order, [run.run_id])


@pytest.mark.slow
def test_the_seed_is_drawn_and_recorded(bench):
    drawn = fit(bench, "out_drawn", "mst_1", 1, source_table="train_1")
    seed = bench.value("SELECT seed FROM madlib_mop.run WHERE run_id = %s", [drawn.run_id])
    assert f"seed {seed};" in drawn.notices
    fit(bench, "out_drawn_again", "mst_1", 1, source_table="train_1", seed=seed)
    assert weights(bench, "out_drawn_again") == weights(bench, "out_drawn")
