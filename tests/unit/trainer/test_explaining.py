"""Explanations of networks of ten columns: exact values within their errors; what is explained of each output."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.columns.encoding.encoder import Encoder  # noqa: E402
from madlib_mop.explaining.columns import ColumnElements  # noqa: E402
from madlib_mop.trainer.explaining import explain_row  # noqa: E402
from madlib_mop.trainer.graphs.predict import Predictor  # noqa: E402
from madlib_mop.trainer.process.failures import RequestFailure  # noqa: E402
from tests.helpers.unit.columns import fitted, numbers, spec, target, texts  # noqa: E402
from tests.helpers.unit.explained import exact_values  # noqa: E402
from tests.helpers.unit.records import batch, field  # noqa: E402

N_ROWS = 60
NAMES = [f"x{i}" for i in range(7)]


def table(y):
    """Return a preprocessor of ten columns and a target, and the raw columns."""
    random = np.random.default_rng(11)
    raw = {name: numbers(list(random.normal(size=N_ROWS))) for name in NAMES}
    raw |= {name: texts([f"{name}{i}" for i in random.integers(0, 4, N_ROWS)]) for name in ("a", "b", "c")}
    encodings = (("a", "one_hot"), ("b", "frequency"), ("c", "index"))
    specs = [spec(name) for name in NAMES] + [spec(name, "category", encode=encode) for name, encode in encodings]
    return fitted([*((one, raw[one.name]) for one in specs), y]), raw


def predictor_of(preprocessor, units, activation):
    keras.utils.set_random_seed(3)
    wide, index = preprocessor.tensors
    x, c = keras.Input(wide.shape), keras.Input((1,), dtype="int32")
    both = layers.Concatenate()([x, layers.Flatten()(layers.Embedding(index.n_codes, 3)(c))])
    hidden = layers.Dense(24, "tanh", kernel_initializer=keras.initializers.RandomNormal(stddev=0.7))(both)
    output = layers.Dense(units, activation, kernel_initializer=keras.initializers.RandomNormal(stddev=0.7))(hidden)
    return Predictor(keras.Model([x, c], output), 1.0, preprocessor.to_json())


def record_of(raw, number):
    columns = [*NAMES, "a", "b", "c"]
    fields = [field("float8" if name in NAMES else "text", name) for name in columns]
    values = [raw[name].values[number] if name in NAMES else raw[name].texts()[number] for name in columns]
    data, _ = batch(fields, [values])
    return data, [(one.name, one.reader, one.oid, one.reader) for one in fields], "UTF8"


CLASSES = (target("y"), texts(["red", "green", "blue"] * 20))
TWO = (target("y"), texts(["no", "yes"] * 30))
NUMBER = (target("y", "number"), numbers([1000.0 * i for i in range(N_ROWS)]))


@pytest.mark.parametrize(
    ("y", "units", "activation"), [(CLASSES, 3, "softmax"), (TWO, 1, "sigmoid"), (NUMBER, 1, None)]
)
def test_values_of_ten_columns_agree_with_the_exact_ones(y, units, activation):
    preprocessor, raw = table(y)
    predictor = predictor_of(preprocessor, units, activation)
    background = [v[20:] for v in Encoder(preprocessor).encode(raw).arrays.values()]
    row = [v[4:5] for v in Encoder(preprocessor).encode(raw).arrays.values()]
    found = explain_row(predictor, record_of(raw, 4), background, None, 3, 1)
    ((output, of_class),) = found.outputs
    assert found.columns == (*NAMES, "a", "b", "c") and output == "y"
    values, _ = predictor.row_encoder.values(predictor.predict(tuple(row)))
    if of_class is None:
        expected = values[:, :1]
    else:
        scores = values[0] if units == 3 else np.array([1 - values[0, 0], values[0, 0]])
        assert of_class == preprocessor.targets[0].fit.classes[int(scores.argmax())]
        expected = scores[np.newaxis, [int(scores.argmax())]]
    explanation = found.explanation
    assert explanation.prediction == pytest.approx(expected[0], rel=1e-12)
    total = explanation.contributions.sum(axis=0)
    assert total == pytest.approx(explanation.prediction - explanation.base, abs=1e-6)

    def predict(inputs):
        some, _ = predictor.row_encoder.values(predictor.predict(tuple(inputs)))
        if of_class is None:
            return some
        place = preprocessor.targets[0].fit.classes.index(of_class)
        return some[:, place : place + 1] if units == 3 else (some if place else 1 - some)

    exact = exact_values(predict, ColumnElements(preprocessor), row, background)
    errors = np.abs(explanation.contributions - exact) / explanation.standard_errors
    assert (errors < 2).mean() >= 0.95 and errors.max() < 3


def test_a_class_that_is_named_is_explained():
    preprocessor, raw = table(TWO)
    predictor = predictor_of(preprocessor, 1, "sigmoid")
    background = list(Encoder(preprocessor).encode(raw).arrays.values())
    yes, no = (explain_row(predictor, record_of(raw, 4), background, one, 1, 0) for one in ("yes", "no"))
    assert (yes.outputs, no.outputs) == ([("y", "yes")], [("y", "no")])
    assert yes.explanation.contributions == pytest.approx(-no.explanation.contributions, abs=1e-9)
    assert yes.explanation.prediction + no.explanation.prediction == pytest.approx(1)


@pytest.mark.parametrize(
    ("of_class", "n_columns", "words"),
    [("maybe", 2, "it has the classes no, yes. Received: 'maybe'"), (None, 1, "the background has rows of the shapes")],
)
def test_what_cannot_be_explained_is_one_clear_error(of_class, n_columns, words):
    preprocessor, raw = table(TWO)
    predictor = predictor_of(preprocessor, 1, "sigmoid")
    background = list(Encoder(preprocessor).encode(raw).arrays.values())[:n_columns]
    with pytest.raises(RequestFailure) as caught:
        explain_row(predictor, record_of(raw, 4), background, of_class, 1, 0)
    assert caught.value.kind == "input" and words in caught.value.error.message
