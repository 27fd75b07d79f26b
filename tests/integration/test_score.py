"""score: predictions of a whole table in a new table, with the columns that it keeps, by any model."""

import numpy as np
import pytest

from tests.helpers.columns import load_linear, pack_with
from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.registry import write_classifiers, write_numbers
from tests.helpers.security.attacks import user as role
from tests.helpers.training import one_thread

pytestmark = pytest.mark.one_session

ROWS = """
CREATE TABLE rooms AS
SELECT i AS id, 10 + i * 7 % 50 AS area, CASE WHEN i % 9 > 0 THEN i * 37 % 500 / 100.0 END AS distance,
       'city' || i * 13 % 40 AS city, date '2020-01-01' + i * 17 % 1000 AS built,
       timestamptz '2024-02-03 04:05:06Z' AS seen,
       CASE WHEN i * 7 % 50 + i % 3 * 9 > 35 THEN 'yes' ELSE 'no' END AS sold, 5.0 * (i * 7 % 50) + i % 40 AS price
FROM generate_series(1, 300) AS i;
ALTER TABLE rooms ADD PRIMARY KEY (id)
"""
N_CLASSES = {"sold": 2, "price": None}
FIT = (
    "SELECT madlib.madlib_keras_fit_multiple_model('{0}_packed', '{0}', '{0}_configs', 1,"
    " validation_table => '{0}_packed_validation', seed => 1)"
)


@pytest.fixture(scope="module")
def user(db, keras):
    """A database with registered models of ordinary columns, and tables of models of arrays."""
    one_thread()
    db.rows(ROWS)
    for name, target in (("sold", "sold"), ("price", "price"), ("both", "sold, price")):
        held_out = "validation => 0.2, test => 0.2"
        pack_with(db, 1, f"pack_columns('rooms', '{name}_packed', '{target}', {held_out}, seed => 1)")
        outputs = {one: N_CLASSES[one] for one in target.split(", ")}
        load_linear(db, f"{name}_packed", outputs, "batch_size=16, epochs=1")
        db.rows(FIT.format(name))
    session = User(db.connect())
    for name in ("sold", "price"):
        session.rows(f"SELECT madlib_mop.register('{name}', '{name}'), madlib_mop.set_alias('{name}', 'newest', 1)")
    write_classifiers(session, keras, "classifiers", [1.0, 0.0])
    write_numbers(session, keras, "numbers", [1.0, 2.0])
    session.rows("CREATE TABLE points AS SELECT i AS id, ARRAY[i % 3 = 0, i % 3 = 1, i % 3 = 2]::int[]::real[] AS x"
                 " FROM generate_series(1, 30) i")  # fmt: skip
    yield session
    session.connection.close()


def test_a_name_a_table_and_an_output_are_enough(user):
    assert user.value("SELECT madlib_mop.score('sold', 'rooms', 'out_sold')") == 300
    assert user.columns("out_sold") == [("id", "integer"), ("predicted", "text"), ("probability", "double precision")]
    rows = user.rows(
        "SELECT o.predicted, o.probability, madlib_mop.predict_class('sold', r), madlib_mop.predict_json('sold', r)"
        " FROM out_sold o JOIN rooms r USING (id)"
    )
    assert len(rows) == 300
    for predicted, probability, alone, every in rows:
        assert predicted == alone and np.isclose(probability, every[predicted], rtol=1e-6)
        assert probability == max(every.values()) or np.isclose(probability, max(every.values()), rtol=1e-6)


def test_the_probability_of_a_class_can_be_written_and_all_columns_kept(user):
    user.rows("SELECT madlib_mop.score('sold@1', 'rooms', 'out_risk', '*', of_class => 'yes')")
    kept = user.columns("rooms")
    assert user.columns("out_risk") == [*kept, ("predicted", "text"), ("probability", "double precision")]
    names = ", ".join(name for name, _ in kept)
    assert user.value(f"SELECT count(*) FROM (SELECT {names} FROM rooms EXCEPT SELECT {names} FROM out_risk) x") == 0
    rows = user.rows(
        "SELECT probability, madlib_mop.predict_json('sold', r) ->> 'yes' FROM out_risk o JOIN rooms r USING (id)"
    )
    assert np.allclose([row[0] for row in rows], [float(row[1]) for row in rows], rtol=1e-6)


@pytest.mark.parametrize("calibration", ["temperature", "isotonic"])
def test_calibrated_probabilities_are_those_of_each_row_alone(user, calibration):
    held_out = f"held_out => 'sold_packed_test', calibration => '{calibration}'"
    version = user.value(f"SELECT madlib_mop.register('sure', 'sold', {held_out})")
    model = f"sure@{version}"
    user.rows(f"SELECT madlib_mop.score('{model}', 'rooms', 'out_sure', calibrated => true, replace => true)")
    user.rows(f"SELECT madlib_mop.score('{model}', 'rooms', 'out_yes', of_class => 'yes', calibrated => true,"
              " replace => true)")  # fmt: skip
    rows = user.rows(
        "SELECT s.predicted, s.probability, y.probability, madlib_mop.predict_class($1, r),"
        " madlib_mop.predict_json($1, r, true), madlib_mop.predict_json($1, r)"
        " FROM out_sure s JOIN out_yes y USING (id) JOIN rooms r USING (id)".replace("$1", f"'{model}'")
    )
    assert len(rows) == 300
    for predicted, probability, of_yes, alone, calibrated, _ in rows:
        assert predicted == alone and np.isclose(probability, calibrated[predicted], rtol=1e-5, atol=1e-6)
        assert np.isclose(of_yes, calibrated["yes"], rtol=1e-5, atol=1e-6)
    assert max(abs(calibrated["yes"] - raw["yes"]) for *_, calibrated, raw in rows) > 1e-3


def test_of_several_outputs_the_classes_are_calibrated_and_the_numbers_stay(user):
    held_out = "held_out => 'both_packed_test', calibration => 'isotonic'"
    version = user.value(f"SELECT madlib_mop.register('sure_both', 'both', {held_out})")
    for output, more in (("out_raw", ""), ("out_calibrated", ", calibrated => true")):
        user.rows(f"SELECT madlib_mop.score('sure_both@{version}', 'rooms', '{output}'{more})")
    rows = user.rows("SELECT a.*, b.* FROM out_raw a JOIN out_calibrated b USING (id)")
    assert all(row[1] == row[5] and row[3] == row[7] for row in rows)
    assert max(abs(row[2] - row[6]) for row in rows) > 1e-3


def test_a_number_is_written_in_the_units_of_the_table(user):
    user.rows("CREATE VIEW some_rooms AS SELECT city, area, distance, built, seen, sold FROM rooms WHERE id < 20")
    assert user.value("SELECT madlib_mop.score('price', 'some_rooms', 'out_price', 'city, area')") == 19
    assert user.columns("out_price") == [("city", "text"), ("area", "integer"), ("predicted", "double precision")]
    rows = user.rows(
        "SELECT o.predicted, madlib_mop.predict_number('price', r)"
        " FROM out_price o JOIN some_rooms r USING (city, area)"
    )
    assert rows and np.allclose([row[0] for row in rows], [row[1] for row in rows], rtol=1e-6)
    user.rows("SELECT madlib_mop.score('price', 'some_rooms', 'out_view')")
    assert [name for name, _ in user.columns("out_view")][:2] == ["city", "area"], "a view has no primary key"


def test_several_outputs_have_columns_of_their_own(user):
    user.rows("SELECT madlib_mop.score('both', 'rooms', 'out_both', mst_key => 1)")
    assert [name for name, _ in user.columns("out_both")] == [
        "id", "predicted_sold", "probability_sold", "predicted_price",
    ]  # fmt: skip
    found = user.refused(user.rows, "SELECT madlib_mop.score('both', 'rooms', 'x', mst_key => 1, of_class => 'yes')")
    assert "of_class is for models with one output" in found.message


def test_models_of_arrays_take_the_columns_of_training(user):
    user.rows("SELECT madlib_mop.score('classifiers', 'points', 'out_points', 'id', mst_key => 1)")
    assert user.rows("SELECT id, predicted FROM out_points ORDER BY id") == [(i, "abc"[i % 3]) for i in range(1, 31)]
    user.rows("CREATE VIEW others AS SELECT id, x AS coordinates FROM points")
    more = "'id', mst_key => 2, independent_varname => 'coordinates'"
    user.rows(f"SELECT madlib_mop.score('numbers', 'others', 'out_others', {more})")
    assert user.rows("SELECT DISTINCT predicted FROM out_others") == [(2.0,)]


def test_a_row_without_probabilities_has_no_class(user, keras):
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "softmax")])
    net.set_weights([np.full((3, 3), np.inf, np.float32), np.zeros(3, np.float32)])
    user.write_models("broken", {1: net}, ModelTable(dependent=[Dependent(values=["a", "b", "c"])]))
    user.rows("SELECT madlib_mop.score('broken', 'points', 'out_broken', 'id', mst_key => 1)")
    ((n_classes, n_nan),) = user.rows("SELECT count(predicted), count(*) FILTER (WHERE probability = 'NaN')"
                                      " FROM out_broken")  # fmt: skip
    assert (n_classes, n_nan) == (0, 30)


def test_replace_replaces_what_score_has_written_and_nothing_else(user):
    user.rows("SELECT madlib_mop.score('sold', 'rooms', 'out_again')")
    found = user.refused(user.rows, "SELECT madlib_mop.score('sold', 'rooms', 'out_again')")
    assert found.sqlstate == "42P07" and "replace => true" in found.hint
    user.rows("CREATE VIEW few AS SELECT * FROM rooms WHERE id <= 5")
    assert user.value("SELECT madlib_mop.score('price', 'few', 'out_again', 'id', replace => true)") == 5
    assert user.columns("out_again")[1] == ("predicted", "double precision")
    user.rows("CREATE TABLE own AS SELECT * FROM out_again")
    for table, message in {
        "own": "was not written by score, so it is not replaced",
        "sold": "was not written by score",
        "few": "was not written by score",
    }.items():
        found = user.refused(user.rows, f"SELECT madlib_mop.score('sold', 'rooms', '{table}', replace => true)")
        assert found.sqlstate == "42P07" and message in found.message
    assert user.value("SELECT count(*) FROM own") == 5
    user.rows("CREATE VIEW needs_it AS SELECT * FROM out_again")
    found = user.refused(user.rows, "SELECT madlib_mop.score('sold', 'rooms', 'out_again', replace => true)")
    assert "needs_it depends on it" in found.message
    user.rows("SELECT madlib_mop.score('sold', 'rooms', 'out_whole', '*')")
    user.rows("ALTER TABLE out_whole DROP COLUMN predicted, DROP COLUMN probability")
    found = user.refused(user.rows, "SELECT madlib_mop.score('sold', 'out_whole', 'out_whole', replace => true)")
    assert "has the rows to predict, so it cannot be replaced" in found.message


def test_no_rows_are_an_empty_table_with_a_warning(user):
    user.rows("CREATE VIEW nobody AS SELECT * FROM rooms WHERE false")
    user.notices()
    assert user.value("SELECT madlib_mop.score('sold', 'nobody', 'out_nobody', 'id')") == 0
    assert "has no rows" in user.notices() and user.value("SELECT count(*) FROM out_nobody") == 0


def test_an_error_in_a_row_leaves_no_table_and_the_one_to_replace(user):
    user.rows("SELECT madlib_mop.score('sold', 'rooms', 'out_kept')")
    user.rows("CREATE VIEW wrong AS SELECT id, area, CASE WHEN id = 7 THEN 'NaN' ELSE distance END::float8 AS distance,"
              " city, built, seen, price FROM rooms")  # fmt: skip
    for output in ("out_kept", "out_new"):
        call = f"SELECT madlib_mop.score('sold', 'wrong', '{output}', 'id', replace => true)"
        found = user.refused(user.rows, call)
        assert "distance" in found.message and "NaN" in found.message
    assert user.value("SELECT count(*) FROM out_kept") == 300 and user.value("SELECT to_regclass('out_new')") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'sold', 'nowhere', 'x'", "source_table does not exist"),
        ("'sold', NULL, 'x'", "source_table is missing"),
        ("'sold', 'rooms', NULL", "output_table is missing"),
        ("NULL, 'rooms', 'x'", "model_table is missing"),
        ("'nothing', 'rooms', 'x'", "there is no registered model of this name that you may use"),
        ("'sold@1', 'rooms', 'x', mst_key => 1", "mst_key is for tables"),
        ("'sold', 'rooms', 'x', 'nothing'", "keep"),
        ("'sold', 'rooms', 'x', 'id', of_class => 'perhaps'", "no such class: it has the classes no, yes"),
        ("'price', 'rooms', 'x', 'id', of_class => 'yes'", "it predicts a number"),
        ("'sold', 'rooms', 'x', calibrated => true", "calibrated: sold@1 is a model without held-out rows"),
        ("'price', 'rooms', 'x', calibrated => true", "calibrated is for classes, and price@1 predicts numbers"),
        ("'sold', 'points', 'x', 'id'", "source_table"),
        ("'sold', 'sold_packed', 'x', 'buffer_id'", "source_table: public.sold_packed is a packed table"),
        ("'sold', 'out_taken', 'x', 'predicted'", "the output table already has a column 'predicted'"),
        ("'sold', 'out_taken', 'x'", "a column 'predicted', the prediction. Received: no keep"),
        ("'sold', 'rooms', 'x', independent_varname => 'city'", "independent_varname must be '*' or the columns"),
    ],
)
def test_bad_input_is_one_error_before_any_work(user, arguments, message):
    user.rows("CREATE TABLE IF NOT EXISTS out_taken AS SELECT *, 1 AS predicted FROM rooms")
    found = user.refused(user.rows, f"SELECT madlib_mop.score({arguments})")
    assert message in found.message
    assert user.value("SELECT to_regclass('x')") is None


def test_the_hint_for_a_packed_table_names_the_rows_and_no_other_function(user):
    """Of columns and of arrays; madlib_keras_evaluate, which takes packed tables, does not answer the same question."""
    user.rows("SELECT madlib.training_preprocessor_dl('points', 'points_packed', 'id', 'x', seed => 1)")
    for call in (
        "madlib_mop.score('sold', 'sold_packed', 'x')",
        "madlib_mop.drift('sold', 'sold_packed')",
        "madlib_mop.partial_dependence('sold', 'sold_packed', 'area')",
        "madlib_mop.score('classifiers', 'points_packed', 'x', mst_key => 1, independent_varname => 'x')",
        "madlib_mop.drift('classifiers', 'points_packed', 1, 'points', independent_varname => 'x')",
    ):
        found = user.refused(user.rows, f"SELECT * FROM {call}")
        assert "is a packed table" in found.message and found.hint == "Pass the table of rows before packing."


def test_rows_are_read_and_written_with_the_rights_of_the_caller(db, user):
    """Also row policies: of two roles, each gets predictions of the rows that it may see."""
    db.rows("CREATE SCHEMA guarded; CREATE TABLE guarded.rooms AS SELECT *, 'policed' AS owner_name FROM rooms")
    db.rows("UPDATE guarded.rooms SET owner_name = 'other' WHERE id > 10")
    db.rows("ALTER TABLE guarded.rooms ENABLE ROW LEVEL SECURITY")
    db.rows("CREATE POLICY own ON guarded.rooms USING (owner_name = current_user)")
    reader = User(db.connect(role(db, "policed")))
    try:
        call = "SELECT madlib_mop.score('sold', 'guarded.rooms', 'policed.out', 'id')"
        assert "permission denied" in reader.refused(reader.rows, call).message
        db.rows("GRANT USAGE ON SCHEMA guarded TO policed; GRANT SELECT ON guarded.rooms TO policed")
        assert "there is no registered model" in reader.refused(reader.rows, call).message
        db.rows("SELECT madlib_mop.grant_model('sold', 'policed', 'predict')")
        elsewhere = call.replace("policed.out", "guarded.out")
        assert "may not create tables" in reader.refused(reader.rows, elsewhere).message
        assert reader.value(call) == 10
        assert reader.rows("SELECT min(id), max(id) FROM policed.out") == [(1, 10)]
        assert reader.value("SELECT tableowner FROM pg_tables WHERE schemaname = 'policed' AND tablename = 'out'"
                            ) == "policed"  # fmt: skip
    finally:
        reader.connection.close()


def test_a_type_of_another_role_is_not_copied(db, user):
    db.rows("CREATE TYPE odd AS (a integer)")
    db.rows("CREATE TABLE typed AS SELECT *, ROW(1)::odd AS o FROM rooms; ALTER TABLE typed ADD PRIMARY KEY (id)")
    db.rows(f"ALTER TYPE odd OWNER TO {role(db, 'typist')}")
    caller = User(db.connect(role(db, "copier")))
    try:
        db.rows("GRANT SELECT ON typed TO copier; SELECT madlib_mop.grant_model('sold', 'copier', 'predict')")
        found = caller.refused(caller.rows, "SELECT madlib_mop.score('sold', 'typed', 'copier.x', '*')")
        assert "column 'o' is of type" in found.message and "which another role created" in found.message
        assert caller.value("SELECT madlib_mop.score('sold', 'typed', 'copier.typed')") == 300
    finally:
        caller.connection.close()
    found = user.refused(user.rows, "SELECT madlib_mop.score('sold', 'typed', 'x')")
    assert "which belongs to typist" in found.message, "a superuser's call runs nothing of another role"
