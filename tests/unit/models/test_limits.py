"""What the parser of compile parameters accepts, Keras takes: every argument of every class, with values at all limits.

The other way round, what the parser refuses by a limit, Keras refuses too, or its first step does.
"""

import itertools

import keras
import numpy as np
import pytest

from madlib_mop.errors import MopError
from madlib_mop.models import build
from madlib_mop.models.parameters import keras_names
from madlib_mop.models.parameters.calls import check_call
from madlib_mop.models.parameters.literals import CallSpec
from madlib_mop.models.parameters.parser import check_optimizer, parse_compile_params, parse_fit_params

_VALUES = (None, -1, 0, 1, 2, 3, -0.5, 0.0, 0.3, 1.0, 1.5, True, False, "x", "sum", "macro", "float32", [], [0], [1],
           [0, 1], [0.3, 0.6], [-0.5], [1.5], ["a"], [None])  # fmt: skip
#: Arguments without which a class cannot be made.
_GIVEN = {"num_classes": 3, "target_class_ids": [1], "recall": 0.5, "precision": 0.5, "sensitivity": 0.5,
          "specificity": 0.5, "initial_learning_rate": 0.1, "decay_steps": 5, "first_decay_steps": 5,
          "decay_rate": 0.5, "boundaries": [2], "values": [0.1, 0.2]}  # fmt: skip
#: Arguments that say what others, which are in the keys, mean.
_TOGETHER = {"ema_momentum": {"use_ema": True}, "ema_overwrite_frequency": {"use_ema": True},
             "num_labels": {"multi_label": True}, "num_thresholds": {"thresholds": [0.2, 0.4]},
             "clipvalue": {"clipnorm": 1.0}, "global_clipnorm": {"clipnorm": 1.0}}  # fmt: skip
_TABLES = {"loss": keras_names.LOSSES, "metric": keras_names.METRICS, "schedule": keras_names.SCHEDULES}
_CLASSES = [(kind, name) for kind, table in _TABLES.items() for name in table]


def calls(name, table):
    """Yield calls of a class with each argument in turn, alone and beside those that change its meaning."""
    needed = {argument: _GIVEN[argument] for argument in keras_names.REQUIRED.get(name, ())}
    for argument, value in itertools.product(table[name], _VALUES):
        yield CallSpec(name, (), {**needed, argument: value})
        beside = _TOGETHER.get(argument, {})
        if beside and set(beside) <= set(table[name]):
            yield CallSpec(name, (), {**needed, **beside, argument: value})


def accepted(spec, check):
    try:
        return check(spec)
    except MopError as error:
        assert "Received" in error.message
        return None


@pytest.mark.one_case
@pytest.mark.parametrize("kind, name", _CLASSES, ids=lambda value: value)
def test_what_passes_makes_an_object_of_keras(kind, name):
    table = _TABLES[kind]
    specs = [spec for call in calls(name, table) if (spec := accepted(call, lambda c: check_call(c, table, "x")))]
    assert specs
    for spec in specs:
        given = spec.kwargs
        if name == "PiecewiseConstantDecay" or min(given.get("decay_steps", 1), given.get("first_decay_steps", 1)) <= 0:
            continue  # `check_schedule` checks these
        build.make(spec, kind)


@pytest.mark.one_case
@pytest.mark.parametrize("name", keras_names.OPTIMIZERS)
def test_an_optimizer_that_passes_makes_a_step(name):
    specs = [spec for call in calls(name, keras_names.OPTIMIZERS) if (spec := accepted(call, as_optimizer))]
    assert len(specs) > 20
    for spec in specs:
        optimizer = build.make_optimizer(spec)
        variable = keras.Variable(np.ones((2, 3), np.float32))
        optimizer.build([variable])


def as_optimizer(spec):
    return check_optimizer(spec, "optimizer")


@pytest.mark.parametrize("text, words", [
    ("SGD(momentum=1.5)", "momentum of SGD must be between 0 and 1. Received: momentum=1.5"),
    ("Adam(clipnorm=1.0, clipvalue=0.5)", "Adam takes only one of clipnorm, clipvalue, global_clipnorm. Received:"
     " clipnorm and clipvalue"),
    ("Adam(gradient_accumulation_steps=1)", "must be a whole number of 2 or more. Received:"
     " gradient_accumulation_steps=1"),
    ("Adam(use_ema=True, ema_momentum=2)", "ema_momentum of Adam must be between 0 and 1"),
    ("AdamW(weight_decay=None)", "weight_decay of AdamW must be a number. Received: None"),
    ("Lion(beta_1=0)", "beta_1 of Lion must be above 0, and at most 1"),
    ("Ftrl(learning_rate_power=0.5)", "learning_rate_power of Ftrl must be 0 or less"),
    ("Muon(exclude_layers='head')", "exclude_layers of Muon must be a list of texts"),
    ("Adam(name='a: 1 [b]')", "name of Adam must begin with an ASCII letter"),
])  # fmt: skip
def test_limits_of_optimizers_are_named(text, words):
    with pytest.raises(MopError) as caught:
        parse_compile_params(f"loss='mse', optimizer={text}")
    assert words in caught.value.message


@pytest.mark.parametrize("text, words", [
    ("PrecisionAtRecall(recall=1.5)", "recall of PrecisionAtRecall must be between 0 and 1. Received: recall=1.5"),
    ("AUC(num_thresholds=1)", "num_thresholds of AUC must be 2 or more"),
    ("AUC(curve='X')", "curve of AUC must be one of pr, PR, roc"),
    ("Precision(thresholds=[0.5, 2])", "thresholds of Precision must be between 0 and 1"),
    ("F1Score(average='mean')", "average of F1Score must be one of micro, macro, weighted"),
    ("IoU(num_classes=2, target_class_ids=[2])", "each below the number of classes. Received: target_class_ids=[2]"),
    ("R2Score(class_aggregation='x')", "class_aggregation of R2Score must be one of uniform_average"),
    ("AUC(dtype='x')", "dtype of AUC must be a type of Keras"),
])  # fmt: skip
def test_limits_of_metrics_are_named(text, words):
    with pytest.raises(MopError) as caught:
        parse_compile_params(f"loss='mse', optimizer='sgd', metrics=[{text}]")
    assert words in caught.value.message


def test_limits_of_losses_and_callbacks_are_named():
    with pytest.raises(MopError, match="reduction of Huber must be one of sum_over_batch_size, sum"):
        parse_compile_params("loss=Huber(reduction='x'), optimizer='sgd'")
    with pytest.raises(MopError, match="factor of ReduceLROnPlateau must be below 1. Received: factor=1.5"):
        parse_fit_params("callbacks=[ReduceLROnPlateau(factor=1.5)]")


def test_whole_numbers_become_floats_where_keras_takes_no_others():
    parsed = parse_compile_params("loss='mse', optimizer='SGD(momentum=1)', metrics=[FBetaScore('macro', beta=2)]")
    assert parsed.optimizer.kwargs["momentum"] == 1.0 and isinstance(parsed.optimizer.kwargs["momentum"], float)
    assert isinstance(parsed.metrics[0].kwargs["beta"], float)
    build.make_optimizer(parsed.optimizer)
    build.make(parsed.metrics[0], "metric")
