"""An evaluation reads only the parts of a state that a forward pass needs, not the optimizer's."""

import time

import pytest

from tests.helpers.training import ADAM, fit, load_architectures, load_digits, mlp, pack
from tests.helpers.training import select_configurations as select

pytestmark = [pytest.mark.one_session, pytest.mark.slow]

N_READS = "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'state_part_of'"
METRICS = "SELECT mst_key, epoch, data_set, name, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2, 3, 4"
EVALUATIONS = (
    "SELECT mst_key, epoch, data_set, shard, n_rows, loss FROM madlib_mop.evaluation"
    " WHERE run_id = %s AND started_at < ended_at ORDER BY 1, 2, 3, 4"
)


@pytest.fixture(scope="module", autouse=True)
def tables(db):
    load_digits(db, 60, 20)
    load_architectures(db)


def test_an_evaluation_leaves_the_optimizers_parts_alone(db):
    """Adam has two slots per weight: about two thirds of a state, here large enough for a part of their own."""
    db.rows(f'ALTER DATABASE "{db.name}" SET track_functions = \'all\'')
    pack(db, 1)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [mlp(300)])
    select(db, "mst", [(4, ADAM, "batch_size=16, epochs=1")])
    every = {"metrics_compute_frequency": 1, "validation_table": "valid"}
    run = fit(db, "out", "mst", 3, seed=1, **every)
    ((needed, total),) = db.rows(
        "SELECT forward_parts, (SELECT count(*) FROM madlib_mop.model_state s WHERE s.run_id = m.run_id)"
        " FROM madlib_mop.model m WHERE run_id = %s",
        [run.run_id],
    )
    assert (needed, total) == (1, 2)
    # The first evaluation has a task for each data set, because the trainer has no validation rows yet. The others have
    # one for both. The second and the third visit read all parts, and look for one more.
    expected = (2 + 1 + 1) * needed + 2 * (total + 1)
    deadline = time.monotonic() + 30
    while (n_reads := db.value(N_READS)) < expected and time.monotonic() < deadline:
        db.rows("SELECT pg_sleep(0.1)")  # statistics are sent when the sessions end
    assert n_reads == expected
    loss, metric = db.rows("SELECT training_loss_final, training_metrics_final FROM out_info")[0]
    db.rows("SELECT madlib.madlib_keras_evaluate('out', 'train', 'again', mst_key => 1)")
    assert db.rows("SELECT loss, metric FROM again") == [(loss, metric)]


def test_data_sets_that_are_not_in_memory_together_are_evaluated_one_after_the_other(db):
    """Without a cache, a trainer has the rows of one data set only; the numbers are the same."""
    pack(db, 2, suffix="_2")
    select(db, "mst_2", [(1, ADAM, "batch_size=16, epochs=1")] * 2)
    every = {"metrics_compute_frequency": 1, "source_table": "train_2", "validation_table": "valid_2"}
    outputs = []
    for name, megabytes in (("cached", 64), ("uncached", 0)):
        run = fit(db, name, "mst_2", 2, (f"SET madlib_mop.shard_cache_mb = {megabytes}",), seed=1, **every)
        metrics = db.rows(METRICS, [run.run_id])
        evaluations = db.rows(EVALUATIONS, [run.run_id])
        outputs.append((metrics, evaluations))
    assert outputs[0] == outputs[1]
    metrics, evaluations = outputs[0]
    assert len(metrics) == 2 * 2 * 2 * 2 and len(evaluations) == 2 * 2 * 2 * 2, "each model, iteration, data set"
