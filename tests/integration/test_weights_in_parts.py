"""Models whose weights do not fit into a field: with a field of 1 MB, functions give what they give with a larger one.

`test_weights_above_a_field` does the same with real sizes.
"""

import numpy as np
import pytest

from madlib_mop.client import connect
from tests.helpers.averaging import fit_statement
from tests.helpers.dumps import restored_copy
from tests.helpers.security.attacks import refusal_of
from tests.helpers.training import (
    ADAM,
    digests,
    fit,
    load_digits,
    mlp,
    one_thread,
    pack,
    script,
    select_configurations,
    weights,
)

#: Bytes of the weights of `mlp(LARGE)`: more than 1 MB, in a part of that size and a smaller one.
LARGE, N_BYTES = 4000, 4 * (64 * 4000 + 4000 + 4 * 4000 + 4000 * 10 + 10)
LOWER = "INSERT INTO madlib_mop.setting (name, value) VALUES ('weights_field_mb', '1')"
RESET = "DELETE FROM madlib_mop.setting WHERE name = 'weights_field_mb'"
X = "array_fill(0.5::real, ARRAY[8, 8, 1])"
WHOLE = """
SELECT p.mst_key, string_agg(p.data, ''::bytea ORDER BY p.part) FROM {}_weights p GROUP BY p.mst_key
"""


@pytest.fixture(scope="module")
def models(db):
    """Tables ``field`` and ``parts`` with the same models, a large and a small one; in ``parts``, it is in parts."""
    one_thread()
    load_digits(db, 120, 40)
    for n_hidden in (LARGE, 24):
        db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [mlp(n_hidden)])
    pack(db, 2)
    select_configurations(db, "mst", [(1, ADAM, "batch_size=16, epochs=1"), (2, ADAM, "batch_size=16, epochs=1")])
    fit(db, "field", "mst", 2, seed=3, validation_table="valid")
    db.rows(LOWER)
    db.fitted = fit(db, "parts", "mst", 2, seed=3, validation_table="valid")
    return db


def only(db, table):
    """Return the weights in parts, by mst_key."""
    return {key: bytes(data) for key, data in db.rows(WHOLE.format(table))}


def test_the_table_beside_has_what_does_not_fit(models):
    db, expected = models, weights(models, "field")
    assert len(expected[1]) == N_BYTES > 1 << 20 > len(expected[2])
    rows = db.rows("SELECT mst_key, model_weights IS NULL, weights_digest FROM parts ORDER BY mst_key")
    digest = dict(db.rows("SELECT mst_key, weights_digest FROM field"))
    assert rows == [(1, True, digest[1]), (2, False, digest[2])]
    assert only(db, "parts") == {1: expected[1]}
    assert bytes(db.value("SELECT model_weights FROM parts WHERE mst_key = 2")) == expected[2]
    lengths = db.rows("SELECT part, length(data) FROM parts_weights ORDER BY part")
    assert lengths == [(0, 1 << 20), (1, N_BYTES - (1 << 20))]
    named = "SELECT qualified_names ->> 'model_weights' FROM {}_summary"
    assert db.value(named.format("parts")) == "public.parts_weights" and db.value(named.format("field")) is None
    assert "mst_key 1: model_weights is NULL" in db.fitted.notices and "mst_key 2: model" not in db.fitted.notices
    assert db.value("SELECT to_regclass('field_weights')") is None


@pytest.mark.parametrize(
    "call",
    [
        f"SELECT madlib_mop.predict('{{}}', 1, {X})",
        "SELECT madlib_mop.predict('{}', 1, x) FROM (SELECT x FROM valid_rows ORDER BY id) r",
        "SELECT madlib_mop.predict_class('{}', 1, x) FROM (SELECT x FROM valid_rows ORDER BY id) r",
        "SELECT * FROM madlib_mop.metrics('{}', 'valid', mst_key => 1)",
    ],
)
def test_functions_of_models_return_the_same(models, call):
    expected, found = (models.rows(call.format(table)) for table in ("field", "parts"))
    assert expected and found == expected


@pytest.mark.parametrize(
    "call",
    [
        "madlib_keras_evaluate('{}', 'valid', '{}', mst_key := 1)",
        "madlib_keras_predict('{}', 'valid_rows', 'id', 'x', '{}', mst_key := 1)",
    ],
)
def test_functions_that_write_tables_write_the_same(models, call):
    db = models
    for table in ("field", "parts"):
        db.rows(f"SELECT madlib.{call.format(table, f'of_{table}')}")
    expected = db.rows("SELECT * FROM of_field ORDER BY 1, 2, 3")
    assert expected and db.rows("SELECT * FROM of_parts ORDER BY 1, 2, 3") == expected
    db.rows("DROP TABLE of_field, of_parts")


@pytest.fixture(scope="module")
def registered(models):
    for table, setting in (("field", RESET), ("parts", LOWER)):
        models.rows(setting)
        models.rows(f"SELECT madlib_mop.register('of_{table}', '{table}', 1)")
    return models


def test_a_version_has_the_parts(registered):
    db, ours = registered, "(SELECT version_id FROM madlib_mop.model_version WHERE name = 'of_parts')"
    assert db.rows(f"SELECT weights FROM madlib_mop.version_content WHERE version_id = {ours}") == [(None,)]
    parts = f"SELECT data FROM madlib_mop.version_part WHERE version_id = {ours} ORDER BY part"
    data = [bytes(part) for (part,) in db.rows(parts)]
    assert b"".join(data) == weights(db, "field")[1] and len(data) == 2
    digests = db.rows("SELECT DISTINCT digest, n_bytes, run_id IS NOT NULL FROM madlib_mop.registry")
    assert len(digests) == 1 and digests[0][1:] == (N_BYTES, True)


def test_a_version_of_a_large_field_or_file_is_in_parts(registered):
    """A table of version 1.0.0 has larger fields than pg_dump can read."""
    db = registered
    file = db.value("SELECT madlib_mop.export_model('parts', 1, 'keras')")
    db.rows("SELECT madlib_mop.register('of_old', 'field', 1)")
    db.rows("SELECT madlib_mop.import_version('of_file', %s)", [file])
    for name in ("of_old", "of_file"):
        assert db.rows(
            "SELECT length(data) FROM madlib_mop.version_part JOIN madlib_mop.model_version USING (version_id)"
            " WHERE name = %s ORDER BY part",
            [name],
        ) == [(1 << 20,), (N_BYTES - (1 << 20),)]
        predict = f"SELECT madlib_mop.predict('{{}}@1', NULL, {X})"
        assert db.value(predict.format(name)) == db.value(predict.format("of_field"))
        db.rows(f"SELECT madlib_mop.drop_registered('{name}')")


@pytest.mark.parametrize(
    "call",
    [
        f"SELECT madlib_mop.predict('of_{{}}@1', NULL, {X})",
        "SELECT madlib_mop.predict_class('of_{}@1', NULL, x) FROM (SELECT x FROM valid_rows ORDER BY id) r",
        "SELECT * FROM madlib_mop.metrics('of_{}@1', 'valid')",
    ],
)
def test_a_registered_model_returns_the_same(registered, call):
    expected, found = (registered.rows(call.format(table)) for table in ("field", "parts"))
    assert expected and found == expected


def test_a_role_that_may_predict_predicts_and_reads_no_part(registered):
    db, role = registered, "predicts_with_parts"
    db.cluster.create_role(role)
    db.rows("SELECT madlib_mop.grant_model('of_parts', %s, 'predict')", [role])
    db.rows("SELECT madlib_mop.grant_predict(%s, 'field')", [role])
    predict = f"SELECT madlib_mop.predict('of_parts@1', NULL, {X})"
    assert db.value(predict, role=role) == db.value(predict)
    assert refusal_of(db, "SELECT * FROM madlib_mop.version_part", role=role).sqlstate == "42501"
    of_table = f"SELECT madlib_mop.predict('parts', 1, {X})"
    assert refusal_of(db, of_table, role=role).sqlstate == "42501"
    db.rows("SELECT madlib_mop.grant_predict(%s, 'parts')", [role])
    assert db.value(of_table, role=role) == db.value(of_table)


def test_a_dropped_version_leaves_no_part(models):
    db = models
    db.rows("SELECT madlib_mop.register('passing', 'parts', 1)")
    before = db.value("SELECT count(*) FROM madlib_mop.version_part")
    db.rows("SELECT madlib_mop.drop_version('passing', 1)")
    assert before - db.value("SELECT count(*) FROM madlib_mop.version_part") == 2


@pytest.mark.parametrize("of", ["{}', 1", "of_{}@1', NULL"])
def test_exports_have_the_same_weights(registered, of):
    from madlib_mop.client.exported.weights import read_safetensors

    expected = weights(registered, "field")[1]
    for table in ("field", "parts"):
        file = registered.value(f"SELECT madlib_mop.export_model('{of.format(table)}, 'safetensors')")
        assert read_safetensors(bytes(file))[1] == expected
        parts = registered.rows(f"SELECT * FROM madlib_mop.export_parts('{of.format(table)}, 'safetensors')")
        assert b"".join(bytes(part) for (part,) in parts) == bytes(file) and len(parts) == 1
    card = registered.value(f"SELECT madlib_mop.model_card('{of.format('parts')})")
    assert f"{N_BYTES // 4:,}" in card


def test_the_client_builds_the_model(registered):
    expected = weights(registered, "field")[1]
    with connect(registered.dsn) as client:
        for model in (client.model("parts", 1), client.registered("of_parts@1")):
            arrays = [array.ravel() for array in model.to_keras().get_weights()]
            assert np.concatenate(arrays).astype(np.float32).tobytes() == expected


def test_an_ensemble_is_in_parts_too(models):
    db = models
    db.rows("SELECT madlib_mop.make_ensemble('parts', 'valid', 'together', mst_keys => '{1, 2}', n_members => 6)")
    db.rows(RESET)
    db.rows("SELECT madlib_mop.make_ensemble('parts', 'valid', 'in_one', mst_keys => '{1, 2}', n_members => 6)")
    db.rows(LOWER)
    expected = weights(db, "in_one")
    predict = f"SELECT madlib_mop.predict('{{}}', 1, {X})"
    assert db.value(predict.format("together")) == db.value(predict.format("in_one"))
    if len(expected[1]) > 1 << 20:
        assert only(db, "together") == expected
    assert db.value("SELECT weights_digest FROM together") == db.value("SELECT weights_digest FROM in_one")


def test_a_warm_start_goes_on_from_the_training_state(models):
    db = models
    options = {"seed": 3, "validation_table": "valid", "warm_start": True}
    fit(db, "again", "mst", 2, seed=3, validation_table="valid")
    expected = fit(db, "again", "mst", 1, **options)
    assert "weights only" not in expected.notices
    longer = fit(db, "field_again", "mst", 2, seed=3, validation_table="valid")
    db.rows(RESET)
    found = fit(db, "field_again", "mst", 1, **options)
    db.rows(LOWER)
    assert digests(db, found.run_id) == digests(db, expected.run_id) and longer.run_id != found.run_id
    assert only(db, "again") == {1: weights(db, "field_again")[1]}
    assert db.value("SELECT count(*) FROM field_again_weights") == 0, "its weights are in the field now"


def test_a_warm_start_without_a_training_state_is_told_so(models):
    db = models
    fit(db, "cold", "mst", 1, seed=3)
    db.rows("DELETE FROM madlib_mop.run WHERE model_output_table = 'public.cold'")
    error = refusal_of(
        db, "SELECT madlib.madlib_keras_fit_multiple_model('train', 'cold', 'mst', 1, warm_start := true)"
    )
    assert "mst_key 1 of public.cold has no weights to continue with" in error.message
    assert "training state" in error.hint


def test_tables_are_dropped_replaced_and_written_again(models):
    db = models
    run = fit(db, "whole", "mst", 1, seed=3)
    expected = only(db, "whole")
    names = db.value("SELECT madlib_mop.drop_models('whole')")
    assert [name.removeprefix("public.") for name in sorted(names)] == [
        "whole", "whole_info", "whole_summary", "whole_weights",
    ]  # fmt: skip
    db.rows("SELECT madlib_mop.resume(%s)", [run.run_id])
    assert only(db, "whole") == expected
    fit(db, "whole", "mst", 1, seed=4, replace=True)
    assert only(db, "whole").keys() == {1} and only(db, "whole") != expected
    db.rows("DROP TABLE whole, whole_info, whole_summary")
    call = "SELECT madlib.madlib_keras_fit_multiple_model('train', 'whole', 'mst', 1)"
    error = refusal_of(db, call)
    assert error.sqlstate == "42P07" and "whole_weights" in error.message
    db.rows("SELECT madlib_mop.drop_models('whole')")
    assert db.value("SELECT to_regclass('whole_weights')") is None


def test_a_table_of_that_name_that_is_another_one_is_kept(models):
    db = models
    db.rows("CREATE TABLE small_weights (grams integer)")
    error = refusal_of(db, "SELECT madlib.madlib_keras_fit_multiple_model('train', 'small', 'mst', 1)")
    assert error.sqlstate == "42P07" and "small_weights" in error.message
    error = refusal_of(db, "SELECT madlib.madlib_keras_fit_multiple_model('train', 'small', 'mst', 1, replace := true)")
    assert "was not written by a fit function" in error.message
    db.rows("CREATE TABLE small AS SELECT * FROM field WHERE mst_key = 2")
    db.rows("CREATE TABLE small_info AS TABLE field_info; CREATE TABLE small_summary AS TABLE field_summary")
    assert db.value(f"SELECT madlib_mop.predict('small', 2, {X})")
    db.rows("SELECT madlib_mop.drop_models('small')")
    assert db.value("SELECT count(*) FROM small_weights") == 0


def test_a_table_of_that_name_with_such_columns_is_kept(models):
    """Of other types, or with more columns: one that a run has written has neither."""
    db = models
    for number, columns in enumerate(("part text, data jsonb", "part integer, data bytea, taken date")):
        db.rows(f"CREATE TABLE bike{number}_weights ({columns}); INSERT INTO bike{number}_weights (part) VALUES ('1')")
        error = refusal_of(db, f"SELECT madlib_mop.drop_models('bike{number}')")
        assert error.sqlstate == "22023", "there are no models of this name"
        db.rows(f"CREATE TABLE bike{number} AS SELECT * FROM field WHERE mst_key = 2")
        db.rows(f"CREATE TABLE bike{number}_info AS TABLE field_info")
        db.rows(f"CREATE TABLE bike{number}_summary AS TABLE field_summary")
        call = f"SELECT madlib.madlib_keras_fit_multiple_model('train', 'bike{number}', 'mst', 1, replace := true)"
        assert "was not written by a fit function" in refusal_of(db, call).message
        db.rows(f"SELECT madlib_mop.drop_models('bike{number}')")
        assert db.value(f"SELECT count(*) FROM bike{number}_weights") == 1


def test_a_warm_start_of_a_table_without_digests_goes_on_again(models):
    """Tables of version 1.0.0 have no column for them."""
    db = models
    options = {"seed": 3, "validation_table": "valid", "warm_start": True}
    fit(db, "older", "mst", 1, seed=3, validation_table="valid")
    db.rows("ALTER TABLE older DROP COLUMN weights_digest")
    for _ in range(2):
        assert "weights only" not in fit(db, "older", "mst", 1, **options).notices
    assert only(db, "older").keys() == {1}


def test_the_model_of_an_average_is_in_parts(models):
    db = models
    for table, setting in (("mean_field", RESET), ("mean", LOWER)):
        db.rows(setting)
        db.rows(*fit_statement(table, 1, source_table="train", seed=5))
    ((weights_of, digest),) = db.rows("SELECT model_weights, weights_digest FROM mean_field")
    assert db.rows("SELECT model_weights, weights_digest FROM mean") == [(None, digest)]
    parts = db.rows("SELECT data FROM mean_weights ORDER BY part")
    assert b"".join(bytes(data) for (data,) in parts) == bytes(weights_of) and len(parts) == 2
    predict = f"SELECT madlib_mop.predict('{{}}', NULL, {X})"
    assert db.value(predict.format("mean")) == db.value(predict.format("mean_field"))
    db.rows("SELECT madlib_mop.register('mean', 'mean')")
    assert db.value(f"SELECT madlib_mop.predict('mean@1', NULL, {X})") == db.value(predict.format("mean"))
    db.rows(*fit_statement("mean", 1, source_table="train", seed=5, warm_start=True))
    assert db.value("SELECT count(*) FROM mean_weights") == 2


def test_start_weights_of_layers_come_from_parts(models):
    db = models
    load = "SELECT madlib.load_keras_model('started', %s::json, weights => '{}', weights_key => 1)"
    for table in ("field", "parts"):
        db.rows(load.format(table), [mlp(LARGE)])
    rows = db.rows("SELECT model_weights FROM started ORDER BY model_id")
    assert bytes(rows[0][0]) == bytes(rows[1][0]) == weights(db, "field")[1]


@pytest.fixture(scope="module")
def restored(registered):
    """A database restored from the dump of another one."""
    with restored_copy(registered) as copy:
        yield copy


def test_a_dump_has_all(registered, restored):
    for call in (f"SELECT madlib_mop.predict('parts', 1, {X})", f"SELECT madlib_mop.predict('of_parts@1', NULL, {X})"):
        assert restored.value(call) == registered.value(call)
    again = "SELECT madlib.madlib_keras_fit_multiple_model('train', 'parts', 'mst', 1, warm_start := true, seed := 3)"
    script(restored, again)
    assert restored.value("SELECT count(*) FROM parts_weights") == 2


SPOIL = {
    "changed": "UPDATE spoilt_weights SET data = set_byte(data, 2, get_byte(data, 2) # 1) WHERE part = 1",
    "missing": "DELETE FROM spoilt_weights WHERE part = 0",
    "of another model": "UPDATE spoilt_weights SET mst_key = 2",
}


@pytest.mark.parametrize("how", SPOIL)
def test_damaged_parts_are_not_used(models, how):
    """Also in the middle of what is sent to a trainer, which is ended then."""
    db = models
    db.rows("CREATE TABLE spoilt AS TABLE parts; CREATE TABLE spoilt_info AS TABLE parts_info")
    db.rows("CREATE TABLE spoilt_summary AS TABLE parts_summary; CREATE TABLE spoilt_weights AS TABLE parts_weights")
    db.rows(SPOIL[how])
    try:
        for statement in (
            f"SELECT madlib_mop.predict('spoilt', 1, {X})",
            "SELECT madlib.madlib_keras_evaluate('spoilt', 'valid', 'sums', mst_key := 1)",
            "SELECT madlib_mop.register('spoilt', 'spoilt', 1)",
            "SELECT madlib_mop.export_model('spoilt', 1, 'keras')",
            "SELECT madlib_mop.make_ensemble('spoilt', 'valid', 'of_spoilt', mst_keys => '{1, 2}')",
        ):
            if how == "of another model" and "make_ensemble" in statement:
                continue  # it has no weights, and is left out
            error = refusal_of(db, statement)
            assert error.sqlstate == "XX001" and "mst_key 1" in error.message, (statement, error)
        assert db.value(f"SELECT madlib_mop.predict('parts', 1, {X})")
        assert db.value("SELECT count(*) FROM madlib_mop.model_version WHERE name = 'spoilt'") == 0
    finally:
        db.rows("DROP TABLE spoilt, spoilt_info, spoilt_summary, spoilt_weights")


def test_without_the_table_of_parts_there_are_no_weights(models):
    db = models
    db.rows("ALTER TABLE parts_weights RENAME TO elsewhere")
    try:
        error = refusal_of(db, "SELECT madlib.madlib_keras_evaluate('parts', 'valid', 'sums', mst_key := 1)")
        assert "model_weights is NULL" in error.message and "public.parts_weights" in error.hint
    finally:
        db.rows("ALTER TABLE elsewhere RENAME TO parts_weights")


def test_resume_names_the_table_of_parts_that_is_missing(models):
    db = models
    call = f"SELECT madlib_mop.resume({db.fitted.run_id})"
    db.rows("ALTER TABLE parts_weights RENAME TO elsewhere")
    try:
        error = refusal_of(db, call)
        assert error.sqlstate == "42P01" and "but not public.parts_weights" in error.message
        assert "SELECT madlib_mop.drop_models('public.parts');" in error.hint
    finally:
        db.rows("ALTER TABLE elsewhere RENAME TO parts_weights")
    db.rows(call)
    run = fit(db, "lost", "mst", 1, seed=3)
    expected = only(db, "lost")
    db.rows("DROP TABLE lost_weights")
    call = f"SELECT madlib_mop.resume({run.run_id})"
    assert "but not public.lost_weights" in refusal_of(db, call).message
    db.rows("SELECT madlib_mop.drop_models('lost')")
    db.rows(call)
    assert only(db, "lost") == expected


def test_a_wrong_setting_is_told_before_training(models):
    db = models
    db.rows("UPDATE madlib_mop.setting SET value = '501' WHERE name = 'weights_field_mb'")
    try:
        error = refusal_of(db, "SELECT madlib.madlib_keras_fit_multiple_model('train', 'refused', 'mst', 1)")
        assert "weights_field_mb must be at most 500" in error.message
    finally:
        db.rows("UPDATE madlib_mop.setting SET value = '1' WHERE name = 'weights_field_mb'")
