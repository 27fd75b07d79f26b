"""Texts of a report: numbers, durations, sizes, hyper-parameters, layers, and the difference of two models."""

import pytest

from madlib_mop.catalog.facts.layers import layers_in_words
from madlib_mop.catalog.facts.models import hyper_parameters
from madlib_mop.catalog.live.words import duration, number
from madlib_mop.reports.difference import differences
from madlib_mop.reports.figures.positions import dimension
from madlib_mop.reports.formats import count, fixed, percent, size
from madlib_mop.reports.named import named_parameters
from tests.helpers.reports import a_model, some_facts


@pytest.mark.parametrize(
    "value, text",
    [
        (None, ""), (0, "0"), (1797, "1,797"), (0.98994974, "0.9899"), (0.5, "0.5"), (12345.678, "12,346"),
        (0.00001234, "1.234e-05"), (1e9, "1,000,000,000"), (-0.25, "-0.25"), (1234567.5, "1.235e+06"),
    ],
)  # fmt: skip
def test_a_number_has_four_digits_that_mean_something(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    "seconds, text",
    [
        (None, ""), (0.2149, "0.21 s"), (8.44, "8.4 s"), (26.62, "26.6 s"), (99.94, "99.9 s"), (200, "3 min 20 s"),
        (3600, "1 h"), (18180, "5 h 3 min"), (187200, "2 d 4 h"),
    ],
)  # fmt: skip
def test_a_duration_has_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_sizes_shares_and_counts():
    assert [size(n) for n in (None, 12, 129_000, 12_345_678)] == ["", "12 bytes", "129 kB", "12.3 MB"]
    assert [percent(x) for x in (None, 0.0, 0.074, 0.4, 1.0)] == ["", "0 %", "7.4 %", "40 %", "100 %"]
    assert [count(n) for n in (None, 1399)] == ["unknown", "1,399"]
    assert [fixed(x) for x in (None, 0.5, 1e-7)] == ["", "0.5000", "1e-07"]


def test_hyper_parameters_are_those_of_the_record():
    recorded = {"architecture": 2, "optimizer": "Adam", "learning_rate": 0.001, "loss": "mse", "class_weight": "x" * 99}
    assert hyper_parameters(recorded, 2, "not read", None) == recorded
    found = named_parameters(a_model(2, model_id=2, hyper_parameters=recorded))
    assert found == {
        "network": "2", "optimizer": "Adam", "learning_rate": 0.001, "loss": "mse", "class_weight": "x" * 59 + "…",
    }  # fmt: skip
    assert list(found)[0] == "network"


def test_hyper_parameters_that_are_not_recorded_are_parsed():
    texts = "loss='mse', optimizer='Adam(lr=0.01, beta_1=0.8)', metrics=['mae']", "batch_size=32, epochs=2, verbose=1"
    assert hyper_parameters({}, 2, *texts) == {
        "architecture": 2, "loss": "mse", "optimizer": "Adam", "learning_rate": 0.01, "beta_1": 0.8, "batch_size": 32,
        "epochs": 2,
    }  # fmt: skip


def test_parameters_that_cannot_be_parsed_are_one_text():
    found = hyper_parameters({}, 1, "not ) readable", "batch_size=1")
    assert found == {"architecture": 1, "compile_params": "not ) readable", "fit_params": "batch_size=1"}
    assert hyper_parameters({}, 1, "(" * 500, None)["compile_params"] == "(" * 500


def test_layers_are_named_in_order_with_their_sizes():
    network = {"class_name": "Sequential", "config": {"layers": [
        {"class_name": "InputLayer", "config": {}},
        {"class_name": "Conv2D", "config": {"filters": 8, "kernel_size": [3, 3], "activation": "relu",
                                            "kernel_regularizer": {"config": {"l2": 0.001}}}},
        {"class_name": "Flatten"},
        {"class_name": "Dense", "config": {"units": 10, "activation": "softmax"}}]}}  # fmt: skip
    assert layers_in_words(network) == "Conv2D 8 3×3 relu L2 0.001 → Flatten → Dense 10 softmax"
    assert layers_in_words({"config": None}) == layers_in_words([]) == "unknown layers"


def test_a_deep_network_is_shortened():
    deep = {"config": {"layers": [{"class_name": "Dense", "config": {"units": n}} for n in range(40)]}}
    assert layers_in_words(deep).count("→") == 11 and "29 more layers" in layers_in_words(deep)


def test_the_difference_of_two_models_has_what_differs_only():
    facts = some_facts()
    first, second = a_model(1), a_model(4, detail="stopped by ada", state="stopped")
    found = {d.name: (d.first, d.second) for d in differences(facts, first, second)}
    assert found["learning_rate"] == ("0.001", "0.004") and found["state"] == ("trained", "stopped: stopped by ada")
    assert found["network"] == ("2: Flatten → Dense 10 softmax", "1: Dense 10 softmax")
    assert not {"optimizer", "iterations", "time in visits", "batch_size"} & set(found)
    assert differences(facts, first, first) == ()


def test_a_parameter_of_one_model_only_is_a_difference():
    with_momentum = a_model(1, hyper_parameters={"momentum": 0.9})
    found = {d.name: (d.first, d.second) for d in differences(some_facts(), with_momentum, a_model(1))}
    assert found["momentum"] == ("0.9", "")


def test_positions_keep_order_and_scale():
    few = dimension("batch_size", [64, 16, 32])
    assert few.places == (1.0, 0.0, 0.5) and [text for _, text in few.ticks] == ["16", "32", "64"]
    rates = dimension("lr", [10.0**-k for k in range(1, 9)])
    assert rates.places[0] == 1.0 and rates.places[1] == pytest.approx(6 / 7)
    mixed = dimension("decay", [None, 0.1, "auto"])
    assert [text for _, text in mixed.ticks] == ["0.1", "auto", "—"]
