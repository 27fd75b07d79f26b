"""propose_networks and propose_search: from an ordinary table to predictions without a line of Keras."""

import json
from contextlib import closing

import psycopg2
import pytest

from tests.helpers.columns import pack_with
from tests.helpers.database import OneSession
from tests.helpers.security.attacks import user
from tests.helpers.training import one_thread

pytestmark = [pytest.mark.timeout(900), pytest.mark.one_session]

ROOMS = """
CREATE TABLE rooms AS
SELECT i AS id, 10 + i * 7 % 50 AS area, CASE WHEN i % 9 > 0 THEN i * 37 % 500 / 100.0 END AS distance,
       'city' || i * 13 % 40 AS city, date '2020-01-01' + i * 17 % 1000 AS built,
       CASE WHEN i * 7 % 50 + i % 3 * 9 > 35 THEN 'yes' ELSE 'no' END AS sold, 5.0 * (i * 7 % 50) + i % 40 AS price
FROM generate_series(1, 400) AS i
"""


@pytest.fixture(scope="module")
def rooms(db):
    one_thread()
    with closing(OneSession(db)) as db:
        db.rows(ROOMS)
        pack_with(db, 1, "pack_columns('rooms', 'packed', 'sold', validation => 0.2, seed => 1)")
        yield db


@pytest.fixture(scope="module")
def proposed(rooms):
    rooms.rows("SELECT madlib_mop.propose_networks('packed', 'networks', 'configs', n_configs => 8)")
    return rooms


def test_the_tables_are_those_that_the_librarys_own_functions_write(proposed):
    networks, configs = proposed.value("SELECT count(*) FROM networks"), proposed.rows("TABLE configs ORDER BY mst_key")
    assert [row[0] for row in configs] == list(range(1, 9)) and configs[0][1] == 1
    assert {row[1] for row in configs} == set(range(1, networks + 1)) and networks < 8
    for text, name, description in proposed.rows("SELECT model_arch::text, name, description FROM networks"):
        assert json.loads(text)["class_name"] == "Functional" and name and description
    (first,) = proposed.rows("SELECT model_arch::text FROM networks WHERE model_id = 1")[0]
    proposed.rows("SELECT madlib.load_keras_model('again', %s::json)", [first])
    assert proposed.value("SELECT model_arch::text FROM again") == first, "Keras' own text"
    columns = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass"
    assert proposed.rows(columns.format("again")) == proposed.rows(columns.format("networks"))
    lists = "'{1}', ARRAY['optimizer=''adam'', loss=''mse'''], ARRAY['batch_size=8']"
    proposed.rows(f"SELECT madlib.load_model_selection_table('again', 'configs_again', {lists})")
    for table in ("configs", "configs_summary"):
        other = table.replace("configs", "configs_again")
        assert proposed.rows(columns.format(table)) == proposed.rows(columns.format(other))
    assert proposed.rows("SELECT model_arch_table, object_table FROM configs_summary") == [("networks", None)]


def test_the_same_call_proposes_the_same(proposed):
    proposed.rows("SELECT madlib_mop.propose_networks('packed', 'networks_b', 'configs_b', n_configs => 8)")
    assert proposed.rows("TABLE configs_b") == proposed.rows("TABLE configs")
    texts = "SELECT model_id, model_arch::text FROM {} ORDER BY 1"
    assert proposed.rows(texts.format("networks_b")) == proposed.rows(texts.format("networks"))


def test_replace_replaces_tables_of_an_earlier_call_and_no_others(proposed):
    call = "propose_networks('packed', '{}', '{}', n_configs => {}, replace => {})"
    proposed.rows(f"SELECT madlib_mop.{call.format('networks_r', 'configs_r', 2, 'false')}")
    assert "replace => true" in refused(proposed, call.format("networks_r", "configs_x", 1, "false"))
    proposed.rows("CREATE TABLE configs_own (mst_key integer)")
    for networks, configs in (("networks_r", "configs_own"), ("configs_own", "configs_r"), ("packed", "configs_r")):
        message = refused(proposed, call.format(networks, configs, 1, "true"))
        assert "was not written by a fit function, so it is not dropped" in message
    assert proposed.value("SELECT count(*) FROM configs_r") == 2
    proposed.rows(f"SELECT madlib_mop.{call.format('networks_r', 'configs_r', 1, 'true')}")
    assert proposed.rows("SELECT (SELECT count(*) FROM networks_r), (SELECT count(*) FROM configs_r)") == [(1, 1)]


def test_three_statements_from_a_table_to_predictions(proposed):
    proposed.rows("SELECT madlib_mop.propose_networks('packed', 'networks_3', 'configs_3', n_configs => 2)")
    proposed.rows(
        "SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'configs_3', 10,"
        " validation_table => 'packed_validation', seed => 1)"
    )
    assert proposed.value("SELECT max(validation_metrics_final) FROM models_info") > 0.8
    right = proposed.value(
        "SELECT avg((madlib_mop.predict_class('models', 1, r) = r.sold)::int) FROM rooms AS r WHERE id <= 100"
    )
    assert right > 0.8


def test_networks_of_unbalanced_classes_begin_with_the_shares_and_are_replayed_with_the_same_bits(rooms):
    rooms.rows("CREATE TABLE rare AS SELECT *, CASE WHEN id % 40 = 0 THEN 'yes' ELSE 'no' END AS haunted FROM rooms")
    pack_with(rooms, 2, "pack_columns('rare', 'rare_packed', 'haunted', validation => 0.2, seed => 1)")
    with closing(rooms.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.propose_networks('rare_packed', 'rare_networks', 'rare_configs', 3)")
        (notice,) = [text for text in connection.notices if "unbalanced" in text]
    assert "haunted has unbalanced classes: 'yes' has 8 of 320 training rows (2.5 %)" in notice
    for (text,) in rooms.rows("SELECT model_arch::text FROM rare_networks"):
        (layer,) = [one for one in json.loads(text)["config"]["layers"] if one["name"] == "class_shares"]
        assert layer["config"]["offset"] == [-0.0253, -3.6889]
    rooms.rows("DELETE FROM rare_configs WHERE mst_key = 3")
    rooms.rows(
        "SELECT madlib.madlib_keras_fit_multiple_model('rare_packed', 'rare_models', 'rare_configs', 2, seed => 1)"
    )
    run = rooms.value("SELECT max(run_id) FROM madlib_mop.run")
    rooms.rows(f"SELECT madlib_mop.replay({run}, 'rare_again')")
    weights = "SELECT mst_key, model_weights FROM {} ORDER BY 1"
    assert rooms.rows(weights.format("rare_again")) == rooms.rows(weights.format("rare_models"))
    mean = "SELECT avg((madlib_mop.predict_json('rare_models', 2, r) ->> 'yes')::float8) FROM rare AS r"
    assert 0.005 < rooms.value(mean) < 0.06


@pytest.mark.slow
def test_several_targets_and_a_regression(rooms):
    pack_with(rooms, 1, "pack_columns('rooms', 'packed_2', 'sold, price', validation => 0.2, seed => 1)")
    rooms.rows("SELECT madlib_mop.propose_networks('packed_2', 'networks_2', 'configs_2', 1, num_iterations => 2)")
    rooms.rows(
        "SELECT madlib.madlib_keras_fit_multiple_model('packed_2', 'models_2', 'configs_2', 2,"
        " validation_table => 'packed_2_validation', seed => 1)"
    )
    found = rooms.value("SELECT madlib_mop.predict_json('models_2', 1, r) FROM rooms AS r WHERE id = 1")
    found = found if isinstance(found, dict) else json.loads(found)
    assert set(found["sold"]) == {"no", "yes"} and -100 < found["price"] < 500


@pytest.mark.slow
def test_a_search_in_one_statement(proposed):
    proposed.rows(
        "SELECT madlib.madlib_keras_automl('packed', 'found', 'networks', 'best', s.model_id_list,"
        " s.compile_params_grid, s.fit_params_grid, 'hyperband', 'R=2, eta=2', random_state => 1,"
        " validation_table => 'packed_validation') FROM madlib_mop.propose_search('packed', 'networks') AS s"
    )
    assert proposed.value("SELECT count(*) FROM found_info") > 1 and proposed.value("SELECT count(*) FROM best") == 1
    ids = proposed.value("SELECT model_id_list FROM madlib_mop.propose_search('packed', 'networks')")
    assert ids == [row[0] for row in proposed.rows("SELECT model_id FROM networks WHERE name <> 'linear' ORDER BY 1")]
    proposed.rows("CREATE TABLE only_linear AS SELECT * FROM networks WHERE name = 'linear'")
    ((alone,),) = proposed.rows("SELECT model_id_list FROM madlib_mop.propose_search('packed', 'only_linear')")
    assert alone == [2] and 2 not in ids


@pytest.mark.slow
def test_a_search_tries_the_linear_model_first_to_its_last_iteration(proposed):
    """With a name of its own it is in the search, which stops others at the first rung; a replay repeats it."""
    search = "automl('packed', '{}', 'networks', '{}_best', s.model_id_list, s.compile_params_grid, s.fit_params_grid,"
    search = f"SELECT madlib.madlib_keras_{search} 'asha', '{{}}', random_state => 1,"
    search += " validation_table => 'packed_validation') FROM madlib_mop.propose_search('packed', 'networks') AS s"
    params = "R=4, eta=4, num_configs=4, try_first=''2 of configs''"
    proposed.rows(search.format("tried", "tried", params))
    rows = proposed.rows("SELECT mst_key, model_id, compile_params FROM tried_info ORDER BY 1")
    (texts,) = proposed.rows("SELECT model_id, compile_params FROM configs WHERE mst_key = 2")
    assert rows[0] == (1, *texts) and all(model_id != 2 for _, model_id, _ in rows[1:])
    run = proposed.value("SELECT max(run_id) FROM madlib_mop.run")
    epochs = dict(proposed.rows(f"SELECT mst_key, epoch FROM madlib_mop.model WHERE run_id = {run}"))
    assert epochs[1] == 4 and sorted(epochs.values()) == [1, 1, 1, 4]
    proposed.rows(f"SELECT madlib_mop.replay({run}, 'tried_again')")
    weights = "SELECT mst_key, model_weights FROM {} ORDER BY 1"
    assert proposed.rows(weights.format("tried_again")) == proposed.rows(weights.format("tried"))
    proposed.rows("CREATE TABLE other_networks AS SELECT * FROM networks")
    proposed.rows("CREATE TABLE other_configs AS SELECT * FROM configs; CREATE TABLE other_configs_summary AS"
                  " SELECT 'other_networks' AS model_arch_table, NULL AS object_table")  # fmt: skip
    for table, message in {
        "9 of configs": "automl_params: try_first: configs has no mst_key 9. Received: 9",
        "configs": "automl_params: try_first names 8 configurations, but the search tries 4",
        "nothing": "does not exist",
        "networks": "has no column",
        "other_configs": "the architectures of public.other_configs are not in public.networks",
    }.items():
        with pytest.raises(psycopg2.Error, match=message):
            proposed.rows(search.format("wrong", "wrong", f"R=4, num_configs=4, try_first=''{table}''"))


BAD = {
    "propose_networks('rooms', 'n', 'c')": "packed_table: public.rooms was not made by pack_columns",
    "propose_networks('nothing', 'n', 'c')": "does not exist",
    "propose_networks('packed', 'networks', 'c')": "arch_table: ",
    "propose_networks('packed', 'n', 'configs')": "configs_table: ",
    "propose_networks('packed', 'n', 'n')": "arch_table and configs_table must be two tables",
    "propose_networks('packed', 'n_summary', 'n')": "arch_table and configs_table must be two tables",
    "propose_networks('packed', 'n', 'c', n_configs => 0)": "n_configs must be at least 1. Received: 0",
    "propose_networks('packed', 'n', 'c', n_configs => 1001)": "n_configs must be at most 1,000. Received: 1001",
    "propose_networks('packed', 'n', 'c', n_configs => NULL)": "n_configs must be at least 1. Received: NULL",
    "propose_networks('packed', 'n', 'c', num_iterations => 0)": "num_iterations must be at least 1. Received: 0",
    "propose_networks('packed', 'n', 'c', seed => -1)": "seed must be from 0 to 2147483647. Received: -1",
    "propose_networks('packed', NULL, 'c')": "arch_table is missing",
    "propose_search('packed', 'rooms')": "is not a table of architectures: it has no column 'model_id'",
    "propose_search('packed', 'nothing')": "does not exist",
    "propose_search('packed', 'none')": "has no architectures",
}


@pytest.mark.parametrize("call", BAD)
def test_wrong_input_has_one_clear_error_and_leaves_no_table(proposed, call):
    proposed.rows("CREATE TABLE IF NOT EXISTS none (LIKE networks)")
    assert BAD[call] in refused(proposed, call)
    assert proposed.rows("SELECT to_regclass('n'), to_regclass('c')") == [(None, None)]


def test_a_packed_table_of_madlibs_preprocessor_is_refused(proposed):
    proposed.rows("CREATE TABLE arrays AS SELECT ARRAY[i, 2]::real[] AS x, i % 2 AS y FROM generate_series(1, 9) i")
    proposed.rows("SELECT madlib.training_preprocessor_dl('arrays', 'arrays_packed', 'y', 'x')")
    assert "was not made by pack_columns" in refused(proposed, "propose_networks('arrays_packed', 'n', 'c')")


def test_a_role_needs_rights_on_the_packed_table_and_on_the_schema(proposed):
    user(proposed, "proposer")
    proposed.rows("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with closing(proposed.connect("proposer")) as connection, connection.cursor() as cursor:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="permission denied for table packed_summary"):
            cursor.execute("SELECT madlib_mop.propose_networks('packed', 'proposer.n', 'proposer.c')")
        proposed.rows("GRANT SELECT ON packed, packed_summary TO proposer")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="may not create tables in schema public"):
            cursor.execute("SELECT madlib_mop.propose_networks('packed', 'public.n', 'proposer.c')")
        cursor.execute("SELECT madlib_mop.propose_networks('packed', 'proposer.n', 'proposer.c', 1)")
        cursor.execute("SELECT model_id_list FROM madlib_mop.propose_search('packed', 'proposer.n')")
        assert cursor.fetchone() == ([1],)


def refused(db, call: str) -> str:
    with pytest.raises(psycopg2.Error) as caught:
        db.rows(f"SELECT madlib_mop.{call}")
    assert caught.value.pgcode != "XX000" and "Traceback" not in str(caught.value)
    return str(caught.value)
