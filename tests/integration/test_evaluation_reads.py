"""An evaluation reads only the parts of a state that a forward pass needs, not the optimizer's."""

import time

import pytest

from tests.helpers.training import ADAM, fit, load_architectures, load_digits, pack
from tests.helpers.training import select_configurations as select

pytestmark = pytest.mark.slow

N_READS = "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'state_part_of'"
def test_an_evaluation_leaves_the_optimizers_parts_alone(db):
    """Adam has two slots per weight: about two thirds of a state, here in many small parts."""
    db.rows(f'ALTER DATABASE "{db.name}" SET track_functions = \'all\'')
    load_digits(db, 60, 20)
    pack(db, 1)
    load_architectures(db)
    select(db, "mst", [(1, ADAM, "batch_size=16, epochs=1")])
    settings = ("SET madlib_mop.state_part_bytes = 2048",)
    run = fit(db, "out", "mst", 1, settings, seed=1, validation_table="valid")
    ((needed, total),) = db.rows(
        "SELECT forward_parts, (SELECT count(*) FROM madlib_mop.model_state s WHERE s.run_id = m.run_id)"
        " FROM madlib_mop.model m WHERE run_id = %s",
        [run.run_id],
    )
    assert 0 < needed <= total / 2
    n_evaluations = 2  # on training and validation rows; the only visit began without a state
    deadline = time.monotonic() + 30
    while (n_reads := db.value(N_READS)) < n_evaluations * needed and time.monotonic() < deadline:
        db.rows("SELECT pg_sleep(0.1)")  # statistics are sent when the sessions end
    assert n_reads == n_evaluations * needed
    loss, metric = db.rows("SELECT training_loss_final, training_metrics_final FROM out_info")[0]
    db.rows("SELECT madlib.madlib_keras_evaluate('out', 'train', 'again', mst_key => 1)")
    assert db.rows("SELECT loss, metric FROM again") == [(loss, metric)]
