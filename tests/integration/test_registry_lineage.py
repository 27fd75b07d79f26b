"""Where a version comes from: the run that trained its weights, visits and metrics; and the best model of a table."""

import pytest

from tests.helpers.inference import User
from tests.helpers.registry import answer, write_numbers
from tests.helpers.security.attacks import insert, record_run

LINEAGE = "version, run_id, source_table, epoch, position, segment_id, n_rows, rows_digest, digest_in, digest_out"


@pytest.fixture(scope="module")
def user(db, keras):
    """A session with a table of models, numbers, which predict 1.0, 2.0 and 3.0."""
    user = User(db.connect())
    write_numbers(user, keras, "numbers", [1.0, 2.0, 3.0])
    yield user
    user.connection.close()


def trained(db, user, run_id: int, mst_key: int, **columns) -> None:
    """Record a run whose model 1 has the weights of one of the table's models, and columns of its own."""
    record_run(db, run_id, user.value("SELECT current_user::text"))
    digest = user.value("SELECT encode(sha256(model_weights), 'hex') FROM numbers WHERE mst_key = %s", mst_key)
    for name, value in {"weights_digest": digest, "epoch": 1, **columns}.items():
        user.rows(f"UPDATE madlib_mop.model SET {name} = %s WHERE run_id = %s AND mst_key = 1", value, run_id)
    user.rows("UPDATE madlib_mop.segment SET fingerprint = 'of rows' WHERE run_id = %s", run_id)


def visited(db, run_id: int, mst_key: int, epoch: int, digest_in: str, digest_out: str) -> None:
    """Record one more visit."""
    insert(
        db, "visit", run_id=run_id, mst_key=mst_key, epoch=epoch, position=1, segment_id=0, started_at="now",
        ended_at="now", n_rows=epoch, state_bytes=1, digest_in=digest_in, digest_out=digest_out, attempt=1,
    )  # fmt: skip


def visits_of(user, name: str) -> list[tuple[int, int]]:
    """Return model and epoch of the visits of a registered model."""
    query = "SELECT mst_key, epoch FROM madlib_mop.version_lineage WHERE name = %s ORDER BY ended_at, epoch"
    return user.rows(query, name)


def test_lineage_is_found_by_the_weights_and_survives_the_run(db, user):
    trained(db, user, 17, 2)
    user.rows("SELECT madlib_mop.register('lineage', 'numbers', 2); SELECT madlib_mop.register('lineage',"
              " 'numbers', 3)")
    user.rows("SELECT madlib_mop.drop_run(17)")
    assert user.rows("SELECT version, run_id, epoch, metrics FROM madlib_mop.registry WHERE name = 'lineage' ORDER"
                     " BY 1") == [
        (1, 17, 1, {"training_loss": 0.5}), (2, None, None, {}),
    ]  # fmt: skip
    assert user.rows(f"SELECT {LINEAGE} FROM madlib_mop.version_lineage WHERE name = 'lineage'") == [
        (1, 17, "public.t", 1, 1, 0, 1, "of rows", "a", "d")
    ]


def test_restored_weights_have_the_epoch_the_metrics_and_the_visits_of_the_best_iteration(db, user):
    trained(db, user, 20, 2, epoch=3, state="trained", state_version=-2, best_state='{"epoch": 1, "version": -2}')
    for epoch, before, after in ((2, "d", "e"), (3, "e", "f")):
        visited(db, 20, 1, epoch, before, after)
    insert(db, "metric", run_id=20, mst_key=1, epoch=3, data_set="training", ordinal=0, name="loss", value=0.75,
           elapsed_s=1.0)  # fmt: skip
    register = "SELECT madlib_mop.register('restored', 'numbers', 2)"
    found = "SELECT epoch, metrics FROM madlib_mop.registry WHERE name = 'restored' ORDER BY version DESC LIMIT 1"
    on_board = "SELECT metric_epoch, training_loss FROM madlib_mop.leaderboard WHERE run_id = 20"
    user.rows(register)
    assert user.rows(on_board) == [(1, 0.5)]
    assert user.rows(found) == [(1, {"training_loss": 0.5})] and visits_of(user, "restored") == [(1, 1)]
    user.rows("UPDATE madlib_mop.model SET state_version = 7, digest = 'f' WHERE run_id = 20")  # it was trained further
    user.rows(register)
    assert user.rows(found) == [(3, {"training_loss": 0.75})] and user.rows(on_board) == [(3, 0.75)]
    assert visits_of(user, "restored") == [(1, 1), (1, 1), (1, 2), (1, 3)]
    user.rows("SELECT madlib_mop.drop_run(20)")


def test_visits_are_those_that_trained_the_weights_also_as_another_model(db, user):
    """A search let model 1 continue with the state of model 5 after its second epoch; both trained it further."""
    trained(db, user, 21, 2, epoch=3, digest="f", taken_over='{"mst_key": 5, "epoch": 2, "version": 2}')
    for visit in ((5, 1, "a", "g"), (1, 2, "d", "e"), (5, 2, "g", "h"), (5, 3, "h", "i"), (1, 3, "h", "f")):
        visited(db, 21, *visit)
    user.rows("SELECT madlib_mop.register('crossed', 'numbers', 2)")
    assert visits_of(user, "crossed") == [(5, 1), (5, 2), (1, 3)]
    user.rows("UPDATE madlib_mop.model SET digest = 'an average' WHERE run_id = 21")
    user.rows("SELECT madlib_mop.register('averaged', 'numbers', 2)")
    assert visits_of(user, "averaged") == [(1, 1), (1, 2), (1, 3)]
    user.rows("SELECT madlib_mop.drop_run(21)")


def test_without_a_key_the_best_of_the_leaderboard_is_registered(db, user):
    name = user.value("SELECT current_user::text")
    record_run(db, 18, name, model_output_table="public.numbers")
    user.rows(
        "INSERT INTO madlib_mop.model (run_id, mst_key, ordinal, model_id, compile_params, fit_params, model_arch,"
        " last_epoch, state) VALUES (18, 2, 1, 1, 'c', 'f', '{}', 1, 'trained'), (18, 9, 2, 1, 'c', 'f', '{}', 1,"
        " 'trained');"
        " UPDATE madlib_mop.model m SET state = 'trained', weights_digest = (SELECT encode(sha256(n.model_weights),"
        " 'hex') FROM numbers n WHERE n.mst_key = m.mst_key) WHERE run_id = 18;"
        " INSERT INTO madlib_mop.metric (run_id, mst_key, epoch, data_set, ordinal, name, value, elapsed_s)"
        " VALUES (18, 2, 1, 'training', 0, 'loss', 0.25, 1), (18, 9, 1, 'training', 0, 'loss', 0.125, 1)"
    )
    record_run(db, 19, name, model_output_table="public.numbers")  # it would replace the table, but has not done so
    try:
        version = user.value("SELECT madlib_mop.register('best', 'numbers')")
        assert answer(user, f"best@{version}") == 2.0, "model 9 is better, but not in the table"
        user.rows("UPDATE madlib_mop.model SET weights_digest = 'other' WHERE run_id = 18 AND mst_key = 1")
        version = user.value("SELECT madlib_mop.register('best', 'numbers')")
        assert answer(user, f"best@{version}") == 2.0, "the weights of the others show the run"
    finally:
        user.rows("SELECT madlib_mop.drop_run(18); SELECT madlib_mop.drop_run(19)")
    error = user.refused(user.rows, "SELECT madlib_mop.register('best', 'numbers')")
    assert error.message.startswith("register: mst_key is missing: public.numbers has 3 models, and you may see no run")
    assert error.hint == "Use one of: 1, 2, 3."
