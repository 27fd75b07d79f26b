"""A configuration is parsed once, and equals another by what it trains."""

import dataclasses
import json

import pytest

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.errors import InvalidParameter, MopError
from madlib_mop.models import configuration as module
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from tests.helpers.unit.documents import dense, keras_3

ARCH = check_architecture(keras_3(dense(3, name="out"), input_shape=(4,)))
COMPILE = "loss='mse', optimizer='Adam(lr=0.01)', metrics=['accuracy', 'mae']"


def test_a_text_is_parsed_once_for_all_configurations(monkeypatch):
    calls = []
    module.compile_params_of.cache_clear()

    def parse(text, names):
        calls.append(text)
        return parse_compile_params(text, names)

    parse_compile_params = module.parse_compile_params
    monkeypatch.setattr(module, "parse_compile_params", parse)
    one = Configuration.checked(1, COMPILE, None, ARCH)
    assert (one.columns()["loss_type"], one.columns()["metrics_type"], one.fit.batch_size) == (
        "mse", ["accuracy", "mae"], 32,
    )  # fmt: skip
    assert dataclasses.replace(one, fit_params="batch_size=8").compiled == one.compiled
    assert calls == [COMPILE]


def test_for_another_architecture_nothing_is_parsed_again(monkeypatch):
    first = Configuration.checked(1, "optimizer='sgd', loss='mse'", "epochs=3", keras_3(dense()))
    for name in ("parse_compile_params", "parse_fit_params"):
        monkeypatch.setattr(module, name, None)
    other = first.of_architecture(2, {"class_name": "Sequential"})
    assert (other.model_id, other.arch, other.fit.epochs) == (2, {"class_name": "Sequential"}, 3)
    assert other.compiled is first.compiled and other.custom_names == ()
    assert (first.model_id, first.arch) == (1, keras_3(dense()))


@pytest.mark.parametrize("texts, error", [
    (("loss='mse'", ""), InvalidParameter), ((None, ""), MopError), ((COMPILE, "batch_size=0"), InvalidParameter),
    (("loss=own, optimizer='sgd'", ""), MopError),
])  # fmt: skip
def test_texts_are_checked(texts, error):
    with pytest.raises(error):
        Configuration.checked(1, *texts, ARCH)


def test_custom_functions_are_those_that_are_allowed():
    text = "loss='own', optimizer='sgd'"
    assert Configuration.checked(1, text, "", ARCH, ["own", "other"]).custom_names == ("own",)
    with pytest.raises(InvalidParameter, match="Received: 'own'"):
        Configuration.checked(1, text, "", ARCH, ["other"])


@pytest.mark.parametrize("text", [COMPILE, "loss='own', optimizer='sgd'"])
def test_a_row_and_a_command_of_the_record_hold_a_whole_configuration(text):
    one = Configuration.checked(7, text, "batch_size=8", ARCH, ["own"])
    row = ModelRow(mst_key=1, ordinal=0, last_epoch=1, **one.columns())
    for again in (row.configuration, Configuration.recorded(**json.loads(json.dumps(one.columns())))):
        assert again.columns() == one.columns() and again.equals(one)


@pytest.mark.parametrize("changes, are_equal", [
    ({}, True),
    ({"compile_params": "metrics=['accuracy', 'mae'], optimizer='Adam(learning_rate=0.01)', loss='mse'"}, True),
    ({"compile_params": COMPILE.replace("0.01", "0.02")}, False),
    ({"fit_params": "epochs=1, batch_size=32"}, True),
    ({"fit_params": "batch_size=16"}, False),
    ({"arch": check_architecture(keras_3(dense(2, name="out"), input_shape=(4,)))}, False),
])  # fmt: skip
def test_equal_is_what_trains_the_same(changes, are_equal):
    one = Configuration.checked(1, COMPILE, "", ARCH)
    assert one.equals(dataclasses.replace(one, **changes)) is are_equal


def test_optimizers_are_told_apart_by_their_class():
    one = Configuration.checked(1, COMPILE, "", ARCH)
    assert one.has_optimizer_of(dataclasses.replace(one, compile_params=COMPILE.replace("0.01", "0.5")))
    assert not one.has_optimizer_of(dataclasses.replace(one, compile_params=COMPILE.replace("Adam", "SGD")))
