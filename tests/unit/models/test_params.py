"""Compile and fit parameters in all forms that users write, and one clear error for each invalid one."""

import subprocess
import sys

import numpy as np
import pytest

from madlib_mop.errors import InvalidParameter, UnreadableText
from madlib_mop.models.parameters.class_weights import (
    as_given,
    balanced_weights,
    written_out,
)
from madlib_mop.models.parameters.literals import CallSpec
from madlib_mop.models.parameters.parser import FitParams, parse_compile_params, parse_fit_params, recorded_notice

SGD_NESTEROV = CallSpec("SGD", (), {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True})


def compiled(optimizer="adam", loss="'mse'", **others):
    parts = [f"optimizer={optimizer}", f"loss={loss}", *(f"{name}={value}" for name, value in others.items())]
    return parse_compile_params(", ".join(parts))


@pytest.mark.parametrize(
    "text",
    [
        "SGD(lr=0.1, momentum=0.9, nesterov=True)",
        "'SGD(lr=0.1, momentum=0.9, nesterov=True)'",
        '"SGD(lr=0.1, momentum=0.9, nesterov=True)"',
        "'sgd(learning_rate=0.1,momentum=0.9,nesterov=true)'",
        "Sgd(0.1, 0.9, True)",
        "tf.keras.optimizers.SGD(0.1, nesterov=True, momentum=0.9)",
        "'keras.optimizers.SGD(lr=1e-1, momentum=.9, nesterov=True, decay=0)'",
        "{'class_name': 'SGD', 'config': {'learning_rate': 0.1, 'momentum': 0.9, 'nesterov': True}}",
    ],
)
def test_an_optimizer_is_the_same_in_every_spelling(text):
    assert compiled(text).optimizer == SGD_NESTEROV


@pytest.mark.parametrize("text", ["adam", "Adam", "'ADAM'", '"adam"', "Adam()", "'adam()'"])
def test_an_optimizer_may_be_a_bare_name(text):
    params = compiled(text)
    assert params.optimizer == CallSpec("Adam")
    assert params.learning_rate is None


def test_json_form_gives_the_same_as_keyword_text():
    text = "loss='mse', optimizer='Adam(lr=0.01, amsgrad=True)', metrics=['mae', AUC(num_thresholds=50)]"
    json_text = """{"loss": "mse", "optimizer": {"class_name": "adam", "config": {"learning_rate": 0.01,
                    "amsgrad": true}}, "metrics": ["mae", {"class_name": "AUC", "config": {"num_thresholds": 50}}]}"""
    assert parse_compile_params(text) == parse_compile_params(json_text)
    assert parse_compile_params(text).key == parse_compile_params(json_text).key


def test_text_is_kept_as_given():
    text = "  loss='mse' ,optimizer='adam'  "
    assert parse_compile_params(text).text == text


def test_lr_is_a_float_and_a_plain_rate():
    assert compiled("Adam(lr=1)").learning_rate == 1.0
    assert isinstance(compiled("Adam(lr=1)").learning_rate, float)


def test_decay_of_keras_2_is_inverse_time_decay():
    rate = compiled("'Adam(lr=0.01, decay=1e-6)'").optimizer.kwargs["learning_rate"]
    expected = {"initial_learning_rate": 0.01, "decay_steps": 1, "decay_rate": 1e-6}
    assert rate == CallSpec("InverseTimeDecay", (), expected)


@pytest.mark.parametrize("name,default", [("SGD", 0.01), ("Adam", 0.001), ("ScheduleFreeAdamW", 0.0025)])
def test_decay_alone_begins_at_the_default_rate(name, default):
    rate = compiled(f"{name}(decay=0.1)").optimizer.kwargs["learning_rate"]
    assert rate.kwargs["initial_learning_rate"] == default


def test_what_keras_2_wrote_for_its_defaults_is_left_out():
    assert compiled("Nadam(lr=0.1, epsilon=None, schedule_decay=0.004)").optimizer.kwargs == {"learning_rate": 0.1}


SCHEDULES = {
    "ExponentialDecay(0.1, decay_steps=100, decay_rate=0.96)": ("ExponentialDecay", "initial_learning_rate", 0.1),
    "InverseTimeDecay(1, 100, 0.5, staircase=True)": ("InverseTimeDecay", "initial_learning_rate", 1.0),
    "PiecewiseConstantDecay([10, 20], [1, 0.5, 0.1])": ("PiecewiseConstantDecay", "values", [1.0, 0.5, 0.1]),
    "PolynomialDecay(0.1, 50, end_learning_rate=0)": ("PolynomialDecay", "end_learning_rate", 0.0),
    "CosineDecay(0.1, 50, warmup_target=1, warmup_steps=5)": ("CosineDecay", "warmup_target", 1.0),
    "cosinedecayrestarts(0.1, first_decay_steps=50)": ("CosineDecayRestarts", "first_decay_steps", 50),
}


@pytest.mark.parametrize("text", SCHEDULES)
@pytest.mark.parametrize("form", ["SGD(learning_rate={})", "'SGD(lr={})'"])
def test_schedules_are_nested_by_name(text, form):
    params = compiled(form.format(text))
    name, argument, value = SCHEDULES[text]
    schedule = params.optimizer.kwargs["learning_rate"]
    assert (schedule.name, schedule.kwargs[argument]) == (name, value)
    assert type(schedule.kwargs[argument]) is type(value)
    assert params.learning_rate is None


def test_losses_for_several_outputs():
    assert compiled(loss="['mse', Huber(delta=2.0)]").loss == ["mse", CallSpec("Huber", (), {"delta": 2.0})]
    assert compiled(loss="{'a': 'mse', 'b': None}").loss == {"a": "mse", "b": None}
    assert compiled(loss="['mse', 'mae']", loss_weights="[1, 0.5]").loss_weights == [1.0, 0.5]
    assert compiled(loss_weights="{'a': 2}").loss_weights == {"a": 2.0}


@pytest.mark.parametrize(
    "text,expected",
    [
        ("'mse'", ["mse"]),
        ("None", None),
        ("[]", []),
        ("['mse', 'mae', 'accuracy']", ["mse", "mae", "accuracy"]),
        ("[['mse'], ['mae', 'mape']]", [["mse"], ["mae", "mape"]]),
        ("{'a': 'mse', 'b': ['mae', None]}", {"a": "mse", "b": ["mae", None]}),
        ("['kullback_leibler_divergence']", ["kl_divergence"]),
        ("AUC()", [CallSpec("AUC", (), {"name": "auc"})]),
        ("['AUC']", [CallSpec("AUC", (), {"name": "AUC"})]),
        ("'F1Score(\"macro\")'", [CallSpec("F1Score", (), {"average": "macro", "name": "f1_score"})]),
    ],
)  # fmt: skip
def test_metrics_in_every_form(text, expected):
    assert compiled(metrics=text).metrics == expected
    assert compiled(weighted_metrics=text).weighted_metrics == expected


def test_metrics_called_twice_have_names_of_their_own():
    params = compiled(metrics="['accuracy', AUC(), AUC(curve='PR'), TopKCategoricalAccuracy(3, name='auc')]")
    assert params.metric_names == ("accuracy", "auc", "auc_1", "auc_2")


def test_custom_names_stand_for_losses_and_metrics():
    names = {"my-loss", "top_3_accuracy", "other"}
    params = parse_compile_params("optimizer='adam', loss='my-loss', metrics=['top_3_accuracy', 'mse']", names)
    assert (params.loss, params.metrics) == ("my-loss", ["top_3_accuracy", "mse"])
    assert params.custom_names == ("my-loss", "top_3_accuracy")


@pytest.mark.parametrize(
    "one,other",
    [
        ("loss='mse',optimizer='adam'", "  optimizer =  Adam( ) , loss=mse"),
        ("loss='mse',optimizer='adam(lr=0.1,beta_1=0.8)'", "loss='mse',optimizer='Adam(beta_1=0.8,learning_rate=0.1)'"),
    ],
)
def test_parameters_that_mean_the_same_have_one_key(one, other):
    assert parse_compile_params(one).key == parse_compile_params(other).key


def test_parameters_that_differ_have_different_keys():
    texts = ["adam", "adam(lr=0.1)", "adam(lr=0.2)", "sgd", "adam(amsgrad=True)", "adam(decay=0.1)"]
    assert len({compiled(text).key for text in texts}) == len(texts)


REFUSED = {
    "loss='mse'": ("optimizer is required", "optimizer='Adam"),
    "optimizer='adam'": ("loss is required", None),
    "loss=None, optimizer='adam'": ("loss is required", None),
    "foo='bar'": ("'foo'", "Allowed: loss, loss_weights, metrics, optimizer, weighted_metrics"),
    "loss='mse', optimzer='adam'": ("'optimzer'", "Did you mean optimizer?"),
    "loss='mse', optimizer='adm'": ("'adm'", "Did you mean Adam?"),
    "loss='mse', optimizer='eval(1)'": ("'eval'", "Allowed: Adadelta"),
    "loss='mse', optimizer=3": ("Received: 3", None),
    "loss='mse', optimizer='adam(learning=1)'": ("'learning'", "Did you mean learning_rate?"),
    "loss='mse', optimizer='adam(lr=1, learning_rate=1)'": ("lr and learning_rate are the same", None),
    "loss='mse', optimizer='adam(0.1, lr=1)'": ("learning_rate twice", None),
    "loss='mse', optimizer='adam(lr=-0.1)'": ("Received: -0.1", None),
    "loss='mse', optimizer='adam(lr=True)'": ("Received: True", None),
    "loss='mse', optimizer='adam(lr=high)'": ("Received: 'high'", None),
    "loss='mse', optimizer='adam(lr=Cosine(1,2))'": ("'Cosine'", "Did you mean CosineDecay?"),
    "loss='mse', optimizer='adam(lr=CosineDecay(0.1))'": ("needs decay_steps", None),
    "loss='mse', optimizer='adam(lr=CosineDecay(0.1, 0))'": ("must be above 0. Received: 0", None),
    "loss='mse', optimizer='adam(lr=PiecewiseConstantDecay([1],[1]))'": ("one value more", None),
    "loss='mse', optimizer='adam(lr=CosineDecay(0.1, 5), decay=0.1)'": ("cannot be used together", "Remove decay"),
    "loss='mse', optimizer='sgd(nesterov=maybe)'": ("True or False. Received: 'maybe'", None),
    "loss='mse', optimizer='adam(amsgrad=1)'": ("True or False. Received: 1", None),
    "loss='mse', optimizer='adam(beta_1=None)'": ("a number. Received: None", None),
    "loss='mes', optimizer='adam'": ("'mes'", "Did you mean mse?"),
    "loss=Lambda(x), optimizer='adam'": ("'Lambda'", "Allowed: "),
    "loss=Huber(delta='x'), optimizer='adam'": ("delta of Huber must be a number. Received: 'x'", None),
    "loss=5, optimizer='adam'": ("Received: 5", None),
    "loss='mse', optimizer='adam', metrics=['acuracy']": ("'acuracy'", "Did you mean accuracy?"),
    "loss='mse', optimizer='adam', metrics=['recall_at_precision']": ("needs precision", None),
    "loss='mse', optimizer='adam', metrics=['mean']": ("'mean'", None),
    "loss='mse', optimizer='adam', loss_weights='a'": ("must be numbers. Received: 'a'", None),
    "loss='mse', optimizer='adam', sample_weight_mode='temporal'": ("'sample_weight_mode'", None),
    "": ("is missing", "Write e.g."),
    None: ("is missing", "Write e.g."),
}


@pytest.mark.parametrize("text", REFUSED, ids=str)
def test_each_mistake_has_a_message_with_what_was_received_and_a_hint(text):
    message, hint = REFUSED[text]
    with pytest.raises(InvalidParameter) as caught:
        parse_compile_params(text)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    if hint:
        assert hint in caught.value.hint


def test_unreadable_text_is_22p02():
    with pytest.raises(UnreadableText) as caught:
        parse_compile_params("loss='mse' optimizer='adam'")
    assert caught.value.sqlstate == "22P02"
    assert "loss='mse' optimizer='adam'" in caught.value.message


@pytest.mark.parametrize("text", [None, "", "   "])
def test_missing_fit_params_are_the_defaults(text):
    params = parse_fit_params(text)
    assert params == FitParams()
    assert (params.batch_size, params.epochs, params.initial_epoch, params.shuffle) == (32, 1, 0, True)


def test_fit_params_in_both_forms():
    text = """batch_size=8, epochs=3, initial_epoch=1, shuffle=False, class_weight={0: 1, 2: 2.5}, verbose=2,
              steps_per_epoch=4"""
    json_text = """{"batch_size": 8, "epochs": 3, "initial_epoch": 1, "shuffle": false, "verbose": 2,
                    "class_weight": {"0": 1, "2": 2.5}, "steps_per_epoch": 4, "callbacks": null}"""
    expected = FitParams(8, 3, 1, False, {0: 1.0, 2: 2.5}, 2, 4)
    assert parse_fit_params(text) == expected == parse_fit_params(json_text)
    assert parse_fit_params(text).key == parse_fit_params(json_text).key


def test_callbacks_are_calls_by_name():
    text = "callbacks=[EarlyStopping(patience=2), LearningRateScheduler(ExponentialDecay(0.1, 1, 0.9))]"
    stop, schedule = parse_fit_params(text).callbacks
    assert stop == CallSpec("EarlyStopping", (), {"patience": 2, "monitor": "loss"})
    assert schedule.kwargs["schedule"].name == "ExponentialDecay"


@pytest.mark.parametrize(
    "text",
    [
        "callbacks=[TensorBoard(log_dir='/tmp/logs')]",
        "callbacks='[TensorBoard(log_dir=\"/tmp/logs\", write_grads=True, batch_size=32)]'",
        "callbacks=TensorBoard('/tmp/logs', histogram_freq=1)",
    ],
)
def test_tensorboard_is_taken_and_nothing_is_made_of_it(text):
    params = parse_fit_params(text)
    assert params.callbacks == () and params.recorded == ("TensorBoard",)
    assert params.key == parse_fit_params("").key
    notice = recorded_notice([parse_fit_params(""), params])
    assert "TensorBoard has no effect" in notice and "madlib-mop tensorboard RUN DIR writes the files" in notice


def test_other_callbacks_beside_tensorboard_are_kept():
    params = parse_fit_params("callbacks=[TensorBoard(log_dir='x'), EarlyStopping(patience=2)]")
    assert [spec.name for spec in params.callbacks] == ["EarlyStopping"]
    assert recorded_notice([parse_fit_params("callbacks=[TerminateOnNaN()]")]) is None


@pytest.mark.parametrize("text", ["class_weight='balanced', epochs=2", '{"class_weight": "balanced", "epochs": 2}'])
def test_balanced_class_weights_are_written_out_and_back(text):
    weights = balanced_weights([30, 10, 0, 20])
    assert weights == {0: 60 / (3 * 30), 1: 60 / (3 * 10), 3: 60 / (3 * 20)}
    assert parse_fit_params(text).class_weight == "balanced"
    written = written_out(text, weights)
    assert parse_fit_params(written).class_weight == weights and parse_fit_params(written).epochs == 2
    assert as_given(written, weights) == text


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.repeat([0, 1, 2], [7, 1, 4])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert list(balanced_weights([7, 1, 4]).values()) == expected.tolist()


BAD_FIT = {
    "batch_size=0": "whole number of 1 or more. Received: 0",
    "batch_size='bar'": "Received: 'bar'",
    "batch_size=True": "Received: True",
    "batch_size=8.5": "Received: 8.5",
    "epochs=-1": "Received: -1",
    "epochs=0": "Received: 0",
    "initial_epoch=-1": "Received: -1",
    "epochs=2, initial_epoch=2": "nothing is trained",
    "steps_per_epoch=0": "Received: 0",
    "shuffle='maybe'": "True or False. Received: 'maybe'",
    "shuffle='batch'": "Received: 'batch'",
    "verbose=7": "Received: 7",
    "class_weight=[1, 2]": "must be 'balanced' or a dict",
    "class_weight='balance'": "Received: 'balance'",
    "class_weight={'a': 1}": "Received: 'a'",
    "class_weight={0: 'x'}": "Received: 'x'",
    "class_weight={0: -1}": "Received: -1",
    "validation_split=0.1": "'validation_split'",
    "callbacks=[LambdaCallback(print)]": "'LambdaCallback'",
    "callbacks=[ModelCheckpoint('/tmp/x')]": "'ModelCheckpoint'",
    "callbacks=[TensorBoard(log_dri='/tmp/x')]": "'log_dri'",
    "callbacks=[3]": "Received: 3",
    "callbacks=[LearningRateScheduler(0.1)]": "the name of a schedule",
    "callbacks=[EarlyStopping(monitor='val_loss')]": "validation data",
    "callbacks=[EarlyStopping(patience='x')]": "a whole number. Received: 'x'",
}


@pytest.mark.parametrize("text", BAD_FIT)
def test_bad_fit_params_are_errors(text):
    with pytest.raises(InvalidParameter) as caught:
        parse_fit_params(text)
    assert BAD_FIT[text] in caught.value.message


def test_the_parsers_do_not_import_tensorflow():
    code = """
import sys
import madlib_mop.models.parameters.parser, madlib_mop.models.parameters.search_grid, madlib_mop.models.architecture
import madlib_mop.models.shapes, madlib_mop.trainer.seeds
assert not {"tensorflow", "keras"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
