"""Architectures that differ only in the names of their layers are recognised; others are not."""

from madlib_mop.models.stored import without_names
from tests.helpers.unit.documents import dense, keras_3, layer


def test_other_names_of_layers_and_of_the_model_do_not_count():
    one = keras_3(dense(4, name="dense"), dense(3, name="dense_1"))
    other = keras_3(dense(4, name="dense_7"), dense(3, name="dense_8"), name="sequential_3")
    assert without_names(one) == without_names(other)


def test_all_else_counts():
    one = without_names(keras_3(dense(4, name="a"), dense(3, name="b")))
    for other in (
        keras_3(dense(5, name="a"), dense(3, name="b")),
        keras_3(dense(4, name="a"), dense(3, name="b"), input_shape=(5,)),
        keras_3(dense(4, name="a")),
        keras_3(dense(4, name="a"), layer("Dropout", rate=0.5, name="c"), dense(3, name="b")),
        keras_3(dense(4, name="a", activation="relu"), dense(3, name="b")),
    ):
        assert without_names(other) != one


def test_a_value_that_is_also_the_name_of_a_layer_counts():
    """A layer may have the name of its activation."""
    relu = keras_3(layer("Activation", activation="relu", name="relu"))
    tanh = keras_3(layer("Activation", activation="tanh", name="tanh"))
    assert without_names(relu) != without_names(tanh)


def _two_inputs(first: str, second: str, source: str) -> dict:
    """Return a functional model that subtracts one of its inputs from the other."""

    def tensor(name: str) -> dict:
        config = {"shape": [None, 4], "dtype": "float32", "keras_history": [name, 0, 0]}
        return {"class_name": "__keras_tensor__", "config": config}

    inputs = [
        {**layer("InputLayer", batch_shape=[None, 4], dtype="float32", name=name), "name": name, "inbound_nodes": []}
        for name in (first, second)
    ]
    other = second if source == first else first
    node = {"args": [[tensor(source), tensor(other)]], "kwargs": {}}
    last = {**layer("Subtract", name="minus"), "name": "minus", "inbound_nodes": [node]}
    config = {
        "name": "model", "trainable": True, "layers": [*inputs, last],
        "input_layers": [[first, 0, 0], [second, 0, 0]], "output_layers": [["minus", 0, 0]],
    }  # fmt: skip
    return {"module": "keras.src.models.functional", "class_name": "Functional", "config": config}


def test_connections_count():
    same = without_names(_two_inputs("a", "b", "a")), without_names(_two_inputs("x", "y", "x"))
    assert same[0] == same[1] != without_names(_two_inputs("a", "b", "b"))
