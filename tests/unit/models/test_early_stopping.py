"""Early stopping: its parameters, and that a model stops when Keras' EarlyStopping would stop it."""

import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.errors import MopError
from madlib_mop.models.parameters.early_stopping import EarlyStopping, follow, read_early_stopping
from madlib_mop.models.parameters.parser import parse_fit_params

VALUES = st.lists(st.sampled_from([0.125 * n for n in range(12)]), min_size=1, max_size=12)


def by_keras(rule: EarlyStopping, values: list[float]) -> tuple[int | None, int]:
    """Run Keras' callback; return the epoch at which it stops, if it does, and the best one until then."""
    import keras

    class Model:
        stop_training = False

        def get_weights(self):
            return []

    callback = keras.callbacks.EarlyStopping(
        "val_loss", min_delta=rule.min_delta, patience=rule.patience, mode=rule.mode, restore_best_weights=True
    )
    callback.set_model(Model())
    # Keras' own function would import TensorFlow
    callback.monitor_op = operator.lt if rule.mode == "min" else operator.gt
    callback.min_delta *= -1 if rule.mode == "min" else 1
    callback.on_train_begin()
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"val_loss": value})
        if callback.model.stop_training:
            return epoch + 1, callback.best_epoch + 1
    return None, callback.best_epoch + 1


@given(VALUES, st.integers(1, 4), st.sampled_from(["min", "max"]), st.sampled_from([0.0, 0.0625, 0.25]))
def test_a_model_stops_where_keras_would_stop_it(values, patience, mode, min_delta):
    rule = EarlyStopping(patience=patience, metric="val_loss", mode=mode, min_delta=min_delta)
    stopped = None
    for n in range(1, len(values) + 1):
        course = follow(rule, list(enumerate(values[:n], 1)))
        if course.stops:
            stopped = n
            break
    assert (stopped, course.best_epoch) == by_keras(rule, values)


def test_what_is_no_number_is_no_improvement():
    rule = EarlyStopping(patience=2, metric="loss", mode="min")
    assert follow(rule, [(1, math.nan), (2, 0.5), (3, math.nan)]).best_epoch == 2
    assert follow(rule, [(1, math.nan), (2, 0.5), (3, math.nan), (4, 0.5)]).stops
    assert follow(rule, [(1, math.nan), (2, math.nan)]).best_epoch == 1


def test_parameters():
    rule = read_early_stopping("patience=3, metric=val_accuracy, restore_best=true, min_delta=0.01, mode=max")
    assert rule == EarlyStopping(patience=3, metric="val_accuracy", mode="max", min_delta=0.01, restore_best=True)
    assert (rule.data_set, rule.metric_name) == ("validation", "accuracy")
    assert EarlyStopping(**rule.as_json()) == rule
    assert read_early_stopping('{"patience": 2, "restore_best": "false"}') == EarlyStopping(patience=2)
    assert read_early_stopping(None) is read_early_stopping(" ") is read_early_stopping("off") is None


@pytest.mark.parametrize(
    "text, message",
    [
        ("metric=loss", "patience is missing"),
        ("patience=0", "patience must be a whole number of 1 or more. Received: 0"),
        ("patience=true", "patience must be a whole number"),
        ("patience=2.5", "patience must be a whole number"),
        ("patience=2, metric=3", "metric must be a name"),
        ("patience=2, mode=up", "mode must be one of auto, min, max. Received: 'up'"),
        ("patience=2, min_delta=-1", "min_delta must be a number of 0 or more"),
        ("patience=2, min_delta=small", "min_delta must be a number"),
        ("patience=2, restore_best=1", "restore_best must be true or false"),
        ("patience=2, patient=1", "there is no parameter of that name. Received: 'patient'"),
        ("3", "every value needs a name"),
        ("patience=2,,", "early_stopping"),
    ],
)
def test_bad_parameters(text, message):
    with pytest.raises(MopError) as caught:
        read_early_stopping(text)
    assert caught.value.message.startswith("early_stopping") and message in caught.value.message


def test_fit_params_have_their_own():
    own = parse_fit_params("batch_size=8, early_stopping='patience=2, metric=loss'")
    assert own.early_stopping == "patience=2, metric=loss"
    assert own.key != parse_fit_params("batch_size=8").key, "of two such configurations none is left out"
    for text in ("early_stopping=3", "early_stopping='patience=0'"):
        with pytest.raises(MopError, match="early_stopping"):
            parse_fit_params(text)
