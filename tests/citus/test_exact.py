"""The issue's first promise on Citus: one script, one seed; bit-identical weights on one server and at the nodes."""

import pytest

from tests.citus_kit import NEEDS_CITUS
from tests.workbench import MIXED, digests, fit, load_architectures, load_digits, script, select_configurations, weights

N_SEGMENTS, SEED = 4, 2024
pytestmark = [*NEEDS_CITUS, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_twelve_configurations_on_one_server_and_on_citus(citus):
    """12 configurations, the digits, 3 iterations, rotation: on 4 segments here, and on 4 shards at the nodes."""
    db = citus.db
    load_digits(db, 1500, 297)
    load_architectures(db)
    twelve = [*MIXED, *((model, compiled, "batch_size=48, epochs=1") for model, compiled, _ in MIXED[:5])]
    select_configurations(db, "mst", twelve)
    found, metrics = {}, {}
    for suffix, places in (("_here", "SET madlib_mop.hosts = 'here'"), ("_there", "RESET madlib_mop.hosts")):
        train, valid = f"train{suffix}", f"valid{suffix}"
        script(
            db,
            places,
            f"SET madlib_mop.segments = {N_SEGMENTS}",
            f"SELECT madlib.training_preprocessor_dl('train_rows', '{train}', 'y', 'x', 100, 16.0, seed := 5)",
            f"SELECT madlib.validation_preprocessor_dl('valid_rows', '{valid}', 'y', 'x', '{train}', 100)",
        )
        options = {"source_table": train, "validation_table": valid, "schedule": "rotation", "seed": SEED}
        run = fit(db, f"models{suffix}", "mst", 3, metrics_compute_frequency=1, **options)
        found[suffix] = digests(db, run.run_id), weights(db, f"models{suffix}")
        metrics[suffix] = db.rows(
            "SELECT mst_key, epoch, data_set, ordinal, value FROM madlib_mop.metric"
            " WHERE run_id = %s ORDER BY 1, 2, 3, 4",
            [run.run_id],
        )
        query = "SELECT DISTINCT engine, place FROM madlib_mop.segment WHERE run_id = %s ORDER BY 2"
        there = [("citus", server) for server in citus.at]
        assert db.rows(query, [run.run_id]) == (there if suffix == "_there" else [("postgres", None)])
    assert len(found["_here"][0]) == 12 and None not in found["_here"][0].values()
    assert found["_here"] == found["_there"]
    assert metrics["_here"] == metrics["_there"] and len(metrics["_here"]) == 12 * 3 * 2 * 2
