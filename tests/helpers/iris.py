"""Iris as in MADlib's scripts: a table of 150 flowers, 120 for training and 30 for testing, and two perceptrons."""

import json

from tests.helpers.training import script

ADAM = "loss='categorical_crossentropy', optimizer='Adam(lr={})', metrics=['accuracy']"
N_TRAIN, N_HELD_OUT = 120, 30


def load_iris(db) -> None:
    """Write tables ``iris`` (id, attributes, class_text) and its parts ``iris_train`` and ``iris_test``."""
    from sklearn.datasets import load_iris
    from sklearn.model_selection import train_test_split

    flowers = load_iris()
    rows = [
        (number, [round(float(value), 1) for value in flowers.data[number - 1]], f"Iris-{flowers.target_names[kind]}")
        for number, kind in enumerate(flowers.target, 1)
    ]
    db.rows("CREATE TABLE iris (id integer, attributes numeric[], class_text varchar)")
    db.rows("INSERT INTO iris VALUES " + ", ".join(["%s"] * len(rows)), rows)
    train, held_out = train_test_split(range(1, 151), test_size=N_HELD_OUT, random_state=0, stratify=flowers.target)
    for name, ids in (("iris_train", train), ("iris_test", held_out)):
        db.rows(f"CREATE TABLE {name} AS SELECT * FROM iris WHERE id = ANY (%s)", [list(ids)])


def pack_iris(db, n_segments: int, train: str = "iris_train_packed", held_out: str = "iris_test_packed") -> None:
    """Pack the two parts."""
    script(
        db,
        f"SET madlib_mop.segments = {n_segments}",
        f"SELECT madlib.training_preprocessor_dl('iris_train', '{train}', 'class_text', 'attributes', seed => 1)",
        f"SELECT madlib.validation_preprocessor_dl('iris_test', '{held_out}', 'class_text', 'attributes', '{train}')",
    )


def perceptron(*widths: int) -> str:
    """Return the JSON of a perceptron with 4 inputs in Keras 2.1's form: a list of layers, the first with the shape."""
    uniform = {"distribution": "uniform", "scale": 1.0, "seed": None, "mode": "fan_avg"}
    layers = []
    for number, units in enumerate(widths, 1):
        config = {
            "name": f"dense_{number}", "units": units, "activation": "relu", "use_bias": True, "trainable": True,
            "kernel_initializer": {"class_name": "VarianceScaling", "config": uniform},
            "bias_initializer": {"class_name": "Zeros", "config": {}}, "kernel_regularizer": None,
            "bias_regularizer": None, "activity_regularizer": None, "kernel_constraint": None, "bias_constraint": None,
        }  # fmt: skip
        layers.append({"class_name": "Dense", "config": config})
    layers[0]["config"] |= {"batch_input_shape": [None, 4], "dtype": "float32"}
    layers[-1]["config"]["activation"] = "softmax"
    document = {"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": layers}
    return json.dumps(document)


def load_perceptrons(db, table: str = "model_arch_library") -> None:
    """Load perceptrons 4-10-10-3 (model_id 1) and 4-10-10-10-3 (2), in the JSON of Keras 2.1."""
    for name, widths in (("two hidden layers", (10, 10, 3)), ("three hidden layers", (10, 10, 10, 3))):
        db.rows(
            "SELECT madlib.load_keras_model(%s, %s::json, NULL, %s, %s)",
            [table, perceptron(*widths), name, "a perceptron"],
        )
