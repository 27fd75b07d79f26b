"""Columns of arrays: several dimensions stay, and short arrays are padded where a proposal says so."""

import keras
import numpy as np
import pytest

from tests.helpers.columns import content, refusal
from tests.helpers.training import ADAM, fit, one_thread

pytestmark = pytest.mark.one_session

#: 14 steps of two numbers each.
_STEPS = """
CREATE TABLE steps AS SELECT g AS id, (SELECT array_agg(ARRAY[sin(g + s), g % 2 + cos(s)] ORDER BY s)
    FROM generate_series(1, 14) AS s) AS steps, g % 2 = 0 AS y FROM generate_series(1, 80) AS g
"""
#: Arrays of up to three earlier values, of which the first rows have fewer; some have NULL.
_LAGS = """
CREATE TABLE lags AS SELECT g AS id, g % 2 AS y,
    CASE WHEN g % 40 = 0 THEN ARRAY[g, NULL, 1] ELSE (ARRAY[g, g * 2, g * 3])[1:least(g, 3)] END::float8[] AS lags
FROM generate_series(1, 80) AS g
"""


@pytest.fixture(scope="module")
def steps(db):
    one_thread()
    db.rows(_STEPS)
    db.rows("SELECT madlib_mop.pack_columns('steps', 'steps_packed', 'y', exclude => '{id}', seed => 1)")
    return db


def test_an_array_of_two_dimensions_is_an_input_of_two(steps):
    steps.rows("SELECT madlib_mop.propose_columns('steps', 'steps_columns', 'y')")
    reason, width = steps.rows("SELECT reason, width FROM steps_columns WHERE name = 'steps'")[0]
    assert reason.startswith("Array of 14 x 2 numbers") and width == 28
    packed = content(steps, "steps_packed")
    assert packed["steps"].shape == (80, 14, 2)
    sent = np.array([row for (row,) in steps.rows("SELECT steps FROM steps")], np.float32)
    scaled = (sent - sent.mean()) / sent.std()
    found = sorted(packed["steps"].tolist())
    np.testing.assert_allclose(found, sorted(scaled.tolist()), atol=1e-5)


def test_a_recurrent_network_follows_such_an_input_and_predicts_rows(steps):
    inputs = keras.Input((14, 2), name="steps")
    network = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(keras.layers.SimpleRNN(3)(inputs)))
    steps.rows("SELECT madlib.load_keras_model('steps_arch', %s::json)", [network.to_json()])
    steps.rows(
        "SELECT madlib.load_model_selection_table('steps_arch', 'steps_mst', '{1}', %s::varchar[], %s::varchar[])",
        [[ADAM], ["batch_size=16, epochs=1"]],
    )
    fit(steps, "steps_models", "steps_mst", 1, source_table="steps_packed", seed=1)
    key = steps.value("SELECT mst_key FROM steps_models")
    n_rows = steps.value(f"SELECT count(madlib_mop.predict_class('steps_models', {key}, s)) FROM steps AS s")
    assert n_rows == 80
    flat = f"predict_class('steps_models', {key}, ROW(array_fill(0.5::float8, ARRAY[28]))::flat_steps)"
    steps.rows("CREATE TYPE flat_steps AS (steps float8[])")
    assert "where 14 x 2 is expected" in str(refusal(steps, flat))


def test_proposed_networks_take_such_an_input(steps):
    steps.rows("SELECT madlib_mop.propose_networks('steps_packed', 'steps_networks', 'steps_configs', n_configs => 6)")
    assert steps.value("SELECT count(*) FROM steps_configs") == 6


def test_arrays_of_several_dimensions_are_rows_of_elements(db):
    db.rows(
        "CREATE TABLE turned AS SELECT CASE WHEN g % 2 = 0 THEN array_fill(g::float8, ARRAY[2, 3])"
        " ELSE array_fill(g::float8, ARRAY[3, 2]) END AS a, g % 3 AS y FROM generate_series(1, 30) AS g"
    )
    db.rows("SELECT madlib_mop.pack_columns('turned', 'turned_packed', 'y', seed => 1)")
    assert content(db, "turned_packed")["a"].shape == (30, 6)


@pytest.fixture(scope="module")
def lags(db):
    db.rows(_LAGS)
    db.rows("SELECT madlib_mop.propose_columns('lags', 'lags_columns', 'y', exclude => '{id}')")
    db.rows(
        "SELECT madlib_mop.pack_columns('lags', 'lags_packed', 'y', columns => 'lags_columns', validation => 0.2,"
        " seed => 1)"
    )
    return db


def test_a_short_array_is_padded_by_a_proposal_and_does_not_lose_the_column(lags):
    proposed = lags.rows("SELECT role, kind, encode, width, n_null, reason FROM lags_columns WHERE name = 'lags'")[0]
    assert proposed[:5] == ("input", "array", "padded", 3, 0) and "shorter array are 0" in proposed[5]
    assert content(lags, "lags_packed")["lags"].shape == (64, 3)
    error = refusal(lags, "pack_columns('lags', 'without', 'y')")
    assert "elements, where" in str(error) and "propose_columns" in error.diag.message_hint


def test_absent_elements_are_the_mean_in_every_way_of_encoding(lags):
    lags.rows("SELECT madlib_mop.transform('lags_packed', 'lags', 'lags_encoded', keep => 'id')")
    rows = dict(lags.rows("SELECT id, lags FROM lags_encoded"))
    assert rows[1][1:] == [0, 0] and rows[2][2] == 0 and rows[40][1] == 0
    assert all(rows[1][:1]) and all(rows[40][::2]) and all(rows[3])
    lags.rows("SELECT madlib.validation_preprocessor_dl('lags', 'lags_later', '*', '*', 'lags_packed')")
    later = sorted(content(lags, "lags_later")["lags"].tolist())
    np.testing.assert_array_equal(np.array(later, np.float32), np.array(sorted(rows.values()), np.float32))


def test_a_longer_array_than_those_of_training_is_one_error(lags):
    lags.rows("CREATE TABLE longer AS SELECT 0 AS id, ARRAY[1, 2, 3, 4]::float8[] AS lags, 1 AS y")
    error = refusal(lags, "transform('lags_packed', 'longer', 'longer_encoded')")
    assert "has 4 elements, where 3 at most are expected" in str(error)
