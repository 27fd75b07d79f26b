"""Lists of columns mean the same when a table is packed, validated, trained on, evaluated and predicted."""

import json

import numpy as np
import pytest

from tests.helpers.packing import Caller
from tests.helpers.training import fit, one_thread, select_configurations

pytestmark = pytest.mark.one_session

ADAM = "loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']"
FIT = "batch_size=8, epochs=1"


def keras():
    one_thread()
    import keras

    return keras


def one_input(width):
    k = keras()
    return k.Sequential([k.Input((width,)), k.layers.Dense(6, "relu"), k.layers.Dense(2, "softmax")]).to_json()


def inputs_apart(n):
    k = keras()
    inputs = [k.Input((1,), name=f"in{i}") for i in range(n)]
    joined = k.layers.Concatenate()(inputs)
    return k.Model(inputs, k.layers.Dense(2, "softmax")(k.layers.Dense(6, "relu")(joined))).to_json()


@pytest.fixture(scope="module")
def caller(db):
    caller = Caller(db.connect())
    caller.segments(2)
    rows = [(i % 2 + i / 100, i % 7, (i % 2) * -1.5, "ab"[i % 2]) for i in range(60)]
    caller.table("houses", "area float8, rooms integer, age numeric, kind text", rows)
    caller.rows("CREATE VIEW as_arrays AS SELECT id, ARRAY[area, rooms, age]::real[] AS x, kind FROM houses")
    caller.train("houses", "packed", y="kind", x="area, rooms, age", normalizing_const=2.0, seed=1)
    caller.validate("houses", "valid", "packed", y="kind", x="area, rooms, age")
    for arch in (one_input(3), inputs_apart(3)):
        caller.rows("SELECT madlib.load_keras_model('arch', %s::json)", arch)
    select_configurations(db, "mst", [(1, ADAM, FIT), (2, ADAM, FIT)])
    fit(db, "models", "mst", 3, source_table="packed", validation_table="valid", seed=2)
    yield caller
    caller.connection.close()


def test_columns_of_numbers_are_packed_side_by_side_as_one_input(caller):
    summary = caller.summary("packed")
    assert summary["independent_varname"] == ["inputs"]
    assert summary["independent_columns"] == ["area", "rooms", "age"]
    x = caller.tensor("valid", "inputs")
    rows = caller.rows("SELECT area, rooms, age FROM houses ORDER BY id")
    assert x.dtype == np.float32 and np.array_equal(x, np.array(rows, np.float32) / np.float32(2))


def test_an_array_of_the_same_numbers_gives_the_same_packed_rows(caller):
    caller.train("as_arrays", "packed_arrays", y="kind", x="x", normalizing_const=2.0, seed=1)
    assert np.array_equal(caller.tensor("packed_arrays", "x"), caller.tensor("packed", "inputs"))
    caller.validate("houses", "valid_of_arrays", "packed_arrays", y="kind", x="area, rooms, age")
    caller.validate("as_arrays", "valid_arrays", "packed", y="kind", x="x")
    assert np.array_equal(caller.tensor("valid_of_arrays", "inputs"), caller.tensor("valid_arrays", "x"))


def test_networks_of_one_input_and_of_one_for_each_column_train_on_it(caller, db):
    assert db.rows("SELECT mst_key, status FROM models_info ORDER BY 1") == [(1, "trained"), (2, "trained")]
    assert min(value for (value,) in db.rows("SELECT validation_metrics_final FROM models_info")) > 0.9


@pytest.mark.one_case
@pytest.mark.parametrize("key", [1, 2])
def test_the_list_of_packing_predicts_and_evaluates_the_same_rows(caller, db, key):
    db.rows(f"SELECT madlib.madlib_keras_evaluate('models', 'valid', 'evaluated_{key}', mst_key => {key})")
    db.rows(
        "SELECT madlib.madlib_keras_predict('models', 'houses', 'id', 'area, rooms, age', %s, 'response',"
        " mst_key => %s)",
        [f"read_{key}", key],
    )
    share = db.value(f"SELECT avg((class_value = kind)::int) FROM read_{key} JOIN houses USING (id)")
    assert abs(float(share) - db.value(f"SELECT metric FROM evaluated_{key}")) < 1e-6
    final = db.value("SELECT validation_loss_final FROM models_info WHERE mst_key = %s", [key])
    assert abs(final - db.value(f"SELECT loss FROM evaluated_{key}")) < 1e-6


def wide(caller, name, n):
    columns = ", ".join(f"c{i} real DEFAULT {i}" for i in range(n))
    caller.rows(f"CREATE TABLE {name} (id serial, kind text, {columns})")
    caller.rows(f"INSERT INTO {name} (kind, c1) SELECT chr(97 + i % 2), i % 2 FROM generate_series(1, 12) i")
    return ", ".join(f"c{i}" for i in range(n))


@pytest.mark.one_case
@pytest.mark.parametrize("n", [300, 1500])
def test_hundreds_of_columns_are_packed_trained_on_and_predicted(caller, db, n):
    listed = wide(caller, f"wide_{n}", n)
    caller.train(f"wide_{n}", f"wide_packed_{n}", y="kind", x=listed)
    caller.validate(f"wide_{n}", f"wide_valid_{n}", f"wide_packed_{n}", y="kind", x=listed)
    assert caller.tensor(f"wide_valid_{n}", "inputs").shape == (12, n)
    assert caller.tensor(f"wide_valid_{n}", "inputs")[0, [0, 2, n - 1]].tolist() == [0, 2, n - 1]
    caller.rows(f"SELECT madlib.load_keras_model('arch_{n}', %s::json)", one_input(n))
    select_configurations(db, f"mst_{n}", [(1, ADAM, FIT)], f"arch_{n}")
    fit(db, f"models_{n}", f"mst_{n}", 1, source_table=f"wide_packed_{n}", seed=2)
    call = f"SELECT madlib.madlib_keras_predict('models_{n}', 'wide_{n}', 'id', %s, 'wide_read_{n}', mst_key => 1)"
    caller.rows(call, listed)
    assert caller.value(f"SELECT count(*) FROM wide_read_{n}") == 24


def test_too_many_columns_apart_are_refused_with_the_way(caller):
    columns = ", ".join(f"a{i} real[] DEFAULT '{{1,2}}'" for i in range(250))
    caller.rows(f"CREATE TABLE many_arrays (id serial, kind text, {columns})")
    caller.rows("INSERT INTO many_arrays (kind) VALUES ('a'), ('b')")
    listed = ", ".join(f"a{i}" for i in range(250))
    error = caller.refused(caller.train, "many_arrays", "never", y="kind", x=listed)
    assert "251 columns would be packed separately; a row of a packed table can have at most 200" in error.message
    assert "ARRAY[a, b, c]" in error.hint
    n = 199
    caller.train("many_arrays", "just_fits", y="kind", x=", ".join(f"a{i}" for i in range(n)))
    assert caller.value("SELECT count(*) FROM just_fits") > 0


def test_a_list_of_another_length_is_refused_by_predict(caller):
    call = "SELECT madlib.madlib_keras_predict('models', 'houses', 'id', 'area, rooms', 'never', mst_key => 1)"
    error = caller.refused(caller.rows, call)
    assert "has 2 columns, but mst_key 1 of public.models has 1 inputs. Received: 'area, rooms'" in error.message


def test_a_null_is_named_by_its_column_or_its_element(caller):
    caller.rows("CREATE TABLE holes AS SELECT id, area, rooms, CASE WHEN id <> 7 THEN age END AS age, kind FROM houses")
    error = caller.refused(caller.train, "holes", "never", y="kind", x="area, rooms, age")
    assert "column 'age' is NULL in 1 of 60 rows" in error.message
    call = "SELECT madlib.madlib_keras_predict('models', 'holes', 'id', 'area, rooms, age', 'never', mst_key => %s)"
    for key in (1, 2):
        assert "column 'age' is NULL (row with id = 7)" in caller.refused(caller.rows, call, key).message
    caller.rows("CREATE TABLE deep AS SELECT 1 AS id, 'a' AS kind, '{{1,2,3},{4,NULL,6}}'::real[] AS x")
    error = caller.refused(caller.train, "deep", "never", y="kind", x="x")
    assert "column 'x' contains a NULL element at [2][2]" in error.message
    caller.rows("UPDATE deep SET x = '{1,NULL,3}'")
    call = "SELECT madlib.madlib_keras_predict('models', 'deep', 'id', 'x', 'never', mst_key => 1)"
    assert "column 'x' contains a NULL element at [2] (row with id = 1)" in caller.refused(caller.rows, call).message


def test_numbers_beyond_float32_become_0_or_name_their_column_and_row(caller):
    caller.rows(
        "CREATE TABLE likelihoods AS SELECT i AS id, 1e-60::float8 AS p, 1e-60::numeric AS q, chr(97 + i % 2) AS kind"
        " FROM generate_series(1, 9) i"
    )
    caller.train("likelihoods", "of_both", y="kind", x="p, q, id")
    assert not caller.tensor("of_both", "inputs")[:, :2].any()
    caller.train("likelihoods", "of_one", y="kind", x="p")
    assert not caller.tensor("of_one", "p").any()
    call = "SELECT madlib.madlib_keras_predict('models', 'likelihoods', 'id', 'p, q, id', %s, mst_key => %s)"
    for key in (1, 2):
        caller.rows(call, f"likely_{key}", key)
        assert caller.value(f"SELECT count(DISTINCT id) FROM likely_{key}") == 9
    caller.rows("UPDATE likelihoods SET q = -1e39 WHERE id = 4")
    problem = "column 'q' holds an infinite value, or a number that is too large for float32 (row with"
    for listed in ("p, q, id", "q"):
        refusal = caller.refused(caller.train, "likelihoods", "never", y="kind", x=listed)
        assert f"{problem} ctid (0,10))" in refusal.message
    for key in (1, 2):
        assert f"{problem} id = 4)" in caller.refused(caller.rows, call, "never", key).message


def test_numbers_within_float32_keep_their_bits(caller):
    values = [0.1, -0.0, 1.5e-45, -8e-46, 3.4028235e38, -3.40282356e38, 16777217.0, 1e-300]
    rows = [(str(value), str(value), "ab"[i % 2]) for i, value in enumerate(values)]
    caller.table("edges", "a float8, b numeric, kind text", rows)
    caller.train("edges", "edges_packed", y="kind", x="a, b")
    caller.validate("edges", "edges_valid", "edges_packed", y="kind", x="a, b")
    packed = caller.tensor("edges_valid", "inputs")
    expected = np.array(values, np.float32)
    assert packed[:, 0].tobytes() == expected.tobytes()
    assert np.array_equal(packed[:, 1], expected)


def test_the_name_of_the_joined_column_gives_way_to_a_dependent_one(caller):
    caller.rows("CREATE VIEW taken AS SELECT area, rooms, kind AS inputs FROM houses")
    caller.train("taken", "taken_packed", y="inputs", x="area, rooms")
    assert caller.summary("taken_packed")["independent_varname"] == ["inputs1"]


def test_numbers_beside_arrays_are_inputs_of_their_own(caller):
    caller.rows("CREATE VIEW mixed AS SELECT id, ARRAY[area, rooms]::real[] AS pair, age, kind FROM houses")
    caller.train("mixed", "mixed_packed", y="kind", x="pair, age")
    assert caller.summary("mixed_packed")["independent_varname"] == ["pair", "age"]
    assert json.dumps(caller.rows("SELECT pair_shape[2], age_shape[2] FROM mixed_packed LIMIT 1")) == "[[2, 1]]"
