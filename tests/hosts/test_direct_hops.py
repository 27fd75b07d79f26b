"""Direct hops: states go from host to host, and the weights have the same bits as through the coordinator."""

import pytest

from tests.helpers.remote import DIRECT, N_EPOCHS, N_MODELS, N_SEGMENTS, RUN, prepare
from tests.helpers.training import digests, fit


@pytest.fixture(scope="module")
def bench(hosts):
    hosts.expected = prepare(hosts)
    return hosts


def train(bench, table, *settings, **options):
    options = {"source_table": "train_2", "validation_table": "valid_2", **RUN, **options}
    return fit(bench.db, table, "mst", N_EPOCHS, (*DIRECT, *settings), **options).run_id


@pytest.mark.parametrize("schedule", ["rotation", "longest_first"])
def test_the_bits_are_those_of_one_server(bench, schedule):
    run_id = train(bench, f"models_{schedule}", schedule=schedule)
    if schedule == "rotation":
        assert digests(bench.db, run_id) == bench.expected
    visits = bench.db.rows(
        "SELECT mst_key, digest_in, digest_out, timing ? 'pull_s' FROM madlib_mop.visit WHERE run_id = %s"
        " ORDER BY mst_key, epoch, position",
        [run_id],
    )
    assert len(visits) == N_MODELS * N_SEGMENTS * N_EPOCHS
    assert sum(was_direct for *_, was_direct in visits) >= len(visits) - N_MODELS
    for one, after in zip(visits, visits[1:], strict=False):
        assert one[0] != after[0] or one[2] == after[1], "each visit begins with what the one before has trained"
    assert bench.db.value(f"SELECT count(*) FROM models_{schedule} WHERE model_weights IS NOT NULL") == N_MODELS
    at_hosts = "SELECT count(*) FROM madlib_mop.model WHERE run_id = %s AND state_server IS NOT NULL"
    assert bench.db.value(at_hosts, [run_id]) == 0
