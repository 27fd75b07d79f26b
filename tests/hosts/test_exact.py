"""The issue's first promise: one script, one seed; bit-identical weights on one server and on three hosts."""

import pytest

from tests.workbench import MIXED, digests, fit, load_architectures, load_digits, script, select_configurations, weights

N_SEGMENTS, SEED = 4, 2024


@pytest.mark.slow
def test_twelve_configurations_on_one_server_and_on_three_hosts(hosts):
    """12 configurations, the digits, 3 iterations, rotation: on 4 segments here, and at alpha, beta, gamma, alpha."""
    db = hosts.db
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
        places = db.rows(
            "SELECT place FROM madlib_mop.segment WHERE run_id = %s AND data_set = 'training' ORDER BY segment_id",
            [run.run_id],
        )
        there = ["alpha", "beta", "gamma", "alpha"]
        assert [place for (place,) in places] == (there if suffix == "_there" else [None] * 4)
    assert len(found["_here"][0]) == 12 and None not in found["_here"][0].values()
    assert found["_here"] == found["_there"]
    assert metrics["_here"] == metrics["_there"] and len(metrics["_here"]) == 12 * 3 * 2 * 2
