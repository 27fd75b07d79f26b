"""Promise 15: damaged bytes are found by the SHA-256 that is recorded for them, before they are used."""

import pytest

from tests.helpers.averaging import average, fit_statement
from tests.helpers.security.attacks import refusal_of
from tests.helpers.steering import replayed
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


def damage_table(db, table: str) -> None:
    """Change one byte of the weights of the first model in an output table."""
    db.rows(
        f"UPDATE {table} SET model_weights = set_byte(model_weights, 2, get_byte(model_weights, 2) # 1)"
        " WHERE mst_key = 1"
    )


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


#: Damages the state that a model has after its fifth visit, as it is stored.
DAMAGE_FIFTH = f"""
CREATE FUNCTION damage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.mst_key = 1 AND NEW.version = 5 AND NEW.part = 0 THEN NEW.data = {FLIP.replace("data", "NEW.data")}; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER damage BEFORE INSERT ON madlib_mop.model_state FOR EACH ROW EXECUTE FUNCTION damage()
"""


def test_a_damaged_state_is_trained_again_from_the_best_one(trained):
    """The model fails in its third iteration, and its best state is that of the second."""
    db = trained
    options = {
        "seed": 3, "validation_table": "valid", "metrics_compute_frequency": 1, "schedule": "rotation",
        "early_stopping": "patience=3, metric=loss, restore_best=true",
    }  # fmt: skip
    best = "SELECT best_state ->> 'epoch' FROM madlib_mop.model WHERE run_id = %s AND mst_key = 1"
    expected = digests(db, (whole := fit(db, "whole", "mst", 4, **options)).run_id)
    assert db.value(best, [whole.run_id]) == "4"
    db.rows(DAMAGE_FIFTH)
    try:
        run_id = fit(db, "part", "mst", 4, **options).run_id
    finally:
        db.rows("DROP FUNCTION damage CASCADE")
    assert set(weights(db, "part")) == {2} and db.value(best, [run_id]) == "2"
    state, detail = state_of(db, run_id, 1)
    statement = f"SELECT madlib_mop.clone_model({run_id}, 1);"
    assert state == "failed" and "epoch 3, position 2" in detail and "its stored state is damaged" in detail
    assert f"{statement} trains a model with the same parameters from its best iteration, 2," in detail
    db.rows(statement)
    db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    clone, other = digests(db, run_id)[3], digests(db, run_id)[2]
    assert (clone, other) == (expected[1], expected[2]) and set(weights(db, "part")) == {2, 3}
    visits = "SELECT min(epoch), count(*) FROM madlib_mop.visit WHERE run_id = %s AND mst_key = 3"
    assert db.rows(visits, [run_id]) == [(3, 4)], "it repeats what came after its best iteration"
    again = replayed(db, run_id, "repeated")
    assert (again[3], again[2]) == (clone, other)


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


@pytest.fixture(scope="module")
def in_a_table(trained):
    """An output table with damaged weights of mst_key 1; the number of its run."""
    run = fit(trained, "spoilt", "mst", 1, seed=3)
    assert trained.value(PREDICT.format("'spoilt', 1"))
    assert trained.value("SELECT bool_and(weights_digest = encode(sha256(model_weights), 'hex')) FROM spoilt")
    damage_table(trained, "spoilt")
    return run.run_id


@pytest.mark.parametrize(
    "statement",
    [
        PREDICT.format("'spoilt', 1"),
        "SELECT madlib.madlib_keras_evaluate('spoilt', 'valid', 'sums', mst_key := 1)",
        "SELECT madlib_mop.register('spoilt', 'spoilt', 1)",
        "SELECT madlib_mop.export_model('spoilt', 1, 'keras')",
        "SELECT madlib_mop.model_card('spoilt', 1)",
        "SELECT madlib_mop.make_ensemble('spoilt', 'valid', 'together', mst_keys => ARRAY[1, 2])",
        "SELECT madlib.load_keras_model('arch', (SELECT model_arch FROM spoilt WHERE mst_key = 1), weights => 'spoilt',"
        " weights_key => 1)",
        "SELECT madlib.madlib_keras_fit_multiple_model('train', 'spoilt', 'mst', 1, warm_start := true)",
    ],
)
def test_damaged_weights_of_an_output_table_are_not_used(trained, in_a_table, statement):
    error = refusal_of(trained, statement)
    assert error.sqlstate == "XX001" and "mst_key 1" in error.message, error
    assert "is damaged: its weights do not have the SHA-256 that is recorded" in error.message
    assert "madlib_mop.resume" in error.hint and "weights_digest" in error.hint


def test_the_other_models_of_the_table_predict_and_the_table_can_be_written_again(trained, in_a_table):
    db, before = trained, trained.rows("SELECT * FROM spoilt_info")
    assert db.value(PREDICT.format("'spoilt', 2"))
    db.rows("ALTER TABLE spoilt RENAME TO kept; ALTER TABLE spoilt_info RENAME TO kept_info;"
            " ALTER TABLE spoilt_summary RENAME TO kept_summary")  # fmt: skip
    db.rows("SELECT madlib_mop.resume(%s)", [in_a_table])
    assert db.value(PREDICT.format("'spoilt', 1")) and db.rows("SELECT * FROM spoilt_info") == before


def test_weights_that_were_changed_on_purpose_are_used(trained):
    fit(trained, "changed", "mst", 1, seed=3)
    damage_table(trained, "changed")
    trained.rows("UPDATE changed SET weights_digest = NULL WHERE mst_key = 1")
    assert trained.value(PREDICT.format("'changed', 1"))


def test_tables_of_earlier_versions_have_no_digest(trained):
    """A warm start also writes to them."""
    db = trained
    fit(db, "earlier", "mst", 1, seed=3)
    db.rows("ALTER TABLE earlier DROP COLUMN weights_digest")
    assert db.value(PREDICT.format("'earlier', 1"))
    before = weights(db, "earlier")
    fit(db, "earlier", "mst", 1, seed=3, warm_start=True)
    assert db.value(PREDICT.format("'earlier', 1")) and weights(db, "earlier").keys() == before.keys()
    assert weights(db, "earlier") != before


def test_a_damaged_table_of_model_averaging(trained):
    db = trained
    run = average(db, "averaged", 1, source_table="train")
    assert db.value(PREDICT.format("'averaged', NULL"))
    db.rows("UPDATE averaged SET model_weights = set_byte(model_weights, 2, get_byte(model_weights, 2) # 1)")
    for statement, params in (
        (PREDICT.format("'averaged', NULL"), []),
        fit_statement("averaged", 1, source_table="train", warm_start=True),
    ):
        error = refusal_of(db, statement, params)
        assert error.sqlstate == "XX001" and "public.averaged is damaged" in error.message, error
    assert run.run_id


def test_an_average_of_damaged_states_is_not_made(trained):
    """What a segment has trained is stored until the iteration is averaged. A trigger damages it as it is stored."""
    db = trained
    data = FLIP.replace("data", "NEW.data")
    db.rows(
        "CREATE FUNCTION damage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.segment_id = 1 AND NEW.part = 0"
        f" THEN NEW.data = {data}; END IF; RETURN NEW; END $$;"
        " CREATE TRIGGER damage BEFORE INSERT ON madlib_mop.model_state FOR EACH ROW EXECUTE FUNCTION damage()"
    )
    try:
        error = refusal_of(db, *fit_statement("of_damaged", 1, source_table="train"))
    finally:
        db.rows("DROP FUNCTION damage CASCADE")
    assert "what segment 1 has trained: its stored state is damaged" in error.message, error
    run_id = db.value("SELECT max(run_id) FROM madlib_mop.run")
    state, detail = state_of(db, run_id, 1)
    assert state == "failed" and "SHA-256 that is recorded" in detail
    assert db.value("SELECT to_regclass('of_damaged')") is None
