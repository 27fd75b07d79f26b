"""The forms of madlib_mop.predict: classes, named probabilities, NULL elements, views over batches; the same bits."""

import json

import numpy as np
import psycopg2
import pytest

from tests.helpers.inference import Dependent, ModelTable, User

N_ROWS, WIDTH = 40, 4
CLASSES = ["left", 'mid"dle', "right"]


@pytest.fixture(scope="module")
def nets(keras):
    keras.utils.set_random_seed(5)
    layers = keras.layers
    inputs = [keras.Input((WIDTH,), name="x"), keras.Input((2,), name="more")]
    both = layers.Concatenate()(inputs)
    return {
        "kinds": keras.Sequential(
            [keras.Input((WIDTH,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax", kernel_initializer="normal")]
        ),
        "number": keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1, kernel_initializer="ones")]),
        "many": keras.Model(inputs, [layers.Dense(3, "softmax")(both), layers.Dense(1)(both)]),
    }


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(2).normal(size=(N_ROWS, WIDTH)).astype(np.float32) * 3


@pytest.fixture(scope="module")
def user(db, nets, x):
    user = User(db.connect())
    kinds = Dependent("kind", values=CLASSES)
    user.write_models("kinds", {1: nets["kinds"]}, ModelTable(dependent=[kinds]))
    user.write_models("with_null", {1: nets["kinds"]}, ModelTable(dependent=[Dependent(values=[None, "a", None])]))
    user.write_models("two_nulls", {1: nets["kinds"]}, ModelTable(dependent=[Dependent(values=[None, "NULL", "a"])]))
    user.write_models("too_many", {1: nets["kinds"]}, ModelTable(dependent=[Dependent(values=list("abcd"))]))
    user.write_one_model("number", nets["number"], ModelTable(dependent=[Dependent("price", "real")]))
    numbers = ModelTable(independent=["x", "more"], dependent=[kinds, Dependent("price", "real")])
    user.write_one_model("many", nets["many"], numbers)
    user.table("points", "id integer, name text, x real[]", [(i, f"n{i}", r.tolist()) for i, r in enumerate(x)])
    yield user
    user.connection.close()


def best(row) -> str:
    return CLASSES[int(np.argmax(row))]


def test_the_class_and_named_probabilities_are_those_of_the_outputs(user):
    rows = user.rows("SELECT madlib_mop.predict('kinds', 1, x), madlib_mop.predict_class('kinds', 1, x),"
                     " madlib_mop.predict_named('kinds', 1, x) FROM points ORDER BY id")  # fmt: skip
    assert len({kind for _, kind, _ in rows}) > 1
    for p, kind, named in rows:
        assert kind == best(p) and set(named) == set(CLASSES)
        assert np.array_equal(np.float32([named[c] for c in CLASSES]), np.float32(p))  # all digits are kept
    share = "SELECT (madlib_mop.predict_named('kinds', 1, x) ->> 'left')::real, (madlib_mop.predict('kinds', 1, x))[1]"
    assert {a == b for a, b in user.rows(f"{share} FROM points")} == {True}


def test_row_by_row_and_by_arrays_there_are_the_same_bits(user):
    """For this kind of network; docs/predict.md lists those for which the batch size may change the last bit."""
    one = user.rows("SELECT id, madlib_mop.predict('kinds', 1, x) FROM points ORDER BY id")
    many = user.rows("SELECT row_number() OVER () - 1, p FROM (SELECT array_agg(x ORDER BY id) AS xs FROM points) AS b,"
                     " madlib_mop.predict_rows('kinds', 1, xs) AS p")  # fmt: skip
    assert one == many


def test_a_view_predicts_by_batches_and_keeps_its_columns(user):
    for function, single in (("predict_rows", "predict"), ("predict_class_rows", "predict_class"),
                             ("predict_named_rows", "predict_named")):  # fmt: skip
        user.rows(
            "CREATE OR REPLACE TEMP VIEW scored AS SELECT r.*"
            " FROM (SELECT array_agg(t) AS ts, array_agg(t.x) AS xs FROM points AS t GROUP BY t.id / 7) AS batch,"
            f" ROWS FROM (unnest(batch.ts), madlib_mop.{function}('public.kinds', 1, batch.xs)) AS r(id, name, x, p)"
        )
        got = user.rows("SELECT id, name, p FROM scored ORDER BY id")
        assert got == user.rows(f"SELECT id, name, madlib_mop.{single}('kinds', 1, x) FROM points ORDER BY id")
        user.rows("DROP VIEW scored")


NULLS = "ARRAY[1, NULL, 3, 4]::real[]"
TWO = "ARRAY[[1, 2, 3, 4], [5, NULL, 7, 8], [4, 3, 2, 1]]::real[]"


def test_null_elements_give_null_where_asked(user):
    for function in ("predict", "predict_class", "predict_named"):
        refusal = user.refused(user.value, f"SELECT madlib_mop.{function}('kinds', 1, {NULLS})")
        assert refusal.sqlstate == "22023" and "x contains a NULL element" in refusal.message
        assert "allow_null => true" in refusal.hint
        assert user.value(f"SELECT madlib_mop.{function}('kinds', 1, {NULLS}, allow_null => true)") is None
        assert user.value(f"SELECT madlib_mop.{function}('kinds', 1, NULL::real[])") is None
        one = user.value(f"SELECT madlib_mop.{function}('kinds', 1, ARRAY[4, 3, 2, 1])")
        rows = user.rows(f"SELECT madlib_mop.{function}_rows('kinds', 1, {TWO}, allow_null => true)"
                         .replace("predict_rows_rows", "predict_rows"))  # fmt: skip
        assert [value is None for (value,) in rows] == [False, True, False] and rows[2][0] == one
        of_one = user.rows(f"SELECT madlib_mop.{function}_rows('kinds', 1, {NULLS}, allow_null => true)"
                           .replace("predict_rows_rows", "predict_rows"))  # fmt: skip
        assert of_one == [(None,)]
    arrays = user.value(f"SELECT madlib_mop.predict('kinds', 1, {TWO}, allow_null => true)")
    assert arrays[1] == [None] * 3 and None not in arrays[0] + arrays[2]
    inputs = f"ARRAY[madlib_mop.array_bytes({NULLS}), madlib_mop.array_bytes(ARRAY[1, 2]::real[])]"
    assert user.value(f"SELECT madlib_mop.predict('many', NULL, {inputs}, true)") is None


def test_a_table_that_is_truncated_and_filled_again_has_another_version(user):
    """Also within one transaction, where the new row has the place and the transaction of the one before."""
    row = "INSERT INTO refilled TABLE kinds"
    other = "UPDATE refilled SET model_weights = set_byte(model_weights, 3, get_byte(model_weights, 3) # 1)"
    predicted = "SELECT madlib_mop.predict('refilled', 1, ARRAY[4, 3, 2, 1])"
    user.rows("CREATE TABLE refilled (LIKE kinds); CREATE TABLE refilled_summary AS TABLE kinds_summary")
    user.rows(f"CREATE TABLE refilled_info AS TABLE kinds_info; {row}; {other}")
    user.rows("CREATE TABLE changed AS TABLE refilled; BEGIN; TRUNCATE refilled")
    user.rows(row)
    first = user.value(predicted)
    user.rows("TRUNCATE refilled; INSERT INTO refilled TABLE changed")
    second = user.value(predicted)
    user.rows("COMMIT")
    assert user.value(predicted) == second != first


def test_nan_and_wrong_shapes_are_refused_where_null_is_allowed(user):
    for array, message in (("ARRAY[1, 2, 3, 'NaN']::real[]", "NaN"), ("ARRAY[1, NULL, 3]::real[]", "shape [3]")):
        refusal = user.refused(user.value, f"SELECT madlib_mop.predict('kinds', 1, {array}, allow_null => true)")
        assert refusal.sqlstate == "22023" and message in refusal.message


def test_numbers_and_several_outputs_by_name(user):
    inputs = "ARRAY[madlib_mop.array_bytes(ARRAY[1, 2, 3, 4]), madlib_mop.array_bytes(ARRAY[1, 2])]"
    *kinds, price = user.value(f"SELECT madlib_mop.predict('many', NULL, {inputs})")
    named = user.value(f"SELECT madlib_mop.predict_named('many', NULL, {inputs})")
    assert set(named) == {"kind", "price"} and np.float32(named["price"]) == np.float32(price)
    assert np.array_equal(np.float32([named["kind"][c] for c in CLASSES]), np.float32(kinds))
    refusal = user.refused(user.value, f"SELECT madlib_mop.predict_class('many', NULL, {inputs})")
    assert refusal.sqlstate == "22023" and "the model has 2 outputs" in refusal.message
    price = user.value("SELECT madlib_mop.predict('number', NULL, ARRAY[1, 2, 3, 4])")[0]
    named = user.value("SELECT madlib_mop.predict_named('number', NULL, ARRAY[1, 2, 3, 4])")
    assert list(named) == ["price"] and np.float32(named["price"]) == np.float32(price)
    refusal = user.refused(user.value, "SELECT madlib_mop.predict_class('number', NULL, ARRAY[1, 2, 3, 4])")
    assert refusal.sqlstate == "22023" and "predicts a number, 'price'" in refusal.message


def test_null_as_a_class_and_values_beyond_the_classes(user):
    named = user.value("SELECT madlib_mop.predict_named('with_null', 1, ARRAY[1, 2, 3, 4])")
    assert set(named) == {"NULL", "a"}
    kinds = {kind for (kind,) in user.rows("SELECT madlib_mop.predict_class('with_null', 1, x) FROM points")}
    assert kinds <= {None, "a"} and kinds
    refusal = user.refused(user.value, "SELECT madlib_mop.predict_named('two_nulls', 1, ARRAY[1, 2, 3, 4])")
    assert refusal.sqlstate == "22023" and "'NULL'" in refusal.message
    for function in ("predict_class", "predict_named"):
        refusal = user.refused(user.value, f"SELECT madlib_mop.{function}('too_many', 1, ARRAY[1, 2, 3, 4])")
        assert refusal.sqlstate == "22023" and "4 classes" in refusal.message
    assert len(user.value("SELECT madlib_mop.predict('too_many', 1, ARRAY[1, 2, 3, 4])")) == 3


def test_one_row_where_one_is_taken(user):
    for function in ("predict_class", "predict_named"):
        refusal = user.refused(user.value, f"SELECT madlib_mop.{function}('kinds', 1, {TWO.replace('NULL', '0')})")
        assert refusal.sqlstate == "22023" and "x has 3 rows" in refusal.message
        assert f"{function}_rows" in refusal.hint


def test_forged_arrays_are_refused_cheaply(user):
    """array_bytes returns raw memory; a value written by hand must not make the session count to 2^60."""
    for n_dims, bitmap, dims in ((2, 40, "ffffff7f" * 2), (1, 24, "ffffffff"), (1, 0, "00000000")):
        size = n_dims.to_bytes(4, "little").hex() + bitmap.to_bytes(4, "little").hex() + "bc020000"
        forged = f"\\x{size}{dims}{'01000000' * n_dims}00000000"
        refusal = user.refused(user.value, "SELECT madlib_mop.predict('kinds', 1, ARRAY[%s::bytea])", forged)
        assert (refusal.sqlstate, "not an array of numbers" in refusal.message) == ("22023", True), refusal


def test_an_error_has_two_lines_of_context(user):
    for call in ("madlib_mop.predict('nothing', 1, ARRAY[1])", "madlib_mop.predict_class('kinds', 1, ARRAY[1])",
                 "madlib_mop.predict_named_rows('kinds', 1, ARRAY[1])"):  # fmt: skip
        with pytest.raises(psycopg2.Error) as caught:
            user.value(f"SELECT {call}")
        lines = caught.value.diag.context.splitlines()
        assert len(lines) == 2 and all(line.startswith("PL/pgSQL function madlib_mop") for line in lines), lines


def test_what_named_gives_is_json_also_where_a_value_is_not_finite(user, nets):
    big = "ARRAY[3e38, 3e38, 3e38, 3e38]::real[]"
    named = user.value(f"SELECT madlib_mop.predict_named('number', NULL, {big})::text")
    assert json.loads(named)["price"] is None
