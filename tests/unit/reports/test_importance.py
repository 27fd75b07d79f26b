"""Importance of hyper-parameters: what explains the figures is found, and what cannot be known is not invented."""

from dataclasses import replace

from madlib_mop.reports.importance import importance, is_logarithmic, varied
from tests.helpers.reports import a_model, some_facts


def models(score, n=24, **extra):
    """Return models on a grid, whose loss is a function of the values."""
    made = []
    for key in range(1, n + 1):
        network = str(key % 24 // 12)
        values = {"learning_rate": 10.0 ** -(1 + key % 4), "batch_size": 16 * (1 + key % 3), "network": network}
        loss = score(values)
        made.append(a_model(key, validation_metric=1 - loss, validation_loss=loss, hyper_parameters=values | extra))
    return tuple(made)


def test_the_parameter_that_decides_is_the_most_important():
    for decisive in ("network", "learning_rate", "batch_size"):
        found = importance(some_facts(sample=models(lambda v, name=decisive: hash_of(v[name]))))
        assert found.shares[0][0] == decisive and found.shares[0][1] > 0.8
        assert abs(sum(share for _, share in found.shares) - 1) < 1e-6
        assert (found.evaluator, found.n_models) == ("fANOVA", 24)


def hash_of(value) -> float:
    """Return a loss that depends on a value only."""
    return (float(value) * 7919) % 13 / 13


def test_the_same_models_have_the_same_importance():
    facts = some_facts(sample=models(lambda v: hash_of(v["network"]) + 0.1 * hash_of(v["batch_size"])))
    assert importance(facts) == importance(facts)


def test_few_models_or_equal_figures_have_none():
    assert importance(some_facts(sample=models(lambda v: hash_of(v["network"]), n=9))) is None
    assert importance(some_facts(sample=models(lambda v: 0.5))) is None


def test_a_parameter_that_not_all_models_have_is_left_out_and_named():
    some = [replace(m, hyper_parameters={**m.hyper_parameters, "momentum": 0.1 * i}) if i % 2 else m
            for i, m in enumerate(models(lambda v: hash_of(v["network"])))]  # fmt: skip
    found = importance(some_facts(sample=tuple(some)))
    assert found.left_out == ("momentum",) and "momentum" not in dict(found.shares)


def test_models_of_other_iterations_do_not_count_if_enough_are_comparable():
    comparable = models(lambda v: hash_of(v["network"]))
    early = tuple(replace(a_model(100 + i), comparable=False, validation_metric=0.0) for i in range(10))
    assert importance(some_facts(sample=comparable + early)).n_models == len(comparable)


def test_only_parameters_with_two_values_are_varied():
    pair = (a_model(1, hyper_parameters={"a": 1, "b": 2}), a_model(3, hyper_parameters={"a": 1, "b": 3, "c": 4}))
    assert varied(pair) == ("b", "c")


def test_rates_over_a_power_of_ten_are_compared_by_their_logarithm():
    assert is_logarithmic([0.001, 0.1]) and not is_logarithmic([0.01, 0.05]) and not is_logarithmic([0.0, 1.0])
