"""MADlib's tests of packed labels and of the table of architectures that no other test covers."""

import struct

import pytest

from tests.helpers.iris import perceptron
from tests.helpers.packing import Caller

pytestmark = pytest.mark.one_session

BY_PYTHON = """
CREATE FUNCTION load_from_python(arch text, weights bytea) RETURNS void LANGUAGE plpython3u AS $$
plan = plpy.prepare("SELECT madlib.load_keras_model('made_by_python', $1, $2)", ["json", "bytea"])
plpy.execute(plan, [arch, weights])
$$
"""


@pytest.fixture(scope="module")
def caller(db):
    connection = db.connect()
    caller = Caller(connection)
    caller.segments(1)
    yield caller
    connection.close()


def one_hot(caller, table, label):
    """Return a segment's labels in a packed table by their first x, read with the function that scripts use."""
    ((x, n, y, width),) = caller.rows(
        f"SELECT madlib.convert_bytea_to_real_array(x), x_shape[2], madlib.convert_bytea_to_smallint_array({label}),"
        f" {label}_shape[2] FROM {table}"
    )
    return {x[i * n]: y[i * width : (i + 1) * width] for i in range(len(x) // n)}


@pytest.mark.parametrize(
    ("labels", "n_classes", "classes", "given", "expected"),
    [
        ([None, None], 3, [None] * 3, [None], [0]),
        (["b", None, "a", "a", None], 5, [None, "a", "b", None, None], ["a", "b", None, "b"], [1, 2, 0, 2]),
    ],
)
def test_null_is_a_class_and_also_fills_up_the_list(caller, labels, n_classes, classes, given, expected):
    """The first NULL is a label, the others are classes without rows; validation rows use the first one."""
    name = f"null_{len(labels)}"
    caller.table(name, "x float8[], label text", [([10 * i, 1], label) for i, label in enumerate(labels)])
    caller.table(f"{name}_new", "x float8[], label text", [([5 * i, 1], label) for i, label in enumerate(given)])
    caller.rows(
        f"SELECT madlib.training_preprocessor_dl('{name}', '{name}_packed', 'label', 'x', NULL, 5, ARRAY[{n_classes}])"
    )
    caller.rows(
        f"SELECT madlib.validation_preprocessor_dl('{name}_new', '{name}_valid', 'label', 'x', '{name}_packed')"
    )

    def unit(number):
        return [int(i == number) for i in range(n_classes)]

    assert one_hot(caller, f"{name}_packed", "label") == {
        2.0 * i: unit(classes.index(label)) for i, label in enumerate(labels)
    }
    assert one_hot(caller, f"{name}_valid", "label") == {1.0 * i: unit(number) for i, number in enumerate(expected)}
    training, validation = caller.summary(f"{name}_packed"), caller.summary(f"{name}_valid")
    assert training["label_class_values"] == validation["label_class_values"] == classes
    alike = set(training) - {"source_table", "output_table", "buffer_size", "label_class_counts"}
    assert {key: training[key] for key in alike} == {key: validation[key] for key in alike}


def test_a_table_of_architectures_that_was_emptied_is_used_again(caller):
    caller.rows("SELECT madlib.load_keras_model('emptied', %s)", perceptron(7))
    caller.rows("DELETE FROM emptied")
    refusal = caller.refused(caller.rows, "SELECT madlib.delete_keras_model('emptied', 1)")
    assert (refusal.sqlstate, refusal.message) == (
        "22023",
        "delete_keras_model: public.emptied has no such model_id. Received: 1",
    )
    caller.rows("SELECT madlib.load_keras_model('emptied', %s)", perceptron(4))
    units = "model_arch #>> '{config,layers,1,config,units}'"
    assert caller.rows(f"SELECT model_id, {units}, model_weights, name FROM emptied") == [(1, "4", None, None)]


def test_a_function_in_python_loads_weights_by_a_prepared_statement(caller):
    """Another PL/Python function in the same session makes the call."""
    weights = struct.pack("@15f", *[1.0] * 15)
    caller.rows(BY_PYTHON)
    caller.rows("SELECT load_from_python(%s, %s)", perceptron(3), weights)
    ((model_id, stored),) = caller.rows("SELECT model_id, model_weights FROM made_by_python")
    assert (model_id, bytes(stored)) == (1, weights)
