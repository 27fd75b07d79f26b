"""Texts as the weights of their terms: packed, trained on, predicted and exported, with one encoding."""

import numpy as np
import pandas as pd
import pytest

from madlib_mop.client import connect, load_exported
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.models.architecture import check_architecture
from tests.helpers.columns import content, pack_with
from tests.helpers.unit.columns import texts

pytestmark = [pytest.mark.one_session, pytest.mark.timeout(900)]
N_ROWS = 400
TICKETS = f"""
CREATE TABLE tickets AS
SELECT i AS id, CASE WHEN i % 50 > 0 THEN concat_ws(' ', (ARRAY['My', 'The', 'This'])[1 + i % 3],
           (ARRAY['invoice', 'password', 'order №' || i, 'screen'])[1 + i % 4],
           (ARRAY['is wrong!', 'doesn''t work?', 'fehlt völlig'])[1 + i % 7 % 3], 'since day ' || i % 90)
       END AS message,
       i % 5 AS calls, (ARRAY['billing', 'support'])[1 + i % 2] AS team
FROM generate_series(1, {N_ROWS}) AS i
"""


@pytest.fixture(scope="module")
def tickets(db):
    db.rows(TICKETS)
    pack_with(db, 1, "pack_columns('tickets', 'packed', 'team', exclude => '{id}', validation => 0.2, seed => 1)")
    db.rows("SELECT madlib_mop.propose_networks('packed', 'networks', 'configs', n_configs => 3)")
    db.rows("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'configs', 3,"
            " validation_table => 'packed_validation', seed => 1)")  # fmt: skip
    return db


@pytest.fixture(scope="module")
def rows(tickets):
    return tickets.rows("SELECT message, team, calls FROM tickets ORDER BY id")


def preprocessor_of(db, table: str) -> Preprocessor:
    return Preprocessor.from_json(db.value(f"SELECT preprocessor FROM {table}_summary"))


def test_a_text_is_packed_as_two_inputs_without_its_words(tickets):
    inputs = ["numbers", "message", "message_weights"]
    summary = "SELECT independent_varname, index_columns, preprocessor FROM packed_summary"
    ((names, indices, document),) = tickets.rows(summary)
    assert (names, indices) == (inputs, ["message"])
    assert not any(word in document for word in ("invoice", "password", "völlig"))
    described = "SELECT inputs, encoding FROM madlib_mop.describe_preprocessor('packed') WHERE column_name = 'message'"
    ((found, encoding),) = tickets.rows(described)
    assert found == inputs and encoding.startswith("TF-IDF of ")


def test_packed_rows_and_transform_have_the_bits_of_the_encoder(tickets, rows):
    encoder = Encoder(preprocessor_of(tickets, "packed"))
    messages = texts([message for message, _, _ in rows])
    indices, weights = encoder._terms[0][-1].encode(messages)
    packed = [content(tickets, table) for table in ("packed", "packed_validation")]

    def sorted_rows(*arrays):
        return sorted(b"".join(part.tobytes() for part in row) for row in zip(*arrays, strict=True))

    found = [np.concatenate([one[name] for one in packed]) for name in ("message", "message_weights")]
    assert len(found[0]) == N_ROWS and found[1].dtype == np.float32
    assert sorted_rows(*found) == sorted_rows(indices, weights)
    tickets.rows("SELECT madlib_mop.transform('packed', 'tickets', 'encoded', keep => 'id')")
    encoded = tickets.rows("SELECT message, message_weights FROM encoded ORDER BY id")
    assert np.array_equal(np.array([one for one, _ in encoded], np.int32), indices)
    assert np.array_equal(np.array([one for _, one in encoded], np.float32), weights)


def test_every_way_to_predict_returns_the_same(tickets, rows, keras, tmp_path):
    frame = pd.DataFrame({"message": [m for m, _, _ in rows], "calls": [c for _, _, c in rows]})
    for key in (1, 2):  # a network and the linear model: the third has the inputs of the first
        query = f"SELECT madlib_mop.predict('models', {key}, t) FROM tickets t ORDER BY id"
        expected = np.array([found for (found,) in tickets.rows(query)], np.float32)
        alone = tickets.value(f"SELECT madlib_mop.predict('models', {key}, t) FROM tickets t WHERE id = 7")
        assert np.array_equal(np.array(alone, np.float32), expected[6])
        given = f"'models', 'tickets', 'id', '*', 'told_{key}', mst_key => {key}"
        tickets.rows(f"SELECT madlib.madlib_keras_predict({given})")
        told = tickets.rows(f"SELECT prob FROM told_{key} WHERE class_value = 'billing' ORDER BY id")
        assert np.array_equal(np.array(told, np.float32)[:, 0], expected[:, 0])
        with connect(tickets.dsn, settings={"segments": 1}) as client:
            for form in ("keras", "onnx"):
                client.model("models", key).export(tmp_path / f"{key}{form}", form)
                found = load_exported(tmp_path / f"{key}{form}", form).outputs(frame)["team"]
                assert np.array_equal(found, expected) if form == "keras" else np.allclose(found, expected, atol=1e-5)


def test_the_linear_model_learns_from_words(tickets):
    rates = "SELECT validation_metrics_final, status FROM models_info WHERE model_id = 2"
    ((accuracy, status),) = tickets.rows(rates)
    assert status == "trained" and accuracy > 0.9
    arch = tickets.value("SELECT model_arch FROM networks WHERE model_id = 2")
    layers = [layer["class_name"] for layer in check_architecture(arch)["config"]["layers"]]
    assert {"Embedding", "Dot"} <= set(layers)


def test_an_explanation_exchanges_both_inputs_of_a_text(tickets):
    row = "(SELECT t FROM tickets t WHERE id = 7)"
    call = f"madlib_mop.explain_prediction('models', {row}, mst_key => 2, background => 'tickets')"
    found = dict(tickets.rows(f"SELECT feature, contribution FROM {call}"))
    assert {"message", "calls"} <= set(found) and abs(found["message"]) > abs(found["calls"])


def test_partial_dependence_has_the_most_frequent_texts(tickets):
    call = "madlib_mop.partial_dependence('models', 'tickets', 'message', mst_key => 2, of_class => 'billing')"
    found = tickets.rows(f"SELECT value, prediction FROM {call}")
    assert len(found) > 2 and len({prediction for _, prediction in found}) > 1
    counts = dict(tickets.rows("SELECT message, count(*) FROM tickets GROUP BY message"))
    rarest = min(counts[value] for value, _ in found)
    assert sum(count > rarest for count in counts.values()) < len(found)


def test_gradient_boosting_has_a_column_for_each_term(tickets):
    query = "SELECT metric, value, note FROM madlib_mop.gradient_boosting('packed') WHERE data_set = 'validation'"
    found = {metric: (value, note) for metric, value, note in tickets.rows(query)}
    n_terms = preprocessor_of(tickets, "packed").tensors[1].n_codes
    assert found["accuracy"][0] > 0.9
    assert f"the 512 of {n_terms + 2:,} inputs" in found["accuracy"][1], "and the calls, and whether a message is NULL"


def test_hashed_texts_are_packed_as_before(tickets):
    tickets.rows("SELECT madlib_mop.propose_columns('tickets', 'columns', 'team', exclude => '{id}')")
    found = tickets.rows("SELECT encode, width, max_levels FROM columns WHERE name = 'message'")
    assert found == [("tfidf", 512, 32768)]
    tickets.rows("UPDATE columns SET encode = 'hashed_ngrams', width = 64, max_levels = NULL WHERE name = 'message'")
    tickets.rows("SELECT madlib_mop.pack_columns('tickets', 'hashed', 'team', columns => 'columns', seed => 1)")
    assert content(tickets, "hashed")["message"].shape == (N_ROWS, 64)
    assert "message_weights" not in tickets.value("SELECT independent_varname FROM hashed_summary")
