"""add_models with start weights: a configuration is a duplicate only if it begins with the same weights."""

import json

import numpy as np
import psycopg2
import pytest

from tests.helpers.security.attacks import SOFTMAX, refusal_of
from tests.helpers.training import SGD, fit, load_digits, pack, select_configurations

pytestmark = pytest.mark.one_session


@pytest.fixture(scope="module")
def bench(db):
    """A finished run of one model without start weights; two tables that add it with weights, and with others."""
    load_digits(db, 60, 20)
    pack(db, 2)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [SOFTMAX])
    select_configurations(db, "mst", [(1, SGD, "batch_size=16")])
    db.run_id = fit(db, "out", "mst", 1, seed=1).run_id
    for number in (1, 2):
        weights = np.full(650, 0.01 * number, np.float32).tobytes()
        db.rows(
            "SELECT madlib.load_keras_model(%s, %s::json, %s::bytea)",
            [f"arch_{number}", json.dumps(json.loads(SOFTMAX)), psycopg2.Binary(weights)],
        )
        select_configurations(db, f"mst_{number}", [(1, SGD, "batch_size=16")], f"arch_{number}")
    return db


def test_the_same_configuration_with_the_same_weights_is_refused_and_with_others_is_not(bench):
    add = f"SELECT madlib_mop.add_models({bench.run_id}, %s)"
    assert "same configuration" in refusal_of(bench, add, ["mst"]).message
    assert bench.value(add, ["mst_1"]) == [2]
    assert "mst_key 2 has the same configuration" in refusal_of(bench, add, ["mst_1"]).message
    assert bench.value(add, ["mst_2"]) == [3]
