"""Promise 15: damaged bytes are found by the SHA-256 that is recorded for them, before they are used."""

import pytest

from tests.helpers.security.attacks import refusal_of
from tests.helpers.training import (
    ALIKE,
    digests,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    select_configurations,
    weights,
)

pytestmark = pytest.mark.slow
#: One byte of the first weight differs. It follows the header, whose length is in the first eight bytes.
_PLACE = "(8 + get_byte(data, 0) + 256 * get_byte(data, 1) + 2)"
FLIP = f"set_byte(data, {_PLACE}, get_byte(data, {_PLACE}) # 1)"
PREDICT = "SELECT madlib_mop.predict({}, array_fill(0.5::real, ARRAY[8, 8, 1]))"


@pytest.fixture(scope="module")
def trained(db):
    one_thread()
    load_digits(db, 80, 20)
    load_architectures(db)
    pack(db, 2)
    select_configurations(db, "mst", ALIKE[2:4])
    return db


def damage(db, run_id: int, mst_key: int) -> None:
    """Change one byte of the weights in the newest state of a model."""
    db.rows(f"UPDATE madlib_mop.model_state SET data = {FLIP} WHERE run_id = %s AND mst_key = %s AND part = 0",
            [run_id, mst_key])  # fmt: skip


def drop_outputs(db, table: str) -> None:
    db.rows(f"DROP TABLE {table}, {table}_info, {table}_summary")


def state_of(db, run_id: int, mst_key: int) -> tuple[str, str]:
    (row,) = db.rows(
        "SELECT state, state_detail FROM madlib_mop.model WHERE run_id = %s AND mst_key = %s", [run_id, mst_key]
    )
    return row


@pytest.mark.parametrize("spoil", ["damaged", "gone"])
def test_a_damaged_state_reaches_no_output_table_and_its_model_is_trained_again(trained, spoil):
    db, table = trained, f"out_{spoil}"
    run = fit(db, table, "mst", 1, seed=3)
    first = weights(db, table)
    drop_outputs(db, table)
    if spoil == "damaged":
        damage(db, run.run_id, 1)
    else:
        db.rows("DELETE FROM madlib_mop.model_state WHERE run_id = %s AND mst_key = 1", [run.run_id])
    db.rows("SELECT madlib_mop.resume(%s)", [run.run_id])
    assert weights(db, table) == {2: first[2]}
    state, detail = state_of(db, run.run_id, 1)
    statement = f"SELECT madlib_mop.clone_model({run.run_id}, 1, from_state => false);"
    assert state == "failed" and "its stored state is damaged" in detail and statement in detail
    assert db.value(f"SELECT status_detail FROM {table}_info WHERE mst_key = 1") == detail
    db.rows(statement)
    db.rows("SELECT madlib_mop.resume(%s)", [run.run_id])
    assert set(weights(db, table)) == {2, 3} and weights(db, table)[2] == first[2]
    visits = "SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s AND mst_key = %s"
    assert [db.value(visits, [run.run_id, key]) for key in (1, 2, 3)] == [2, 2, 2], "the others were not trained again"


def test_a_warm_start_from_a_damaged_state_fails_only_its_model(trained):
    db = trained
    run = fit(db, "warm", "mst", 1, seed=3)
    damage(db, run.run_id, 1)
    again = fit(db, "warm", "mst", 1, seed=3, warm_start=True)
    state, detail = state_of(db, again.run_id, 1)
    assert state == "failed" and "SHA-256 that is recorded" in detail
    assert set(weights(db, "warm")) == {2} and state_of(db, again.run_id, 2)[0] == "trained"
    clone = f"SELECT madlib_mop.clone_model({again.run_id}, 1, from_state => false)"
    assert "warm_start => true" in refusal_of(db, clone).message, "it began with the state of an earlier run"


def test_a_run_that_goes_on_evaluates_no_damaged_weights(trained):
    """An evaluation reads the first parts of a state only, so the digest of the whole says nothing."""
    db = trained
    run = fit(db, "evaluated", "mst", 1, seed=3, validation_table="valid", metrics_compute_frequency=1)
    db.rows("DELETE FROM madlib_mop.metric WHERE run_id = %s AND mst_key = 1", [run.run_id])
    db.rows("DELETE FROM madlib_mop.evaluation WHERE run_id = %s AND mst_key = 1", [run.run_id])
    db.rows("UPDATE madlib_mop.model SET state = 'training' WHERE run_id = %s AND mst_key = 1", [run.run_id])
    db.rows("UPDATE madlib_mop.run SET state = 'interrupted' WHERE run_id = %s", [run.run_id])
    drop_outputs(db, "evaluated")
    damage(db, run.run_id, 1)
    db.rows("SELECT madlib_mop.resume(%s)", [run.run_id])
    state, detail = state_of(db, run.run_id, 1)
    assert state == "failed" and "SHA-256 that is recorded" in detail and "evaluation" in detail
    assert len(digests(db, run.run_id)) == 2 and set(weights(db, "evaluated")) == {2}


def test_a_damaged_version_neither_predicts_nor_is_exported(trained):
    db = trained
    fit(db, "versions", "mst", 1, seed=3)
    db.rows("SELECT madlib_mop.register('kept', 'versions', 1)")
    predict = PREDICT.format("'kept@1', NULL")
    assert db.value(predict)
    db.rows("UPDATE madlib_mop.version_content SET weights = set_byte(weights, 2, get_byte(weights, 2) # 1)")
    for statement in (predict, "SELECT madlib_mop.export_model('kept@1', format => 'keras')"):
        error = refusal_of(db, statement)
        assert error.sqlstate == "XX001" and "SHA-256 that is recorded" in error.message, error
