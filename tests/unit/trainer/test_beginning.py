"""First visits in a compiled model that others have used: they begin as a newly built model does, bit for bit."""

import keras
import numpy as np
import pytest
from keras import layers

from madlib_mop.models.parameters.keras_names import OPTIMIZERS
from madlib_mop.trainer.backends.base.columns import DataSpec
from madlib_mop.trainer.data.parts import GROUPS
from madlib_mop.trainer.graphs.compiled import CompiledModel
from madlib_mop.trainer.graphs.variables import ModelVariables
from madlib_mop.trainer.recipe import Recipe
from madlib_mop.trainer.visits import Start, _begin

SPEC = DataSpec((("float32", (3,)),), (("int16", (2,)),))
RATE = "learning_rate=0.5"
#: Optimizers whose variables are not all 0 at the beginning.
BEGIN_WITH_NUMBERS = {"Adagrad", "Ftrl", "Nadam", "ScheduleFreeAdamW"}


def recipe(optimizer: str, mst_key: int, **more) -> Recipe:
    network = [keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)]
    model = {"arch": keras.Sequential(network).to_json(), "fit_params": "batch_size=2, epochs=1", "seed": 7}
    compile_params = f"loss='categorical_crossentropy', optimizer='{optimizer}'"
    return Recipe.read({**model, "compile_params": compile_params, "mst_key": mst_key, **more})


def used(of: Recipe) -> CompiledModel:
    """Return the compiled model of a configuration after other numbers were left in it."""
    compiled = CompiledModel(of.build(), SPEC, of.architecture)
    for group in GROUPS:
        for variable in compiled.groups[group]:
            variable.assign(np.full(variable.shape, 3, keras.backend.standardize_dtype(variable.dtype)))
    return compiled


def values(of: ModelVariables) -> list[bytes]:
    return [np.asarray(of.read(group, i)).tobytes() for group in GROUPS for i in range(len(of.groups[group]))]


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS)))
def test_a_first_visit_begins_as_a_new_model_does(name):
    first, second = recipe(f"{name}()", 1), recipe(f"{name}({RATE})", 2)
    compiled = used(first)
    _begin(compiled, second, Start(), None, GROUPS)
    assert values(compiled) == values(ModelVariables(second.build()))
    assert compiled.has_empty_optimizer == (name not in BEGIN_WITH_NUMBERS)


def test_a_schedule_of_learning_rates_and_given_weights():
    schedule = "Adam(learning_rate=ExponentialDecay(0.1, 10, 0.5))"
    first, second = recipe(schedule, 1), recipe(schedule, 2)
    compiled = used(first)
    _begin(compiled, second, Start(), None, GROUPS)
    assert values(compiled) == values(ModelVariables(second.build()))
    weights = np.arange(compiled.weights_bytes // 4, dtype=np.float32).tobytes()
    _begin(compiled, first, Start(weights=[weights]), None, GROUPS)
    assert values(compiled) == values(ModelVariables(first.build([weights])))


def test_what_was_built_for_a_configuration_is_used_as_it_is():
    one = recipe("Adam()", 1)
    compiled = CompiledModel(one.build(), SPEC, one.architecture)
    compiled.drawn_for = one.chance
    before = values(compiled)
    _begin(compiled, one, Start(), None, GROUPS)
    assert values(compiled) == before and compiled.drawn_for is None
